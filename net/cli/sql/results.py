"""Rows of a result on stdout: a table for people, JSON lines or CSV for programs. In pieces: a result may be large."""

import base64
import csv
import json
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, Final

from ..frame.output import Output

ROWS_AT_A_TIME: Final = 10_000


def show(out: Output, rows: Any, *, as_csv: bool) -> None:
    """`rows` is a pyarrow.RecordBatchReader."""
    names = rows.schema.names
    writer = csv.writer(out.stdout)
    if as_csv:
        writer.writerow(names)
    for batch in rows:
        found = batch.to_pylist()
        if as_csv:
            writer.writerows([_cell(row[name]) for name in names] for row in found)
        elif out.is_json:
            for row in found:
                out.stdout.write(json.dumps(_shown(row), ensure_ascii=False) + "\n")
        else:
            out.rows([{name: _cell(row[name]) for name in names} for row in found], names)


def _cell(value: object) -> object:
    shown = _shown(value)
    return json.dumps(shown, ensure_ascii=False) if isinstance(shown, dict | list) else shown


def _shown(value: object) -> object:
    """As JSON has it. Bytes are text, or base64 where they are none."""
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
