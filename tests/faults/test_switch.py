"""A bad link does to frames what its quality says; and the figures of a fail-over are computed from what was measured."""

import json
from random import Random

import pytest
from faults.checker import longest_gap_s
from faults.failover import Figures, as_json, table
from faults.switch import MAX_HELD_FRAMES, Link, Quality

OUT, BACK = 1, 2


def through(quality: Quality, count: int = 1000) -> list[tuple[float, int]]:
    """(seconds on the way, number) of frames that arrive one each millisecond, in the order in which they leave."""
    link = Link(quality, Random(7))
    for number in range(count):
        link.arrived(b"%d" % number, OUT, number / 1000)
    found = []
    while (now_s := link.next_s()) is not None:
        for way_out, frame in link.due(now_s):
            assert way_out == OUT
            found.append((now_s - int(frame) / 1000, int(frame)))
    return found


def test_a_good_link_changes_nothing() -> None:
    assert through(Quality()) == [(0, number) for number in range(1000)]


def test_frames_are_held_back_in_order() -> None:
    found = through(Quality(delay_ms=50))
    assert [number for _, number in found] == list(range(1000))
    assert all(held_s == pytest.approx(0.05) for held_s, _ in found)


def test_jitter_and_overtaking_change_the_order_and_lose_nothing() -> None:
    for quality in (Quality(delay_ms=20, jitter_ms=20), Quality(delay_ms=20, overtakes=0.2)):
        numbers = [number for _, number in through(quality)]
        assert sorted(numbers) == list(range(1000)) and numbers != sorted(numbers)


def test_loss_and_repetition_are_as_frequent_as_they_should_be() -> None:
    assert 620 < len(through(Quality(loss=0.3))) < 780
    assert 1220 < len(through(Quality(twice=0.3))) < 1380


def test_a_link_holds_a_bounded_number_of_frames() -> None:
    assert len(through(Quality(delay_ms=10**6), MAX_HELD_FRAMES + 10)) == MAX_HELD_FRAMES


def test_both_ways_share_a_link() -> None:
    link = Link(Quality(delay_ms=10), Random(1))
    link.arrived(b"a", OUT, 0.0)
    link.arrived(b"b", BACK, 0.001)
    assert link.due(0.0105) == [(OUT, b"a")]
    assert link.due(0.012) == [(BACK, b"b")]


def test_the_longest_silence_ends_where_the_window_does() -> None:
    times_s = [0.9, 1.2, 3.2, 3.3, 9.0]
    assert longest_gap_s(times_s, 1.0, 4.0) == pytest.approx(2.0)
    assert longest_gap_s(times_s, 1.0, 8.0) == pytest.approx(4.7)
    assert longest_gap_s(times_s, 3.25, 3.3) == pytest.approx(0.05)


def test_figures_of_a_fail_over() -> None:
    figures = Figures("kill_leader")
    figures.add([0.1, 0.3])
    figures.add([0.2])
    row = figures.row()
    assert (row["events"], row["partitions"]) == (2, 3)
    assert (row["partition_p50_s"], row["partition_max_s"], row["event_p50_s"], row["event_max_s"]) == (
        0.2,
        0.3,
        0.3,
        0.3,
    )
    assert json.loads(as_json([figures]))["figures"] == [row]
    assert "0.200    0.300    0.300" in table([figures])
