"""`ArrowColumns`: decoded records of a partition as Arrow record batches with the requested columns.

Keys, values, headers and offsets are the buffers that were decoded, without a copy. A column that is not requested costs nothing.
"""

import numpy
import pyarrow
from pyspark.sql.types import StructType

from barnabas.log.records.columns import BinaryColumn, Columns, HeaderColumn
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..common.schema import arrow_schema

_MILLISECONDS = pyarrow.timestamp("ms", tz="UTC")


class ArrowColumns:
    """Of one partition and one requested schema."""

    def __init__(self, schema: StructType, partition: TopicPartition, topic_id: str = "") -> None:
        self._schema = arrow_schema(schema)
        self._constants = {"topic": partition.topic, "partition": partition.partition, "topicId": topic_id}
        self._repeated: dict[str, pyarrow.Array] = {}

    def batch_of(self, columns: Columns) -> pyarrow.RecordBatch:
        arrays = [self._array(field, columns) for field in self._schema]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pyarrow.Field, columns: Columns) -> pyarrow.Array:
        count = columns.count
        match field.name:
            case "topic" | "partition" | "topicId":
                return self._constant(field, count)
            case "key":
                return _binary(columns.keys, count, field.type)
            case "value":
                return _binary(columns.values, count, field.type)
            case "timestampType":
                is_append_time, counts = zip(*columns.append_time_runs, strict=True)
                return pyarrow.array(numpy.repeat(numpy.array(is_append_time, numpy.int32), counts))
            case "timestamp":
                stamps = pyarrow.Array.from_buffers(
                    _MILLISECONDS, count, [None, pyarrow.py_buffer(columns.timestamps_ms)]
                )
                return stamps.cast(field.type, safe=False)
            case "offset":
                return pyarrow.Array.from_buffers(field.type, count, [None, pyarrow.py_buffer(columns.offsets)])
        assert field.name == "headers"
        return _headers(columns.headers, count, field.type)

    def _constant(self, field: pyarrow.Field, count: int) -> pyarrow.Array:
        made = self._repeated.get(field.name)
        if made is None or len(made) < count:
            value = pyarrow.scalar(self._constants[field.name], field.type)
            made = self._repeated[field.name] = pyarrow.repeat(value, count)
        return made.slice(0, count)


def _binary(column: BinaryColumn, count: int, kind: pyarrow.DataType) -> pyarrow.Array:
    validity = None if column.validity is None else pyarrow.py_buffer(column.validity)
    buffers = [validity, pyarrow.py_buffer(column.offsets), pyarrow.py_buffer(column.data)]
    return pyarrow.Array.from_buffers(kind, count, buffers, column.null_count)


def _headers(column: HeaderColumn, count: int, kind: pyarrow.DataType) -> pyarrow.Array:
    """As in Spark's Kafka source, a record without headers has null, not an empty array."""
    bounds = numpy.frombuffer(column.offsets, numpy.int32, count + 1)
    has_headers = numpy.diff(bounds) > 0
    validity = numpy.packbits(has_headers, bitorder="little")
    name_field, value_field = kind.value_type
    entries = pyarrow.StructArray.from_arrays(
        [_binary(column.names, column.count, name_field.type), _binary(column.values, column.count, value_field.type)],
        fields=[name_field, value_field],
    )
    buffers = [pyarrow.py_buffer(validity), pyarrow.py_buffer(column.offsets)]
    return pyarrow.Array.from_buffers(kind, count, buffers, children=[entries])
