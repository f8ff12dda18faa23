"""`SinkColumns`: rows of a DataFrame as columns of records, by topic and partition, as in Spark's Kafka sink.

    value       string or binary, required; null is a tombstone
    key         string or binary
    topic       string, must not be null; the option `topic` overrides it
    partition   int; null: chosen by the key, or any partition without a key
    headers     array<struct<key string, value binary>>

No Python code runs per row: keys are hashed, and rows are grouped and extracted, by column. Only headers are processed one by
one.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy
import pyarrow
import pyarrow.compute
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidRequestError
from barnabas.net.client.connection.records import Headers

from ..common.schema import HEADERS_TYPE
from .key_partitions import NO_KEY, partitions_of_keys

_TEXT_OR_BYTES = "string or binary"
_ACCEPTED: dict[str, tuple[tuple[DataType, ...], str]] = {
    "value": ((StringType(), BinaryType()), _TEXT_OR_BYTES),
    "key": ((StringType(), BinaryType()), _TEXT_OR_BYTES),
    "topic": ((StringType(),), "string"),
    "partition": ((IntegerType(),), "int"),
    "headers": ((HEADERS_TYPE,), "array<struct<key:string,value:binary>>"),
}
# Further columns of a DataFrame that was read from a topic; new records get their own values.
_IGNORED = frozenset({"offset", "timestamp", "timestampType", "topicId"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records for one topic; `partition` None: any partition."""

    topic: str
    partition: int | None
    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Headers] | None


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Raises InvalidConfigError, which names the column and the cure."""
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        if field.name not in _ACCEPTED:
            known = ", ".join(_ACCEPTED)
            raise InvalidConfigError(
                f"column {field.name!r} cannot be written to a topic; valid columns: {known}: {_cure(field.name)}"
            )
        accepted, in_words = _ACCEPTED[field.name]
        if not any(_same(field.dataType, one) for one in accepted):
            raise InvalidConfigError(
                f"column {field.name!r} is {field.dataType.simpleString()} where {in_words} is needed: cast it, "
                f"or for several columns to_json(struct(...)) AS value"
            )
    if "value" not in schema.names:
        raise InvalidConfigError("there is no column 'value': select one, for instance to_json(struct(*)) AS value")
    if topic is None and "topic" not in schema.names:
        raise InvalidConfigError('there is no topic: .option("topic", NAME), or a column topic')


def _cure(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _ACCEPTED, 1)
    return f"did you mean {near[0]}?" if near else "put it into the value, to_json(struct(...)) AS value, or drop it"


def _same(found: DataType, wanted: DataType) -> bool:
    """Nullability and the collation of strings are ignored."""
    if isinstance(wanted, StringType):
        return isinstance(found, StringType)
    return found.simpleString() == wanted.simpleString()


class SinkColumns:
    """`partition_count` is called for every target topic; it may wait for the cluster."""

    def __init__(self, *, topic: str | None, partition_count: Callable[[str], int]) -> None:
        self._topic = topic
        self._partition_count = partition_count

    def rows(self, batch: pyarrow.RecordBatch) -> Iterator[Rows]:
        """Raises InvalidRequestError for a row that cannot be a record."""
        if batch.num_rows == 0:
            return
        for topic, part in self._by_topic(batch):
            yield from self._by_partition(topic, part)

    def _by_topic(self, batch: pyarrow.RecordBatch) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidRequestError(
                f'topic is null in {topics.null_count} of {len(topics)} rows: .option("topic", NAME), or coalesce the column'
            )
        for topic in pyarrow.compute.unique(topics).to_pylist():
            yield topic, batch.filter(pyarrow.compute.equal(topics, topic))

    def _by_partition(self, topic: str, batch: pyarrow.RecordBatch) -> Iterator[Rows]:
        values = batch.column("value").cast(pyarrow.binary())
        keys = _keys(batch)
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        chosen = self._partitions(topic, batch, keys)
        if chosen is None:
            yield _rows(topic, None, values, keys, headers)
            return
        order = numpy.argsort(chosen, kind="stable")
        partitions, starts = numpy.unique(chosen[order], return_index=True)
        for partition, start, end in zip(partitions, starts, [*starts[1:], len(order)], strict=True):
            rows = pyarrow.array(order[start:end])
            yield _rows(
                topic,
                None if partition == NO_KEY else int(partition),
                values.take(rows),
                None if keys is None else keys.take(rows),
                None if headers is None else headers.take(rows),
            )

    def _partitions(
        self, topic: str, batch: pyarrow.RecordBatch, keys: pyarrow.Array | None
    ) -> "numpy.typing.NDArray[numpy.int32] | None":
        """The partition of each row, NO_KEY for any partition; None if all rows may go to any partition."""
        explicit = batch.column("partition") if "partition" in batch.schema.names else None
        if explicit is not None and explicit.null_count == len(explicit):
            explicit = None
        if keys is None and explicit is None:
            return None
        count = self._partition_count(topic)
        found = numpy.full(batch.num_rows, NO_KEY, numpy.int32) if keys is None else partitions_of_keys(keys, count)
        if explicit is None:
            return found
        given = numpy.asarray(explicit.is_valid())
        wanted = explicit.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = given & ((wanted < 0) | (wanted >= count))
        if wrong.any():
            raise InvalidRequestError(
                f"partition {wanted[wrong][0]} of {int(wrong.sum())} rows: topic {topic!r} has partitions 0 to {count - 1}; "
                "null leaves the choice to the key"
            )
        return numpy.where(given, wanted, found).astype(numpy.int32)


def _keys(batch: pyarrow.RecordBatch) -> pyarrow.Array | None:
    """The keys, text as UTF-8; None if no row has a key."""
    if "key" not in batch.schema.names or batch.column("key").null_count == batch.num_rows:
        return None
    return batch.column("key").cast(pyarrow.binary())


def _rows(
    topic: str, partition: int | None, values: pyarrow.Array, keys: pyarrow.Array | None, headers: pyarrow.Array | None
) -> Rows:
    return Rows(
        topic=topic,
        partition=partition,
        values=values.to_pylist(),
        keys=None if keys is None else keys.to_pylist(),
        headers=None if headers is None or headers.null_count == len(headers) else _headers(headers),
    )


def _headers(column: pyarrow.Array) -> list[Headers]:
    found: list[Headers] = []
    for row in column.to_pylist():
        pairs = [(pair["key"], pair["value"]) for pair in row or ()]
        if any(name is None for name, _ in pairs):
            raise InvalidRequestError("a header has no key: filter the array, or give it a name")
        found.append(pairs)
    return found
