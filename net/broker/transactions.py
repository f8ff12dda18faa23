"""Puts the parts together that carry transactions between brokers, and holds them for the broker."""

from collections.abc import Callable

from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import BrokerNotAvailableError

from ..base.clock import Clock
from ..coordination.groups.slot_hosting import SlotHosting
from ..coordination.groups.slot_tasks import SlotTasks
from ..coordination.transactions.marker_sender import MarkerSender
from ..coordination.transactions.marker_writer import MarkerWriter
from ..coordination.transactions.transaction_operations import TransactionOperations
from ..coordination.transactions.transaction_service import TransactionService
from ..coordination.transactions.transaction_watch import TransactionWatch
from ..coordination.transactions.verification import TransactionVerification
from ..logs.replication_service import ReplicationService
from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.metadata_service import MetadataService
from ..metadata.producer_ids import ProducerIds
from ..wire.protocol.requests import WriteMarkersRequest
from ..wire.protocol.responses import WriteMarkersResponse

# Far above the time that the writer waits for in-sync replicas. A request that a cut has swallowed holds up the markers for its
# broker for this long.
MARKERS_TIMEOUT_MS = 3_000


class BrokerTransactions:
    def __init__(
        self,
        *,
        node_id: int,
        clock: Clock,
        fatal: Callable[[str], None],
        metadata: MetadataService,
        controller: ControllerChannel,
        replication: ReplicationService,
        slots: SlotHosting[SlotCoordinator],
        producer_ids: ProducerIds,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._tasks = SlotTasks(fatal)
        self.service = TransactionService(
            node_id=node_id, metadata=metadata, slots=slots, controller=controller, producer_ids=producer_ids
        )
        self.verification = TransactionVerification(find=replication.manager.find, ask=self.service.add_at_coordinator)
        self.writer = MarkerWriter(
            replication=replication,
            slots=slots,
            clock=clock,
            slot_epoch=lambda name: metadata.image.slots[slot_of(name)].coordinator_epoch,
            ended=self.verification.marker_appended,
        )
        self.operations = TransactionOperations(
            node_id=node_id,
            clock=clock,
            metadata=metadata,
            controller=controller,
            replication=replication,
            service=self.service,
            writer=self.writer,
        )
        self.watch = TransactionWatch(
            clock=clock, replication=replication, service=self.service, operations=self.operations
        )
        slots.observe(self.watch)
        slots.observe(
            MarkerSender(
                image=lambda: metadata.image,
                ask=self._ask,
                now_ms=slots.now_ms,
                spawn=self._tasks.spawn,
                completed=self.service.completed,
            )
        )

    async def close(self) -> None:
        await self._tasks.close()

    async def _ask(self, node_id: int, request: WriteMarkersRequest) -> WriteMarkersResponse:
        if node_id == self._node_id:
            return await self.writer.write(request)
        try:
            answer = await self._controller.ask_broker(node_id, request, timeout_ms=MARKERS_TIMEOUT_MS)
        except OSError as error:
            raise BrokerNotAvailableError(f"broker {node_id} cannot be reached: {error}") from error
        assert isinstance(answer, WriteMarkersResponse)
        return answer
