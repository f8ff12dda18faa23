"""Which slots this broker hosts, as the metadata says: it loads their machines, and releases slots that move.

A machine is loaded from the committed state of its slot, and with the slot's new coordinator epoch, so that no other coordinator
can change that state meanwhile. `hosted_slot` is one such slot at work.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from barnabas.consumer_groups.subscriptions.subscriptions import TopicsView
from barnabas.kraft.metadata.image import SLOT_COUNT, MetadataImage
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import RenewSlot
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.settings.broker_keys import MAX_GROUP_SIZE
from barnabas.log.vocabulary.errors import BarnabasError, NotCoordinatorError
from barnabas.net.base.clock import Clock
from barnabas.net.base.figures.histogram import Histogram
from barnabas.net.base.slices import SlicedCalls
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.server.parked_requests import FULL_GROUPS_PER_SLOT

from .group_appends import APPEND_TIMEOUT_MS, GroupAppends
from .hosted_slot import HostedSlot, SlotMachine
from .known_topics import KnownTopics
from .slot_tasks import SlotTasks

logger = logging.getLogger("barnabas.groups")

LOAD_RETRY_MS: Final = 50

M = TypeVar("M", bound=SlotMachine)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSlot:
    """What a machine is made from. `records` rebuild the state of the slot."""

    number: int
    coordinator_epoch: int
    records: Iterable[Record]
    topics: TopicsView
    now_ms: int
    moved_from: str  # which brokers the slot moved between, as text


class SlotObserver(Protocol[M]):
    """Learns what the machines of the hosted slots have decided, when it is committed."""

    def started(self, slot: HostedSlot[M], /) -> None:
        """The slot has a machine: all that it knows is committed."""

    def settled(self, slot: HostedSlot[M], records: Iterable[Record], /) -> None: ...


class SlotHosting(Generic[M]):
    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataService,
        controller: ControllerChannel,
        clock: Clock,
        make_machine: Callable[[LoadedSlot], M],
        fatal: Callable[[str], None],
        max_group_size: int = MAX_GROUP_SIZE,
        append_times: Histogram | None = None,
    ) -> None:
        """`make_machine` raises NotCoordinatorError if the records are of a newer coordinator epoch."""
        self.topics = KnownTopics()
        self._node_id = node_id
        self._metadata = metadata
        self._controller = controller
        self._clock = clock
        self._make_machine = make_machine
        self._max_parked = FULL_GROUPS_PER_SLOT * max_group_size
        self._slots: dict[int, HostedSlot[M]] = {}
        self._observers: list[SlotObserver[M]] = []
        self._tasks = SlotTasks(fatal)
        self._appends = GroupAppends(
            node_id=node_id, controller=controller, spawn=self._tasks.spawn, times=append_times
        )
        self._turns = SlicedCalls(clock.now_ms)
        # Machines use one clock for deadlines and for commit timestamps: it starts at wall time, and then is monotonic.
        self._epoch_ms = clock.wall_ms() - clock.now_ms()
        self._broker_epoch: int | None = None  # of the registration that the metadata must show before slots are hosted
        self._hosts = False  # whether the metadata shows it
        self._seen: dict[int, int] = {}  # slot -> its last coordinator in the metadata
        metadata.subscribe(self._published)

    def observe(self, observer: SlotObserver[M]) -> None:
        self._observers.append(observer)

    def now_ms(self) -> int:
        return self._epoch_ms + self._clock.now_ms()

    def slots(self) -> list[HostedSlot[M]]:
        return list(self._slots.values())

    def machines(self) -> list[M]:
        return [slot.machine for slot in self._slots.values() if slot.machine is not None]

    def find(self, number: int) -> HostedSlot[M] | None:
        """None: this broker does not host the slot."""
        return self._slots.get(number)

    def available(self, number: int, subject: str) -> HostedSlot[M]:
        """The slot whose machine decides about the subject. Raises NotCoordinatorError if another broker hosts it,
        CoordinatorNotAvailableError while it is loading."""
        slot = self._slots.get(number)
        if slot is None:
            raise NotCoordinatorError(f"broker {self._node_id} does not coordinate {subject}; look it up again")
        slot.check_available(subject)
        return slot

    def registered(self, broker_epoch: int) -> None:
        """From now on, host slots according to metadata that shows this registration, and ignore older metadata.

        A slot of the former process may have records of the same coordinator epoch that are not replayed here yet, or are still
        in flight: decisions without them would use an old state. The registration gives the slot a new epoch.
        """
        self._broker_epoch = broker_epoch

    async def close(self) -> None:
        for number in list(self._slots):
            self._release(number)
        await self._tasks.close()

    # --- what the metadata says ---------------------------------------------------------------------------------------

    def _published(self, publication: MetadataPublication) -> None:
        image = publication.image
        if publication.changes.topics:
            self._topics_changed(publication)
        hosted_before, self._hosts = self._hosts, self._is_registered_in(image)
        if not self._hosts:
            for number in list(self._slots):
                self._release(number)
            self._remember_coordinators(publication)
            return
        for number in sorted(publication.changes.slots) if hosted_before else range(SLOT_COUNT):
            owned = image.slots[number].coordinator == self._node_id
            hosted = self._slots.get(number)
            if owned and (hosted is None or hosted.coordinator_epoch != image.slots[number].coordinator_epoch):
                self._host(number, image.slots[number].coordinator_epoch)
            elif not owned and hosted is not None:
                logger.debug("group slot=%d moved to broker %d", number, image.slots[number].coordinator)
                self._release(number)
        self._remember_coordinators(publication)

    def _topics_changed(self, publication: MetadataPublication) -> None:
        recreated = self.topics.change(publication)
        for slot in self.slots():
            slot.topics_changed(self.topics.view, recreated=recreated, changed=publication.changes.topics)

    def _is_registered_in(self, image: MetadataImage) -> bool:
        own = image.brokers.get(self._node_id)
        return own is not None and own.broker_epoch == self._broker_epoch

    def _remember_coordinators(self, publication: MetadataPublication) -> None:
        if self._seen and not publication.changes.slots:
            return
        image = publication.image
        self._seen.update((n, slot.coordinator) for n, slot in enumerate(image.slots) if slot.coordinator >= 0)

    def _origin_of(self, number: int) -> str:
        before = self._seen.get(number, -1)
        if before < 0:
            return f"to broker {self._node_id}"
        if before == self._node_id:
            return f"broker {self._node_id} has loaded it again"
        return f"from broker {before} to broker {self._node_id}"

    # --- hosting ------------------------------------------------------------------------------------------------------

    def _host(self, number: int, coordinator_epoch: int) -> None:
        self._release(number)
        slot = HostedSlot[M](
            number=number,
            coordinator_epoch=coordinator_epoch,
            appends=self._appends,
            turns=self._turns,
            now_ms=self.now_ms,
            topic_ids=lambda: self.topics.ids,
            max_parked=self._max_parked,
            dropped=self._dropped,
            settled=self._settled,
        )
        self._slots[number] = slot
        slot.task = self._tasks.spawn(self._load(slot, self._origin_of(number)))

    def _release(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            slot.release()

    async def _load(self, slot: HostedSlot[M], moved_from: str) -> None:
        """When the slot's new epoch is committed, older epochs cannot commit any more records: the snapshot is complete."""
        while True:
            topic_changes = self.topics.change_count
            offset, records = await self._metadata.source.slot_snapshot(slot.number)
            if slot.is_released:
                return
            if topic_changes == self.topics.change_count:
                break
            # A topic may have been deleted after the snapshot, with its offsets: check again.
        loaded = LoadedSlot(
            number=slot.number,
            coordinator_epoch=slot.coordinator_epoch,
            records=records,
            topics=self.topics.view,
            now_ms=self.now_ms(),
            moved_from=moved_from,
        )
        try:
            machine = self._make_machine(loaded)
        except NotCoordinatorError:
            return  # a newer epoch is committed already; its metadata is on the way
        logger.debug("group slot=%d loaded epoch=%d offset=%d", slot.number, slot.coordinator_epoch, offset)
        slot.start(machine)
        for observer in self._observers:
            observer.started(slot)

    def _settled(self, slot: HostedSlot[M], records: Iterable[Record]) -> None:
        for observer in self._observers:
            observer.settled(slot, records)

    def _dropped(self, slot: HostedSlot[M]) -> None:
        slot.task = self._tasks.spawn(self._renew(slot))

    async def _renew(self, slot: HostedSlot[M]) -> None:
        """The new epoch arrives as metadata, which makes this broker host the slot again."""
        request = RenewSlot(node_id=self._node_id, slot=slot.number, coordinator_epoch=slot.coordinator_epoch)
        while not slot.is_released:
            try:
                await self._controller.call(request, timeout_ms=APPEND_TIMEOUT_MS)
                return
            except NotCoordinatorError:
                return
            except BarnabasError as error:
                logger.info("group slot=%d waits for a new epoch: %s", slot.number, error)
                await asyncio.sleep(LOAD_RETRY_MS / 1000)
