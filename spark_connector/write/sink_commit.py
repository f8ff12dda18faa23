"""`SinkCommitter`: the driver's side of effectively-once sinks: each micro-batch is decided once and published once.

    1  tasks have written their rows, each in a transaction,            crash before 3: the rows stay invisible, and are
       prepared them, and reported them                                    aborted when their micro-batch is decided
    2  check whether this micro-batch is already decided or published      (Spark runs it again with the same number)
    3  write the decision to the ledger: which transactions
    4  commit these transactions                                        crash after 3: the next driver of this sink
    5  write to the ledger that they are published                         completes 4 with the *decided* transactions,
    6  abort other prepared transactions of the micro-batch                not with those of its own tasks
    7  Spark records in its checkpoint that the micro-batch is done     crash after 5: 2 finds it published

So each row of a micro-batch is written to its topic once, wherever the driver, tasks or brokers fail, and whatever a repeated
task computes: the first decision counts. Readers of committed records see nothing of a micro-batch before 3.

The coordinator of a prepared transaction keeps it without a timeout, so 4 may be carried out however late, and repeated, also by
two drivers at once.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from barnabas.log.vocabulary.errors import InvalidTxnStateError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import InitTransactionsRequest, ProducerIdentity, TransactionState
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import BarnabasError, RecordTooLargeError, TransactionAbortedError
from barnabas.net.client.consumer.range_reader import RangeReader, batches_of
from barnabas.net.client.positions.offset_lookup import LATEST, list_offsets
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.prepared import PreparedTransaction, end_prepared

from ..common.sink_ledger import LEDGER_TOPIC, Decision, SinkLedger, batch_of, ids_prefix, job_id
from .sink_topics import SinkTopics
from .staged_publishing import StagedPublishing
from .write_options import JOB_BATCH_ID

logger = logging.getLogger("barnabas.spark")

LEDGER = TopicPartition(LEDGER_TOPIC, 0)
MAX_ENDS = (
    64  # Transactions that are ended concurrently: coordinators put such decisions into few appends to the quorum.
)
# So that a job reads its own rows. Behind an election readers wait longer, and the next micro-batch need not.
COMPLETION_MS = 2_000
FENCE_TIMEOUT_MS = 1_000  # No transaction begins with it.
LEDGER_FETCH_BYTES = 4 << 20
MAX_DECISION_BYTES = 900 * 1024  # Of a record of 1 MiB: some 10,000 tasks.


class Probe(Protocol):
    """Called after each step; tests kill the process there."""

    def __call__(self, step: str) -> None: ...


def no_probe(step: str) -> None:
    pass


class SinkCommitter:
    """Use it only on the event loop of its client. One per process and cluster: it keeps the replayed state of the ledger."""

    def __init__(self, client: Client, producer: Producer, *, timeout_ms: int) -> None:
        self._client = client
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._probe: Probe = no_probe
        self._turn = asyncio.Lock()
        self._admin = Admin(client=client, timeout_ms=timeout_ms)
        self._topics = SinkTopics(client, timeout_ms=timeout_ms)
        self._staged = StagedPublishing(client, timeout_ms=timeout_ms)
        self._ledger = SinkLedger()
        self._ledger_id = ""  # of the topic that `_ledger` was read from
        self._is_ready = False

    async def commit(
        self,
        sink_id: str,
        batch_id: int,
        prepared: Sequence[PreparedTransaction],
        *,
        is_last: bool = False,
        probe: Probe = no_probe,
    ) -> bool:
        """Publish a micro-batch unless it was published before; return whether these transactions were committed.

        With `is_last` the sink is deleted from the ledger afterwards: its id is never used again. Raises
        TransactionAbortedError if an operator has aborted a decided transaction, and the brokers' errors if they persist until
        the timeout. After any error the commit may be retried.
        """
        async with self._turn:
            self._probe = probe
            is_mine = await self._commit(sink_id, batch_id, prepared, is_last=is_last)
            await self._clean_up(sink_id, is_last=is_last)
            return is_mine

    async def abort(self, sink_id: str, prepared: Sequence[PreparedTransaction], *, is_job: bool) -> None:
        """Abort transactions of a job that has failed before its commit. `is_job`: the only job of this sink id. Then no other
        driver can decide later, and this one decides, for nothing, in case that a decision of a failed commit is on its way."""
        async with self._turn:
            if is_job:
                holds = await self._cancelled(sink_id)
                if holds is not None and holds.transactions:
                    await self._publish(holds, is_last=True)
                await self._clean_up(sink_id, is_last=True)
            else:
                await self._end_all(prepared, is_commit=False, is_last=False)

    async def _commit(
        self, sink_id: str, batch_id: int, prepared: Sequence[PreparedTransaction], *, is_last: bool
    ) -> bool:
        await self._read_ledger()
        pending = self._ledger.pending(sink_id)
        if pending is not None:
            logger.warning("finishing micro-batch sink=%s batch=%d", sink_id, pending.batch_id)
            await self._publish(pending, is_last=False)
        published = self._ledger.published(sink_id)
        if published is not None and batch_id <= published.batch_id:
            logger.warning("micro-batch is already published sink=%s batch=%d", sink_id, batch_id)
            return False
        if not prepared:
            return True
        mine = _decision(sink_id, batch_id, prepared)
        self._probe("staged")
        holds = await self._decide(mine)
        self._probe("decided")
        while holds is not None and holds.batch_id < batch_id:  # Of another driver, since the ledger was read.
            await self._publish(holds, is_last=False)
            holds = self._ledger.pending(sink_id)
        if holds is None:
            logger.warning("another driver has published the micro-batch sink=%s batch=%d", sink_id, batch_id)
            return False
        await self._publish(holds, is_last=is_last)
        return holds.attempt == mine.attempt

    # --- deciding ----------------------------------------------------------------------------------------------------

    async def _decide(self, mine: Decision) -> Decision | None:
        """Write the decision and return the valid one: the first in the ledger, which may be another driver's. None if that
        driver has already published it."""
        value = mine.to_bytes()
        if len(value) > MAX_DECISION_BYTES:
            raise RecordTooLargeError(
                f"micro-batch {mine.batch_id} of sink {mine.sink_id} has {len(mine.transactions)} tasks with rows, too many for "
                "one decision; nothing of it was published: write with fewer partitions (coalesce)"
            )
        await self._write([(mine.key, value)])
        return self._ledger.pending(mine.sink_id)

    async def _cancelled(self, sink_id: str) -> Decision | None:
        await self._read_ledger()
        holds = self._ledger.pending(sink_id)
        if holds is None:
            mine = _decision(sink_id, JOB_BATCH_ID, ())
            holds = await self._decide(mine)
            if holds is not None and holds.attempt == mine.attempt:
                await self._write(self._ledger.records_of_forgetting(mine))
        return holds

    # --- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self, decision: Decision, *, is_last: bool) -> None:
        if decision.producer is not None:
            await self._staged.publish(decision)
        else:
            await self._commit_all(decision, is_last=is_last)
        self._probe("copied")
        ledger = self._ledger
        await self._write(ledger.records_of_forgetting(decision) if is_last else ledger.records_of_publishing(decision))
        self._probe("published")
        logger.info(
            "micro-batch published sink=%s batch=%d transactions=%d",
            decision.sink_id,
            decision.batch_id,
            len(decision.transactions),
        )

    async def _commit_all(self, decision: Decision, *, is_last: bool) -> None:
        try:
            await self._end_all(decision.transactions, is_commit=True, is_last=is_last)
        except TransactionAbortedError as error:
            raise TransactionAbortedError(
                f"micro-batch {decision.batch_id} of sink {decision.sink_id} is decided, but its topics do not have all of it: "
                f"{error.message}; continue with another sinkId, without the rest of this micro-batch"
            ) from error

    async def _end_all(self, transactions: Iterable[PreparedTransaction], *, is_commit: bool, is_last: bool) -> None:
        """Raises the first error, when all have been tried."""
        limit = asyncio.Semaphore(MAX_ENDS)
        ends = await asyncio.gather(
            *(self._end(item, limit, is_commit=is_commit, is_last=is_last) for item in transactions),
            return_exceptions=True,
        )
        for outcome in ends:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _end(
        self, transaction: PreparedTransaction, limit: asyncio.Semaphore, *, is_commit: bool, is_last: bool
    ) -> None:
        async with limit:
            await end_prepared(
                self._client,
                transaction,
                is_commit=is_commit,
                timeout_ms=self._timeout_ms,
                is_last=is_last,
                completion_ms=COMPLETION_MS if is_commit else 0,
            )
            if is_commit:
                self._probe(f"copied {transaction.transactional_id}")

    async def _clean_up(self, sink_id: str, *, is_last: bool) -> None:
        """Abort what is left of attempts that were not decided: of repeated and speculative tasks, and of former drivers. What
        cannot be aborted now is by a later commit. `is_last`: the sink is decided and published, and nothing comes after that."""
        try:
            if is_last:
                await self._close_job(sink_id)
            found = await self._admin.transactions.of_prefix(
                ids_prefix(sink_id), states=(TransactionState.ONGOING, TransactionState.PREPARED)
            )
            left = []
            for item in found:
                transaction = PreparedTransaction(
                    transactional_id=item.transactional_id,
                    producer=ProducerIdentity(producer_id=item.producer_id, producer_epoch=item.producer_epoch),
                )
                number = batch_of(item.prepared_for)
                if item.state == TransactionState.ONGOING:
                    await self._fence(item.transactional_id)
                elif is_last or (number is not None and self._ledger.may_abort(sink_id, number, transaction)):
                    left.append(transaction)
            await self._end_all(left, is_commit=False, is_last=is_last)
        except BarnabasError as error:
            logger.warning("transactions not aborted sink=%s reason=%s", sink_id, error.message)

    async def open_job(self, sink_id: str) -> None:
        """Before a job without a sinkId begins: attempts of its tasks prepare transactions until its clean-up (`job_id`)."""
        await self._take(job_id(sink_id))

    async def _close_job(self, sink_id: str) -> None:
        """From now on, no attempt of a task of the job prepares a transaction that this clean-up does not see."""
        name = job_id(sink_id)
        identity = await self._take(name)
        job = PreparedTransaction(transactional_id=name, producer=identity)
        await end_prepared(self._client, job, is_commit=False, timeout_ms=self._timeout_ms, is_last=True)

    async def _take(self, transactional_id: str) -> ProducerIdentity:
        request = InitTransactionsRequest(transactional_id=transactional_id, timeout_ms=FENCE_TIMEOUT_MS)
        found: ProducerIdentity = await self._client.coordinators.call(
            transactional_id, request, timeout_ms=self._timeout_ms
        )
        return found

    async def _fence(self, transactional_id: str) -> None:
        """Abort an open transaction, unless it is prepared by now: then another driver may have decided it."""
        with suppress(InvalidTxnStateError):
            await self._take(transactional_id)

    # --- the ledger --------------------------------------------------------------------------------------------------

    async def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write them and read the ledger up to them. The first record is the essential one; the tombstones after it may get
        lost."""
        keys = [key for key, _ in records]
        written = await (
            await self._producer.send_many(LEDGER_TOPIC, [value for _, value in records], keys, partition=0)
        )
        await self._read_ledger(behind=written[-1].offset)

    async def _read_ledger(self, *, behind: int = -1) -> None:
        """Read the ledger up to its current end, which is `behind` an offset that was written: what a decision means depends on
        every record before it."""
        if not self._is_ready:
            await self._topics.ensure_ledger()
            self._is_ready = True
        found = (await list_offsets(self._client, {LEDGER: LATEST}, timeout_ms=self._timeout_ms))[LEDGER]
        # A new leader may not know yet how far the log is committed; the reader waits for it.
        end = max(found.offset, behind + 1)
        if end < self._ledger.position or self._ledger_id not in ("", found.topic_id):
            logger.error("%s was deleted or has lost decisions: it is read from its beginning", LEDGER_TOPIC)
            self._ledger = SinkLedger()
        self._ledger_id = found.topic_id
        reader = RangeReader(
            self._client,
            LEDGER,
            start=self._ledger.position,
            end=end,
            max_bytes=LEDGER_FETCH_BYTES,
            is_committed_only=False,
            topic_id=found.topic_id,
            timeout_ms=self._timeout_ms,
        )
        while (chunk := await reader.next_chunk()) is not None:
            for _, records in batches_of(chunk, end=end):
                for record in records:
                    self._ledger.replay(record.offset, record.key, record.value)


def _decision(sink_id: str, batch_id: int, prepared: Iterable[PreparedTransaction]) -> Decision:
    return Decision(sink_id=sink_id, batch_id=batch_id, attempt=uuid.uuid4().hex, transactions=tuple(prepared))
