"""Directed tests of classic groups: join, sync, static members, fencing, failover in every step, the other protocol."""

import pytest

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.metadata.records import GroupRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetToCommit,
    SyncGroupResponse,
)
from barnabas.log.vocabulary.group_protocol import ClientSubscription, encode_subscription

from .classic_world import GROUP, ClassicClient, ClassicWorld


@pytest.fixture
def world() -> ClassicWorld:
    return ClassicWorld()


def commit(world: ClassicWorld, client: ClassicClient, offset: int = 5) -> None:
    result = world.coordinator.commit_offsets(
        group_id=GROUP,
        member_id=client.member_id,
        member_epoch=client.generation,
        offsets=(OffsetToCommit(topic="t", partition=0, offset=offset),),
        now_ms=world.now_ms,
    )
    world.commit(result)
    assert [outcome.error for outcome in result.response] == [ErrorCode.NONE]


def test_a_member_needs_an_id_first_and_the_first_ones_join_together(world: ClassicWorld) -> None:
    first = world.client("a")
    world.commit(world.coordinator.join_group(first.request(), 99, world.now_ms))
    answer = world.answers[99]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("a-")
    a, b = world.client("a").join(), world.client("b").join()
    assert a.answer is None
    assert world.phase == "preparing_rebalance"
    world.pass_ms(10_000)  # the id that nobody came back with is not waited for beyond its session
    assert a.joined().generation == b.joined().generation == 1
    assert a.joined().leader_id == a.member_id
    assert {member.member_id for member in a.joined().members} == {a.member_id, b.member_id}
    assert b.joined().members == ()
    b.sync()
    assert b.answer is None
    a.sync()
    assert (a.synced(), b.synced()) == ((0,), (1,))
    assert world.phase == "stable"


def test_a_third_member_makes_everybody_join_again(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    c = world.client("c").join()
    with pytest.raises(RebalanceInProgressError):
        a.beat()
    a.join()
    assert c.answer is None
    b.join()
    assert {a.joined().generation, b.joined().generation, c.joined().generation} == {2}
    late = HeartbeatRequest(group_id=GROUP, generation=1, member_id=a.member_id)
    with pytest.raises(IllegalGenerationError):
        world.coordinator.heartbeat_classic(late, world.now_ms)
    for client in (c, b, a):
        client.sync()
    assert sorted((*a.synced(), *b.synced(), *c.synced())) == [0, 1, 2]
    assert world.causes() == ["member_joined", "member_joined", "member_joined"]


def test_who_does_not_join_again_in_time_is_out(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    a.join()  # the leader joins again: everybody must
    for _ in range(6):
        world.pass_ms(4_900)
        with pytest.raises(RebalanceInProgressError):
            b.beat()  # alive, but it does not join
    world.pass_ms(1_000)
    assert a.joined().generation == 2
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    assert world.causes()[-2:] == ["leader_rejoined", "rebalance_timeout"]


def test_who_is_silent_for_a_session_is_out_and_the_rest_rebalances(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    world.pass_ms(9_000)
    a.beat()
    world.pass_ms(1_500)
    with pytest.raises(RebalanceInProgressError):
        a.beat()
    a.join()
    assert a.joined().generation == 2
    a.sync()
    assert a.synced() == (0,)
    assert world.causes()[-1] == "member_expired"
    with pytest.raises(UnknownMemberIdError):
        b.beat()


def test_a_leader_that_never_assigns_is_replaced(world: ClassicWorld) -> None:
    a, b = world.client("a").join(), world.client("b").join()
    world.pass_ms(1_000)
    a.joined(), b.sync()
    for _ in range(6):
        world.pass_ms(5_000)
        if b.answer is None:
            a.beat()
    assert isinstance(b.answer, RebalanceInProgressError)
    b.join()
    assert b.joined().leader_id == b.member_id
    assert b.joined().generation == 2


def test_a_follower_that_asks_again_gets_the_same_answer(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    told = b.told
    b.join()
    assert b.joined() == told
    b.sync()
    assert b.synced() == (1,)
    a.beat()
    assert world.phase == "stable"


def test_a_member_that_joins_twice_has_its_first_request_refused(world: ClassicWorld) -> None:
    a = world.client("a").join()
    first = a.ticket
    a.join()
    assert isinstance(world.answers[first], RebalanceInProgressError)
    world.pass_ms(1_000)
    assert a.joined().generation == 1


def test_a_member_that_syncs_twice_has_its_first_request_refused(world: ClassicWorld) -> None:
    """A request that stays parked for ever would keep its connection's later requests waiting."""
    a, b = world.client("a").join(), world.client("b").join()
    world.pass_ms(1_000)
    a.joined(), b.sync()
    first = b.ticket
    b.sync()
    assert isinstance(world.answers[first], RebalanceInProgressError)
    a.sync()
    assert (a.synced(), b.synced()) == ((0,), (1,))


def test_a_changed_subscription_rebalances(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    b.protocols = (("range", encode_subscription(ClientSubscription(topics=("t", "u")))),)
    b.join()
    assert b.answer is None
    a.join()
    assert a.joined().generation == 2
    assert world.causes()[-1] == "subscription_changed"
    described = world.coordinator.describe_group(group_id=GROUP).response
    assert {member.subscribed_topics for member in described.members} == {("t",), ("t", "u")}


def test_the_protocol_is_what_most_like_best_among_what_all_know(world: ClassicWorld) -> None:
    clients = [
        world.client("a", protocols=(("sticky", b"s"), ("range", b"r"), ("own", b"o"))),
        world.client("b", protocols=(("range", b"r"), ("sticky", b"s"))),
        world.client("c", protocols=(("range", b"r2"), ("sticky", b"s2"))),
    ]
    for client in clients:
        client.join()
    world.pass_ms(1_000)
    told = clients[0].joined()
    assert told.protocol_name == "range"
    assert {member.metadata for member in told.members} == {b"r", b"r2"}


def test_members_without_a_protocol_in_common_are_refused(world: ClassicWorld) -> None:
    world.group_of("a")
    with pytest.raises(InconsistentGroupProtocolError):
        world.client("b", protocols=(("own", b""),), known_id=False).join()
    with pytest.raises(InconsistentGroupProtocolError):
        world.client("b", protocol_type="connect", known_id=False).join()
    with pytest.raises(InconsistentGroupProtocolError):
        world.client("b", protocols=(), known_id=False).join()


def test_limits_are_refused_clearly() -> None:
    world = ClassicWorld(settings=GroupSettings(max_classic_group_size=1, max_subscription_bytes=100))
    with pytest.raises(InvalidSessionTimeoutError):
        world.client("a", session_timeout_ms=1).join()
    with pytest.raises(BarnabasError, match="101 bytes"):
        world.client("a", protocols=(("range", b"x" * 96),)).join()
    world.group_of("a")
    with pytest.raises(GroupMaxSizeReachedError):
        world.client("b").join()


def test_a_static_member_returns_without_a_rebalance(world: ClassicWorld) -> None:
    old = world.client("a", instance_id="i1").join()
    b = world.client("b").join()
    world.pass_ms(1_000)
    b.sync()
    old.sync()
    assert old.synced() == (0,)
    new = world.client("a", instance_id="i1").join()
    told = new.joined()
    assert told.generation == old.generation
    assert told.skip_assignment
    assert told.leader_id == new.member_id != old.member_id
    new.sync()
    assert new.synced() == (0,)
    b.beat()
    with pytest.raises(FencedInstanceIdError):
        old.beat()
    assert world.causes()[-2:] == ["static_member_returned", "static_member_fenced"]
    world.fail_over()
    new.beat()


def test_a_static_member_that_returns_with_another_subscription_begins_a_rebalance(world: ClassicWorld) -> None:
    old = world.client("a", instance_id="i1").join()
    b = world.client("b").join()
    world.pass_ms(1_000)
    b.sync(), old.sync()
    other = (("range", encode_subscription(ClientSubscription(topics=("t", "u")))),)
    new = world.client("a", instance_id="i1", protocols=other).join()
    assert new.answer is None and world.phase == "preparing_rebalance"
    b.join()
    assert new.joined().generation == b.joined().generation == old.generation + 1


def test_an_empty_classic_group_changes_to_the_consumer_protocol_with_its_first_member(world: ClassicWorld) -> None:
    (a,) = world.group_of("a")
    a.leave()
    for member_id in ("m", "n"):
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=0, subscribed_topics=("t",), owned=()
        )
        result = world.coordinator.heartbeat(request, world.now_ms)
        world.commit(result)
        group = world.coordinator.state.groups[GROUP]
        assert group.group.protocol == "consumer" and not group.is_classic
        groups = [record for record in result.records if isinstance(record, GroupRecord)]
        assert len(groups) == (2 if member_id == "m" else 1), "only the first one changes the protocol"


def test_a_parked_static_member_is_fenced_by_its_successor(world: ClassicWorld) -> None:
    old = world.client("a", instance_id="i1").join()
    new = world.client("a", instance_id="i1").join()
    assert isinstance(old.answer, FencedInstanceIdError)
    world.pass_ms(1_000)
    assert new.joined().generation == 1


def test_a_static_member_may_be_removed_by_its_instance_id(world: ClassicWorld) -> None:
    client = world.client("a", instance_id="i1").join()
    world.pass_ms(1_000)
    client.sync()
    leaving = (
        LeaveGroupRequest(group_id=GROUP, member_id="", instance_id="i1"),
        LeaveGroupRequest(group_id=GROUP, member_id="", instance_id="i2"),
    )
    result = world.coordinator.leave_group(group_id=GROUP, leaving=leaving, now_ms=world.now_ms)
    world.commit(result)
    assert [outcome.error for outcome in result.response] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.phase == "empty"


def test_a_silent_static_member_keeps_its_place_until_its_session_ends(world: ClassicWorld) -> None:
    static = world.client("s", instance_id="i1", session_timeout_ms=60_000).join()
    b = world.client("b").join()
    world.pass_ms(1_000)
    b.sync(), static.sync()
    c = world.client("c").join()
    b.join()
    world.pass_ms(30_000)
    assert c.joined().generation == 2
    assert static.member_id in {member.member_id for member in b.joined().members + c.joined().members}


def test_the_last_one_out_leaves_an_empty_group_and_its_generation_goes_on(world: ClassicWorld) -> None:
    (a,) = world.group_of("a")
    commit(world, a)
    assert a.leave() == ErrorCode.NONE
    assert a.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.phase == "empty"
    world.fail_over()
    (b,) = world.group_of("b")
    assert b.generation == 3
    assert world.coordinator.offsets.fetch(GROUP)[0].offset == 5


def test_commits_belong_to_the_generation(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    commit(world, a)
    c = world.client("c").join()
    commit(world, b)  # who is about to join again may still commit what it has done
    a.join(), b.join()
    assert c.joined().generation == 2
    with pytest.raises(IllegalGenerationError):
        commit(world, a)  # it knows generation 1 only
    a.joined()
    with pytest.raises(RebalanceInProgressError):
        commit(world, a)
    with pytest.raises(UnknownMemberIdError):
        world.coordinator.commit_offsets(group_id=GROUP, member_id="", member_epoch=-1, offsets=(), now_ms=world.now_ms)


def test_a_new_coordinator_goes_on_in_the_middle_of_a_rebalance(world: ClassicWorld) -> None:
    a, b = world.client("a").join(), world.client("b").join()
    world.pass_ms(1_000)
    a.joined(), b.joined()
    world.fail_over()
    assert world.phase == "completing_rebalance"
    b.sync()
    a.sync()
    assert (a.synced(), b.synced()) == ((0,), (1,))
    world.fail_over()
    a.beat(), b.beat()
    assert world.phase == "stable"


def test_joins_that_nobody_answered_are_repeated_at_the_new_coordinator(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    c = world.client("c").join()
    a.join()
    world.fail_over()
    b.beat()  # what was only begun is forgotten: generation 1 stands
    with pytest.raises(UnknownMemberIdError):
        c.join()
    c.member_id = ""
    c.join(), a.join(), b.join()
    assert c.joined().generation == a.joined().generation == 2


def test_an_assignment_of_an_older_generation_is_not_taken_for_this_ones(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    c = world.client("c").join()
    a.join(), b.join()
    world.fail_over()
    a.joined(), b.sync()
    assert b.answer is None  # not what it had in generation 1
    a.sync()
    assert isinstance(b.answer, SyncGroupResponse)
    assert c.told is None


def test_a_reset_sends_all_members_away_to_start_anew(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    commit(world, a, offset=50)
    offsets = (OffsetToCommit(topic="t", partition=0, offset=7),)
    result = world.coordinator.reset_offsets(group_id=GROUP, offsets=offsets, now_ms=world.now_ms)
    world.commit(result)
    assert result.response[0].offset == 50
    with pytest.raises(UnknownMemberIdError):
        commit(world, a, offset=51)
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    assert world.causes()[-1] == "offsets_reset"
    assert world.coordinator.offsets.fetch(GROUP)[0].offset == 7


def test_groups_change_their_protocol_only_while_they_are_empty(world: ClassicWorld) -> None:
    (a,) = world.group_of("a")
    newer = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=0, subscribed_topics=("t",))
    with pytest.raises(GroupIdNotFoundError):
        world.coordinator.heartbeat(newer, world.now_ms)
    with pytest.raises(NonEmptyGroupError):
        world.coordinator.delete_group(group_id=GROUP, now_ms=world.now_ms)
    a.leave()
    result = world.coordinator.heartbeat(newer, world.now_ms)
    world.commit(result)
    assert result.response.member_epoch > a.generation
    with pytest.raises(InconsistentGroupProtocolError):
        world.client("b").join()
    world.pass_ms(50_000)
    (b,) = world.group_of("b")
    assert b.generation > result.response.member_epoch
    b.leave()
    world.commit(world.coordinator.delete_group(group_id=GROUP, now_ms=world.now_ms))
    assert world.phase == "dead"
