"""The delays of a loop: counted by bound, the longest of the last minutes, and measured on a loop that stands still."""

import asyncio

import pytest
from unit.net.shell_world import simulated

from barnabas.net.base.figures.loop_delays import BOUNDS_S, CHECK_INTERVAL_S, WINDOW_S, LoopDelays, measure
from barnabas.net.testing.simulation.loop import SimulatedLoop


@pytest.mark.parametrize(("delay_s", "is_later"), [(0.009, False), (0.01, False), (0.0101, True), (5.0, True)])
def test_a_check_is_later_than_a_bound_if_it_exceeds_it(delay_s: float, is_later: bool) -> None:
    delays = LoopDelays()
    delays.note(delay_s, 0.0)
    assert (delays.checks, delays.later_than(0.01)) == (1, int(is_later))


def test_a_delay_is_later_than_all_smaller_bounds() -> None:
    delays = LoopDelays()
    delays.note(0.06, 0.0)
    assert [delays.later_than(bound_s) for bound_s in BOUNDS_S] == [1, 1, 1, 1, 1, 0, 0, 0]


def test_the_longest_delay_is_forgotten_after_one_to_two_windows() -> None:
    delays = LoopDelays()
    delays.note(0.5, 10.0)
    delays.note(0.1, 10.0 + WINDOW_S)
    assert delays.longest_s == 0.5
    delays.note(0.2, 10.0 + 2 * WINDOW_S)
    assert delays.longest_s == 0.2
    delays.note(0.0, 10.0 + 9 * WINDOW_S)
    assert delays.longest_s == 0.0


@simulated
async def test_a_loop_that_stands_still_is_measured() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    delays = LoopDelays()
    measuring = asyncio.create_task(measure(delays))
    await asyncio.sleep(2.5 * CHECK_INTERVAL_S)
    assert (delays.checks, delays.later_than(0.001)) == (2, 0)
    loop._virtual_time += 3 * CHECK_INTERVAL_S  # what is due waits meanwhile
    for _ in range(5):
        await asyncio.sleep(0)
    measuring.cancel()
    assert delays.later_than(0.1) == 1 and delays.longest_s == pytest.approx(2.5 * CHECK_INTERVAL_S)
