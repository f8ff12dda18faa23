"""Requests for transactions: finds the slot of a transactional id, here or at another broker, and lets its machine decide.

`consumer_groups.transactions` makes the decisions; `net.coordination.groups.slot_hosting` keeps the machines.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.identity import is_exhausted
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.feature_levels import PREPARED_LEVEL, TRANSACTIONS_LEVEL, brokers_below
from barnabas.kraft.metadata.image import SlotImage
from barnabas.log.vocabulary.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.transaction_messages import (
    NO_PRODUCER_ID,
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
    TransactionTopic,
)
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.metadata.producer_ids import ProducerIds
from barnabas.net.wire.protocol.responses import AddToTransactionResponse

from ..groups.slot_hosting import SlotHosting
from ..groups.sure_refusals import ends_a_producer, with_sure_refusals

R = TypeVar("R")
ASK_TIMEOUT_MS = 5_000  # of one question to another coordinator; its client asks again
# The markers of a transaction take a few milliseconds. Behind an election its client must ask again.
COMPLETION_WAIT_MS = 500
MAX_WAITING = 10_000  # requests that wait for the end of a transaction, each about 2 kB; others must try again at once


class TransactionService:
    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataService,
        slots: SlotHosting[SlotCoordinator],
        controller: ControllerChannel,
        producer_ids: ProducerIds,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._slots = slots
        self._controller = controller
        self._producer_ids = producer_ids
        # By transactional id: requests that wait until its transaction is complete.
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._waiting_count = 0

    def place_of(self, transactional_id: str) -> SlotImage:
        """The broker that coordinates the transactional id. Raises CoordinatorNotAvailableError."""
        slot = self._metadata.image.slots[slot_of(transactional_id)]
        if slot.coordinator < 0:
            raise CoordinatorNotAvailableError(
                f"transactional id {transactional_id!r} has no coordinator at the moment; try again"
            )
        return slot

    def now_ms(self) -> int:
        """The time of the machines."""
        return self._slots.now_ms()

    def machines(self) -> list[TransactionCoordinator]:
        """Of the slots that this broker hosts."""
        return [machine.transactions for machine in self._slots.machines()]

    async def handle(
        self, transactional_id: str, decide: Callable[[TransactionCoordinator], CoordinatorResult[R]]
    ) -> R:
        """Let the machine of the transactional id decide, and return its response once the decision is committed. Raises as
        `GroupService.handle`."""
        slot = self._slots.available(slot_of(transactional_id), f"transactional id {transactional_id!r}")
        return await slot.decide(lambda machine: with_sure_refusals(decide, machine.transactions, ends_a_producer))

    async def _handle_when_complete(
        self, transactional_id: str, decide: Callable[[TransactionCoordinator], CoordinatorResult[R]]
    ) -> R:
        """As `handle`. If the transaction is decided and not complete, wait a while until it is, so that the client need not
        guess when to ask again: what it does next is often on its way before the markers are written."""
        until_ms = self.now_ms() + COMPLETION_WAIT_MS
        await self._completion(transactional_id, until_ms)
        try:
            return await self.handle(transactional_id, decide)
        except ConcurrentTransactionsError:
            await self._completion(transactional_id, until_ms)
            return await self.handle(transactional_id, decide)

    async def _completion(self, transactional_id: str, until_ms: int) -> None:
        """Return when the transaction is complete, or at that time."""
        slot = self._slots.find(slot_of(transactional_id))
        if slot is None or slot.machine is None or not slot.machine.transactions.is_ending(transactional_id):
            return
        if self._waiting_count >= MAX_WAITING:
            return
        completion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(transactional_id, {})
        waiting[completion] = None
        self._waiting_count += 1
        try:
            await asyncio.wait([completion], timeout=max(0, until_ms - self.now_ms()) / 1000)
        finally:
            self._waiting_count -= 1
            waiting.pop(completion, None)
            if not waiting and self._waiting.get(transactional_id) is waiting:
                del self._waiting[transactional_id]

    def completed(self, transactional_id: str) -> None:
        """Its transaction is complete here; the quorum may not have committed that yet."""
        for completion in self._waiting.pop(transactional_id, ()):
            if not completion.done():
                completion.set_result(None)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def init(self, request: InitTransactionsRequest) -> ProducerIdentity:
        """Raises UnsupportedVersionError during an upgrade, and what the machine raises."""
        self._check_upgraded(TRANSACTIONS_LEVEL, "transactions")
        fresh = await self._producer_ids.next_id()
        answer = await self._handle_when_complete(
            request.transactional_id,
            lambda machine: machine.init(request, fresh_producer_id=fresh, now_ms=self.now_ms()),
        )
        assert isinstance(answer, ProducerIdentity), "an error as the response of a decision is raised"
        return answer

    async def add(self, request: AddToTransactionRequest) -> AddToTransactionResponse:
        """Make partitions and groups part of the transaction; with `is_check`, ask whether they are."""

        def decide(machine: TransactionCoordinator) -> CoordinatorResult[AddToTransactionResponse]:
            added = machine.add(request, now_ms=self.now_ms())
            answer = AddToTransactionResponse(
                partitions=added.response, started_ms=machine.started_ms(request.transactional_id)
            )
            return CoordinatorResult(records=added.records, response=answer, answers=added.answers)

        return await self._handle_when_complete(request.transactional_id, decide)

    async def prepare(self, request: PrepareTransactionRequest) -> None:
        """Raises UnsupportedVersionError during an upgrade, and what the machine raises."""
        self._check_upgraded(PREPARED_LEVEL, "prepared transactions")
        await self.handle(request.transactional_id, lambda machine: machine.prepare(request, now_ms=self.now_ms()))

    async def end(self, request: EndTransactionRequest) -> ProducerIdentity:
        needs_id = request.uses_v2 and is_exhausted(request.producer_epoch)
        fresh = await self._producer_ids.next_id() if needs_id else NO_PRODUCER_ID
        return await self._handle_when_complete(
            request.transactional_id,
            lambda machine: machine.end(request, fresh_producer_id=fresh, now_ms=self.now_ms()),
        )

    async def add_at_coordinator(self, request: AddToTransactionRequest) -> AddToTransactionResponse:
        """As `add`, at whichever broker coordinates the transactional id. Raises CoordinatorNotAvailableError if it cannot be
        reached."""
        node_id = self.place_of(request.transactional_id).coordinator
        if node_id == self._node_id:
            return await self.add(request)
        try:
            answer = await self._controller.ask_broker(node_id, request, timeout_ms=ASK_TIMEOUT_MS)
        except (NetworkError, RequestTimedOutError) as error:
            raise CoordinatorNotAvailableError(f"the coordinator does not answer: {error.message}") from error
        assert isinstance(answer, AddToTransactionResponse)
        return answer

    def topics_with_ids(self, topics: dict[str, set[int]]) -> tuple[TransactionTopic, ...]:
        """Partitions that exist here; others are left out."""
        image = self._metadata.image
        return tuple(
            TransactionTopic(topic=name, topic_id=found.topic_id, partitions=tuple(sorted(known)))
            for name, numbers in sorted(topics.items())
            if (found := image.topics.get(name)) is not None
            if (known := {number for number in numbers if 0 <= number < len(found.partitions)})
        )

    def _check_upgraded(self, level: int, what: str) -> None:
        image = self._metadata.image
        below = () if image.feature_level >= level else brokers_below(level, image.brokers.values())
        if below:
            raise UnsupportedVersionError(
                f"brokers {list(below)} do not support {what}: upgrade or unregister them first"
            )
