"""Consumer groups as a client sees them, over the real coordinator and a controller that commits everything."""

import asyncio
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import broker, partition, simulated, topic, turns

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.requests import AppendGroupRecords, GroupRecordsAppended
from barnabas.log.vocabulary.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    NonEmptyGroupError,
    NotCoordinatorError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetToCommit,
    TopicPartitions,
)
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.wire.protocol.requests import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ResetOffsetsRequest,
)
from barnabas.net.wire.protocol.responses import EmptyResponse

GROUP = "g"
SLOT = slot_of(GROUP)
T = topic("t", partition(0), partition(0))


class World:
    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        self.handlers = GroupHandlers(world.services)

    @classmethod
    async def start(cls, *, slots: tuple[int, ...] = (SLOT,)) -> "World":
        world = cls(await HandlerWorld.start(T, slots=slots))
        world.world.source.script(GroupRecordsAppended())
        await turns()
        return world

    async def beat(self, member_epoch: int = 0, member_id: str = "", **more: Any) -> ConsumerGroupHeartbeatResponse:
        if member_epoch == 0:
            more = {"subscribed_topics": ("t",), "rebalance_timeout_ms": 60_000, "owned": ()} | more
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=member_epoch, **more)
        response = await ask(self.handlers.heartbeat, request)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    async def commit(self, *offsets: tuple[int, int], member_id: str = "", member_epoch: int = -1, **more: Any) -> Any:
        """(partition, offset) of t."""
        partitions = tuple(OffsetToCommit(topic="t", partition=p, offset=o, **more) for p, o in offsets)
        request = OffsetCommitRequest(
            group_id=GROUP, member_id=member_id, member_epoch=member_epoch, partitions=partitions
        )
        return await ask(self.handlers.commit_offsets, request)

    async def fetched(self, *partitions: int) -> list[tuple[int, int]]:
        wanted = (TopicPartitions(topic="t", partitions=partitions),) if partitions else None
        response = await ask(self.handlers.fetch_offsets, OffsetFetchRequest(group_id=GROUP, partitions=wanted))
        return [(item.partition, item.offset) for item in response.partitions]

    async def describe(self, *, explain: bool = False) -> Any:
        return await ask(self.handlers.describe_group, DescribeGroupRequest(group_id=GROUP, explain=explain))


@simulated
async def test_the_coordinator_is_found_with_the_address_of_the_listener() -> None:
    world = await World.start()
    request = FindCoordinatorRequest(group_id=GROUP)
    found = await ask(world.handlers.find_coordinator, request, listener="CLIENTS")
    assert (found.node_id, found.host, found.port) == (0, "public-0", 19092)


@simulated
async def test_no_coordinator_or_one_that_is_leaving_is_retriable() -> None:
    world = await World.start(slots=())
    request = FindCoordinatorRequest(group_id=GROUP)
    with pytest.raises(CoordinatorNotAvailableError, match="has no coordinator"):
        await ask(world.handlers.find_coordinator, request)
    world.world.show(T, brokers=(broker(1),), slots=(SLOT,))
    with pytest.raises(CoordinatorNotAvailableError, match="leaving the cluster"):
        await ask(world.handlers.find_coordinator, request)


@simulated
async def test_a_member_joins_gets_all_partitions_and_leaves() -> None:
    world = await World.start()
    joined = await world.beat()
    assert joined.member_id and joined.member_epoch > 0
    assert joined.assignment == (TopicPartitions(topic="t", partitions=(0, 1)),)
    assert world.world.source.asked(AppendGroupRecords)
    described = await world.describe()
    (member,) = described.members
    assert (described.state, described.coordinator, described.group_epoch) == ("stable", 0, joined.member_epoch)
    assert (member.client_id, member.client_host, member.subscribed_topics) == ("tester", "10.0.0.9", ("t",))
    assert member.assigned == member.target == joined.assignment and described.rebalances
    stays = await world.beat(joined.member_epoch, joined.member_id)
    assert stays.member_epoch == joined.member_epoch and stays.assignment is None
    await world.beat(-1, joined.member_id)
    assert (await world.describe()).members == ()


@simulated
async def test_a_clients_own_name_goes_before_that_of_its_connection() -> None:
    world = await World.start()
    await world.beat(client_id="mine")
    assert (await world.describe()).members[0].client_id == "mine"


@simulated
async def test_members_that_are_not_or_not_any_more() -> None:
    world = await World.start()
    joined = await world.beat()
    with pytest.raises(UnknownMemberIdError):
        await world.beat(3, "stranger")
    with pytest.raises(FencedMemberEpochError):
        await world.beat(joined.member_epoch + 5, joined.member_id)
    with pytest.raises(StaleMemberEpochError):
        await world.commit((0, 1), member_id=joined.member_id, member_epoch=joined.member_epoch + 5)


@simulated
async def test_offsets_are_committed_and_fetched_all_or_some() -> None:
    world = await World.start()
    response = await world.commit((0, 5), (1, 7), metadata="note", leader_epoch=2)
    assert [(item.partition, item.error) for item in response.partitions] == [(0, 0), (1, 0)]
    assert sorted(await world.fetched()) == [(0, 5), (1, 7)]
    assert await world.fetched(1, 9) == [(1, 7), (9, -1)]
    request = OffsetFetchRequest(group_id=GROUP, partitions=(TopicPartitions(topic="t", partitions=(0,)),))
    (item,) = (await ask(world.handlers.fetch_offsets, request)).partitions
    assert (item.topic, item.metadata, item.leader_epoch) == ("t", "note", 2)
    assert item.commit_timestamp_ms == world.world.shell.clock.wall_ms()


@simulated
async def test_a_note_that_is_too_long_is_the_error_of_its_partition() -> None:
    world = await World.start()
    response = await world.commit((0, 5), metadata="x" * 5_000)
    assert response.partitions[0].error == ErrorCode.OFFSET_METADATA_TOO_LARGE and response.partitions[0].message
    assert await world.fetched() == []


@simulated
async def test_offsets_are_reset_also_while_the_group_runs() -> None:
    world = await World.start()
    joined = await world.beat()
    await world.commit((0, 5), member_id=joined.member_id, member_epoch=joined.member_epoch)
    offsets = (OffsetToCommit(topic="t", partition=0, offset=2),)
    request = ResetOffsetsRequest(group_id=GROUP, partitions=offsets)
    assert await ask(world.handlers.reset_offsets, request) == EmptyResponse()
    assert await world.fetched(0) == [(0, 2)]
    with pytest.raises(FencedMemberEpochError):
        await world.beat(joined.member_epoch, joined.member_id)


@simulated
async def test_groups_are_listed_described_and_deleted() -> None:
    world = await World.start()
    with pytest.raises(GroupIdNotFoundError, match="barnabas group list"):
        await world.describe()
    joined = await world.beat()
    (listed,) = (await ask(world.handlers.list_groups, ListGroupsRequest())).groups
    assert (listed.group_id, listed.state, listed.protocol, listed.member_count) == (GROUP, "stable", "consumer", 1)
    with pytest.raises(NonEmptyGroupError):
        await ask(world.handlers.delete_group, DeleteGroupRequest(group_id=GROUP))
    await world.beat(-1, joined.member_id)
    await world.commit((0, 5))
    assert await ask(world.handlers.delete_group, DeleteGroupRequest(group_id=GROUP)) == EmptyResponse()
    assert await world.fetched() == [] and (await ask(world.handlers.list_groups, ListGroupsRequest())).groups == ()


@simulated
async def test_a_group_of_another_broker_is_refused_by_every_call() -> None:
    world = await World.start(slots=((SLOT + 1) % 50,))
    asked = (
        world.beat(),
        world.commit((0, 1)),
        world.fetched(),
        world.describe(),
        ask(world.handlers.delete_group, DeleteGroupRequest(group_id=GROUP)),
        ask(world.handlers.reset_offsets, ResetOffsetsRequest(group_id=GROUP, partitions=())),
    )
    for call in asked:
        with pytest.raises(NotCoordinatorError):
            await call


@simulated
async def test_an_explanation_tells_moves_and_what_is_waited_for() -> None:
    world = await World.start()
    first = await world.beat(member_id="a")
    await world.beat(member_id="b")
    await world.beat(first.member_epoch, "a", owned=first.assignment)  # told to let go, and goes on reading
    plain = await world.describe()
    assert plain.unowned == () and all(event.moves == () for event in plain.rebalances)
    assert [event.moved_count for event in plain.rebalances] == [2, 0]
    told = await world.describe(explain=True)
    joined, under_way = told.rebalances
    assert [(move.partition, move.from_member, move.to_member) for move in joined.moves] == [(0, "", "a"), (1, "", "a")]
    assert (joined.cause, joined.member_id, joined.reasons[0].client_id) == ("member_joined", "a", "tester")
    assert (under_way.member_id, under_way.stable_after_ms) == ("b", None)
    (unowned,) = told.unowned
    assert (unowned.partition, unowned.reason, unowned.member_id) == (1, "waiting_for_revocation", "a")
    assert 0 <= unowned.since_ms < unowned.ends_in_ms <= 60_000
    assert [member.is_away for member in told.members] == [False, False]
    assert all(member.session_left_ms > 0 <= member.silent_ms for member in told.members)


@simulated
async def test_a_partition_that_nobody_lets_go_of_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    world = await World.start()
    first = await world.beat(member_id="a")
    second = await world.beat(member_id="b")
    for _ in range(7):
        await world.beat(first.member_epoch, "a", owned=first.assignment)
        await world.beat(second.member_epoch, "b")
        await asyncio.sleep(2)
    (line,) = [record.getMessage() for record in caplog.records if "alert=unowned" in record.getMessage()]
    assert line.startswith("group=g alert=unowned no member reads t-1: waiting_for_revocation")
    assert world.world.groups.unowned_counts() == {GROUP: 1}
