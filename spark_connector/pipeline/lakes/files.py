"""Rows into Parquet files of a table, in Spark's tasks, for the writers of Delta and Iceberg tables.

Nobody sees a file until the driver names it in a commit. A file is on disk before the driver hears of it.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from ..faults import PipelineFault

MAX_OPEN_FILES: Final = 64  # of one task: of so many values of partition_by at a time; then the oldest one is complete
MAX_COMMITS: Final = 5  # attempts at one commit, if other writers of the table are in its way
MAX_FILE_BYTES: Final = 128 * 1024 * 1024  # Parquet's; then another one begins
ADDED: Final = T.StructType(
    [
        T.StructField("path", T.StringType(), nullable=False),
        T.StructField("size_bytes", T.LongType(), nullable=False),
        T.StructField("rows", T.LongType(), nullable=False),
        T.StructField("partition", T.StringType(), nullable=False),  # JSON
    ]
)

Partition = tuple[str | None, ...]


def compute(batch: DataFrame) -> None:
    """A micro-batch that the table has: Spark moves its watermark forward only with rows that are computed. Without that, windows
    that it closes would wait for the next record."""
    batch.write.format("noop").mode("append").save()


def sync(path: Path) -> None:
    """Of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_files(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    folder: str,
    partition_by: tuple[str, ...],
    prefix: str,
    required: frozenset[str] = frozenset(),
) -> Iterator[pa.RecordBatch]:
    """One row for each file that is complete, and on disk. `required`: columns of the table that are never null.
    Columns of `batches` come in the order of `schema`, under any names."""
    files: dict[Partition, _File] = {}
    stored = pa.schema([field for field in schema if field.name not in partition_by])
    for batch in batches:
        all_rows = pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema)
        _check_required(all_rows, required, partition_by)
        for values, rows in _parts(all_rows, partition_by):
            file = files.get(values)
            if file is None:
                if len(files) >= MAX_OPEN_FILES:
                    yield files.pop(next(iter(files))).finish()
                partition = dict(zip(partition_by, values, strict=True))
                file = files[values] = _File(folder, f"{prefix}-{uuid.uuid4().hex}.parquet", stored, partition)
            file.write(rows.select(stored.names))
            if file.size_bytes >= MAX_FILE_BYTES:
                yield files.pop(values).finish()
    for file in files.values():
        yield file.finish()
    sync(Path(folder))


def _check_required(rows: pa.Table, required: frozenset[str], partition_by: tuple[str, ...]) -> None:
    """Readers rely on it, and skip the check for null."""
    for name in required:
        column = rows[name]
        is_empty = name in partition_by and pa.types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py()
        if column.null_count or is_empty:
            value = "an empty text, which is null in partition_by," if is_empty else "a null"
            raise PipelineFault(
                f"sink.delta: a row has {value} in {name!r}, which the table declares NOT NULL: leave such rows out, or give the "
                "column a default with coalesce"
            )


def _parts(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterable[tuple[Partition, pa.Table]]:
    """The rows of each combination of values, which are as Delta's log writes them."""
    if not rows.num_rows:
        return
    if not partition_by:
        yield (), rows
        return
    for values in rows.select(partition_by).group_by(list(partition_by)).aggregate([]).to_pylist():
        mask: Any = None
        for name in partition_by:
            value, column = values[name], rows[name]
            same = (
                pc.is_null(column)
                if value is None
                else pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)
            )
            mask = same if mask is None else pc.and_(mask, same)
        yield tuple(_as_text(values[name]) for name in partition_by), rows.filter(mask)


def _as_text(value: Any) -> str | None:
    """Delta's log has no empty text: it means null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None or value == "" else str(value)


class _File:
    def __init__(self, folder: str, name: str, schema: pa.Schema, partition: dict[str, str | None]) -> None:
        self._path = Path(folder) / name
        self._partition = partition
        self._rows = 0
        self._output = self._path.open("xb")
        self._writer = pq.ParquetWriter(self._output, schema, compression="zstd")

    @property
    def size_bytes(self) -> int:
        return int(self._output.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._rows += rows.num_rows

    def finish(self) -> pa.RecordBatch:
        self._writer.close()
        self._output.flush()
        os.fsync(self._output.fileno())  # the commit must not name a file that a power failure takes away
        size_bytes = self.size_bytes
        self._output.close()
        columns = [[self._path.name], [size_bytes], [self._rows], [json.dumps(self._partition)]]
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=ADDED.names)
