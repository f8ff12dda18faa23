"""What a group waits for now, and the alerts about it."""

from barnabas.consumer_groups.explain.explain import UnownedReason
from barnabas.consumer_groups.explain.watch import (
    REBALANCES_ALERT,
    REPEAT_ALERT_MS,
    UNOWNED_ALERT_MS,
    WATCH_INTERVAL_MS,
    AlertKind,
    GroupAlert,
)
from barnabas.consumer_groups.model.settings import GroupSettings

from .classic_world import GROUP as CLASSIC_GROUP
from .classic_world import ClassicWorld
from .coordinator_bench import GROUP, Bench, Client, settle


def reasons(bench: Bench) -> dict[int, tuple[UnownedReason, str]]:
    told = bench.coordinator.explain_group(group_id=GROUP, now_ms=bench.now_ms).response
    return {item.partition: (item.reason, item.member_id) for item in told.unowned}


def pass_ms(bench: Bench, duration_ms: int, *beating: Client) -> list[GroupAlert]:
    alerts = []
    for _ in range(duration_ms // WATCH_INTERVAL_MS):
        bench.now_ms += WATCH_INTERVAL_MS
        result = bench.coordinator.tick(bench.now_ms)
        bench.commit(result.records)
        alerts += result.response
        for client in beating:
            bench.heartbeat(client.request())
    return alerts


def test_a_group_at_rest_has_nothing_to_explain() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    assert reasons(bench) == {}
    assert pass_ms(bench, 20_000, first, second) == []
    assert bench.coordinator.unowned_counts == {}


def test_a_group_without_members_has_nothing_to_explain_either() -> None:
    bench = Bench()
    client = bench.join("a")
    bench.heartbeat(client.request(member_epoch=-1))
    told = bench.coordinator.explain_group(group_id=GROUP, now_ms=bench.now_ms).response
    assert (told.unowned, told.members) == ((), ())
    assert pass_ms(bench, 20_000) == []
    assert bench.coordinator._watch.due.next_deadline_ms() is None, "nobody watches it any more"


def test_a_member_that_does_not_let_go_is_named() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    bench.heartbeat(first.request())  # it is told, but its application does not come back to poll
    assert reasons(bench) == dict.fromkeys((2, 3), (UnownedReason.WAITING_FOR_REVOCATION, "a"))
    alerts = pass_ms(bench, UNOWNED_ALERT_MS, first, second)
    assert alerts == [], "a rebalance may take so long"
    (alert,) = pass_ms(bench, WATCH_INTERVAL_MS, first, second)
    assert (alert.group_id, alert.kind) == (GROUP, AlertKind.UNOWNED)
    assert alert.text.startswith("no member reads t-2, t-3: waiting_for_revocation for 12000 ms, for at most another")
    assert "member a" in alert.text
    assert bench.coordinator.unowned_counts == {GROUP: 2}
    assert pass_ms(bench, REPEAT_ALERT_MS - WATCH_INTERVAL_MS, first, second) == [], "not at every look"
    assert len(pass_ms(bench, WATCH_INTERVAL_MS, first, second)) == 1
    (slow,) = [
        member
        for member in bench.coordinator.explain_group(group_id=GROUP, now_ms=bench.now_ms).response.members
        if member.slow_since_ms is not None and bench.now_ms - member.slow_since_ms > UNOWNED_ALERT_MS
    ]
    assert slow.member_id == "a"
    settle(first, second)
    (alert,) = pass_ms(bench, WATCH_INTERVAL_MS, first, second)
    assert alert.kind is AlertKind.OWNED_AGAIN
    assert bench.coordinator.unowned_counts == {}


def test_a_silent_member_and_one_that_is_away_are_told_apart() -> None:
    bench = Bench()
    first, second, third = bench.join("a"), bench.join("b"), bench.join("c", instance_id="i")
    settle(first, second, third)
    bench.heartbeat(third.request(member_epoch=-2))
    (alert,) = pass_ms(bench, 12_000, first)
    found = reasons(bench)
    assert {found[number] for _, number in second.owned} == {(UnownedReason.MEMBER_SILENT, "b")}
    assert {found[number] for _, number in third.owned} == {(UnownedReason.MEMBER_AWAY, "c")}
    assert "member_silent" in alert.text
    assert "member_away" in alert.text


def test_a_free_partition_waits_for_the_heartbeat_of_its_new_owner() -> None:
    bench = Bench()
    first = bench.join("a")
    bench.change_topics({"t": 5})
    assert reasons(bench) == {4: (UnownedReason.WAITING_FOR_HEARTBEAT, "a")}
    settle(first)
    assert reasons(bench) == {}


def test_an_assignment_that_is_put_off_is_told() -> None:
    bench = Bench(
        topics={"t": 2},
        settings=GroupSettings(
            assignment_interval_ms=5_000, members_assigned_at_once=0, assignment_ms_per_member=5_000
        ),
    )
    first = bench.join("a")
    bench.change_topics({"t": 3})
    assert reasons(bench) == {2: (UnownedReason.NOT_ASSIGNED_YET, "")}
    bench.tick(5_000)
    settle(first)
    assert reasons(bench) == {}


def test_rebalances_that_come_too_often_are_told_once() -> None:
    bench = Bench()
    client = bench.join("a")
    for _ in range(REBALANCES_ALERT):
        bench.heartbeat(client.request(member_epoch=-1))
        client = bench.join("a")
    (alert,) = pass_ms(bench, 60_000, client)
    assert alert.kind is AlertKind.REBALANCES_TOO_OFTEN
    assert "most often member_joined" in alert.text


def test_a_classic_group_tells_whom_its_rebalance_waits_for() -> None:
    world = ClassicWorld()
    first, second = world.group_of("a", "b")
    third = world.client("c").join()
    first.join()
    told = world.coordinator.explain_group(group_id=CLASSIC_GROUP, now_ms=world.now_ms).response
    assert [(item.partition, item.reason, item.member_id) for item in told.unowned] == [
        (0, UnownedReason.WAITING_FOR_JOIN, second.member_id)
    ], "a has let go of it; b still reads"
    second.join()
    assert third.joined().leader_id == first.member_id
    told = world.coordinator.explain_group(group_id=CLASSIC_GROUP, now_ms=world.now_ms).response
    assert {(item.reason, item.member_id) for item in told.unowned} == {
        (UnownedReason.WAITING_FOR_LEADER, first.member_id)
    }
