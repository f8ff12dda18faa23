"""The bounded record of rebalances: rings, the limit of a slot, gaps; and that the simulations find a log that lies."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.consumer_groups import coordinator
from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.model.rebalance_log import (
    CAUSES_PER_REBALANCE,
    ITEMS_KEPT_PER_SLOT,
    MOVES_PER_REBALANCE,
    REBALANCES_KEPT_PER_GROUP,
    RebalanceLog,
)
from barnabas.kraft.group_state.group_slots import PartitionKey
from barnabas.log.vocabulary.group_messages import RebalanceReason

from .simulation import Simulation

BYTES_PER_SLOT_AT_MOST = 3 * 1024 * 1024


def cause(at_ms: int = 0, epoch: int = 1) -> RebalanceReason:
    return RebalanceReason(at_ms=at_ms, cause=RebalanceCause.MEMBER_JOINED, member_id="a", group_epoch=epoch)


def keys(count: int) -> set[PartitionKey]:
    return {("t", number) for number in range(count)}


def rebalance(log: RebalanceLog, group_id: str, epoch: int, moved: int = 0) -> None:
    log.note(group_id, cause(epoch, epoch))
    log.let_go(group_id, "a", keys(moved), epoch)
    log.taken(group_id, "b", keys(moved), epoch)
    log.settled(group_id, (), epoch)


def test_the_log_of_a_group_is_a_bounded_ring() -> None:
    log = RebalanceLog()
    for epoch in range(REBALANCES_KEPT_PER_GROUP + 5):
        rebalance(log, "g", epoch)
    assert [item.group_epoch for item in log.of("g")] == list(range(5, REBALANCES_KEPT_PER_GROUP + 5))
    assert log.of("other") == ()
    log.forget("g")
    assert log.of("g") == ()
    assert log.item_count == 0


def test_moves_of_one_rebalance_are_bounded_and_counted() -> None:
    log = RebalanceLog()
    rebalance(log, "g", 1, MOVES_PER_REBALANCE + 7)
    (told,) = log.of("g")
    assert (len(told.moves), told.moved_count) == (MOVES_PER_REBALANCE, MOVES_PER_REBALANCE + 7)


def test_a_storm_that_never_settles_becomes_several_records() -> None:
    log = RebalanceLog()
    for _ in range(CAUSES_PER_REBALANCE + 1):
        log.note("g", cause())
    first, second = log.of("g")
    assert (first.is_superseded, first.is_under_way, second.is_under_way) == (True, False, True)


def test_the_newest_rebalance_is_kept_even_if_it_is_longer_than_all_may_be() -> None:
    log = RebalanceLog(items_kept=3)
    log.note("old", cause())
    for _ in range(5):
        log.note("g", cause())
    assert not log.of("old")
    assert [len(item.reasons) for item in log.of("g")] == [5]


def test_all_groups_of_a_slot_together_are_bounded_in_memory() -> None:
    log = RebalanceLog()
    tracemalloc.start()
    for round_number in range(40):
        for group in range(100):
            rebalance(log, f"group-{group}", round_number, 20)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ITEMS_KEPT_PER_SLOT * 0.9 < log.item_count <= ITEMS_KEPT_PER_SLOT
    assert used_bytes < BYTES_PER_SLOT_AT_MOST
    kept = [len(log.of(f"group-{group}")) for group in range(100)]
    assert 0 < min(kept) >= max(kept) - 1, "the oldest have gone, of every group alike"


operations = st.lists(
    st.tuples(
        st.sampled_from(["note", "wanted", "let_go", "taken", "settled", "forget"]),
        st.sampled_from(["g", "h"]),
        st.sampled_from(["a", "b"]),
        st.sets(st.sampled_from(sorted(keys(4)))),
        st.integers(min_value=0, max_value=50),
    )
)


@given(operations)
def test_whatever_is_told_it_stays_bounded_and_no_pause_is_negative(
    told: list[tuple[str, str, str, set[PartitionKey], int]],
) -> None:
    log = RebalanceLog(kept_per_group=3, items_kept=20)
    now_ms = 0
    for name, group_id, member_id, touched, pass_ms in told:
        now_ms += pass_ms
        if name == "note":
            log.note(group_id, cause(now_ms))
        elif name == "wanted":
            log.wanted(group_id, touched, now_ms)
        elif name == "let_go":
            log.let_go(group_id, member_id, touched, now_ms)
        elif name == "taken":
            log.taken(group_id, member_id, touched, now_ms)
            assert not log.gaps_of(group_id).keys() & touched
        elif name == "settled":
            log.settled(group_id, touched, now_ms)
            assert log.gaps_of(group_id).keys() <= touched
        else:
            log.forget(group_id)
        records = [item for group in ("g", "h") for item in log.of(group)]
        assert all(len(log.of(group)) <= 3 for group in ("g", "h"))
        assert log.item_count == sum(1 + len(item.reasons) + len(item.moves) for item in records)
        assert log.item_count <= 20 or len(records) == 1
        assert all((move.pause_ms or 0) >= 0 for item in records for move in item.moves)


class _ForgetsWhoLetGo(RebalanceLog):
    def let_go(self, group_id: str, member_id: str, keys: object, since_ms: int) -> None:
        super().let_go(group_id, "", keys, since_ms)  # type: ignore[arg-type]


class _MissesMoves(RebalanceLog):
    def taken(self, group_id: str, member_id: str, keys: object, now_ms: int) -> None:
        super().taken(group_id, member_id, sorted(keys)[:1], now_ms)  # type: ignore[call-overload]


@pytest.mark.parametrize("planted", [_ForgetsWhoLetGo, _MissesMoves])
def test_the_simulation_finds_a_log_that_lies(planted: type[RebalanceLog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "RebalanceLog", planted)
    for seed in range(20):
        try:
            Simulation(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{planted} was not found in 20 seeds")
