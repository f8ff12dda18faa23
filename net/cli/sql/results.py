"""Rows of a result on stdout: a table for people, JSON lines or CSV for programs. In pieces: a result may be large."""

import base64
import csv
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, Final

import pyarrow

from ..frame.output import Output

ROWS_AT_A_TIME: Final = 10_000


Values = Sequence[object]  # of a row, in the order of the columns


def show(out: Output, rows: Any, *, as_csv: bool) -> None:
    """`rows` is a pyarrow.RecordBatchReader."""
    names = distinct(rows.schema.names)
    if as_csv:
        show_head(out, names)
    for batch in rows:
        show_rows(out, names, values_of(batch), as_csv=as_csv)


def values_of(rows: pyarrow.RecordBatch | pyarrow.Table) -> list[Values]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def show_head(out: Output, names: Sequence[str]) -> None:
    """Of CSV."""
    csv.writer(out.stdout).writerow(names)


def show_rows(out: Output, names: Sequence[str], rows: Sequence[Values], *, as_csv: bool) -> None:
    if as_csv:
        csv.writer(out.stdout).writerows(map(_cell, row) for row in rows)
    elif out.is_json:
        for row in rows:
            shown = dict(zip(names, map(_shown, row), strict=True))
            out.stdout.write(json.dumps(shown, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        out.rows([dict(zip(names, map(_cell, row), strict=True)) for row in rows], names)


def distinct(names: Sequence[str]) -> list[str]:
    """Columns of a join may have the same name: the second is `name_1`, as DuckDB calls it in a table."""
    found: list[str] = []
    for name in names:
        number, other = 0, name
        while other in found:
            number, other = number + 1, f"{name}_{number + 1}"
        found.append(other)
    return found


def _cell(value: object) -> object:
    shown = _shown(value)
    return json.dumps(shown, ensure_ascii=False) if isinstance(shown, dict | list) else shown


def _shown(value: object) -> object:
    """As JSON has it. Bytes are text, or base64 where they are none; JSON has no NaN and no infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, pyarrow.MonthDayNano):
        return f"P{value.months}M{value.days}DT{value.nanoseconds / 1e9:.9g}S"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): _shown(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
