"""`ChangeColumns`: records of changes as Arrow record batches, with the columns that are asked for.

table string, op string, key string, before string, after string      the change: JSON objects of its key and rows
change_generation bigint, change_lsn bigint, change_order bigint      its place: ascending is the order of the commits
change_time timestamp                                                 of its commit
value string                                                          the whole change, in the envelope of Debezium
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from barnabas.net.programs.connect.postgres.changes.envelope import TRUNCATE_KEY

from ..common.schema import arrow_schema, check_columns

ROWS = 5_000  # of a record batch
BYTES = 1 << 24  # of the keys and values of a record batch, unless one has more: a column of strings has 2 GiB at most
COLUMNS = StructType(
    [
        *(StructField(name, StringType()) for name in ("table", "op", "key", "before", "after")),
        *(StructField(f"change_{name}", LongType()) for name in ("generation", "lsn", "order")),
        StructField("change_time", TimestampType()),
        StructField("value", StringType()),
    ]
)
_NULL = b"null"


class _Source(msgspec.Struct):
    schema: str
    table: str
    commit_lsn: int
    generation: int
    ts_ms: int


class _Transaction(msgspec.Struct):
    total_order: int


class _Envelope(msgspec.Struct):
    before: msgspec.Raw
    after: msgspec.Raw
    source: _Source
    op: str
    transaction: _Transaction


_decoder = msgspec.json.Decoder(_Envelope)
_READERS: Final[Mapping[str, Callable[[bytes, bytes, _Envelope], object]]] = {
    "table": lambda key, value, found: f"{found.source.schema}.{found.source.table}",
    "op": lambda key, value, found: found.op,
    "key": lambda key, value, found: None if key == TRUNCATE_KEY else key.decode(),
    "before": lambda key, value, found: _text(found.before),
    "after": lambda key, value, found: _text(found.after),
    "change_generation": lambda key, value, found: found.source.generation,
    "change_lsn": lambda key, value, found: found.source.commit_lsn,
    "change_order": lambda key, value, found: found.transaction.total_order,
    "change_time": lambda key, value, found: found.source.ts_ms * 1_000,
    "value": lambda key, value, found: value.decode(),
}


def check_projection(schema: StructType) -> None:
    """Raises InvalidConfigError for a column that a change does not have, or has with another type."""
    check_columns(schema, COLUMNS, "a change")


def batches_of(records: Iterable[tuple[bytes, bytes]], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """`records`: keys and values, as a source connector writes them."""
    arrow = arrow_schema(schema)
    rows: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, value in records:
        rows.append((key, value))
        size_bytes += len(key) + len(value)
        if len(rows) == ROWS or size_bytes >= BYTES:
            yield _batch(rows, arrow)
            rows, size_bytes = [], 0
    if rows:
        yield _batch(rows, arrow)


def _batch(rows: Sequence[tuple[bytes, bytes]], arrow: pyarrow.Schema) -> pyarrow.RecordBatch:
    decoded = [_decoder.decode(value) for _, value in rows]
    arrays = []
    for field in arrow:
        read = _READERS[field.name]
        found = [read(key, value, change) for (key, value), change in zip(rows, decoded, strict=True)]
        arrays.append(pyarrow.array(found, field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=arrow)


def _text(row: msgspec.Raw) -> str | None:
    found = bytes(row)
    return None if found == _NULL else found.decode()
