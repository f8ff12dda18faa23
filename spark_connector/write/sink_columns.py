"""`SinkColumns`: rows of a DataFrame as columns of records, by topic, as in Spark's Kafka sink.

    value       string or binary, required; null is a tombstone
    key         string or binary
    topic       string, must not be null; the option `topic` overrides it
    partition   int; null: chosen by the key, or any partition without a key
    headers     array<struct<key string, value binary>>

No row becomes a Python object: `send_table` encodes records from these columns.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow
import pyarrow.compute
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidRequestError
from barnabas.net.client.arrow.outgoing import STICKY, check_header_names, partitions_of_keys

from ..common.schema import HEADERS_TYPE

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
class SinkRows:
    """Records for one topic, as a table with the columns `value`, and if needed `key`, `headers` and `partition`."""

    topic: str
    table: pyarrow.RecordBatch

    @property
    def columns(self) -> dict[str, str]:
        """The arguments of `send_table`. A partition goes before a key."""
        return {name: name for name in self.table.schema.names}

    @property
    def may_go_anywhere(self) -> bool:
        return not {"key", "partition"} & set(self.table.schema.names)


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

    def rows(self, batch: pyarrow.RecordBatch) -> Iterator[SinkRows]:
        """Raises InvalidRequestError for a row that cannot be a record."""
        if batch.num_rows == 0:
            return
        for topic, part in self._by_topic(batch):
            columns = _columns(part)
            if "partition" in part.schema.names and part["partition"].null_count < part.num_rows:
                yield from self._with_partitions(topic, columns, part["partition"])
            else:
                yield SinkRows(topic=topic, table=pyarrow.RecordBatch.from_pydict(columns))

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

    def _with_partitions(
        self, topic: str, columns: dict[str, pyarrow.Array], given: pyarrow.Array
    ) -> Iterator[SinkRows]:
        """Some rows name their partition; the keys of the others decide, and rows with neither go to any."""
        count = self._partition_count(topic)
        wrong = pyarrow.compute.or_(pyarrow.compute.less(given, 0), pyarrow.compute.greater_equal(given, count))
        strange = given.filter(wrong)
        if len(strange):
            raise InvalidRequestError(
                f"partition {strange[0].as_py()} of {len(strange)} rows: topic {topic!r} has partitions 0 to {count - 1}; "
                "null leaves the choice to the key"
            )
        hashed = (
            partitions_of_keys(columns["key"], count) if "key" in columns else pyarrow.scalar(STICKY, pyarrow.int32())
        )
        chosen = pyarrow.compute.coalesce(given, hashed)
        table = pyarrow.RecordBatch.from_pydict({**columns, "partition": chosen})
        has_one = pyarrow.compute.not_equal(chosen, STICKY)
        chosen_rows = table.filter(has_one)
        if chosen_rows.num_rows:
            yield SinkRows(topic=topic, table=chosen_rows)
        others = table.filter(pyarrow.compute.invert(has_one))
        if others.num_rows:
            yield SinkRows(topic=topic, table=others.select([name for name in ("value", "headers") if name in columns]))


def _columns(batch: pyarrow.RecordBatch) -> dict[str, pyarrow.Array]:
    """Columns of a record that not all rows leave out."""
    columns = {"value": batch["value"].cast(pyarrow.binary())}
    if "key" in batch.schema.names and batch["key"].null_count < batch.num_rows:
        columns["key"] = batch["key"].cast(pyarrow.binary())
    if "headers" in batch.schema.names and batch["headers"].null_count < batch.num_rows:
        columns["headers"] = batch["headers"]
        check_header_names("headers", columns["headers"])
    return columns
