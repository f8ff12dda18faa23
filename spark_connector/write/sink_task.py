"""`write_rows`: the work of a task in a Python worker: it sends its rows as records with the producer of the process.

With at_least_once the rows go to their topics; with effectively_once to the stages of these topics, and the task reports their
offsets. The function returns when all in-sync replicas have acknowledged every row, and raises if one is not acknowledged.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import RetriableError
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.net.client.producer.handles import BatchExtent, BatchHandles, extents
from barnabas.net.client.producer.producer import Producer

from ..common.sink_ledger import StagedBatch, stage_of
from .sink_columns import Rows, SinkColumns
from .sink_connection import shared_producer
from .sink_topics import SinkTopics
from .write_options import WriteOptions

_QUERY_ID = "sql.streaming.queryId"  # Spark's own local properties of a task.
MAX_UNCHECKED = 64  # Portions sent before the oldest is checked: errors are noticed early, and memory is released.


class RowsNotWrittenError(BarnabasError):
    """A task could not write all of its rows; the message says what happened to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport(WriterCommitMessage):
    """The report of a successful task to the driver."""

    row_count: int
    query_id: str | None  # None in a batch job.
    staged: tuple[StagedBatch, ...] = ()


def write_rows(options: WriteOptions, batches: Iterable[pyarrow.RecordBatch]) -> TaskReport:
    """Raises RowsNotWrittenError; InvalidRequestError for a row that cannot be a record."""
    loop, client, producer = shared_producer(options.client, options.producer)
    task = _SinkTask(options, loop, client, producer)
    try:
        for batch in batches:
            task.send(batch)
        return task.finish()
    except BarnabasError as error:
        raise task.failed(error) from error


class _SinkTask:
    def __init__(self, options: WriteOptions, loop: LoopThread, client: Client, producer: Producer) -> None:
        self._options = options
        self._loop = loop
        self._producer = producer
        self._topics = SinkTopics(client, timeout_ms=options.client.api_timeout_ms)
        self._columns = SinkColumns(topic=options.topic, partition_count=self._partition_count)
        self._context = TaskContext.get()
        self._partition_counts: dict[str, int] = {}
        self._sent: list[BatchHandles] = []
        self._extents: list[BatchExtent] = []
        self._row_count = 0
        self._portions = 0
        self._on_their_way: Future[None] | None = None
        loop.call(producer.flush())  # Records left by a failed task must not share a batch with those of this task.

    def send(self, batch: pyarrow.RecordBatch) -> None:
        """Start sending; meanwhile the caller may get the next rows from Spark."""
        portion = list(self._columns.rows(batch))
        self._wait()
        self._row_count += batch.num_rows
        self._on_their_way = self._loop.begin(self._send(portion))

    def _wait(self) -> None:
        before, self._on_their_way = self._on_their_way, None
        if before is not None:
            before.result()

    async def _send(self, portion: list[Rows]) -> None:
        for rows in portion:
            topic, partition = rows.topic, rows.partition
            if self._options.is_effectively_once:
                if partition is None:
                    partition = self._any_partition(await self._count(topic))
                topic = stage_of(topic)
            self._sent.append(
                await self._producer.send_many(topic, rows.values, rows.keys, headers=rows.headers, partition=partition)
            )
        if len(self._sent) > MAX_UNCHECKED:
            await self._check(self._sent[: MAX_UNCHECKED // 2])
            del self._sent[: MAX_UNCHECKED // 2]

    def _any_partition(self, count: int) -> int:
        """A portion of rows without a key goes to one partition; portions and tasks are spread over the partitions."""
        self._portions += 1
        task = 0 if self._context is None else self._context.partitionId()
        return (task + self._portions) % count

    def finish(self) -> TaskReport:
        self._wait()
        self._loop.call(self._flush())
        return TaskReport(row_count=self._row_count, query_id=self._query_id(), staged=tuple(self._staged()))

    async def _flush(self) -> None:
        await self._producer.flush()
        await self._check(self._sent)
        self._sent.clear()

    async def _check(self, sent: list[BatchHandles]) -> None:
        """Raises the error of a batch that failed."""
        self._extents += await extents(sent)

    def _staged(self) -> list[StagedBatch]:
        if not self._options.is_effectively_once:
            return []
        found = dict.fromkeys(self._extents)  # A batch may have rows of two portions.
        if any(extent.base_offset < 0 for extent in found):
            raise RetriableError("a batch was staged, but no broker knows its offset any more")
        if (count := sum(extent.record_count for extent in found)) != self._row_count:
            raise RetriableError(f"{count} records were staged, but the task has {self._row_count} rows")
        prefix = len(stage_of(""))
        return [
            StagedBatch(
                topic=extent.partition.topic[prefix:],
                partition=extent.partition.partition,
                base_offset=extent.base_offset,
                record_count=extent.record_count,
            )
            for extent in found
        ]

    def _query_id(self) -> str | None:
        return None if self._context is None else self._context.getLocalProperty(_QUERY_ID)

    def _partition_count(self, topic: str) -> int:
        return self._loop.call(self._count(topic))

    async def _count(self, topic: str) -> int:
        count = self._partition_counts.get(topic)
        if count is None:
            if self._options.is_effectively_once:
                count = await self._topics.ensure_stage(topic)
            else:
                count = await self._producer.prepare(topic)
            self._partition_counts[topic] = count
        return count

    def failed(self, error: BarnabasError) -> BarnabasError:
        """The same error, extended by what happened to the other rows."""
        if self._options.is_effectively_once:
            fate = "none of the task's rows is in its topic: the staged rows will never be published"
        elif self._row_count:
            fate = (
                f"up to {self._row_count} earlier rows of the task may already be in their topics, and will be duplicated "
                "when Spark runs the task again (delivery=effectively_once prevents that)"
            )
        else:
            return error
        return RowsNotWrittenError(f"{error.message}; {fate}")
