"""Fetched records as Arrow record batches. The buffers of `Columns` become arrays: no record is copied or made an object.

Use `extra.batch_builder`, which imports this module only where pyarrow is installed. Arrays are made from buffers, not by
`pyarrow.array` or `pyarrow.scalar`: the first call of these imports pandas where it is installed, which takes 0.3 s.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow

from barnabas.log.format.record_batch import Buffer
from barnabas.log.records.columns import BinaryColumn, Columns, HeaderColumn
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import InvalidRequestError
from ..connection.records import ConsumerRecord

_TOPIC = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
_TIMESTAMP = pyarrow.timestamp("ms", tz="UTC")
_HEADER_FIELDS = [
    pyarrow.field("key", pyarrow.string(), nullable=False),
    pyarrow.field("value", pyarrow.binary()),
]
_HEADERS = pyarrow.list_(pyarrow.field("item", pyarrow.struct(_HEADER_FIELDS), nullable=False))
SCHEMA = pyarrow.schema(
    [
        pyarrow.field("topic", _TOPIC, nullable=False),
        pyarrow.field("partition", pyarrow.int32(), nullable=False),
        pyarrow.field("offset", pyarrow.int64(), nullable=False),
        pyarrow.field("timestamp", _TIMESTAMP, nullable=False),
        pyarrow.field("key", pyarrow.binary()),
        pyarrow.field("value", pyarrow.binary()),
        pyarrow.field("headers", _HEADERS, nullable=False),
    ]
)


def schema_of(columns: Sequence[str] | None) -> pyarrow.Schema:
    """The schema with these columns, in this order; None: all. Raises InvalidRequestError."""
    if columns is None:
        return SCHEMA
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown:
        raise InvalidRequestError(f"there is no column {unknown[0]!r}; the columns are {', '.join(SCHEMA.names)}")
    return pyarrow.schema([SCHEMA.field(name) for name in columns])


class BatchBuilder:
    """Record batches with the requested columns. Of one thread at a time."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self.schema = schema_of(columns)
        self._zeros = b""  # Indices into a dictionary of one topic; as many as the largest batch had rows.
        self._numbers: dict[int, pyarrow.Array] = {}  # Of each partition, likewise.

    def batch(self, partition: TopicPartition, columns: Columns) -> pyarrow.RecordBatch:
        """The batch keeps the buffers of the columns in memory."""
        arrays = [self._array(name, partition, columns) for name in self.schema.names]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self.schema)

    def batch_of(self, partition: TopicPartition, taken: Columns | Sequence[ConsumerRecord]) -> pyarrow.RecordBatch:
        """Of columns, or of records that are objects already."""
        return self.batch(partition, taken) if isinstance(taken, Columns) else self.batch_of_records(partition, taken)

    def batch_of_records(self, partition: TopicPartition, records: Sequence[ConsumerRecord]) -> pyarrow.RecordBatch:
        """As `batch`, of a few records that are objects already."""
        count = len(records)
        headers = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
        found = {
            "topic": self._topics(partition.topic, count),
            "partition": self._partitions(partition.partition, count),
            "offset": pyarrow.array([record.offset for record in records], pyarrow.int64()),
            "timestamp": pyarrow.array([record.timestamp_ms for record in records], pyarrow.int64()).cast(_TIMESTAMP),
            "key": pyarrow.array([record.key for record in records], pyarrow.binary()),
            "value": pyarrow.array([record.value for record in records], pyarrow.binary()),
            "headers": pyarrow.array(headers, _HEADERS),
        }
        return pyarrow.RecordBatch.from_arrays([found[name] for name in self.schema.names], schema=self.schema)

    def table(self, batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
        """All batches as one table, with one dictionary of topics."""
        found = list(batches)
        table = pyarrow.Table.from_batches(found, schema=self.schema)
        return table.unify_dictionaries() if len(found) > 1 else table

    def _array(self, name: str, partition: TopicPartition, columns: Columns) -> pyarrow.Array:
        count = columns.count
        match name:
            case "topic":
                return self._topics(partition.topic, count)
            case "partition":
                return self._partitions(partition.partition, count)
            case "offset":
                return pyarrow.Array.from_buffers(pyarrow.int64(), count, [None, pyarrow.py_buffer(columns.offsets)])
            case "timestamp":
                return pyarrow.Array.from_buffers(_TIMESTAMP, count, [None, pyarrow.py_buffer(columns.timestamps_ms)])
            case "key":
                return _binary(columns.keys, count)
            case "value":
                return _binary(columns.values, count)
        return _headers(columns.headers, count)

    def _topics(self, topic: str, count: int) -> pyarrow.Array:
        if len(self._zeros) < 4 * count:
            self._zeros = bytes(4 * count)
        indices = pyarrow.Array.from_buffers(pyarrow.int32(), count, [None, pyarrow.py_buffer(self._zeros)])
        name = topic.encode()
        bounds = array("i", (0, len(name)))
        names = pyarrow.Array.from_buffers(
            pyarrow.string(), 1, [None, pyarrow.py_buffer(bounds), pyarrow.py_buffer(name)]
        )
        return pyarrow.DictionaryArray.from_arrays(indices, names)

    def _partitions(self, number: int, count: int) -> pyarrow.Array:
        made = self._numbers.get(number)
        if made is None or len(made) < count:
            numbers = pyarrow.py_buffer(array("i", (number,)) * count)
            made = self._numbers[number] = pyarrow.Array.from_buffers(pyarrow.int32(), count, [None, numbers])
        return made.slice(0, count)


def _binary(column: BinaryColumn, count: int, kind: Any = None) -> pyarrow.Array:
    buffers = [_buffer(column.validity), pyarrow.py_buffer(column.offsets), pyarrow.py_buffer(column.data)]
    return pyarrow.Array.from_buffers(kind or pyarrow.binary(), count, buffers, column.null_count)


def _headers(column: HeaderColumn, count: int) -> pyarrow.Array:
    names = _binary(column.names, column.count, pyarrow.string())
    pairs = pyarrow.StructArray.from_arrays([names, _binary(column.values, column.count)], fields=_HEADER_FIELDS)
    return pyarrow.Array.from_buffers(_HEADERS, count, [None, pyarrow.py_buffer(column.offsets)], 0, children=[pairs])


def _buffer(data: Buffer | None) -> Any:
    return None if data is None else pyarrow.py_buffer(data)
