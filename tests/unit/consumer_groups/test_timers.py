"""Timers of groups and members: each begins with what it times, and ends with it."""

from barnabas.consumer_groups.explain.watch import WATCH_INTERVAL_MS
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.metadata.records import TargetAssignmentRecord

from .test_coordinator import GROUP, PUT_OFF, Bench
from .timers import check_timers

REBALANCE_TIMEOUT_MS = 10_000
SLOW = GroupSettings(session_timeout_ms=30_000, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS)


def test_a_group_that_is_deleted_leaves_no_timer_though_an_assignment_was_put_off() -> None:
    bench = Bench(settings=PUT_OFF)
    first = bench.join("a")
    second = bench.join("b")
    check_timers(bench.coordinator)
    assert bench.coordinator._targets.due.next_deadline_ms() is not None
    for client in (first, second):
        client.beat(member_epoch=-1)
    bench.commit(bench.coordinator.delete_group(group_id=GROUP, now_ms=bench.now_ms).records)
    check_timers(bench.coordinator)
    bench.tick(WATCH_INTERVAL_MS)
    assert bench.coordinator.next_deadline_ms() is None


def test_each_step_of_letting_go_has_the_whole_rebalance_timeout() -> None:
    bench = Bench(topics={"t": 6}, settings=SLOW)
    first = bench.join("a")
    bench.join("b")
    first.beat()
    bench.now_ms += REBALANCE_TIMEOUT_MS // 2
    bench.join("c")
    first.beat()  # it lets go of what "b" gets, and is told of what "c" gets
    check_timers(bench.coordinator)
    bench.tick(REBALANCE_TIMEOUT_MS // 2 + 1)
    assert first.member in bench.slots.slot(bench.coordinator.slot).groups[GROUP].members
    bench.tick(REBALANCE_TIMEOUT_MS // 2)
    assert first.member not in bench.slots.slot(bench.coordinator.slot).groups[GROUP].members
    check_timers(bench.coordinator)


def test_only_targets_that_differ_are_written() -> None:
    bench = Bench(topics={"t": 1, "u": 1})
    first = bench.join("a")
    records = bench.coordinator.heartbeat(
        first.request(member_id="b", member_epoch=0, subscribed_topics=("u",), owned=()), bench.now_ms
    ).records
    assert [record.member_id for record in records if isinstance(record, TargetAssignmentRecord)] == ["b"]
