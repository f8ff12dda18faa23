"""`TaskTransaction`: the transaction of one attempt of a task, from its begin until it is prepared.

A transactional id belongs to one task and one attempt of a sink, so the ids of a sink are few, and whoever runs the same attempt
later fences a process that still does. If the last transaction of an id waits for its decision, the next id is taken: only the
driver may end it.

An attempt may outlive its job: Spark does not wait for a speculative one, or for that of an executor that it has lost. After the
clean-up of a job without a sinkId, no driver looks for its transactions again. So the driver closes the job before it cleans up
(`job_id`). An attempt asks whether the job runs before it prepares, and after its transaction is known to the coordinator: either
the attempt sees that the job has ended, or the clean-up sees the transaction.
"""

from dataclasses import dataclass

from pyspark import TaskContext

from barnabas.log.vocabulary.errors import InvalidTxnStateError, RetriableError, TransactionalIdNotFoundError
from barnabas.net.client.connection.client import Client
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction
from barnabas.net.client.transactions.prepared import PreparedTransaction
from barnabas.net.wire.protocol.transaction_operations import DescribeTransactionRequest

from ..common.sink_ledger import ids_prefix, job_id, purpose_of

# Ids of one attempt of one task. All but the first are for drivers that died before their micro-batch was decided, one a death;
# the next decision frees them.
MAX_IDS = 32
ASK_TIMEOUT_MS = 30_000  # A failover of the coordinator takes seconds. Then the task fails, and is run again.
_QUERY_ID = "sql.streaming.queryId"  # Spark's own local properties of a task.
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """The micro-batch that a task is part of."""

    sink_id: str
    batch_id: int
    is_job: bool = False  # the only one of its sink


def query_id() -> str | None:
    """Of the streaming query; None in a batch job."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_ID)


def streamed_batch(sink_id: str | None) -> SinkBatch:
    """The micro-batch of the query that the task belongs to. Raises RetriableError if Spark does not say."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(_BATCH_ID)
    found = sink_id or query_id()
    if number is None or found is None:
        raise RetriableError(f"Spark does not say which micro-batch the task belongs to ({_BATCH_ID} is {number!r})")
    return SinkBatch(sink_id=found, batch_id=int(number))


def task_name() -> str:
    """Of this attempt of the task, in its sink."""
    context = TaskContext.get()
    assert context is not None, "Spark runs tasks with a context"
    return f"{context.partitionId()}.{context.attemptNumber()}"


class TaskTransaction:
    def __init__(self, client: Client, producer: Producer, batch: SinkBatch, *, task: str) -> None:
        self._client = client
        self._producer = producer
        self._batch = batch
        self._task = task

    async def begin(self) -> Transaction:
        """Raises InvalidTxnStateError if all ids of the task wait for decisions."""
        for number in range(MAX_IDS):
            try:
                await self._producer.take_over(f"{ids_prefix(self._batch.sink_id)}{self._task}.{number}")
                break
            except InvalidTxnStateError:
                continue
        else:
            raise InvalidTxnStateError(
                f"{MAX_IDS} attempts of this task wait for the decision about micro-batch {self._batch.batch_id} of sink "
                f"{self._batch.sink_id}, because its drivers died before it: see `barnabas transaction list --state Prepared`, "
                "and abort them"
            )
        transaction = self._producer.transaction()
        await transaction.begin()
        return transaction

    async def prepare(self, transaction: Transaction) -> PreparedTransaction | None:
        """Raises InvalidTxnStateError if the job has ended: the transaction is open, to be aborted."""
        if self._batch.is_job:
            await self._producer.flush()  # With its first record the coordinator knows it.
            await self._check_job_runs()
        return await transaction.prepare(purpose_of(self._batch.sink_id, self._batch.batch_id))

    async def _check_job_runs(self) -> None:
        name = job_id(self._batch.sink_id)
        request = DescribeTransactionRequest(transactional_id=name, is_confirmed=True)
        try:
            await self._client.coordinators.call(name, request, timeout_ms=ASK_TIMEOUT_MS)
        except TransactionalIdNotFoundError as error:
            raise InvalidTxnStateError(
                "the job of this task has ended without it, and needs its rows no more; if it has not: a job without a sinkId "
                "may run for at most transactional.id.expiration.ms of the brokers"
            ) from error
