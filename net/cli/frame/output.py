"""What a command prints: data on stdout (text for people, JSON for programs), everything else on stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from ...base.printable import printable

Row = Mapping[str, object]  # of what JSON knows

GAP: Final = "  "


class Output:
    """Prints rows and objects in the format that was asked for."""

    def __init__(self, output_format: str, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.is_json = output_format == "json"
        self.stdout = stdout if stdout is not None else sys.stdout
        self.stderr = stderr if stderr is not None else sys.stderr

    def rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """A table. In text `columns` are shown, in that order; JSON has every field of every row."""
        if self.is_json:
            self._json(list(rows))
            return
        if not rows:
            return
        cells = [[_shown(row.get(column)) for column in columns] for row in rows]
        head = [column.upper().replace("_", "-") for column in columns]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        for line in (head, *cells):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self.text(GAP.join(padded).rstrip())

    def record(self, row: Row) -> None:
        """One object: a line for each field."""
        if self.is_json:
            self._json(row)
            return
        width = max(len(name) for name in row)
        for name, value in row.items():
            self.text(f"{name.replace('_', ' ').ljust(width)}{GAP}{_shown(value)}")

    def line(self, text: str, row: Row) -> None:
        """A sentence for people, an object for programs."""
        if self.is_json:
            self._json(row)
        else:
            self.text(text)

    def text(self, line: str = "") -> None:
        """One line for people."""
        print(printable(line), file=self.stdout)

    def note(self, text: str) -> None:
        """For the person at the terminal only."""
        print(printable(text), file=self.stderr, flush=True)

    def _json(self, value: object) -> None:
        print(json.dumps(value, ensure_ascii=False), file=self.stdout)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value)) or "-"
    return printable(str(value))  # before columns are measured
