"""Directed tests of the coordinator: joining, handing over, fencing, timers, topics, failover."""

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.model.partitions import from_set, to_set
from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase, MemberState
from barnabas.log.vocabulary.errors import (
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    NotCoordinatorError,
    UnknownMemberIdError,
    UnsupportedAssignorError,
)
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest

from .coordinator_bench import GROUP, SLOT, Bench, T, settle

PUT_OFF = GroupSettings(assignment_interval_ms=1_000, members_assigned_at_once=0, assignment_ms_per_member=1_000)


def test_a_first_member_gets_everything_with_its_join() -> None:
    bench = Bench()
    alone = bench.join("a")
    assert alone.owned == T
    assert alone.epoch == 1
    assert bench.phase() is GroupPhase.STABLE


def test_the_coordinator_names_a_member_that_has_no_id() -> None:
    bench = Bench()
    first, second = bench.join(""), bench.join("")
    assert len(first.member) == 32
    assert first.member != second.member


def test_a_partition_is_handed_over_only_when_its_owner_has_let_go() -> None:
    bench = Bench()
    first = bench.join("a")
    second = bench.join("b")
    assert second.owned == frozenset()
    assert bench.state_of("b") is MemberState.UNRELEASED_PARTITIONS
    assert bench.phase() is GroupPhase.RECONCILING
    response = bench.heartbeat(first.request())
    assert to_set(response.assignment or ()) == {("t", 0), ("t", 1)}, "told what to keep"
    assert response.member_epoch == 1, "its epoch stands until it has let go"
    assert bench.state_of("a") is MemberState.UNREVOKED_PARTITIONS
    assert second.beat().assignment is None, "still held by the other"
    assert first.take(response).assignment is not None
    assert first.beat().member_epoch == 2
    assert second.beat().assignment is not None
    assert second.owned == {("t", 2), ("t", 3)}
    assert bench.phase() is GroupPhase.STABLE


def test_a_member_that_does_not_say_what_it_owns_is_taken_to_own_it_still() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    for _ in range(3):
        first.beat(owned=None)
        second.beat()
    assert second.owned == frozenset()


def test_a_member_that_waits_is_asked_to_come_back_sooner() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    assert second.beat().heartbeat_interval_ms == bench.settings.waiting_heartbeat_interval_ms
    settle(first, second)
    assert second.beat().heartbeat_interval_ms == bench.settings.heartbeat_interval_ms


def test_a_member_with_a_short_session_is_asked_to_heartbeat_more_often() -> None:
    bench = Bench()
    member = bench.join("a", session_timeout_ms=3_000)
    assert member.beat().heartbeat_interval_ms == 1_000


def test_a_steady_heartbeat_writes_nothing_and_tells_nothing() -> None:
    bench = Bench()
    client = bench.join("a")
    result = bench.coordinator.heartbeat(client.request(), bench.now_ms)
    assert result.records == ()
    assert result.response.assignment is None


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    assert bench.heartbeat(first.request(member_epoch=-1)).member_epoch == -1
    second.beat()
    assert second.owned == T
    bench.heartbeat(second.request(member_epoch=-1))
    assert bench.phase() is GroupPhase.EMPTY
    with pytest.raises(UnknownMemberIdError):
        second.beat()


def test_a_silent_member_is_removed_after_its_session() -> None:
    bench = Bench()
    first, second = bench.join("a", session_timeout_ms=5_000), bench.join("b")
    settle(first, second)
    bench.tick(2_000)
    bench.tick(2_000)
    assert bench.coordinator.next_deadline_ms() == bench.now_ms + 1_000
    bench.tick(999)
    assert bench.state_of("a") is MemberState.STABLE
    bench.tick(1)
    second.beat()
    assert second.owned == T
    assert bench.causes()[-1] is RebalanceCause.MEMBER_EXPIRED


def test_a_member_that_does_not_let_go_is_removed_after_its_rebalance_timeout() -> None:
    bench = Bench()
    first = bench.join("a", rebalance_timeout_ms=10_000)
    second = bench.join("b")
    bench.heartbeat(first.request())
    bench.tick(6_000)
    bench.heartbeat(first.request())  # alive, but it owns everything still
    second.beat()
    bench.tick(3_999)
    assert bench.state_of("a") is MemberState.UNREVOKED_PARTITIONS
    bench.tick(1)
    assert bench.causes()[-1] is RebalanceCause.REBALANCE_TIMEOUT
    with pytest.raises(UnknownMemberIdError):
        bench.heartbeat(first.request())
    second.beat()
    assert second.owned == T


def test_the_previous_epoch_is_tolerated_because_an_answer_may_be_lost() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    first.beat()
    lost = bench.heartbeat(first.request())
    assert lost.member_epoch == first.epoch + 1
    again = first.beat()
    assert again.member_epoch == lost.member_epoch
    assert again.assignment == lost.assignment is not None
    second.beat()
    assert second.owned | first.owned == T


def test_other_epochs_are_fenced() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    for epoch in (first.epoch + 1, first.epoch - 2 or 99):
        with pytest.raises(FencedMemberEpochError):
            bench.heartbeat(first.request(member_epoch=epoch))


def test_a_member_of_the_previous_epoch_that_owns_what_it_never_got_is_fenced() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    with pytest.raises(FencedMemberEpochError):
        bench.heartbeat(first.request(member_epoch=first.epoch - 1, owned=from_set(T)))


def test_a_join_that_is_repeated_keeps_what_the_member_has() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    again = bench.join("a")
    assert (again.owned, again.epoch) == (first.owned, first.epoch)
    assert bench.causes().count(RebalanceCause.MEMBER_JOINED) == 2


def test_a_copy_of_the_first_join_releases_nothing() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    bench.join("a")  # the same words as a member that owns nothing, but `first` still reads everything
    second.beat()
    assert second.owned == frozenset()
    settle(first, second)
    assert first.owned | second.owned == T


def test_a_changed_subscription_moves_partitions() -> None:
    bench = Bench(topics={"t": 4, "u": 2})
    client = bench.join("a")
    client.beat(subscribed_topics=("u", "t"))
    settle(client)
    assert client.owned == T | {("u", 0), ("u", 1)}
    client.beat(subscribed_topics=("u",))
    settle(client)
    assert client.owned == {("u", 0), ("u", 1)}
    assert bench.causes().count(RebalanceCause.SUBSCRIPTION_CHANGED) == 2
    before = bench.coordinator.describe_group(group_id=GROUP).response.group_epoch
    client.beat(subscribed_topics=("u",))
    assert bench.coordinator.describe_group(group_id=GROUP).response.group_epoch == before


def test_a_pattern_follows_new_topics_but_never_internal_ones() -> None:
    bench = Bench(topics={"logs-a": 1, "other": 1, "__consumer_offsets": 50})
    client = bench.join("a", subscribed_topics=None, subscribed_pattern=".*o.*s.*")
    assert client.owned == {("logs-a", 0)}
    bench.change_topics({"logs-a": 1, "other": 1, "logs-b": 2, "__consumer_offsets": 50})
    settle(client)
    assert client.owned == {("logs-a", 0), ("logs-b", 0), ("logs-b", 1)}
    assert bench.causes()[-1] is RebalanceCause.PATTERN_MATCHED


def test_new_partitions_are_assigned_and_topics_of_others_disturb_nobody() -> None:
    bench = Bench()
    client = bench.join("a")
    bench.change_topics({"t": 6, "other": 3})
    settle(client)
    assert len(client.owned) == 6
    epoch = client.epoch
    bench.change_topics({"t": 6, "other": 9})
    settle(client)
    assert client.epoch == epoch


def test_a_deleted_topic_is_taken_away() -> None:
    bench = Bench(topics={"t": 4, "u": 1})
    client = bench.join("a", subscribed_topics=("t", "u"))
    bench.change_topics({"u": 1})
    settle(client)
    assert client.owned == {("u", 0)}
    assert bench.causes()[-1] is RebalanceCause.TOPIC_DELETED


def test_a_failover_moves_nothing_and_gives_fresh_sessions() -> None:
    bench = Bench(settings=GroupSettings(session_timeout_ms=10_000))
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    bench.now_ms += 9_999
    bench.fail_over()
    bench.tick(9_999)
    epochs = first.epoch, second.epoch
    settle(first, second)
    assert (first.epoch, second.epoch) == epochs
    assert bench.causes() == [RebalanceCause.COORDINATOR_MOVED]
    assert bench.phase() is GroupPhase.STABLE


def test_a_failover_amid_a_hand_over_continues_it() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    first.beat()
    bench.fail_over()
    assert second.beat().assignment is None
    settle(first, second)
    assert first.owned | second.owned == T
    assert not first.owned & second.owned


def test_a_new_coordinator_finds_partitions_that_the_last_one_did_not_know() -> None:
    bench = Bench()
    client = bench.join("a")
    bench.topics = {"t": 5}
    bench.fail_over()
    assert bench.coordinator.next_deadline_ms() == bench.now_ms
    bench.tick()
    settle(client)
    assert len(client.owned) == 5


def test_records_of_an_old_coordinator_are_void_after_a_failover() -> None:
    bench = Bench()
    bench.join("a")
    late = bench.coordinator.heartbeat(
        ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="z", member_epoch=0, subscribed_topics=("t",)),
        bench.now_ms,
    )
    bench.fail_over()
    assert [bench.slots.replay(record, bench.slots.index + 1) for record in late.records] == [False] * len(late.records)
    assert set(bench.slots.slot(SLOT).groups[GROUP].members) == {"a"}


def test_a_coordinator_of_an_older_epoch_than_the_state_is_refused() -> None:
    bench = Bench()
    bench.epoch = 5
    bench.fail_over()
    bench.join("a")
    bench.epoch = 2
    with pytest.raises(NotCoordinatorError):
        bench._new_coordinator()


def test_assignments_can_be_put_off_in_a_storm_of_joins() -> None:
    bench = Bench(
        settings=GroupSettings(assignment_interval_ms=1_000, members_assigned_at_once=0, assignment_ms_per_member=1_000)
    )
    first, second = bench.join("a"), bench.join("b")
    assert bench.phase() is GroupPhase.ASSIGNING
    settle(first, second)
    assert first.owned == T
    bench.tick(1_000)
    assert bench.phase() is GroupPhase.RECONCILING
    settle(first, second)
    assert len(first.owned) == len(second.owned) == 2
    third = bench.join("c")
    assert bench.phase() is GroupPhase.ASSIGNING
    bench.fail_over()
    bench.tick()
    settle(first, second, third)
    assert bench.phase() is GroupPhase.STABLE


def test_a_storm_of_joins_writes_as_many_records_as_there_are_members_not_their_square() -> None:
    """400 joins wrote 38,000 records: each of them rewrote the targets of all."""
    bench = Bench(topics={"t": 400})
    record_count = 0
    deadlines: list[int | None] = []
    for number in range(400):
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=f"m{number}", member_epoch=0, subscribed_topics=("t",)
        )
        record_count += len(bench.coordinator.heartbeat(request, bench.now_ms).records)
        bench.now_ms += 1
        while (at_ms := bench.coordinator._targets.due.next_deadline_ms()) is not None and at_ms <= bench.now_ms:
            record_count += len(bench.coordinator.tick(bench.now_ms).records)
            deadlines.append(at_ms)
    assert 2 < len(deadlines) < 12, "the group grows, so its assignments become rare"
    assert record_count < 400 * 8
    bench.now_ms += 1_000
    bench.coordinator.tick(bench.now_ms)
    assert bench.phase() is not GroupPhase.ASSIGNING


def test_a_member_whose_assignment_is_put_off_is_to_ask_again_soon() -> None:
    bench = Bench(settings=PUT_OFF)
    bench.join("a")
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="b", member_epoch=0, subscribed_topics=("t",))
    told = bench.heartbeat(request)
    assert told.heartbeat_interval_ms == bench.settings.waiting_heartbeat_interval_ms


def test_the_default_assignor_is_uniform_and_only_those_that_are_set_are_taken() -> None:
    bench = Bench(settings=GroupSettings(assignors=("uniform", "range")))
    bench.join("a")
    assert bench.coordinator.describe_group(group_id=GROUP).response.assignor == "uniform"
    with pytest.raises(UnsupportedAssignorError, match="uniform, range"):
        bench.join("b", assignor="sticky")


def test_a_group_that_an_older_version_assigned_by_range_changes_at_its_next_rebalance() -> None:
    bench = Bench(topics={"t": 4, "u": 1}, settings=GroupSettings(assignors=("range",)))
    first, second = (bench.join(name, subscribed_topics=("t", "u")) for name in "ab")
    settle(first, second)
    bench.settings = GroupSettings()
    bench.fail_over()
    bench.tick()
    settle(first, second)
    assert bench.coordinator.describe_group(group_id=GROUP).response.assignor == "range", "nothing has moved"
    third = bench.join("c", subscribed_topics=("t", "u"))
    settle(first, second, third)
    assert bench.coordinator.describe_group(group_id=GROUP).response.assignor == "uniform"


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    bench = Bench()
    first, second, third = (bench.join(name, assignor="uniform") for name in "abc")
    settle(first, second, third)
    description = bench.coordinator.describe_group(group_id=GROUP).response
    assert description.assignor == "uniform"
    assert sorted(len(client.owned) for client in (first, second, third)) == [1, 1, 2]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "", "member_epoch": 1}, InvalidRequestError),
        ({"member_epoch": -3}, InvalidRequestError),
        ({"member_epoch": -2}, InvalidRequestError),
        ({"member_epoch": -1}, UnknownMemberIdError),
        ({"member_epoch": 4}, UnknownMemberIdError),
        ({"subscribed_topics": None}, InvalidRequestError),
        ({"subscribed_topics": ("t",) * 10_001}, InvalidRequestError),
        ({"subscribed_pattern": "("}, InvalidRegularExpressionError),
        ({"subscribed_pattern": "x" * 1_001}, InvalidRegularExpressionError),
        ({"subscribed_pattern": r"(a)\1"}, InvalidRegularExpressionError),
        ({"instance_id": ""}, InvalidRequestError),
        ({"member_id": "m" * 1_001}, InvalidRequestError),
        ({"client_id": "c" * 1_001}, InvalidRequestError),
        ({"session_timeout_ms": 1}, InvalidSessionTimeoutError),
        ({"rebalance_timeout_ms": 0}, InvalidRequestError),
        ({"assignor": "magic"}, UnsupportedAssignorError),
        ({"group_id": "another"}, NotCoordinatorError),
    ],
)
def test_a_bad_heartbeat_is_refused_and_changes_nothing(fields: dict[str, object], error: type[Exception]) -> None:
    bench = Bench()
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=0, subscribed_topics=("t",))
    with pytest.raises(error):
        bench.heartbeat(replace(request, **fields))  # type: ignore[arg-type]
    assert bench.coordinator.list_groups().response == ()


def test_a_full_group_takes_no_more_members() -> None:
    bench = Bench(settings=GroupSettings(max_group_size=1))
    bench.join("a")
    with pytest.raises(GroupMaxSizeReachedError):
        bench.join("b")


def test_a_session_can_be_ended_at_once() -> None:
    """As if it had expired: the member learns of that with its next heartbeat, and the others get its partitions."""
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    bench.commit(bench.coordinator.tick(bench.now_ms, ended=(GROUP, "a")).records)
    assert bench.causes()[-1] is RebalanceCause.MEMBER_EXPIRED
    with pytest.raises(UnknownMemberIdError):
        first.beat()
    settle(second)
    assert second.owned == T
    assert bench.coordinator.tick(bench.now_ms, ended=(GROUP, "a")).records == ()
