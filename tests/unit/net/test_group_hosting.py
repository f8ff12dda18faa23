"""Which slots are hosted when, and how decisions become appends: with machines that decide what the test says."""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec.structs import replace
from unit.net.shell_world import Shell, broker, image_of, now_ms, partition, simulated, topic, turns

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.offsets.transactional_offsets import MAX_PENDING_OFFSETS
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.kraft.group_state.offsets_log import POSITION_BITS
from barnabas.kraft.metadata.image import SlotImage, TopicImage
from barnabas.kraft.metadata.records import (
    GroupRecord,
    OffsetCommitRecord,
    PendingOffsetsEndedRecord,
    Record,
    StagedDecisionRecord,
)
from barnabas.kraft.metadata.requests import AppendGroupRecords, GroupRecordsAppended, RenewSlot, SlotRefusal
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    NetworkError,
    NotCoordinatorError,
)
from barnabas.net.base.slices import SLICE_STEPS
from barnabas.net.coordination.groups.group_appends import (
    APPEND_TIMEOUT_MS,
    MAX_ENDED_OFFSETS_PER_APPEND,
    MAX_ENDS_PER_APPEND,
    MAX_RECORDS_PER_APPEND,
)
from barnabas.net.coordination.groups.group_service import GroupService
from barnabas.net.coordination.groups.hosted_slot import MAX_WAITING_PER_SLOT
from barnabas.net.coordination.groups.slot_hosting import LOAD_RETRY_MS, LoadedSlot, SlotHosting

GROUP = "g"
SLOT = slot_of(GROUP)
EPOCH = 100  # of our registration
ELSEWHERE = SlotImage(coordinator=1, coordinator_epoch=9)
Result = CoordinatorResult[Any]


def record(offset: int, *, epoch: int = 1) -> OffsetCommitRecord:
    return OffsetCommitRecord(
        slot=SLOT,
        coordinator_epoch=epoch,
        group_id=GROUP,
        topic="t",
        partition=0,
        offset=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp_ms=0,
    )


@dataclass(eq=False)
class Machine:
    """What the service knows of a SlotCoordinator and of its groups."""

    slot: int
    coordinator_epoch: int
    records: list[Record]
    deadline_ms: int | None = None
    ticks: list[int] = field(default_factory=list)
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # that came with the last tick
    on_tick: tuple[Record, ...] = ()
    topics: list[tuple[dict[str, int], frozenset[str]]] = field(default_factory=list)
    on_topics: tuple[Record, ...] = ()
    follows_topics: bool = True
    taken: list[dict[str, int]] = field(default_factory=list)

    @property
    def groups(self) -> Any:
        return self

    def tick(self, now_ms: int, *, topic_ids: Mapping[str, str]) -> Result:
        self.ticks.append(now_ms)
        self.topic_ids = topic_ids
        self.deadline_ms = None
        return CoordinatorResult(records=cast(Any, self.on_tick), response=None)

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def take_topics(self, topics: dict[str, int]) -> None:
        self.taken.append(topics)

    def topics_changed(
        self, topics: dict[str, int], now_ms: int, *, recreated: AbstractSet[str], changed: AbstractSet[str]
    ) -> Result:
        assert recreated <= changed
        self.topics.append((topics, frozenset(recreated)))
        return CoordinatorResult(records=cast(Any, self.on_topics), response=None)


class World:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.machines: list[Machine] = []
        self.first_deadline_ms: int | None = None
        self.fatal: list[str] = []
        self.slots = SlotHosting(
            node_id=0,
            metadata=shell.metadata,
            controller=shell.controller,
            clock=shell.clock,
            make_machine=cast(Any, self._machine),
            fatal=self.fatal.append,
        )
        self.groups = GroupService(metadata=shell.metadata, slots=self.slots)
        shell.source.script(GroupRecordsAppended())

    def _machine(self, loaded: LoadedSlot) -> Machine:
        records = list(loaded.records)
        if any(getattr(item, "coordinator_epoch", 0) > loaded.coordinator_epoch for item in records):
            raise NotCoordinatorError("the slot has moved on")
        machine = Machine(loaded.number, loaded.coordinator_epoch, records, deadline_ms=self.first_deadline_ms)
        self.machines.append(machine)
        return machine

    @classmethod
    async def start(cls, *, hosting: bool = True) -> "World":
        world = cls(await Shell.start())
        world.slots.registered(EPOCH)
        if hosting:
            world.show({SLOT: 1})
            await turns()
        return world

    def show(
        self,
        own: dict[int, int],
        *,
        others: dict[int, SlotImage] | None = None,
        topics: tuple[TopicImage, ...] = (),
        restored: bool = False,
    ) -> None:
        """Publish which slots are ours, with their epochs."""
        slots = {number: SlotImage(coordinator=0, coordinator_epoch=epoch) for number, epoch in own.items()}
        image = image_of(broker(0), broker(1), slots=slots | (others or {}), topics=topics)
        self.shell.source.publish(image, restored=restored)

    def decide(self, *records: Record, response: object = "done", ended_offsets: int = 0) -> "asyncio.Task[object]":
        result = CoordinatorResult(records=cast(Any, records), response=response, ended_offsets=ended_offsets)
        return asyncio.create_task(self.groups.handle(GROUP, lambda machine: result))

    async def refused(self, error: type[BarnabasError]) -> None:
        with pytest.raises(error):
            await self.decide(record(99))

    @property
    def appended(self) -> list[list[int]]:
        """The offsets that each append request carried: they stand for the records."""
        requests: list[AppendGroupRecords] = self.shell.source.asked(AppendGroupRecords)
        return [[cast(OffsetCommitRecord, item).offset for item in records_in(request)] for request in requests]

    @property
    def renewed(self) -> list[int]:
        requests: list[RenewSlot] = self.shell.source.asked(RenewSlot)
        assert all(request.node_id == 0 and request.slot == SLOT for request in requests)
        return [request.coordinator_epoch for request in requests]


def records_in(request: AppendGroupRecords) -> list[Record]:
    return [item for part in request.slots for item in part.records()]


def group_record(group_id: str) -> GroupRecord:
    return GroupRecord(slot=SLOT, coordinator_epoch=1, group_id=group_id, group_epoch=0, assignment_epoch=0)


def held() -> "asyncio.Future[object]":
    return asyncio.get_running_loop().create_future()


# --- hosting ----------------------------------------------------------------------------------------------------------


@simulated
async def test_slots_that_become_ours_are_loaded_with_what_is_committed() -> None:
    world = await World.start(hosting=False)
    world.shell.source.slots[SLOT] = (10, [record(5)])
    other = (SLOT + 1) % 50
    world.show({SLOT: 4, other: 2})
    with pytest.raises(CoordinatorNotAvailableError, match="loading"):
        await world.groups.handle(GROUP, lambda machine: CoordinatorResult(records=(), response=None))
    await turns()
    assert {(machine.slot, machine.coordinator_epoch) for machine in world.machines} == {(SLOT, 4), (other, 2)}
    assert next(machine for machine in world.machines if machine.slot == SLOT).records == [record(5)]
    assert sorted(world.shell.source.slots_asked) == sorted([SLOT, other])
    assert await world.decide() == "done"


@simulated
async def test_a_slot_that_moves_is_dropped_and_one_that_stays_is_left_alone() -> None:
    other = (SLOT + 1) % 50
    world = await World.start(hosting=False)
    world.show({SLOT: 1, other: 1})
    await turns()
    world.show({other: 1}, others={SLOT: ELSEWHERE})
    await turns()
    await world.refused(NotCoordinatorError)
    assert len(world.machines) == 2 and [machine.slot for machine in world.groups.machines()] == [other]
    assert world.groups.place_of(GROUP).coordinator == 1


@simulated
async def test_a_newer_epoch_of_our_own_slot_is_loaded_anew() -> None:
    world = await World.start()
    world.show({SLOT: 2})
    await turns()
    assert [machine.coordinator_epoch for machine in world.machines] == [1, 2]
    assert world.groups.machines() == [world.machines[1]]
    world.show({SLOT: 2}, restored=True)
    await turns()
    assert len(world.machines) == 2  # a snapshot that says the same changes nothing: this machine knows more


@simulated
async def test_a_slot_that_has_moved_on_while_it_was_loaded_waits_for_the_metadata() -> None:
    world = await World.start(hosting=False)
    world.shell.source.slots[SLOT] = (10, [record(5, epoch=2)])
    world.show({SLOT: 1})
    await turns()
    assert world.machines == [] and world.fatal == []
    await world.refused(CoordinatorNotAvailableError)
    world.show({SLOT: 2})
    await turns()
    assert [machine.coordinator_epoch for machine in world.machines] == [2]


@simulated
async def test_a_slot_without_coordinator_is_said_so() -> None:
    world = await World.start(hosting=False)
    world.show({})
    with pytest.raises(CoordinatorNotAvailableError, match="has no coordinator"):
        world.groups.place_of(GROUP)
    await world.refused(NotCoordinatorError)


@simulated
async def test_releasing_a_slot_refuses_who_waits_and_those_on_their_way() -> None:
    world = await World.start()
    world.shell.source.script(held())
    on_its_way = world.decide(record(1))
    await turns()
    waiting = world.decide(record(2))
    await turns()
    world.show({}, others={SLOT: ELSEWHERE})
    outcomes = await asyncio.gather(on_its_way, waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotCoordinatorError] * 2
    assert world.appended == [[1]] and world.renewed == []


# --- appending --------------------------------------------------------------------------------------------------------


@simulated
async def test_a_decision_without_records_on_a_quiet_slot_is_answered_at_once() -> None:
    world = await World.start()
    assert await world.decide(response="read") == "read"
    assert world.shell.source.requests == []


@simulated
async def test_decisions_of_one_moment_share_an_append_and_later_ones_the_next() -> None:
    world = await World.start()
    first, second = held(), held()
    world.shell.source.script(first, second)
    tasks = [world.decide(record(1)), world.decide(record(2))]
    await turns()
    tasks += [world.decide(record(3)), world.decide(response="read"), world.decide(record(4), record(5))]
    await turns()
    assert world.appended == [[1, 2]] and not any(task.done() for task in tasks)
    first.set_result(GroupRecordsAppended(offset=70))
    await turns()
    assert [task.done() for task in tasks] == [True, True, False, False, False]
    assert world.slots.slots()[0].committed_offset == 70
    assert world.appended == [[1, 2], [3, 4, 5]]
    second.set_result(GroupRecordsAppended())
    assert await tasks[3] == "read" and await asyncio.gather(*tasks)
    (request, _) = world.shell.source.asked(AppendGroupRecords)
    (part,) = request.slots
    assert (request.node_id, part.slot, part.coordinator_epoch) == (0, SLOT, 1)


@simulated
async def test_answers_leave_in_the_order_of_the_decisions() -> None:
    world = await World.start()
    order: list[int] = []

    async def decide(number: int) -> None:
        await world.decide(*([record(number)] if number % 3 else []))
        order.append(number)

    await asyncio.gather(*(decide(number) for number in range(1, 30)))
    assert order == list(range(1, 30)) and [item for part in world.appended for item in part] == [
        number for number in range(1, 30) if number % 3
    ]


@simulated
async def test_a_decision_larger_than_one_append_goes_in_several_in_order_and_is_answered_after_the_last() -> None:
    world = await World.start()
    last = held()
    count = 2 * MAX_RECORDS_PER_APPEND + 1
    world.shell.source.script(GroupRecordsAppended(), GroupRecordsAppended(), last, GroupRecordsAppended())
    large = world.decide(*(record(number) for number in range(count)))
    await turns(30)
    assert [len(part) for part in world.appended] == [MAX_RECORDS_PER_APPEND, MAX_RECORDS_PER_APPEND, 1]
    assert not large.done()
    last.set_result(GroupRecordsAppended())
    assert await large == "done"
    assert [number for part in world.appended for number in part] == list(range(count))


@simulated
async def test_an_append_has_a_limited_number_of_ends_which_become_many_commits() -> None:
    world = await World.start()
    world.shell.source.script(GroupRecordsAppended(), GroupRecordsAppended())
    end = PendingOffsetsEndedRecord(
        slot=SLOT, coordinator_epoch=1, group_id=GROUP, producer_id=5, producer_epoch=0, is_commit=True
    )
    tasks = [world.decide(end) for _ in range(MAX_ENDS_PER_APPEND + 1)]
    assert await asyncio.gather(*tasks)
    asked = world.shell.source.asked(AppendGroupRecords)
    assert [len(records_in(request)) for request in asked] == [MAX_ENDS_PER_APPEND, 1]
    assert MAX_ENDS_PER_APPEND * MAX_PENDING_OFFSETS < 2**POSITION_BITS


@simulated
async def test_an_append_has_a_limited_number_of_offsets_that_its_ends_commit() -> None:
    """50 ends of 20,000 offsets held the quorum's thread of every voter for three seconds, longer than an election timeout."""
    world = await World.start()
    world.shell.source.script(*[GroupRecordsAppended()] * 3)
    end = PendingOffsetsEndedRecord(
        slot=SLOT, coordinator_epoch=1, group_id=GROUP, producer_id=5, producer_epoch=0, is_commit=True
    )
    half = MAX_ENDED_OFFSETS_PER_APPEND // 2
    counts = (half, half, 1, half, MAX_PENDING_OFFSETS)
    assert await asyncio.gather(*(world.decide(end, ended_offsets=count) for count in counts))
    asked = world.shell.source.asked(AppendGroupRecords)
    assert [len(records_in(request)) for request in asked] == [2, 2, 1]


@simulated
async def test_all_slots_of_the_broker_share_one_append_and_a_stale_one_fails_by_itself() -> None:
    world = await World.start(hosting=False)
    other = slot_of("other")
    assert other != SLOT
    world.show({SLOT: 1, other: 1})
    await turns()
    under_way = held()
    refusal = GroupRecordsAppended(
        refused=(SlotRefusal(slot=other, error=int(ErrorCode.NOT_COORDINATOR), message="moved"),)
    )
    world.shell.source.script(under_way, refusal, GroupRecordsAppended())
    first = world.decide(record(1))
    await turns()
    mine = world.decide(record(2))
    theirs_result = CoordinatorResult(records=cast(Any, (replace(record(3), slot=other),)), response="theirs")
    theirs = asyncio.create_task(world.groups.handle("other", lambda machine: theirs_result))
    await turns()
    under_way.set_result(GroupRecordsAppended())
    assert await first == "done" and await mine == "done"
    with pytest.raises(CoordinatorNotAvailableError, match="moved"):
        await theirs
    requests = world.shell.source.asked(AppendGroupRecords)
    assert [[part.slot for part in request.slots] for request in requests] == [[SLOT], [SLOT, other]]
    assert [machine.slot for machine in world.groups.machines()] == [SLOT]  # and only the other one is loaded anew
    await turns()
    assert [request.slot for request in world.shell.source.asked(RenewSlot)] == [other]


@simulated
async def test_a_whole_decision_that_is_too_long_goes_in_parts_that_are_applied_together() -> None:
    world = await World.start()
    count = MAX_RECORDS_PER_APPEND + 1
    members = [group_record(f"g{number}") for number in range(count)]
    assert await world.decide(*members) == "done"
    parts = [item for request in world.shell.source.asked(AppendGroupRecords) for item in records_in(request)]
    assert parts and all(isinstance(item, StagedDecisionRecord) for item in parts)
    slots = GroupSlots()
    slots.on_slot_moved(SLOT, 1)
    for index, part in enumerate(parts, 1):
        assert not slots.slot(SLOT).groups
        assert slots.replay(part, index)
    assert len(slots.slot(SLOT).groups) == count and slots.slot(SLOT).staged == ()


@simulated
async def test_a_failed_append_refuses_all_that_stands_on_it_and_asks_for_a_new_epoch() -> None:
    world = await World.start()
    failing = held()
    world.shell.source.script(failing, GroupRecordsAppended())
    lost, after, read = world.decide(record(1)), None, None
    await turns()
    after, read = world.decide(record(2)), world.decide(response="read")
    await turns()
    failing.set_exception(NetworkError("cut off"))
    outcomes = await asyncio.gather(lost, after, read, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [CoordinatorNotAvailableError] * 3
    assert world.appended == [[1]]  # it is not sent again: it may have been committed
    assert world.renewed == [1] and world.groups.machines() == []
    await world.refused(CoordinatorNotAvailableError)
    world.show({SLOT: 2})
    await turns()
    assert await world.decide(record(3)) == "done"


@simulated
async def test_a_silent_controller_is_not_waited_for_for_ever() -> None:
    world = await World.start()
    world.shell.source.script(held(), GroupRecordsAppended())
    await world.refused(CoordinatorNotAvailableError)
    assert now_ms() <= APPEND_TIMEOUT_MS + 1 and world.appended == [[99]]


@simulated
async def test_a_new_epoch_is_asked_for_until_somebody_answers() -> None:
    world = await World.start()
    world.shell.source.script(*[InvalidRequestError("?")] * 3, GroupRecordsAppended())
    await world.refused(CoordinatorNotAvailableError)
    await asyncio.sleep(3 * LOAD_RETRY_MS / 1000)
    assert world.renewed == [1, 1, 1]


@pytest.mark.parametrize("moved", [True, False])
@simulated
async def test_a_slot_that_is_no_longer_ours_asks_for_no_epoch(moved: bool) -> None:
    world = await World.start()
    refusal = NotCoordinatorError("epoch 7 is newer")
    world.shell.source.script(NetworkError("cut off"), InvalidRequestError("?") if moved else refusal)
    await world.refused(CoordinatorNotAvailableError)
    if moved:
        world.show({}, others={SLOT: ELSEWHERE})
    await asyncio.sleep(1)
    assert len(world.renewed) == 1


@simulated
async def test_a_machine_that_fails_is_loaded_anew_and_nobody_hears_of_what_it_did() -> None:
    world = await World.start()
    on_its_way = held()
    world.shell.source.script(on_its_way, GroupRecordsAppended())
    sent = world.decide(record(1))
    await turns()
    waiting = world.decide(record(2))
    await turns()

    def fail(machine: object) -> Result:
        raise ZeroDivisionError

    with pytest.raises(CoordinatorNotAvailableError, match="failed and is reloading"):
        await world.groups.handle(GROUP, fail)
    with pytest.raises(CoordinatorNotAvailableError):
        await waiting
    await turns()
    assert world.groups.machines() == [] and world.renewed == [1] and world.fatal == []
    on_its_way.set_result(GroupRecordsAppended())
    assert await sent == "done"  # that one is committed, whatever became of the machine
    world.show({SLOT: 2})
    await turns()
    assert await world.decide(record(3)) == "done" and world.appended == [[1], [3]]


@simulated
async def test_an_answer_that_is_an_error_leaves_the_machine_alone() -> None:
    world = await World.start()

    def refuse(machine: object) -> Result:
        raise InvalidRequestError("no such member")

    with pytest.raises(InvalidRequestError):
        await world.groups.handle(GROUP, refuse)
    assert len(world.groups.machines()) == 1 and world.renewed == []


@simulated
async def test_a_caller_who_goes_takes_nothing_back() -> None:
    world = await World.start()
    first = held()
    world.shell.source.script(first, GroupRecordsAppended())
    gone, stays = world.decide(record(1)), world.decide(record(2))
    await turns()
    gone.cancel()
    first.set_result(GroupRecordsAppended())
    assert await stays == "done" and world.appended == [[1, 2]]
    assert await world.decide(record(3)) == "done"


@simulated
async def test_too_many_that_wait_are_told_to_come_back() -> None:
    world = await World.start()
    never = held()
    world.shell.source.script(never)
    tasks = [world.decide(response=number) for number in range(MAX_WAITING_PER_SLOT + 1)]
    blocker = world.decide(record(1))
    await asyncio.gather(*tasks)  # nothing was under way: all are answered
    await turns()
    waiting = [world.decide(response=number) for number in range(MAX_WAITING_PER_SLOT)]
    await turns(MAX_WAITING_PER_SLOT // SLICE_STEPS + 10)
    with pytest.raises(CoordinatorNotAvailableError, match="try again later"):
        await world.decide(response="one more")
    never.set_result(GroupRecordsAppended())
    await asyncio.gather(blocker, *waiting)


# --- topics and time --------------------------------------------------------------------------------------------------


@simulated
async def test_a_deadline_brings_a_tick_and_its_records_are_appended() -> None:
    world = await World.start()
    machine = world.machines[0]
    world.show({SLOT: 1}, topics=(topic("a", partition(0), topic_id="id-a"),))
    machine.deadline_ms, machine.on_tick = world.groups.now_ms() + 3_000, (record(7),)
    await world.decide()  # after each decision the deadline is looked up
    await asyncio.sleep(2.9)
    assert machine.ticks == []
    await asyncio.sleep(0.2)
    assert machine.topic_ids == {"a": "id-a"}
    assert len(machine.ticks) == 1 and abs(machine.ticks[0] - (world.groups.now_ms() - 100)) <= 2
    assert world.appended == [[7]]


@simulated
async def test_the_first_deadline_counts_from_the_load_and_an_earlier_one_replaces_it() -> None:
    world = await World.start(hosting=False)
    world.first_deadline_ms = world.groups.now_ms() + 5_000
    world.show({SLOT: 1})
    await turns()
    machine = world.machines[0]
    machine.deadline_ms = world.groups.now_ms() + 1_000
    await world.decide()
    await asyncio.sleep(1.1)
    assert len(machine.ticks) == 1
    await asyncio.sleep(10)
    assert len(machine.ticks) == 1


@simulated
async def test_a_released_machine_ticks_no_more() -> None:
    world = await World.start()
    world.machines[0].deadline_ms = world.groups.now_ms() + 1_000
    await world.decide()
    world.show({}, others={SLOT: ELSEWHERE})
    await asyncio.sleep(5)
    assert world.machines[0].ticks == []


@simulated
async def test_changed_topics_are_told_with_those_that_were_made_again() -> None:
    world = await World.start()
    machine = world.machines[0]
    machine.on_topics = (record(8),)
    world.show({SLOT: 1}, topics=(topic("a", partition(0), partition(0)), topic("b", partition(0))))
    assert world.slots.topics.view == {"a": 2, "b": 1}
    world.show({SLOT: 1}, topics=(topic("a", partition(0), topic_id="id-new"), topic("b", partition(0))))
    world.show({SLOT: 1}, topics=(topic("b", partition(0)),))
    assert machine.topics == [
        ({"a": 2, "b": 1}, frozenset()),
        ({"a": 1, "b": 1}, frozenset({"a"})),
        ({"b": 1}, frozenset()),
    ]
    await turns()
    assert world.appended == [[8, 8, 8]]


@simulated
async def test_a_machine_that_does_not_follow_topics_decides_nothing_about_them() -> None:
    world = await World.start()
    machine = world.machines[0]
    machine.on_topics, machine.follows_topics = (record(8),), False
    world.show({SLOT: 1}, topics=(topic("a", partition(0)),))
    await turns()
    assert machine.taken == [{"a": 1}] and machine.topics == [] and world.appended == []


@simulated
async def test_closing_refuses_who_waits_and_ends_all_tasks() -> None:
    world = await World.start()
    world.shell.source.script(held())
    waiting = world.decide(record(1))
    await turns()
    await world.slots.close()
    with pytest.raises(NotCoordinatorError):
        await waiting
    assert world.groups.machines() == [] and now_ms() == 0
