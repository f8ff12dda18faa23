"""The coordinators of the group slots that this broker hosts: loading, appending, answering, timers.

`consumer_groups.coordinator` makes the decisions, with one machine per slot. This shell passes requests to the machines, gives
their records to the next append (`group_appends`), and sends an answer only when everything that it depends on is committed. When
an append fails, or its outcome is not known, the machine is ahead of the committed state: it is dropped and loaded again from the
committed state, and its callers must try again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.explain.watch import AlertKind
from barnabas.consumer_groups.model.classic_messages import Ticket
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.consumer_groups.subscriptions.subscriptions import TopicsView, topics_view
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.image import SLOT_COUNT, MetadataImage, SlotImage
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import RenewSlot
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.settings.broker_keys import MAX_GROUP_SIZE
from barnabas.log.vocabulary.errors import BarnabasError, CoordinatorNotAvailableError, NotCoordinatorError

from ..base.clock import Clock
from ..base.slices import SlicedCalls
from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.metadata_service import MetadataService
from ..server.parked_requests import FULL_GROUPS_PER_SLOT, ParkedRequests
from .group_appends import APPEND_TIMEOUT_MS, GroupAppends, SlotQueue, Waiting

logger = logging.getLogger("barnabas.groups")

R = TypeVar("R")
LOAD_RETRY_MS = 50
MAX_WAITING_PER_SLOT = 10_000  # answers that wait for a commit; other callers must try again
# Requests that wait until the loop has time for their decision; other callers must try again. This is a few seconds of work: a
# member that waits longer loses its session.
MAX_WAITING_TURNS = 10_000


@dataclass(slots=True)
class _Slot:
    """A slot that this broker hosts. `machine` is None while the slot is loading."""

    number: int
    coordinator_epoch: int
    queue: SlotQueue
    parked: ParkedRequests
    moved_from: str = ""  # a text, if it is known
    machine: GroupCoordinator | None = None
    task: "asyncio.Task[None] | None" = None
    timer: asyncio.TimerHandle | None = None
    tick_is_due: bool = False  # the tick waits for its turn


class GroupService:
    """Hosts the coordinators; every request for a group comes through `handle`."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataService,
        controller: ControllerChannel,
        clock: Clock,
        make_coordinator: Callable[[int, int, Iterable[Record]], GroupCoordinator],
        fatal: Callable[[str], None],
        max_group_size: int = MAX_GROUP_SIZE,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._controller = controller
        self._clock = clock
        self._make_coordinator = make_coordinator
        self._fatal = fatal
        self._max_parked = FULL_GROUPS_PER_SLOT * max_group_size
        self._slots: dict[int, _Slot] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, unlike a set
        self._appends = GroupAppends(node_id=node_id, controller=controller, spawn=self._spawn)
        self._turns = SlicedCalls(clock.now_ms)  # Many decisions must not block other work of the loop.
        self._topics: TopicsView = {}
        self._topic_ids: dict[str, str] = {}
        self._topic_changes = 0
        self._last_ticket = 0
        # Machines use one clock for deadlines and for commit timestamps: it starts at wall time, and then is monotonic.
        self._epoch_ms = clock.wall_ms() - clock.now_ms()
        self.match_budget = MatchBudget(self.now_ms())  # of this event loop: all slots share it
        self._broker_epoch: int | None = None  # of the registration that the metadata must show before slots are hosted
        self._hosts = False  # whether the metadata shows it
        self._seen: dict[int, int] = {}  # slot -> its last coordinator in the metadata
        metadata.subscribe(self._published)

    # --- where a group is ---------------------------------------------------------------------------------------------

    def coordinator_of(self, group_id: str) -> int:
        """The node id of the broker that coordinates the group. Raises CoordinatorNotAvailableError."""
        return self.place_of(group_id).coordinator

    def place_of(self, group_id: str) -> SlotImage:
        """The same, with the coordinator epoch. Raises CoordinatorNotAvailableError."""
        slot = self._metadata.image.slots[slot_of(group_id)]
        if slot.coordinator < 0:
            raise CoordinatorNotAvailableError(f"group {group_id!r} has no coordinator at the moment; try again")
        return slot

    def now_ms(self) -> int:
        return self._epoch_ms + self._clock.now_ms()

    def machines(self) -> list[GroupCoordinator]:
        return [slot.machine for slot in self._slots.values() if slot.machine is not None]

    @property
    def parked_count(self) -> int:
        """Requests that wait for other members."""
        return sum(len(slot.parked) for slot in self._slots.values())

    def moved_from(self, number: int) -> str:
        slot = self._slots.get(number)
        return "" if slot is None else slot.moved_from

    def unowned_counts(self) -> dict[str, int]:
        """Group -> number of partitions that no member has read for long, for the groups that this broker coordinates."""
        return {group_id: count for machine in self.machines() for group_id, count in machine.unowned_counts.items()}

    async def handle(self, group_id: str, decide: Callable[[GroupCoordinator], CoordinatorResult[R]]) -> R:
        """Let the group's machine decide, and return its response once the decision is committed.

        Raises NotCoordinatorError if another broker hosts the group, CoordinatorNotAvailableError while the slot is loading, and
        any BarnabasError of the machine.
        """
        return cast(R, await self._handle(self._slot_for(group_id), decide))

    async def handle_parked(
        self, group_id: str, decide: Callable[[GroupCoordinator, Ticket], CoordinatorResult[None]]
    ) -> object:
        """As `handle`, for a request whose answer may wait for other members: this decision or a later one answers its ticket.

        Also raises a later refusal of the request, for example when its coordinator moves: the client tries again.
        """
        slot = self._slot_for(group_id)
        if not slot.parked.has_room(group_id):
            raise CoordinatorNotAvailableError(
                f"too many members wait to join, {len(slot.parked)} at this coordinator; try again later"
            )
        self._last_ticket += 1
        ticket = self._last_ticket
        answer = slot.parked.add(group_id, ticket)
        try:
            await self._handle(slot, lambda machine: decide(machine, ticket))
            return await answer
        except asyncio.CancelledError:
            self._turns.add(lambda: self._withdraw(slot, group_id, ticket))
            raise
        finally:
            slot.parked.remove(ticket)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # it may have been refused while its own decision failed

    def _withdraw(self, slot: _Slot, group_id: str, ticket: Ticket) -> None:
        if slot.machine is not None and self._slots.get(slot.number) is slot:
            self._decide_alone(
                slot, lambda machine: machine.withdraw(group_id=group_id, ticket=ticket, now_ms=self.now_ms())
            )

    def has_room_to_park(self, group_id: str) -> bool:
        """Return whether one more request may be parked. Requests that need not wait do not depend on it."""
        slot = self._slots.get(slot_of(group_id))
        return slot is not None and slot.parked.has_room(group_id)

    def _slot_for(self, group_id: str) -> _Slot:
        slot = self._slots.get(slot_of(group_id))
        if slot is None:
            raise NotCoordinatorError(
                f"broker {self._node_id} does not coordinate group {group_id!r}; look it up again"
            )
        if slot.machine is None:
            raise CoordinatorNotAvailableError(f"the coordinator of group {group_id!r} is loading; try again")
        if len(slot.queue.waiting) >= MAX_WAITING_PER_SLOT:
            raise CoordinatorNotAvailableError("too many decisions wait for the quorum; try again later")
        return slot

    async def _handle(self, slot: _Slot, decide: Callable[[GroupCoordinator], CoordinatorResult[Any]]) -> object:
        if len(self._turns) >= MAX_WAITING_TURNS:
            raise CoordinatorNotAvailableError(
                f"{len(self._turns)} requests of groups wait at this broker; try again later"
            )
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._turns.add(lambda: self._take_turn(slot, decide, answer))
        told = await answer
        if isinstance(told, BarnabasError):
            raise told
        return told

    def _take_turn(
        self,
        slot: _Slot,
        decide: Callable[[GroupCoordinator], CoordinatorResult[Any]],
        answer: "asyncio.Future[object]",
    ) -> None:
        """A refusal also waits until earlier decisions are committed, because it depends on them."""
        if answer.done():
            return  # the client disconnected while its request waited
        if slot.machine is None or self._slots.get(slot.number) is not slot:
            answer.set_exception(NotCoordinatorError("the coordinator has moved or is reloading; look it up again"))
            return
        try:
            result = self._decide(slot, decide)
        except BarnabasError as error:
            if slot.machine is None:
                answer.set_exception(error)
                return
            result = CoordinatorResult(records=(), response=error)
        self._set_timer(slot)
        if not result.records and slot.queue.is_idle:
            slot.parked.deliver(result.answers)
            answer.set_result(result.response)
            return
        self._appends.add(slot.queue, Waiting(result, answer))

    def _decide(
        self, slot: _Slot, decide: Callable[[GroupCoordinator], CoordinatorResult[Any]]
    ) -> CoordinatorResult[Any]:
        """A machine that failed during a decision must not continue: it may have replayed a part of the decision."""
        assert slot.machine is not None
        try:
            return decide(slot.machine)
        except BarnabasError:
            raise
        except Exception as error:
            logger.exception("group slot=%d: the coordinator failed", slot.number)
            self._reload(slot, CoordinatorNotAvailableError("the coordinator failed and is reloading; try again"))
            raise CoordinatorNotAvailableError("the coordinator failed and is reloading; try again") from error

    # --- appending ----------------------------------------------------------------------------------------------------

    def _committed(self, slot: _Slot, items: list[Waiting]) -> None:
        for item in items:
            slot.parked.deliver(item.result.answers)
            if not item.answer.done():
                item.answer.set_result(item.result.response)

    def _failed(self, slot: _Slot, items: list[Waiting], error: BarnabasError) -> None:
        failure = CoordinatorNotAvailableError(f"the coordinator must reload: {error.message}; try again")
        _refuse(items, failure)
        if not slot.queue.is_closed:
            self._reload(slot, failure)

    def _reload(self, slot: _Slot, error: BarnabasError) -> None:
        """The machine depends on records that may never be committed. Its successor needs a newer coordinator epoch, which
        invalidates these records if they arrive later."""
        slot.machine = None
        _refuse(slot.queue.close(), error)
        slot.parked.refuse_all(error)
        if self._slots.get(slot.number) is slot:
            slot.task = self._spawn(self._renew(slot))

    async def _renew(self, slot: _Slot) -> None:
        """The new epoch arrives as metadata, which makes this broker host the slot again."""
        request = RenewSlot(node_id=self._node_id, slot=slot.number, coordinator_epoch=slot.coordinator_epoch)
        while self._slots.get(slot.number) is slot:
            try:
                await self._controller.call(request, timeout_ms=APPEND_TIMEOUT_MS)
                return
            except NotCoordinatorError:
                return
            except BarnabasError as error:
                logger.info("group slot=%d waits for a new epoch: %s", slot.number, error)
                await asyncio.sleep(LOAD_RETRY_MS / 1000)

    def registered(self, broker_epoch: int) -> None:
        """From now on, host slots according to metadata that shows this registration, and ignore older metadata.

        A slot of the former process may have records of the same coordinator epoch that are not replayed here yet, or are still
        in flight: decisions without them would use an old state. The registration gives the slot a new epoch.
        """
        self._broker_epoch = broker_epoch

    # --- hosting ------------------------------------------------------------------------------------------------------

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
                self._drop(number, image.slots[number].coordinator)
        self._remember_coordinators(publication)

    def _remember_coordinators(self, publication: MetadataPublication) -> None:
        if self._seen and not publication.changes.slots:
            return
        image = publication.image
        self._seen.update((n, slot.coordinator) for n, slot in enumerate(image.slots) if slot.coordinator >= 0)

    def _is_registered_in(self, image: MetadataImage) -> bool:
        own = image.brokers.get(self._node_id)
        return own is not None and own.broker_epoch == self._broker_epoch

    def _host(self, number: int, coordinator_epoch: int) -> None:
        self._release(number)
        queue = SlotQueue(
            slot=number,
            coordinator_epoch=coordinator_epoch,
            committed=lambda items: self._committed(slot, items),
            failed=lambda items, error: self._failed(slot, items, error),
        )
        slot = _Slot(
            number=number,
            coordinator_epoch=coordinator_epoch,
            queue=queue,
            parked=ParkedRequests(self._max_parked),
            moved_from=self._origin_of(number),
        )
        self._slots[number] = slot
        slot.task = self._spawn(self._load(slot))

    def _origin_of(self, number: int) -> str:
        before = self._seen.get(number, -1)
        if before < 0:
            return f"to broker {self._node_id}"
        if before == self._node_id:
            return f"broker {self._node_id} has loaded it again"
        return f"from broker {before} to broker {self._node_id}"

    async def _load(self, slot: _Slot) -> None:
        """When the slot's new epoch is committed, older epochs cannot commit any more records: the snapshot is complete."""
        while True:
            topic_changes = self._topic_changes
            offset, records = await self._metadata.source.slot_snapshot(slot.number)
            if self._slots.get(slot.number) is not slot:
                return
            if topic_changes == self._topic_changes:
                break
            # A topic may have been deleted after the snapshot, with its offsets: check again.
        try:
            slot.machine = self._make_coordinator(slot.number, slot.coordinator_epoch, records)
        except NotCoordinatorError:
            return  # a newer epoch is committed already; its metadata is on the way
        logger.debug("group slot=%d loaded epoch=%d offset=%d", slot.number, slot.coordinator_epoch, offset)
        self._set_timer(slot)

    def _drop(self, number: int, new_coordinator: int) -> None:
        logger.debug("group slot=%d moved to broker %d", number, new_coordinator)
        self._release(number)

    def _release(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is None:
            return
        if slot.timer is not None:
            slot.timer.cancel()
        if slot.task is not None and slot.task is not asyncio.current_task():
            slot.task.cancel()
        moved = NotCoordinatorError("the coordinator has moved; look it up again")
        _refuse(slot.queue.abandon(), moved)
        slot.parked.refuse_all(moved)

    # --- topics and time ----------------------------------------------------------------------------------------------

    def _topics_changed(self, publication: MetadataPublication) -> None:
        self._topic_changes += 1
        before, image = self._topic_ids, publication.image
        recreated = frozenset(
            name
            for name in publication.changes.topics
            if name in before and name in image.topics and before[name] != image.topics[name].topic_id
        )
        self._topic_ids = {topic.name: topic.topic_id for topic in image.topics.values()}
        self._topics = topics_view(image)
        for slot in list(self._slots.values()):
            if slot.machine is not None:
                self._decide_alone(
                    slot,
                    lambda machine: machine.topics_changed(
                        self._topics, self.now_ms(), recreated=recreated, changed=publication.changes.topics
                    ),
                )

    @property
    def topics(self) -> TopicsView:
        """Topic -> number of partitions, the input of assignments."""
        return self._topics

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Topic -> its id, of the same view as `topics`."""
        return self._topic_ids

    def _set_timer(self, slot: _Slot) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        if slot.machine is None or slot.tick_is_due:
            return
        deadline_ms = slot.machine.next_deadline_ms()
        if deadline_ms is not None:
            delay_ms = max(1, deadline_ms - self.now_ms())
            slot.timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._time_is_up, slot)

    def _time_is_up(self, slot: _Slot) -> None:
        """Heartbeats that arrived earlier count even if they wait for their turn: the tick takes its turn after them."""
        slot.tick_is_due = True
        self._turns.add(lambda: self._tick(slot))

    def _tick(self, slot: _Slot) -> None:
        slot.tick_is_due = False
        if slot.machine is not None and self._slots.get(slot.number) is slot:
            for alert in self._decide_alone(slot, lambda machine: machine.tick(self.now_ms())) or ():
                level = logging.INFO if alert.kind is AlertKind.OWNED_AGAIN else logging.WARNING
                logger.log(level, "group=%s alert=%s %s", alert.group_id, alert.kind.value, alert.text)

    def _decide_alone(self, slot: _Slot, decide: Callable[[GroupCoordinator], CoordinatorResult[Any]]) -> Any:
        """Make a decision without a caller; return its response, or None if there is none."""
        try:
            result = self._decide(slot, decide)
        except BarnabasError as error:
            logger.warning("group slot=%d: %s", slot.number, error)
            self._set_timer(slot)
            return None
        self._set_timer(slot)
        if result.records or result.answers:
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._appends.add(slot.queue, Waiting(result, answer))
        return result.response

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """After an internal error, callers of the slot would wait forever: the broker stops, and another one takes over."""
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("the work of a group slot failed", exc_info=error)
            self._fatal(f"the work of a group slot failed: {error!r}")

    async def close(self) -> None:
        for number in list(self._slots):
            self._release(number)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _refuse(waiting: list[Waiting], error: BarnabasError) -> None:
    for item in waiting:
        if not item.answer.done():
            item.answer.set_exception(error)
