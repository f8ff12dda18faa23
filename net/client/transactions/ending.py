"""`Transactions`: begins and ends the transactions of one producer. The rules are in `machine`.

A transaction ends in a task of its own, so that a caller that is cancelled leaves no end half done: an end that was asked of the
coordinator goes on in the background, and the next transaction waits for it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from barnabas.log.vocabulary.transaction_messages import EndTransactionRequest, ProducerIdentity

from ..connection.client import Client
from ..connection.errors import (
    BarnabasError,
    ClientClosedError,
    CoordinatorNotAvailableError,
    TransactionAbortedError,
)
from .machine import Current, Outcome, Phase, TransactionMachine

logger = logging.getLogger("barnabas.producer")

# How long an application that fails, or closes, waits for the confirmation of an abort. The abort goes on in the background, and
# the coordinator aborts a transaction by itself after its timeout.
ABORT_WAIT_MS = 10_000


class TransactionRecords(Protocol):
    """The records of the open transaction that the producer holds."""

    async def delivered(self) -> None:
        """Return when all of them are acknowledged, or one of them has failed."""

    async def discard(self, error: BarnabasError) -> None:
        """Fail all that are not acknowledged; those on their way count no more."""


class Transactions:
    def __init__(self, client: Client, machine: TransactionMachine, *, max_block_ms: int) -> None:
        """`max_block_ms`: how long the coordinator is asked again before a call gives up."""
        self.machine = machine
        self._client = client
        self.max_block_ms = max_block_ms
        self._records: TransactionRecords | None = None  # of the transaction that began last
        self._has_failed = asyncio.Event()  # a part of it
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take over the transactional id: the producer that had it is fenced, and its open transaction aborted."""
        machine = self.machine
        identity: ProducerIdentity = await self._client.coordinators.call(
            machine.transactional_id, machine.init_request(), timeout_ms=self.max_block_ms
        )
        machine.initialized(identity)

    async def begin(self, records: TransactionRecords) -> Current:
        """Raises TransactionStateError, ProducerFencedError, and TransactionOutcomeUnknownError while the coordinator stays away
        that has not answered the last commit."""
        before = self._ending
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self.machine.phase is Phase.IN_DOUBT:
            await _ended(self._end_with(self._ask(self.machine.ask_again())))
        if self.machine.phase is Phase.IN_DOUBT:
            raise self._still_in_doubt()
        current = self.machine.begin()
        self._records = records
        self._has_failed = asyncio.Event()
        return current

    def failed(self, error: BarnabasError) -> None:
        """A record or an offset of the open transaction: it cannot be committed."""
        self.machine.failed(error)
        self._has_failed.set()

    async def take_over(self, transactional_id: str) -> None:
        """Go on under this id, as `start` with it; an open transaction is aborted first. What ends now keeps its id."""
        if self.machine.phase is Phase.OPEN:
            await self.abort()
        self.machine = TransactionMachine(transactional_id, timeout_ms=self.machine.timeout_ms)
        await self.start()

    async def prepare(self, prepared_for: str) -> bool:
        """Deliver all records, and leave the transaction to those who decide it; return whether it has any. After an error it is
        open, to be aborted."""
        machine = self.machine
        await self._delivered()
        request = machine.prepare_request(prepared_for)
        if request is None:
            return False
        await self._client.coordinators.call(machine.transactional_id, request, timeout_ms=self.max_block_ms)
        machine.prepared()
        return True

    async def commit(self) -> None:
        """Deliver all records and commit. Raises what `Current.error` says if the transaction is not committed."""
        current = self.machine.current
        assert current is not None
        ending = self._end_with(self._commit())
        try:
            await _ended(ending)
        except asyncio.CancelledError:
            if self.machine.phase is Phase.OPEN:  # the coordinator was not asked yet
                self._end_with(self._abort())
            raise
        if current.error is not None:
            raise current.error

    async def abort(self) -> Outcome:
        """Give the records up and abort; wait a while for the confirmation."""
        current = self.machine.current
        assert current is not None
        await asyncio.wait([self._end_with(self._abort())], timeout=ABORT_WAIT_MS / 1000)
        return Outcome.ABORTING if current.outcome is Outcome.OPEN else current.outcome

    async def close(self) -> None:
        """Abort what is open. What is in doubt stays so."""
        if self.machine.phase is Phase.OPEN:
            self._end_with(self._abort())
        if self._ending is not None and not self._ending.done():
            try:
                await asyncio.wait([self._ending], timeout=ABORT_WAIT_MS / 1000)
            finally:
                self._ending.cancel()
                await asyncio.gather(self._ending, return_exceptions=True)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_with(self, end: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Return the task of the end, which another end may replace."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().create_task(end, name="barnabas-transaction-end")
        return self._ending

    async def _delivered(self) -> None:
        """Return when all records are acknowledged, or a part of the transaction has failed."""
        assert self._records is not None
        delivering = asyncio.ensure_future(self._records.delivered())
        failing = asyncio.ensure_future(self._has_failed.wait())
        try:
            await asyncio.wait([delivering, failing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            delivering.cancel()
            failing.cancel()

    async def _commit(self) -> None:
        await self._delivered()
        request = self.machine.end(is_commit=True)
        if request is None or not request.is_commit:
            await self._discard()
        await self._ask(request)

    async def _abort(self) -> None:
        request = self.machine.end(is_commit=False)
        await self._discard()
        await self._ask(request)

    async def _discard(self) -> None:
        assert self._records is not None
        name = self.machine.transactional_id
        await self._records.discard(TransactionAbortedError(f"the transaction of {name!r} of this record is aborted"))

    async def _ask(self, request: EndTransactionRequest | None) -> None:
        """Ask the coordinator until the transaction has ended or the time is over."""
        client, machine = self._client, self.machine
        deadline_ms = client.clock.now_ms() + self.max_block_ms
        failures = 0
        while request is not None:
            left_ms = max(1, deadline_ms - client.clock.now_ms())
            try:
                identity: ProducerIdentity = await client.coordinators.ask(
                    machine.transactional_id, request, timeout_ms=min(client.request_timeout_ms, left_ms)
                )
            except asyncio.CancelledError:
                machine.gave_up(ClientClosedError("the producer was closed"))
                raise
            except BarnabasError as error:
                failures += 1
                delay_ms = client.backoff.delay_ms(failures, client.rng.random)
                following = machine.refused(error)
                if following is not None and client.clock.now_ms() + delay_ms > deadline_ms:
                    logger.warning("transaction not ended id=%s reason=%s", machine.transactional_id, error.message)
                    machine.gave_up(error)
                    return
                if following is request:
                    await asyncio.sleep(delay_ms / 1000)
                request = following
            else:
                machine.answered(identity)
                return

    def _still_in_doubt(self) -> BarnabasError:
        current = self.machine.current
        assert current is not None
        name = self.machine.transactional_id
        return current.error or CoordinatorNotAvailableError(
            f"the abort of the last transaction of {name!r} is not confirmed: its coordinator does not answer; try again"
        )


async def _ended(ending: "asyncio.Task[None]") -> None:
    """Wait for the task; a cancelled caller does not cancel it."""
    await asyncio.wait([ending])
    if ending.cancelled():
        raise ClientClosedError("the producer was closed while a transaction ended")
    ending.result()
