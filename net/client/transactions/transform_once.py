"""`transform_once`: consume, transform, produce, exactly once, despite crashes and rebalances.

    async def invoice(record, transaction):
        await transaction.send("invoices", record.value.upper(), key=record.key)

    await transform_once(consumer, producer, invoice)

The records of one poll, what the function sends for them, and the consumer's offsets behind them are one transaction. It ends
before the next poll, and partitions come and go in a poll only: none is given up while a transaction with its records is open. A
member that has lost partitions without knowing it cannot commit, because the coordinator of the group checks its epoch (KIP-447);
the next owner waits for the transaction before it reads.

After an abort the consumer goes back to the first record of the poll, so that nothing is skipped and nothing doubled. If the
outcome of a commit is not known, the coordinators are asked until it is: the committed offset says where to go on.

`TransformOnce` works with blocking and asyncio clients: it awaits results that are awaitable.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ...base.retries import Backoff
from ...wire.surroundings import new_random
from ..connection.client import inside_of
from ..connection.either_kind import settled
from ..connection.errors import (
    BarnabasError,
    FencedMemberEpochError,
    IllegalGenerationError,
    InvalidConfigError,
    NotAssignedError,
    RebalanceInProgressError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionTimedOutError,
    UnknownMemberIdError,
)
from ..connection.records import ConsumerRecord, OffsetAndMetadata
from .machine import Outcome

logger = logging.getLogger("barnabas.producer")

MAX_RECORDS: Final = (
    1_000  # of one transaction: after an abort at most this many are repeated, and readers wait for them
)
MAX_ATTEMPTS: Final = 10  # transactions that fail in a row: with the pauses, an election and a rebalance end meanwhile
PAUSE: Final = Backoff(first_ms=100, max_ms=5_000)  # between them
POLL_MS: Final = 1_000  # how often a blocking call wakes up, so that Ctrl-C works
# This member has lost partitions: the next poll tells which.
_MOVED: Final = (
    FencedMemberEpochError,
    IllegalGenerationError,
    NotAssignedError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
Records = Mapping[TopicPartition, Sequence[ConsumerRecord]]
Function = Callable[
    [ConsumerRecord, Any], Any
]  # The record, and the transaction to send in. A coroutine function with asyncio.


class SourcePositions(Protocol):
    def group_positions(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, /) -> Any: ...


class SourceConsumer(Protocol):
    """`barnabas.Consumer` or `barnabas.sync.Consumer`."""

    @property
    def _inside(self) -> SourcePositions: ...
    @property
    def assignment(self) -> list[TopicPartition]: ...
    def poll(self, *, max_records: int, timeout_ms: float) -> Any: ...
    def committed(self, *partitions: TopicPartition) -> Any: ...
    def seek(self, partition: TopicPartition, offset: int, /) -> None: ...


class SinkProducer(Protocol):
    """`barnabas.Producer` or `barnabas.sync.Producer`, with a `transactional_id`."""

    def transaction(self) -> Any: ...


class TransformOnce:
    def __init__(
        self,
        consumer: SourceConsumer,
        producer: SinkProducer,
        function: Function,
        *,
        max_records: int,
        pause: Callable[[float], Any],
    ) -> None:
        """`pause`: sleeps for some seconds."""
        self._consumer = consumer
        self._producer = producer
        self._function = function
        self._max_records = max_records
        self._pause = pause
        self._random = new_random()
        self._failures = 0  # in a row

    async def run(self, *, idle_timeout_ms: float | None) -> int:
        """Until no record has come for about `idle_timeout_ms` (None: forever). Returns the number of transformed records."""
        await self._check()
        await self._go_to_committed()
        count = 0
        idle_ms = 0.0
        while idle_timeout_ms is None or idle_ms < idle_timeout_ms:
            wait_ms = POLL_MS if idle_timeout_ms is None else min(POLL_MS, idle_timeout_ms - idle_ms)
            records: Records = await settled(self._consumer.poll(max_records=self._max_records, timeout_ms=wait_ms))
            idle_ms = 0.0 if records else idle_ms + wait_ms
            if records and await self._is_committed(records):
                count += sum(map(len, records.values()))
        return count

    async def _check(self) -> None:
        """Raises InvalidConfigError, InvalidRequestError."""
        if not (await settled(inside_of(self._consumer).group_positions({}))).reads_committed:
            raise InvalidConfigError(
                "the consumer of transform_once must not read records that are aborted later: set"
                ' isolation_level="read_committed"'
            )

    async def _go_to_committed(self) -> None:
        """An earlier call may have ended with a transaction whose outcome it did not know."""
        places = self._consumer.assignment
        if places:
            await self._probe()
            for place, offset in (await settled(self._consumer.committed(*places))).items():
                self._consumer.seek(place, offset)

    # --- one transaction ----------------------------------------------------------------------------------------------

    async def _is_committed(self, records: Records) -> bool:
        """Transform them. If not, the consumer will return them again."""
        transaction = self._producer.transaction()
        try:
            await self._transform(transaction, records)
        except TransactionOutcomeUnknownError as error:
            if not await self._was_committed(transaction, error):
                self._go_back(records)
                return False
        except BarnabasError as error:
            self._go_back(records)
            if not _may_help(error):
                raise
            await self._failed(error)
            return False
        except BaseException:
            self._go_back(records)
            raise
        self._failures = 0
        return True

    async def _transform(self, transaction: Any, records: Records) -> None:
        await settled(transaction.begin())
        failure: BaseException | None = None
        try:
            for batch in records.values():
                for record in batch:
                    await settled(self._function(record, transaction))
            await settled(transaction.commit_offsets(self._consumer))
        except BaseException as error:  # noqa: BLE001 - it is raised again, when the transaction has ended
            failure = error
        leave = getattr(transaction, "__aexit__", None) or transaction.__exit__
        await settled(leave(type(failure), failure, None))
        if failure is not None:
            raise failure

    async def _was_committed(self, transaction: Any, error: BarnabasError) -> bool:
        """Ask until the outcome is known. Raises what the producer raises that cannot ask any more."""
        while transaction.outcome is Outcome.UNKNOWN:
            await self._failed(error)
            try:
                await self._probe()
            except TransactionOutcomeUnknownError as still:
                error = still
        return bool(transaction.outcome is Outcome.COMMITTED)

    async def _probe(self) -> None:
        """The next transaction begins when the outcome of the last one is known."""
        transaction = self._producer.transaction()
        await settled(transaction.begin())
        await settled(transaction.abort())

    async def _failed(self, error: BarnabasError) -> None:
        """Pause, or raise the error if too many attempts have failed."""
        if self._failures >= MAX_ATTEMPTS:
            raise error
        self._failures += 1
        logger.info("transaction repeated failures=%d reason=%s", self._failures, error.message)
        await settled(self._pause(PAUSE.delay_ms(self._failures, self._random.random) / 1000))

    def _go_back(self, records: Records) -> None:
        for place, batch in records.items():
            try:
                self._consumer.seek(place, batch[0].offset)
            except BarnabasError as error:
                logger.info("partition not assigned any more partition=%s reason=%s", place, error.message)


def _may_help(error: BarnabasError) -> bool:
    """Whether another transaction may succeed."""
    if isinstance(error, TransactionAbortedError) and isinstance(error.__cause__, BarnabasError):
        error = error.__cause__
    return error.retriable or isinstance(error, (*_MOVED, TransactionTimedOutError))


async def transform_once(
    consumer: SourceConsumer,
    producer: SinkProducer,
    function: Function,
    *,
    max_records: int = MAX_RECORDS,
    idle_timeout_ms: float | None = None,
) -> int:
    """Transform each record of the consumer exactly once: `await function(record, transaction)`, which sends in the transaction.

    The consumer has a group, `isolation_level="read_committed"` and `auto_commit=False`; the producer has a `transactional_id`,
    one for each worker. One transaction has at most `max_records`. Returns the number of records when no more have come for about
    `idle_timeout_ms` (None: never).

    A transaction that fails is repeated if that may help, 10 times in a row. Raises what the function raises, after the abort,
    InvalidConfigError, ProducerFencedError if another worker has the same transactional id (start again with an id of its own),
    and the last error after too many attempts. It may then be called again: the consumer goes on behind the last committed
    record.
    """
    once = TransformOnce(consumer, producer, function, max_records=max_records, pause=asyncio.sleep)
    return await once.run(idle_timeout_ms=idle_timeout_ms)
