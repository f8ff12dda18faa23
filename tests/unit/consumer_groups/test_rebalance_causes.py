"""Every cause is injected, and named rightly, with the member that it is of."""

import pytest

from barnabas.consumer_groups.explain.explain import UnownedReason
from barnabas.consumer_groups.model.rebalance_causes import CAUSES, RebalanceCause, cause_of_leaving
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.log.vocabulary.errors import FencedInstanceIdError
from barnabas.log.vocabulary.group_messages import (
    LeaveGroupRequest,
    OffsetToCommit,
    OwnerChange,
    RebalanceEvent,
    RebalanceReason,
)
from barnabas.log.vocabulary.group_protocol import ClientSubscription, encode_subscription

from .classic_world import GROUP as CLASSIC_GROUP
from .classic_world import ClassicWorld
from .coordinator_bench import GROUP, Bench, Client, settle

WATCHED = GroupSettings(session_timeout_ms=10_000, rebalance_timeout_ms=8_000)


def rebalances(bench: Bench) -> tuple[RebalanceEvent, ...]:
    return bench.coordinator.describe_group(group_id=GROUP).response.rebalances


def newest(bench: Bench) -> tuple[RebalanceReason, list[tuple[int, str, str, int | None]]]:
    """The newest cause, and the moves of its rebalance: (partition, from, to, pause)."""
    last = rebalances(bench)[-1]
    assert not last.is_under_way
    return last.reasons[-1], [told(move) for move in last.moves]


def told(move: OwnerChange) -> tuple[int, str, str, int | None]:
    return move.partition, move.from_member, move.to_member, move.pause_ms


def pair(bench: Bench) -> tuple[Client, Client]:
    """a reads t-0 and t-1, b reads t-2 and t-3."""
    first, second = bench.join("a", client_id="app", client_host="10.0.0.1"), bench.join("b")
    settle(first, second)
    return first, second


def test_every_cause_has_its_words() -> None:
    assert list(CAUSES) == list(RebalanceCause)
    assert all(text.meaning.endswith(".") and text.advice.endswith(".") for text in CAUSES.values())


def test_member_joined() -> None:
    bench = Bench()
    bench.join("a", client_id="app", client_host="10.0.0.1")
    cause, moves = newest(bench)
    assert cause == RebalanceReason(
        at_ms=1_000, cause=RebalanceCause.MEMBER_JOINED, group_epoch=1, member_id="a", client_id="app",
        client_host="10.0.0.1", detail="it subscribes to t",
    )  # fmt: skip
    assert moves == [(number, "", "a", 0) for number in range(4)]


def test_what_happens_on_the_way_belongs_to_the_rebalance_under_way() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    assert rebalances(bench)[-1].is_under_way
    third = bench.join("c")
    bench.now_ms += 700
    settle(first, second, third)
    last = rebalances(bench)[-1]
    assert [(cause.cause, cause.member_id, cause.group_epoch) for cause in last.reasons] == [
        (RebalanceCause.MEMBER_JOINED, "b", 2), (RebalanceCause.MEMBER_JOINED, "c", 3),
    ]  # fmt: skip
    assert (last.stable_after_ms, last.group_epoch, last.moved_count) == (700, 3, 2)


def test_member_left() -> None:
    bench = Bench()
    _, second = pair(bench)
    first_request = Client.request(second, member_id="a", member_epoch=-1, reason="SIGTERM")
    bench.heartbeat(first_request)
    bench.now_ms += 300
    settle(second)
    cause, moves = newest(bench)
    assert (cause.cause, cause.member_id, cause.detail) == (RebalanceCause.MEMBER_LEFT, "a", "SIGTERM")
    assert (cause.client_id, cause.client_host) == ("app", "10.0.0.1"), "told though it is gone"
    assert moves == [(0, "a", "b", 300), (1, "a", "b", 300)]


def test_member_expired_counts_the_pause_from_its_last_heartbeat() -> None:
    bench = Bench(settings=WATCHED)
    first, second = pair(bench)
    bench.tick(6_000)
    second.beat()
    bench.tick(4_100)  # the tick comes late; what counts is when it was heard of
    settle(second)
    cause, moves = newest(bench)
    assert (cause.cause, cause.member_id) == (RebalanceCause.MEMBER_EXPIRED, first.member)
    assert moves == [(0, "a", "b", 10_100), (1, "a", "b", 10_100)]
    assert cause.detail == "no heartbeat for 10000 ms"


def test_poll_interval_exceeded_is_what_the_member_says() -> None:
    bench = Bench()
    first, second = pair(bench)
    bench.heartbeat(first.request(member_epoch=-1, reason="poll_interval_exceeded"))
    settle(second)
    cause, _ = newest(bench)
    assert (cause.cause, cause.member_id, cause.detail) == (RebalanceCause.POLL_INTERVAL_EXCEEDED, "a", "")
    java = "consumer poll timeout has expired."
    assert cause_of_leaving(java) is RebalanceCause.POLL_INTERVAL_EXCEEDED
    assert cause_of_leaving("the consumer is being closed") is RebalanceCause.MEMBER_LEFT


def test_rebalance_timeout_names_what_was_not_let_go() -> None:
    bench = Bench(settings=WATCHED)
    first, second = bench.join("a"), bench.join("b")
    first.bench.heartbeat(first.request())  # told to let go of t-2 and t-3, and goes on reading
    for _ in range(4):
        bench.tick(2_000)
        bench.heartbeat(first.request()) if bench.now_ms < 9_000 else None
        second.beat()
    cause, moves = newest(bench)
    assert (cause.cause, cause.member_id) == (RebalanceCause.REBALANCE_TIMEOUT, "a")
    assert cause.detail == "it did not release t-2, t-3 within 8000 ms"
    assert {(number, source, target) for number, source, target, _ in moves} == {(n, "a", "b") for n in range(4)}


def test_static_member_away_and_returned() -> None:
    bench = Bench()
    first, second = bench.join("a", instance_id="i"), bench.join("b")
    settle(first, second)
    bench.heartbeat(first.request(member_epoch=-2))
    cause, moves = newest(bench)
    assert (cause.cause, cause.instance_id, moves) == (RebalanceCause.STATIC_MEMBER_AWAY, "i", [])
    bench.now_ms += 2_500
    back = bench.join("a2", instance_id="i")
    cause, moves = newest(bench)
    assert (cause.cause, cause.member_id) == (RebalanceCause.STATIC_MEMBER_RETURNED, "a2")
    assert moves == [(number, "a", "a2", 2_500) for _, number in sorted(first.owned)]
    assert back.owned == first.owned


def test_static_member_fenced_is_told_once() -> None:
    bench = Bench()
    first = bench.join("a", instance_id="i")
    bench.heartbeat(first.request(member_epoch=-2))
    bench.join("a2", instance_id="i")
    for _ in range(3):
        with pytest.raises(FencedInstanceIdError):
            bench.coordinator.heartbeat(first.request(), bench.now_ms)
    cause, moves = newest(bench)
    assert (cause.cause, cause.member_id, cause.instance_id) == (RebalanceCause.STATIC_MEMBER_FENCED, "a", "i")
    assert moves == []
    assert bench.causes().count(RebalanceCause.STATIC_MEMBER_FENCED) == 1


def test_subscription_changed() -> None:
    bench = Bench(topics={"t": 2, "u": 1})
    client = bench.join("a")
    client.beat(subscribed_topics=("u",))
    settle(client)
    last = rebalances(bench)[-1]
    assert (last.cause, last.reasons[0].detail) == (RebalanceCause.SUBSCRIPTION_CHANGED, "it subscribes to u")
    assert {(move.topic, move.partition, move.to_member) for move in last.moves} == {
        ("t", 0, ""), ("t", 1, ""), ("u", 0, "a"),
    }  # fmt: skip


def test_assignor_changed() -> None:
    bench = Bench()
    client = bench.join("a", assignor="range")
    client.beat(assignor="uniform")
    assert newest(bench)[0].cause is RebalanceCause.ASSIGNOR_CHANGED
    assert newest(bench)[0].detail == "it requests uniform instead of range"


def test_partitions_added() -> None:
    bench = Bench()
    client = bench.join("a")
    bench.change_topics({"t": 5})
    bench.now_ms += 400
    settle(client)
    cause, moves = newest(bench)
    assert (cause.cause, cause.detail) == (RebalanceCause.PARTITIONS_ADDED, "t has 5 partitions, it had 4")
    assert (cause.member_id, moves) == ("", [(4, "", "a", 400)])


def test_topic_created_and_pattern_matched() -> None:
    bench = Bench(topics={"t": 1})
    named = bench.join("a", subscribed_topics=("t", "orders"))
    bench.change_topics({"t": 1, "orders": 2})
    settle(named)
    assert newest(bench)[0].cause is RebalanceCause.TOPIC_CREATED
    named.beat(subscribed_topics=(), subscribed_pattern="logs-.*")
    settle(named)
    bench.change_topics({"t": 1, "orders": 2, "logs-a": 1})
    settle(named)
    cause, _ = newest(bench)
    assert (cause.cause, cause.detail) == (
        RebalanceCause.PATTERN_MATCHED, "logs-a with 1 partitions matches logs-.*",
    )  # fmt: skip


def test_topic_deleted_or_created_again() -> None:
    bench = Bench(topics={"t": 2, "u": 1})
    client = bench.join("a", subscribed_topics=("t", "u"))
    bench.change_topics({"t": 2})
    settle(client)
    cause, moves = newest(bench)
    assert (cause.cause, cause.detail, moves) == (RebalanceCause.TOPIC_DELETED, "u was deleted", [(0, "a", "", None)])
    bench.change_topics({"t": 2}, frozenset({"t"}))
    settle(client)
    assert newest(bench)[0].detail == "t was deleted and created again"


def test_offsets_reset() -> None:
    bench = Bench()
    client = bench.join("a")
    offsets = (OffsetToCommit(topic="t", partition=0, offset=0),)
    bench.commit(bench.coordinator.reset_offsets(group_id=GROUP, offsets=offsets, now_ms=bench.now_ms).records)
    assert client.owned == {("t", number) for number in range(4)}
    cause, moves = newest(bench)
    assert (cause.cause, moves) == (RebalanceCause.OFFSETS_RESET, [])


def test_coordinator_moved_moves_nothing_and_goes_on_with_what_was_under_way() -> None:
    bench = Bench()
    first, second = pair(bench)
    bench.fail_over()
    assert bench.causes() == [RebalanceCause.COORDINATOR_MOVED]
    assert newest(bench)[1] == []
    third = bench.join("c")
    bench.fail_over()
    assert rebalances(bench)[-1].is_under_way
    settle(first, second, third)
    cause, moves = newest(bench)
    assert cause.cause is RebalanceCause.COORDINATOR_MOVED
    assert {source for _, source, _, _ in moves} <= {"a", "b"}
    assert {target for _, _, target, _ in moves} <= {"b", "c"}


def test_what_changed_while_the_coordinator_moved_is_found_out() -> None:
    bench = Bench(topics={"t": 1, "u": 1})
    client = bench.join("a", subscribed_topics=("t", "u"))
    bench.topics = {"t": 3}
    bench.fail_over()
    bench.tick()
    settle(client)
    assert bench.causes() == [
        RebalanceCause.COORDINATOR_MOVED, RebalanceCause.PARTITIONS_ADDED, RebalanceCause.TOPIC_DELETED,
    ]  # fmt: skip


# --- classic groups ---------------------------------------------------------------------------------------------------


def classic(world: ClassicWorld) -> RebalanceEvent:
    last = world.coordinator.describe_group(group_id=CLASSIC_GROUP).response.rebalances[-1]
    assert not last.is_under_way
    return last


def cooperative(*owned: int) -> tuple[tuple[str, bytes], ...]:
    held = frozenset(("t", number) for number in owned)
    return (("range", encode_subscription(ClientSubscription(topics=("t",), owned=held))),)


def test_a_classic_member_that_expires_leaves_a_pause_of_its_session() -> None:
    world = ClassicWorld()
    first, second = world.group_of("a", "b")
    world.pass_ms(6_000)
    first.beat()
    world.pass_ms(4_000)  # b is out
    first.join().sync()
    last = classic(world)
    assert (last.reasons[0].cause, last.reasons[0].member_id) == (RebalanceCause.MEMBER_EXPIRED, second.member_id)
    assert [told(move) for move in last.moves] == [(0, first.member_id, first.member_id, 0)], "it let go as it joined"
    (left_out,) = world.coordinator.explain_group(group_id=CLASSIC_GROUP, now_ms=world.now_ms).response.unowned
    assert (left_out.partition, left_out.reason) == (1, UnownedReason.LEFT_OUT_BY_LEADER), "by the leader of this test"
    third = world.client("c").join()
    first.join()
    first.sync()
    third.sync()
    assert told(classic(world).moves[-1]) == (1, second.member_id, third.member_id, 10_000)


def test_a_classic_member_says_why_it_leaves() -> None:
    world = ClassicWorld()
    first, second = world.group_of("a", "b")
    leaving = (
        LeaveGroupRequest(
            group_id=CLASSIC_GROUP, member_id=second.member_id, reason="consumer poll timeout has expired."
        ),
    )
    world.commit(world.coordinator.leave_group(group_id=CLASSIC_GROUP, leaving=leaving, now_ms=world.now_ms))
    first.join().sync()
    assert classic(world).reasons[0].cause is RebalanceCause.POLL_INTERVAL_EXCEEDED


def test_leader_rejoined_and_assignor_changed() -> None:
    world = ClassicWorld()
    (leader,) = world.group_of("a")
    leader.join().sync()
    assert classic(world).cause is RebalanceCause.LEADER_REJOINED
    leader.protocols = (("sticky", leader.protocols[0][1]),)
    leader.join().sync()
    assert [cause.cause for cause in classic(world).reasons] == [RebalanceCause.ASSIGNOR_CHANGED] * 2
    assert classic(world).reasons[-1].detail == "range before, sticky now"


def test_partitions_released_by_a_cooperative_member() -> None:
    world = ClassicWorld()
    first, second = world.group_of("a", "b")
    second.protocols = cooperative(1)
    second.join()
    first.join().sync()
    second.sync()
    second.protocols = cooperative()
    second.join()
    assert classic_causes(world) == [RebalanceCause.PARTITIONS_RELEASED]


def classic_causes(world: ClassicWorld) -> list[RebalanceCause]:
    last = world.coordinator.describe_group(group_id=CLASSIC_GROUP).response.rebalances[-1]
    return [cause.cause for cause in last.reasons]


def test_a_classic_subscription_changes() -> None:
    world = ClassicWorld()
    (leader,) = world.group_of("a")
    leader.protocols = (("range", encode_subscription(ClientSubscription(topics=("t", "u")))),)
    leader.join().sync()
    assert classic(world).cause is RebalanceCause.SUBSCRIPTION_CHANGED


def test_a_parked_static_member_is_fenced_by_its_successor() -> None:
    world = ClassicWorld()
    world.client("a", instance_id="i").join()
    new = world.client("a", instance_id="i").join()
    assert RebalanceCause.STATIC_MEMBER_FENCED in classic_causes(world)
    world.pass_ms(1_000)
    new.sync()
    assert not classic(world).is_under_way
