"""`write_rows`: the work of a task in a Python worker: it sends its rows as records with a producer of the process.

With effectively_once the rows go into a transaction, which the task prepares and reports; the driver decides it. The function
returns when all in-sync replicas have acknowledged every row, and raises if one is not acknowledged.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.connection.errors import TransactionAbortedError
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.table import TableHandle
from barnabas.net.client.producer.transaction import Transaction
from barnabas.net.client.transactions.prepared import PreparedTransaction

from .sink_columns import SinkColumns, SinkRows
from .sink_connection import shared_producer, transactional_producer
from .task_transaction import SinkBatch, TaskTransaction, query_id, task_name
from .write_options import WriteOptions

# Each portion is at least one batch of records for each of its partitions, so it must not be small.
PORTION_BYTES = 4 << 20
# Portions of a topic sent before the oldest is checked: errors are noticed early, and memory is released.
MAX_UNCHECKED = 16


class RowsNotWrittenError(BarnabasError):
    """A task could not write all of its rows; the message says what happened to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport(WriterCommitMessage):
    """The report of a successful task to the driver."""

    row_count: int
    query_id: str | None  # None in a batch job.
    prepared: PreparedTransaction | None = None  # None: at_least_once, or no row


def write_rows(
    options: WriteOptions, batches: Iterable[pyarrow.RecordBatch], sink_batch: SinkBatch | None = None
) -> TaskReport:
    """`sink_batch`: what the rows belong to, with effectively_once. Raises RowsNotWrittenError; InvalidRequestError for a row
    that cannot be a record."""
    task = _SinkTask(options, sink_batch)
    try:
        for batch in batches:
            task.send(batch)
        return task.finish()
    except BarnabasError as error:
        raise task.failed(error) from error
    except BaseException:
        task.abort()
        raise


class Portions:
    """Gathers the record batches that Spark hands over (10,000 rows, by default) until they have PORTION_BYTES."""

    def __init__(self) -> None:
        self._gathered: list[pyarrow.RecordBatch] = []
        self._size_bytes = 0

    def add(self, batch: pyarrow.RecordBatch) -> list[pyarrow.RecordBatch]:
        """All rows that have not been returned yet, in order, if there are enough of them: as one batch, if Arrow can have it."""
        self._gathered.append(batch)
        self._size_bytes += batch.nbytes
        return self.rest() if self._size_bytes >= PORTION_BYTES else []

    def rest(self) -> list[pyarrow.RecordBatch]:
        """The same, however few."""
        gathered, self._gathered, self._size_bytes = self._gathered, [], 0
        if len(gathered) < 2:
            return gathered
        return list(pyarrow.Table.from_batches(gathered).combine_chunks().to_batches())


class _SinkTask:
    def __init__(self, options: WriteOptions, sink_batch: SinkBatch | None) -> None:
        self._options = options
        connect = shared_producer if sink_batch is None else transactional_producer
        self._loop, client, self._producer = connect(options.client, options.producer)
        self._transaction: Transaction | None = None
        self._task_transaction = (
            None if sink_batch is None else TaskTransaction(client, self._producer, sink_batch, task=task_name())
        )
        self._columns = SinkColumns(topic=options.topic, partition_count=self._partition_count)
        self._context = TaskContext.get()
        self._partition_counts: dict[str, int] = {}
        self._portions = Portions()
        self._sent: list[TableHandle] = []
        self._row_count = 0
        self._chosen = 0  # how often a partition was chosen for rows that may go to any
        self._on_their_way: Future[None] | None = None
        if self._task_transaction is None:
            # Records left by a failed task must not share a batch with those of this task.
            self._loop.call(self._producer.flush())

    def send(self, batch: pyarrow.RecordBatch) -> None:
        """Start sending if there is a portion; meanwhile the caller may get the next rows from Spark."""
        self._begin(self._portions.add(batch))

    def _begin(self, portion: list[pyarrow.RecordBatch]) -> None:
        if not portion:
            return
        rows = [found for batch in portion for found in self._columns.rows(batch)]
        self._wait()
        self._row_count += sum(batch.num_rows for batch in portion)
        self._on_their_way = self._loop.begin(self._send(rows))

    def _wait(self) -> None:
        before, self._on_their_way = self._on_their_way, None
        if before is not None:
            before.result()

    def _settle(self) -> None:
        """Let the last portion end, at the latest after max.block.ms without room for it. The first error is the one to tell."""
        with suppress(Exception):
            self._wait()

    async def _send(self, portion: list[SinkRows]) -> None:
        for rows in portion:
            outlet = await self._outlet()
            columns: dict[str, str | int] = {**rows.columns}
            if rows.may_go_anywhere and self._transaction is not None:
                columns["partition"] = self._any_partition(await self._count(rows.topic))
            self._sent.append(await outlet.send_table(rows.topic, rows.table, **columns))  # type: ignore[arg-type]
        while len(self._sent) > MAX_UNCHECKED:
            await self._check(self._sent[: MAX_UNCHECKED // 2])
            del self._sent[: MAX_UNCHECKED // 2]

    async def _check(self, sent: list[TableHandle]) -> None:
        """Raises the error of a batch that failed."""
        for handle in sent:
            await handle

    async def _outlet(self) -> Producer | Transaction:
        """A task without rows begins no transaction."""
        if self._task_transaction is None:
            return self._producer
        if self._transaction is None:
            self._transaction = await self._task_transaction.begin()
        return self._transaction

    def _any_partition(self, count: int) -> int:
        """A portion of rows without a key goes to one partition, because each partition of a transaction costs a marker; portions
        and tasks are spread over the partitions."""
        self._chosen += 1
        task = 0 if self._context is None else self._context.partitionId()
        return (task + self._chosen) % count

    def finish(self) -> TaskReport:
        self._begin(self._portions.rest())
        self._wait()
        prepared = self._loop.call(self._finish())
        return TaskReport(row_count=self._row_count, query_id=query_id(), prepared=prepared)

    async def _finish(self) -> PreparedTransaction | None:
        if self._task_transaction is None:
            await self._producer.flush()
        prepared = None
        if self._task_transaction is not None and self._transaction is not None:
            prepared = await self._task_transaction.prepare(self._transaction)
        await self._check(self._sent)
        self._sent.clear()
        return prepared

    def _partition_count(self, topic: str) -> int:
        return self._loop.call(self._count(topic))

    async def _count(self, topic: str) -> int:
        count = self._partition_counts.get(topic)
        if count is None:
            self._partition_counts[topic] = count = await self._producer.prepare(topic)
        return count

    def failed(self, error: BarnabasError) -> BarnabasError:
        """The same error, extended by what happened to the other rows. Spark may run the task again at once, with this producer:
        none of these rows may follow those."""
        self._settle()
        if self._task_transaction is not None:
            fate = self.abort()
            if isinstance(error, TransactionAbortedError):
                fate += f"; a task may take transaction.timeout.ms={self._options.producer.transaction_timeout_ms}"
        elif self._row_count:
            fate = (
                f"up to {self._row_count} earlier rows of the task may already be in their topics, and will be duplicated "
                "when Spark runs the task again (delivery=effectively_once prevents that)"
            )
        else:
            return error
        return RowsNotWrittenError(f"{error.message}; {fate}")

    def abort(self) -> str:
        """Give up the transaction, and say what becomes of the rows."""
        fate = "none of the task's rows is in its topic: their transaction is aborted"
        self._settle()  # It may be the transaction's begin.
        if self._transaction is not None:
            try:
                self._loop.call(self._transaction.abort())
            except BarnabasError as error:  # Its coordinator aborts it after the timeout.
                fate = f"{fate} later ({error.message})"
        return fate
