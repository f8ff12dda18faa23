"""When records were appended: precise enough for lag in seconds, bounded, and kept over restarts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.segment.append_times import AGE_SHARE, MAX_ENTRIES, RESOLUTION_MS, AppendTimes
from barnabas.log.vocabulary.errors import CorruptRecordError


def allowed_ms(age_ms: int) -> int:
    return max(RESOLUTION_MS, age_ms // AGE_SHARE)


@given(
    gaps_ms=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3_000), st.integers(0, 10_000_000)), max_size=600),
    idle_ms=st.integers(0, 10_000_000),
)
def test_a_time_is_never_late_and_early_only_by_its_resolution(gaps_ms: list[int], idle_ms: int) -> None:
    times, true_ms, now_ms = AppendTimes(), [], 1_000
    for offset, gap_ms in enumerate(gaps_ms):
        now_ms += gap_ms
        true_ms.append(now_ms)
        times.note(offset, offset + 1, now_ms)
    now_ms += idle_ms
    for offset, appended_ms in enumerate(true_ms):
        found = times.time_of(offset)
        assert found is not None and found.is_exact
        assert 0 <= appended_ms - found.time_ms <= allowed_ms(now_ms - appended_ms), offset
    assert times.time_of(len(true_ms)) is None


def test_a_week_of_appends_keeps_its_precision_in_bounded_memory() -> None:
    times, rng = AppendTimes(), random.Random(7)
    now_ms, true_ms = 0, {}
    for offset in range(0, 864_000, 7):
        now_ms += rng.randrange(2_000, 7_800)
        times.note(offset, offset + 7, now_ms)
        true_ms[offset] = now_ms
    assert len(times) < MAX_ENTRIES
    for offset in list(true_ms)[:: len(true_ms) // 997]:
        found = times.time_of(offset + 3)
        assert found is not None
        assert 0 <= true_ms[offset] - found.time_ms <= (now_ms - true_ms[offset]) * 0.01 + RESOLUTION_MS


def test_more_than_the_limit_costs_the_precision_of_what_is_old() -> None:
    times, now_ms = AppendTimes(), 0
    for offset in range(20_000):
        now_ms += 500 + offset * 50  # ever longer gaps: hardly anything can be merged at the usual precision
        times.note(offset, offset + 1, now_ms)
    assert len(times) < MAX_ENTRIES + 128
    found = times.time_of(19_990)
    assert found is not None and found.is_exact


def test_truncated_and_deleted_records_are_forgotten() -> None:
    times = AppendTimes()
    for offset in range(10):
        times.note(offset, offset + 1, 1_000 * offset)
    times.truncate_to(6)
    assert times.time_of(6) is None
    times.note(6, 7, 9_100)  # within the resolution of what was cut off, and yet not as old as what remains
    assert times.time_of(6).time_ms == 9_100  # type: ignore[union-attr]
    times.forget_before(4)
    assert len(times) == 3
    assert times.time_of(4).time_ms == 4_000  # type: ignore[union-attr]


def test_a_clock_that_goes_back_makes_nothing_older_than_what_comes_before_it() -> None:
    times = AppendTimes()
    times.note(0, 1, 5_000)
    times.note(1, 2, 1_000)
    times.note(2, 3, 6_000)
    assert [times.time_of(offset).time_ms for offset in range(3)] == [5_000, 5_000, 6_000]  # type: ignore[union-attr]


def test_estimates_are_marked_and_end_where_the_clock_was_ours() -> None:
    times = AppendTimes()
    times.note_estimate(0, 5, 1_000)
    times.note_estimate(5, 9, 400)  # a producer's clock that went back
    times.note(9, 10, 7_000)
    found = [times.time_of(offset) for offset in (0, 5, 9)]
    assert [(item.time_ms, item.is_exact) for item in found if item] == [(1_000, False), (1_000, False), (7_000, True)]


def test_as_bytes() -> None:
    times = AppendTimes()
    for offset in range(50):
        times.note(offset, offset + 1, 700 * offset)
    again = AppendTimes.from_bytes(times.to_bytes())
    assert [again.time_of(offset) for offset in range(51)] == [times.time_of(offset) for offset in range(51)]
    for damaged in (b"", times.to_bytes()[:-3], times.to_bytes()[:-16]):
        with pytest.raises(CorruptRecordError):
            AppendTimes.from_bytes(damaged)
