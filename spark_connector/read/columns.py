"""`ColumnBuilder`: records of a partition as Arrow record batches with the requested columns.

A column is one pass over the records in C (`map` of an attribute, one call of pyarrow); a column that is not requested costs
nothing, and a constant column (topic, partition) is built once.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy
import pyarrow
from pyspark.sql.types import StructType

from barnabas.log.format.record_batch import TIMESTAMP_TYPE_MASK, BatchHeader
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..common.schema import arrow_schema

# Columns that are attributes of a record; the others follow from batches.
_PER_RECORD = ("key", "value", "timestamp", "headers")
US_PER_MS = 1_000


class ColumnBuilder:
    def __init__(self, schema: StructType, partition: TopicPartition) -> None:
        self._schema = arrow_schema(schema)
        self._constants = {"topic": partition.topic, "partition": partition.partition}
        self._readers: dict[str, Callable[[Any], Any]] = {
            name: attrgetter(name) for name in self._schema.names if name in _PER_RECORD
        }
        self._has_offsets = "offset" in self._schema.names
        self._repeated: dict[str, pyarrow.Array] = {}
        self._clear()

    def _clear(self) -> None:
        self.row_count = 0
        self.size_bytes = 0  # Of the batches that the rows came in.
        self._columns: dict[str, list[Any]] = {name: [] for name in self._readers}
        self._offsets: list[numpy.ndarray[Any, numpy.dtype[numpy.int64]]] = []
        self._timestamp_types: list[tuple[int, int]] = []  # (type, number of rows)

    def add(self, header: BatchHeader, records: Sequence[Any]) -> None:
        for name, read in self._readers.items():
            self._columns[name].extend(map(read, records))
        if self._has_offsets:
            self._offsets.append(_offsets(records))
        self._timestamp_types.append((1 if header.attributes & TIMESTAMP_TYPE_MASK else 0, len(records)))
        self.row_count += len(records)
        self.size_bytes += header.size_bytes

    def take(self) -> pyarrow.RecordBatch:
        """Return all added rows as one batch and empty the builder."""
        arrays = [self._array(field) for field in self._schema]
        self._clear()
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pyarrow.Field) -> pyarrow.Array:
        match field.name:
            case "topic" | "partition":
                return self._constant(field)
            case "timestampType":
                types, counts = zip(*self._timestamp_types, strict=True)
                return pyarrow.array(numpy.repeat(numpy.array(types, numpy.int32), counts))
            case "timestamp":
                stamps_ms = numpy.fromiter(self._columns["timestamp"], numpy.int64, self.row_count)
                return pyarrow.array(stamps_ms * US_PER_MS).cast(field.type)
            case "offset":
                return pyarrow.array(numpy.concatenate(self._offsets))
            case "headers":
                return pyarrow.array(_headers_or_null(self._columns["headers"]), field.type)
        return pyarrow.array(self._columns[field.name], field.type)

    def _constant(self, field: pyarrow.Field) -> pyarrow.Array:
        made = self._repeated.get(field.name)
        if made is None or len(made) < self.row_count:
            value = pyarrow.scalar(self._constants[field.name], field.type)
            made = self._repeated[field.name] = pyarrow.repeat(value, self.row_count)
        return made.slice(0, self.row_count)


def _offsets(records: Sequence[Any]) -> "numpy.ndarray[Any, numpy.dtype[numpy.int64]]":
    """Offsets ascend; unless compaction removed some, the first and the last determine all of them."""
    first, last = records[0].offset, records[-1].offset
    if last - first + 1 == len(records):
        return numpy.arange(first, last + 1, dtype=numpy.int64)
    return numpy.fromiter((record.offset for record in records), numpy.int64, len(records))


def _headers_or_null(headers: Iterable[Any]) -> list[Any]:
    """As in Spark's Kafka source, a record without headers has null, not an empty array."""
    return [list(item) if item else None for item in headers]
