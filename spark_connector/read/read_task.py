"""`read_range`: the work of a task in a Python worker: it reads one range of one partition as Arrow record batches.

While one chunk is decoded, the next is fetched. Broker failures are retried here for `fetch.timeoutMs`; after that the task
fails, and Spark runs it again if its configuration allows that. Lost records are an error, or a warning with
failOnDataLoss=false.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from barnabas.log.vocabulary.errors import OffsetOutOfRangeError
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import PartitionGoneError, TopicRecreatedError
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.net.client.consumer.range_reader import Chunk, RangeReader, columns_of
from barnabas.net.client.positions.offset_lookup import EARLIEST, LATEST, list_offsets

from ..common.connection import shared_client, worker_settings
from ..common.options import ClientSettings
from .columns import ArrowColumns
from .data_loss import DataLossError
from .offsets import OffsetRange
from .read_options import FetchSettings, ReadOptions

logger = logging.getLogger("barnabas.spark")

FIRST_ROWS = 1_000  # `show()` and `limit` stop early: the first record batches are small, and their sizes double
MAX_ROWS = 10_000  # up to this size; larger ones are not faster (measured: 10,000 to 20,000 rows).
MAX_UNEXPLAINED = 5  # Refusals of an offset that is within the log, as during a leader change.


class RangePartition(InputPartition):
    """A range for one task."""

    def __init__(self, value: OffsetRange, topic_id: str) -> None:
        super().__init__(value)
        self.range = value
        self.topic_id = topic_id  # when the range was planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """The settings of every task of a query; pickled with the reader."""

    client: ClientSettings
    fetch: FetchSettings
    fails_on_data_loss: bool

    @classmethod
    def of(cls, options: ReadOptions) -> "ReadTask":
        return cls(
            client=worker_settings(options.client),
            fetch=options.fetch,
            fails_on_data_loss=options.fails_on_data_loss,
        )


def read_partition(task: ReadTask, partition: InputPartition, schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """As `read_range`; for a query with nothing to read, Spark passes a partition of its own type."""
    return read_range(task, partition, schema) if isinstance(partition, RangePartition) else iter(())


def read_range(task: ReadTask, planned: RangePartition, schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """Raises DataLossError, or the broker's error if no data arrived within `fetch.timeoutMs`."""
    item = planned.range
    arrow = ArrowColumns(schema, item.partition, planned.topic_id)
    rows = FIRST_ROWS
    for chunk in _chunks(task, planned):
        for columns in columns_of(item.partition, chunk, end=item.end):
            batch = arrow.batch_of(columns)
            start = 0
            while start < batch.num_rows:
                yield batch.slice(start, rows)
                start += rows
                rows = min(2 * rows, MAX_ROWS)


def _chunks(task: ReadTask, planned: RangePartition) -> Iterator[Chunk]:
    """Fetched batches; the next ones are fetched while the caller processes these."""
    item = planned.range
    loop, client = shared_client(task.client, patience_ms=task.fetch.timeout_ms)
    reader = RangeReader(
        client,
        item.partition,
        start=item.start,
        end=item.end,
        max_bytes=task.fetch.max_bytes,
        is_committed_only=task.fetch.is_committed_only,
        rack=task.fetch.rack,
        topic_id=planned.topic_id,
        timeout_ms=task.fetch.timeout_ms,
    )
    unexplained = 0
    ahead = loop.begin(reader.next_chunk())
    try:
        while True:
            try:
                chunk = ahead.result()
            except OffsetOutOfRangeError:
                lost = _lost(loop, client, reader)
                unexplained += not lost
                if unexplained > MAX_UNEXPLAINED:
                    raise
                _tell(task, lost)
            except (PartitionGoneError, TopicRecreatedError) as error:
                _tell(task, f"{error.message}; offsets {reader.position} to {item.end} are lost")
                return
            else:
                if chunk is None:
                    return
                ahead = loop.begin(reader.next_chunk())
                yield chunk
                continue
            ahead = loop.begin(reader.next_chunk())
    finally:
        ahead.cancel()


def _lost(loop: LoopThread, client: Client, reader: RangeReader) -> str:
    """Skip offsets that the log no longer has; return a description of them, or "" if the log has them after all, or if a newer
    topic has this name: the reader finds that out."""
    partition, position = reader.partition, reader.position
    first, last = [loop.call(list_offsets(client, {partition: at}))[partition] for at in (EARLIEST, LATEST)]
    if reader.topic_id not in ("", first.topic_id) or first.topic_id != last.topic_id:
        return ""
    start, end = first.offset, last.offset
    if start > position:
        reader.go_to(min(start, reader.end))
        return f"{partition} now begins at offset {start}: offsets {position} to {reader.position} are lost"
    if end < position:
        reader.go_to(reader.end)
        return f"{partition} now ends at offset {end}: offsets {position} to {reader.end} are lost"
    return ""


def _tell(task: ReadTask, lost: str) -> None:
    if not lost:
        return
    if task.fails_on_data_loss:
        raise DataLossError(lost)
    logger.warning("%s", lost)
