"""The output of a command: data goes to stdout (text for people, JSON for programs), everything else to stderr."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from ...base.printable import printable

Row = Mapping[str, object]  # values are JSON types

GAP: Final = "  "
BOLD: Final = "\x1b[1m"
RED: Final = "\x1b[31m"
PLAIN: Final = "\x1b[0m"


def has_colours(stream: TextIO) -> bool:
    """On terminals only, and not where NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Prints rows and objects in the requested format."""

    def __init__(self, output_format: str, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.is_json = output_format == "json"
        self.stdout = stdout if stdout is not None else sys.stdout
        self.stderr = stderr if stderr is not None else sys.stderr

    def rows(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Print a table. Text shows `columns` in that order; JSON has every field of every row."""
        if self.is_json:
            self._json(list(rows))
            return
        if not rows:
            return
        cells = [[_shown(row.get(column)) for column in columns] for row in rows]
        head = [column.upper().replace("_", "-") for column in columns]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        is_coloured = has_colours(self.stdout)
        for line in (head, *cells):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            text = GAP.join(padded).rstrip()
            if is_coloured and line is head:
                print(f"{BOLD}{text}{PLAIN}", file=self.stdout)
            else:
                self.text(text)

    def record(self, row: Row) -> None:
        """Print one object, one line per field."""
        if self.is_json:
            self._json(row)
            return
        width = max(len(name) for name in row)
        for name, value in row.items():
            self.text(f"{name.replace('_', ' ').ljust(width)}{GAP}{_shown(value)}")

    def line(self, text: str, row: Row) -> None:
        """Print a sentence (text) or an object (JSON)."""
        if self.is_json:
            self._json(row)
        else:
            self.text(text)

    def text(self, line: str = "") -> None:
        """Print one line in the text format only."""
        print(printable(line), file=self.stdout)

    def note(self, text: str) -> None:
        """Print a note on stderr."""
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
    return printable(str(value))  # before the column widths are computed
