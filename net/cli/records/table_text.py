"""Records as text columns and back, for CSV and NDJSON: bytes that are no UTF-8 go to columns `..._base64`. Needs pyarrow."""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow

from barnabas.net.client.arrow.json_rows import json_objects
from barnabas.net.client.arrow.tables import SCHEMA

from ..frame.exit_codes import CommandError
from .json_records import Header, bytes_of, line_of

_TEXT: Final = pyarrow.string()
_HEADERS: Final = SCHEMA.field("headers").type
_DECODE_HEADERS: Final = msgspec.json.Decoder(list[Header]).decode


def json_lines(batch: pyarrow.RecordBatch) -> bytes:
    """A line for each record."""
    columns = _text_columns(batch)
    objects = json_objects(list(columns), list(columns.values()))
    return b"".join(line.encode() + b"\n" for line in objects.to_pylist())


def csv_batch(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Columns that CSV can express; headers are JSON. All batches have the same columns."""
    columns = _text_columns(batch)
    for name in ("key_base64", "value_base64"):
        columns.setdefault(name, pyarrow.nulls(batch.num_rows, _TEXT))
    headers = json_objects(["headers"], [columns["headers"]])
    columns["headers"] = pyarrow.array([text[len('{"headers":') : -1] for text in headers.to_pylist()], _TEXT)
    names = ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers")
    return pyarrow.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))


def batch_of_lines(lines: Sequence[bytes], first_line: int) -> pyarrow.RecordBatch:
    """Raises CommandError, which names the line."""
    found = [line_of(text, number) for number, text in enumerate(lines, first_line)]
    return _record_batch(
        keys=[(line.key, line.key_base64) for line in found],
        values=[(None if line.value is msgspec.UNSET else line.value, line.value_base64) for line in found],
        headers=[line.headers or [] for line in found],
        timestamps=[line.timestamp for line in found],
        partitions=[line.partition for line in found],
        first_line=first_line,
    )


def batch_of_csv(batch: pyarrow.RecordBatch, first_line: int) -> pyarrow.RecordBatch:
    """The columns of a CSV file that has a column `value` or `value_base64`."""

    def cells(name: str) -> list[Any]:
        return batch[name].to_pylist() if name in batch.schema.names else [None] * batch.num_rows

    try:
        headers = [_DECODE_HEADERS(text) if text else [] for text in cells("headers")]
    except msgspec.MsgspecError as error:
        raise CommandError(f"headers after line {first_line} are no JSON list of key and value: {error}") from error
    return _record_batch(
        keys=list(zip(cells("key"), cells("key_base64"), strict=True)),
        values=list(zip(cells("value"), cells("value_base64"), strict=True)),
        headers=headers,
        timestamps=cells("timestamp"),
        partitions=cells("partition"),
        first_line=first_line,
    )


def _record_batch(
    *,
    keys: Sequence[tuple[str | None, str | None]],
    values: Sequence[tuple[str | None, str | None]],
    headers: Sequence[Sequence[Header]],
    timestamps: Sequence[int | None],
    partitions: Sequence[int | None],
    first_line: int,
) -> pyarrow.RecordBatch:
    columns: dict[str, Any] = {
        "key": pyarrow.array([bytes_of(*cell, line) for line, cell in enumerate(keys, first_line)], pyarrow.binary()),
        "value": pyarrow.array(
            [bytes_of(*cell, line) for line, cell in enumerate(values, first_line)], pyarrow.binary()
        ),
        "headers": pyarrow.array(
            [
                [{"key": item.key, "value": bytes_of(item.value, item.value_base64, line)} for item in row]
                for line, row in enumerate(headers, first_line)
            ],
            _HEADERS,
        ),
    }
    for name, cells in (("timestamp", timestamps), ("partition", partitions)):
        if None not in cells:
            columns[name] = pyarrow.array(cells, pyarrow.int64())
    return pyarrow.RecordBatch.from_pydict(columns)


def _text_columns(batch: pyarrow.RecordBatch) -> dict[str, pyarrow.Array]:
    columns = {
        "topic": batch["topic"].dictionary_decode(),
        "partition": batch["partition"],
        "offset": batch["offset"],
        "timestamp": batch["timestamp"].cast(pyarrow.int64()),
        **_text("key", batch["key"]),
        **_text("value", batch["value"]),
    }
    pairs = batch["headers"].values
    fields = {"key": pairs.field(0), **_text("value", pairs.field(1))}
    structs = pyarrow.StructArray.from_arrays(list(fields.values()), names=list(fields))
    columns["headers"] = pyarrow.ListArray.from_arrays(batch["headers"].offsets, structs)
    return columns


def _text(name: str, column: pyarrow.Array) -> dict[str, pyarrow.Array]:
    """The column as text; with cells that are no UTF-8, another one that has these as base64."""
    try:
        return {name: column.cast(_TEXT)}
    except pyarrow.ArrowInvalid:
        texts: list[str | None] = []
        encoded: list[str | None] = []
        for cell in column.to_pylist():
            try:
                texts.append(None if cell is None else cell.decode())
                encoded.append(None)
            except UnicodeDecodeError:
                texts.append(None)
                encoded.append(base64.b64encode(cell).decode())
        return {name: pyarrow.array(texts, _TEXT), f"{name}_base64": pyarrow.array(encoded, _TEXT)}
