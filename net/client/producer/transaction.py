"""`Transaction`: one transaction of a producer, from its begin to its end.

Its records go through the buffer of the producer. A call that has to wait (for a topic, or for room in the buffer) runs in a task
that ends with the transaction, so that no record of it is taken into the next one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from ..connection.arguments import PARTITION_OF_A_RECORD, explained
from ..connection.client import Client, inside_of
from ..connection.errors import BarnabasError, TransactionAbortedError, TransactionStateError
from ..connection.records import Headers
from ..group.commits import ToCommit
from ..group.group_positions import GroupPositions, commit_in_transaction
from ..serde.writing import Encoders
from ..transactions.ending import Transactions
from ..transactions.machine import EPOCH_IS_OVER, Current, Outcome, Phase
from ..transactions.prepared import PreparedTransaction
from .bulk import send_many
from .handles import BatchHandles, Handle
from .record_buffer import RecordBuffer, append_now, ease_after, send_one
from .table import TableHandle, send_table

R = TypeVar("R")


class SourcePositions(Protocol):
    def group_positions(self, offsets: ToCommit | None = None) -> GroupPositions:
        """What the group is to commit: these offsets, or (None) the positions behind all records returned so far."""


class OffsetSource(Protocol):
    """A consumer, such as `barnabas.Consumer`."""

    @property
    def _inside(self) -> SourcePositions: ...


@explained(
    partition=PARTITION_OF_A_RECORD,
    consumer="the consumer that has read the records",
)
class Transaction:
    """What is sent in the block becomes visible to readers of committed records at once, or never.

        async with producer.transaction() as transaction:
            await transaction.send("orders", b"value", key=b"key")
            await transaction.commit_offsets(consumer)

    The normal end of the block commits, an exception that leaves it aborts. If a record or an offset fails, also if the
    application ignores the error, the transaction is aborted at its end, which raises TransactionAbortedError; its `__cause__`
    says why. TransactionTimedOutError, which is one, tells that it was open for longer than `transaction_timeout_ms`. After both,
    begin a new transaction. ProducerFencedError: another producer has taken over the transactional id; close this one.

    The end waits up to `max_block_ms` for the coordinator. If it does not answer a commit, TransactionOutcomeUnknownError is
    raised, and the next transaction begins when `outcome` is known. If it does not confirm an abort within 10 s, the abort goes
    on in the background. The same holds where the end is cancelled. An exception that leaves the block gets a note about the
    outcome.

    A handle of `send` is resolved when the record is stored; whether it is committed is decided by the end of the block. Handles
    of an aborted transaction that were not resolved raise TransactionAbortedError.
    """

    def __init__(
        self,
        client: Client,
        buffer: RecordBuffer,
        transactions: Transactions,
        *,
        check_usable: Callable[[], None],
        encoders: Encoders | None = None,
    ) -> None:
        """`check_usable` raises what a closed producer raises, or one of another event loop. `encoders`: the producer's."""
        self._client = client
        self._buffer = buffer
        self._transactions = transactions
        self._current: Current | None = None  # from the begin on
        self._check_usable = check_usable
        self._encoders = encoders
        self._is_ending = False
        self._is_whole = False  # it is prepared, or was to be
        self._sending: set[asyncio.Task[Any]] = set()  # calls of the application that wait
        self._positions: list[GroupPositions] = []  # taken by their coordinators

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_open:  # the application has ended it
            return
        if error is None:
            await self.commit()
            return
        outcome = await self.abort()
        told = None if self._current is None else self._current.error
        if told is not None and isinstance(error, BarnabasError) and error.code in EPOCH_IS_OVER:
            raise told from error
        error.add_note(_note(outcome))

    @property
    def outcome(self) -> Outcome:
        """What is known of the transaction, also after its end: "open", "prepared", "committed", "aborted", "aborting" (it cannot
        be committed, and the coordinator has not confirmed the abort), "unknown" (the commit is not answered)."""
        return Outcome.OPEN if self._current is None else self._current.outcome

    # --- begin and end ------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """What `async with` does. Raises TransactionStateError if another transaction of the producer is open,
        ProducerFencedError, and TransactionOutcomeUnknownError if the last commit is not answered yet."""
        self._check_usable()
        if self._current is not None:
            raise TransactionStateError("a transaction is used once: call producer.transaction() again")
        self._current = await self._transactions.begin(_Records(self._buffer, self._sending))
        self._buffer.turn_sticky()

    async def commit(self) -> None:
        """What the normal end of the block does. Raises TransactionAbortedError, TransactionTimedOutError, ProducerFencedError,
        TransactionOutcomeUnknownError."""
        self._check_open()
        self._is_ending = True
        await self._transactions.commit()
        for positions in self._positions:
            positions.on_committed()

    async def prepare(self, prepared_for: str = "") -> PreparedTransaction | None:
        """Deliver all records, and leave the decision to a process that calls `admin.transactions.end_prepared`: no timeout ends
        the transaction any more, and readers of committed records wait for it. `prepared_for` tells operators what is decided.
        None: it is empty, and has ended.

        The producer goes on with `producer.take_over`. Raises as `commit`; after an error, and in a block that an exception
        leaves, the transaction is aborted.
        """
        self._check_open()
        self._is_whole = True
        machine = self._transactions.machine
        identity = machine.identity
        if not await self._transactions.prepare(prepared_for):
            return None
        self._is_ending = True
        return PreparedTransaction(transactional_id=machine.transactional_id, producer=identity)

    async def abort(self) -> Outcome:
        """What an exception does. "aborting": the coordinator has not confirmed it yet."""
        self._check_open()
        self._is_ending = True
        return await self._transactions.abort()

    # --- its parts ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """As `Producer.send`."""
        self._join()
        if self._encoders is not None:
            value, key = await self._while_open(self._encoders.record(topic, value, key))
        try:
            handle = append_now(self._buffer, topic, value, key, headers, partition, timestamp_ms)
        except BaseException as error:
            self._failed(error)
            raise
        if handle is None:
            handle = await self._while_open(send_one(self._buffer, topic, value, key, headers, partition, timestamp_ms))
        elif self._buffer.has_much(handle):
            await self._while_open(ease_after(self._buffer, handle))
        return handle

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> BatchHandles:
        """As `Producer.send_many`."""
        self._join()
        if self._encoders is not None:
            values, keys = await self._while_open(self._encoders.columns(topic, values, keys))
        return await self._while_open(
            send_many(self._buffer, topic, values, keys, headers=headers, partition=partition)
        )

    async def send_table(self, topic: str, table: Any, **columns: Any) -> TableHandle:
        """As `Producer.send_table`."""
        self._join()
        return await self._while_open(send_table(self._buffer, topic, table, columns))

    async def commit_offsets(self, consumer: OffsetSource, offsets: ToCommit | None = None) -> None:
        """Commit offsets of the consumer's group with the transaction (KIP-447): the positions behind all records that the
        consumer has returned, or these offsets, of the next records to read.

        The group's coordinator checks that the consumer is still a member. Raises FencedMemberEpochError, UnknownMemberIdError,
        IllegalGenerationError or NotAssignedError if it is not, or has lost one of the partitions, and InvalidConfigError for a
        consumer that commits by itself (`auto_commit`).
        """
        self._join()
        await self._while_open(self._commit_offsets(consumer, offsets))

    async def _commit_offsets(self, consumer: OffsetSource, offsets: ToCommit | None) -> None:
        machine = self._transactions.machine
        positions = inside_of(consumer).group_positions(offsets)
        await commit_in_transaction(
            self._client,
            positions,
            transactional_id=machine.transactional_id,
            producer=machine.identity,
            timeout_ms=self._transactions.max_block_ms,
        )
        self._positions.append(positions)

    # --- calls that wait ----------------------------------------------------------------------------------------------

    async def _while_open(self, work: Coroutine[Any, Any, R]) -> R:
        """If it fails, the transaction cannot be committed: the application might go on without this part of it."""
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise TransactionAbortedError("the transaction was aborted during this call")
            return task.result()
        except BaseException as error:
            task.cancel()
            self._failed(error)
            raise
        finally:
            self._sending.discard(task)

    # --- state --------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._check_open()
        if self._is_whole:
            raise TransactionStateError("the transaction is prepared: it takes no more records and offsets")
        assert self._current is not None
        failure = self._current.failure
        if failure is not None:
            raise TransactionAbortedError(
                f"the transaction cannot be committed any more, because a part of it failed: {failure.message}"
            ) from failure
        self._current.has_parts = True

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, BarnabasError):
            error = TransactionStateError(f"a call of the application ended with {error!r}")
        self._transactions.failed(error)

    @property
    def _is_open(self) -> bool:
        machine = self._transactions.machine
        return machine.phase is Phase.OPEN and machine.current is self._current and not self._is_ending

    def _check_open(self) -> None:
        if self._is_open:
            return
        if self._current is None:
            raise TransactionStateError("the transaction has not begun: use `async with producer.transaction()`")
        raise TransactionStateError("the transaction has ended: begin another one")


class _Records:
    """The records of a transaction, as `Transactions` uses them."""

    def __init__(self, buffer: RecordBuffer, sending: set[asyncio.Task[Any]]) -> None:
        self._buffer = buffer
        self._sending = sending

    async def delivered(self) -> None:
        """Return when all records are acknowledged, or one of them has failed."""
        if self._sending:
            await asyncio.wait(list(self._sending))
        await self._buffer.delivered()

    async def discard(self, error: BarnabasError) -> None:
        """Give up what is not acknowledged."""
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(list(self._sending))
        self._buffer.discard(error)


def _note(outcome: Outcome) -> str:
    if outcome is Outcome.ABORTED:
        return "the transaction was aborted"
    return "the transaction cannot be committed any more; its coordinator has not confirmed the abort yet"
