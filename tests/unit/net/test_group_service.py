"""The shell round the group coordinators: hosting, loading, appending, and answers that wait for commits."""

import asyncio
import random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import MAX_STAGED_RECORDS, SlotState, slot_of
from barnabas.kraft.metadata.image import (
    BrokerImage,
    Endpoint,
    MetadataChanges,
    MetadataImage,
    PartitionImage,
    SlotImage,
    TopicImage,
)
from barnabas.kraft.metadata.records import Record, RemoveMemberRecord
from barnabas.kraft.metadata.requests import (
    AppendGroupRecords,
    ControllerRequest,
    GroupRecordsAppended,
    RenewSlot,
    SlotAppend,
    SlotRefusal,
)
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    GroupIdNotFoundError,
    InvalidRequestError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
)
from barnabas.log.vocabulary.group_messages import GroupProtocol, JoinGroupRequest, JoinGroupResponse, OffsetToCommit
from barnabas.net.base.clock import SystemClock
from barnabas.net.coordination.groups.group_appends import MAX_BYTES_PER_APPEND, parts_of
from barnabas.net.coordination.groups.group_service import GroupService
from barnabas.net.coordination.groups.slot_hosting import LoadedSlot, SlotHosting
from barnabas.net.metadata.metadata_service import MetadataService

NODE = 1
GROUP = "g"
SLOT = slot_of(GROUP)
BROKER = BrokerImage(
    node_id=NODE,
    broker_epoch=7,
    incarnation="i",
    endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1),),
    fenced=False,
)

PARTITION = PartitionImage(replicas=(NODE,), isr=(NODE,), leader=NODE)


class World:
    """A group service of one broker; the committed state of the slot and the controller are the test's."""

    def __init__(self) -> None:
        self.committed = SlotState(slot=SLOT)
        self.loads = 0
        self.origins: list[str] = []
        self.appends: list[AppendGroupRecords] = []
        self.renewals: list[RenewSlot] = []
        self.appended = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.append_error: Exception | None = None
        self.refused: tuple[SlotRefusal, ...] = ()
        self.fatal: list[str] = []
        self.slot_images = [SlotImage()] * 50
        self.topics: dict[str, TopicImage] = {}
        self.brokers = {NODE: BROKER}
        self.metadata = MetadataService(cast(Any, self))
        self.slots = SlotHosting(
            node_id=NODE,
            metadata=self.metadata,
            controller=cast(Any, self),
            clock=SystemClock(),
            make_machine=self.coordinator,
            fatal=self.fatal.append,
        )
        self.groups = GroupService(metadata=self.metadata, slots=self.slots)

    def coordinator(self, loaded: LoadedSlot) -> SlotCoordinator:
        self.origins.append(loaded.moved_from)
        groups = GroupCoordinator(
            slot=loaded.number,
            coordinator_epoch=loaded.coordinator_epoch,
            records=loaded.records,
            rng=random.Random(1),
            topics=loaded.topics,
            now_ms=loaded.now_ms,
        )
        return SlotCoordinator(groups=groups, settings=TransactionSettings(), now_ms=loaded.now_ms)

    async def slot_snapshot(self, slot: int) -> tuple[int, list[Record]]:
        self.loads += 1
        records = list(self.committed.records()) if slot == SLOT else []
        await self.may_load.wait()
        return 0, cast(list[Record], records)

    async def call(self, request: ControllerRequest, **_options: Any) -> object:
        if isinstance(request, RenewSlot):
            self.renewals.append(request)
            return None
        assert isinstance(request, AppendGroupRecords)
        self.appends.append(request)
        self.appended.set()
        await self.may_commit.wait()
        if self.append_error is not None:
            raise self.append_error
        if self.refused:
            return GroupRecordsAppended(refused=self.refused)
        for part in request.slots:
            for record in part.records():
                self.committed.replay(record)
        return GroupRecordsAppended()

    def show(self, *, owner: int = NODE, epoch: int = 1, topics: tuple[str, ...] = ()) -> None:
        self.slot_images[SLOT] = SlotImage(coordinator=owner, coordinator_epoch=epoch)
        self.committed.moved(epoch)
        for name in topics:
            number = len(self.topics)
            self.topics[name] = TopicImage(name=name, topic_id=f"{number:032x}", partitions=(PARTITION,))
        self.metadata._published(
            MetadataPublication(
                image=MetadataImage(brokers=self.brokers, slots=tuple(self.slot_images), topics=dict(self.topics)),
                changes=MetadataChanges(slots=frozenset({SLOT}), topics=frozenset(topics)),
                group_records=(),
                leader=Leadership(leader_id=0, term=1, is_self=False),
                is_active_controller=False,
            )
        )

    async def hosted(self) -> None:
        self.slots.registered(BROKER.broker_epoch)
        self.show(topics=("t",))
        await self.loaded()

    async def settled(self) -> None:
        """Everything that can run has run: no work here waits for a clock or for another thread."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def loaded(self) -> None:
        await self.settled()
        assert self.groups.machines()

    async def commit(self, offset: int) -> object:
        to_commit = OffsetToCommit(topic="t", partition=0, offset=offset, leader_epoch=-1, metadata="")
        return await self.groups.handle(
            GROUP,
            lambda machine: machine.commit_offsets(
                group_id=GROUP, member_id="", member_epoch=-1, offsets=(to_commit,), now_ms=self.groups.now_ms()
            ),
        )

    async def fetched(self, *, must_confirm: bool = False) -> int:
        def decide(machine: GroupCoordinator) -> CoordinatorResult[int]:
            (found,) = machine.offsets.fetch(GROUP, (("t", 0),))
            return CoordinatorResult(records=(), response=found.offset, must_confirm=must_confirm)

        return await self.groups.handle(GROUP, decide)


async def test_a_slot_of_a_former_incarnation_is_not_hosted() -> None:
    """After a start the metadata catches up: what is loaded before the own registration shows may be long outdated."""
    world = World()
    world.brokers = {NODE: replace(BROKER, broker_epoch=3)}
    world.show()
    world.slots.registered(BROKER.broker_epoch)
    world.show(epoch=2)
    await world.settled()
    assert world.loads == 0
    with pytest.raises(NotCoordinatorError):
        await world.commit(1)
    world.brokers = {NODE: BROKER}
    world.show(epoch=3)
    await world.loaded()
    assert await world.commit(1)
    world.brokers = {NODE: replace(BROKER, broker_epoch=9)}  # somebody else has registered as this broker
    world.show(epoch=3)
    with pytest.raises(NotCoordinatorError):
        await world.commit(2)
    await world.slots.close()


async def test_a_coordinator_that_was_replaced_without_knowing_it_answers_no_question_that_must_be_confirmed() -> None:
    """Its connection to the quorum is cut, and clients reach it."""
    world = World()
    await world.hosted()
    assert await world.commit(5)
    assert await world.fetched(must_confirm=True) == 5 and len(world.appends[-1].slots[0].records()) == 0
    world.refused = (SlotRefusal(slot=SLOT, error=ErrorCode.NOT_COORDINATOR, message="it has moved"),)
    assert await world.fetched() == 5, "as a tool asks"
    with pytest.raises(CoordinatorNotAvailableError, match="it has moved"):
        await world.fetched(must_confirm=True)
    with pytest.raises(CoordinatorNotAvailableError, match="loading"):
        await world.fetched()
    await world.slots.close()


async def test_a_question_that_nobody_confirms_costs_the_slot_nothing() -> None:
    world = World()
    await world.hosted()
    assert await world.commit(5)
    world.append_error = RequestTimedOutError("no controller")
    with pytest.raises(CoordinatorNotAvailableError, match="no controller"):
        await world.fetched(must_confirm=True)
    world.append_error = None
    assert await world.fetched(must_confirm=True) == 5
    assert world.loads == 1 and not world.renewals
    await world.slots.close()


async def test_nothing_is_answered_before_what_it_stands_on_is_committed() -> None:
    world = World()
    await world.hosted()
    world.may_commit.clear()
    first = asyncio.create_task(world.commit(5))
    await world.settled()
    read = asyncio.create_task(world.fetched())
    unknown = "h" + "x" * 40
    while slot_of(unknown) != SLOT:
        unknown += "x"
    refusal = asyncio.create_task(
        world.groups.handle(
            unknown, lambda machine: machine.delete_group(group_id=unknown, now_ms=world.groups.now_ms())
        )
    )
    await world.settled()
    assert not first.done() and not read.done() and not refusal.done()
    world.may_commit.set()
    await first
    assert await read == 5
    with pytest.raises(GroupIdNotFoundError):
        await refusal
    assert len(world.appends) == 2, "the commit, and the question whether this broker may still refuse"
    await world.slots.close()


async def test_an_append_of_unknown_outcome_drops_the_machine_until_a_newer_epoch() -> None:
    world = World()
    await world.hosted()
    await world.commit(1)
    world.append_error = NetworkError("cut off")
    with pytest.raises(CoordinatorNotAvailableError):
        await world.commit(2)
    with pytest.raises(CoordinatorNotAvailableError):
        await world.fetched()
    await asyncio.sleep(0)
    assert [item.coordinator_epoch for item in world.renewals] == [1]
    world.append_error = None
    world.show(epoch=2)
    await world.loaded()
    assert await world.fetched() == 1
    await world.slots.close()


async def test_work_that_ends_before_it_began_is_no_bug() -> None:
    world = World()
    world.slots.registered(BROKER.broker_epoch)
    world.show()
    await world.slots.close()
    assert world.fatal == [] and world.loads == 0


async def test_a_topic_that_changes_while_a_slot_loads_is_looked_at_again() -> None:
    world = World()
    world.slots.registered(BROKER.broker_epoch)
    world.may_load.clear()
    world.show()
    await asyncio.sleep(0)
    world.show(topics=("t",))
    world.may_load.set()
    await world.loaded()
    assert world.loads == 2
    await world.slots.close()


async def test_a_slot_whose_work_ends_by_a_bug_stops_the_broker() -> None:
    world = World()
    await world.hosted()
    world.append_error = ZeroDivisionError()
    waiting = asyncio.create_task(world.commit(1))
    await world.settled()
    assert len(world.fatal) == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await world.slots.close()


def test_appends_are_cut_by_bytes_too() -> None:
    state = SlotState(slot=SLOT)
    for number in range(3_000):
        state.offsets.setdefault("g" * 200, {})[("t" * 249, number)] = (2**40, 2**20, "m" * 100, 2**41, 2**62)
    records = cast(list[Record], list(state.records()))
    size_bytes = sum(len(SlotAppend.of(SLOT, 2**40, (record,)).batch) for record in records)
    parts = list(parts_of(SLOT, 2**40, records, size_bytes))
    assert [record for part in parts for record in part] == records
    sizes = [len(SlotAppend.of(SLOT, 2**40, part).batch) for part in parts]
    assert len(parts) > 1 and max(sizes) <= MAX_BYTES_PER_APPEND < 1024 * 1024


# --- classic groups: answers that wait for other members -----------------------------------------------------------------


def joining(world: World, member_id: str = "", *, known_id: bool = False) -> "asyncio.Task[object]":
    request = JoinGroupRequest(
        group_id=GROUP,
        member_id=member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(GroupProtocol(name="range", metadata=b""),),
    )
    return asyncio.ensure_future(
        world.groups.handle_parked(
            GROUP,
            lambda machine, ticket: machine.join_group(request, ticket, world.groups.now_ms(), needs_known_id=known_id),
        )
    )


async def test_a_join_is_answered_by_a_later_decision_once_that_is_committed() -> None:
    world = World()
    await world.hosted()
    world.may_commit.clear()
    join = joining(world)
    await world.appended.wait()  # the initial delay has passed, and the generation is on its way to the quorum
    assert not join.done()
    world.may_commit.set()
    told = await join
    assert isinstance(told, JoinGroupResponse)
    assert told.generation == 1
    assert world.committed.groups[GROUP].group.group_epoch == 1
    await world.slots.close()


async def test_a_member_id_is_told_at_once() -> None:
    world = World()
    await world.hosted()
    told = await joining(world, known_id=True)
    assert isinstance(told, JoinGroupResponse)
    assert told.member_id
    assert not world.appends
    await world.slots.close()


async def test_who_waits_for_others_is_refused_when_the_slot_moves() -> None:
    world = World()
    await world.hosted()
    join = joining(world)
    await asyncio.sleep(0)
    world.show(owner=2, epoch=2)
    with pytest.raises(NotCoordinatorError):
        await join
    await world.slots.close()


async def test_who_waits_for_others_is_refused_when_an_append_fails() -> None:
    world = World()
    await world.hosted()
    world.append_error = NetworkError("cut off")
    join = joining(world)
    with pytest.raises(CoordinatorNotAvailableError):
        await join
    await world.slots.close()


async def test_a_client_that_goes_away_while_it_waits_leaves_no_ticket() -> None:
    world = World()
    await world.hosted()
    join = joining(world)
    await asyncio.sleep(0)
    join.cancel()
    await asyncio.gather(join, return_exceptions=True)
    assert [len(slot.parked) for slot in world.slots.slots()] == [0]
    await world.slots.close()


async def test_a_new_coordinator_names_the_broker_that_the_slot_came_from() -> None:
    world = World()
    world.slots.registered(BROKER.broker_epoch)
    world.show(owner=NODE + 1)
    world.show(epoch=2)
    await world.loaded()
    world.show(epoch=3)
    await world.loaded()
    assert world.origins == [f"from broker {NODE + 1} to broker {NODE}", f"broker {NODE} has loaded it again"]
    await world.slots.close()


def test_a_change_of_more_records_than_can_be_applied_at_once_is_refused() -> None:
    record = RemoveMemberRecord(slot=SLOT, coordinator_epoch=1, group_id="g", member_id="m")
    assert list(parts_of(SLOT, 1, [record] * MAX_STAGED_RECORDS, 0))
    with pytest.raises(InvalidRequestError, match="has 100001 records, but at most 100000 can be applied at once"):
        parts_of(SLOT, 1, [record] * (MAX_STAGED_RECORDS + 1), 0)
