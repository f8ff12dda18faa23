"""A crowd of group requests at the same time: the loop turns between slices of decisions, and nothing overtakes."""

import asyncio
from typing import Any

import pytest
from unit.net.shell_world import now_ms, simulated, turns
from unit.net.test_group_hosting import GROUP, SLOT, World

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, NotCoordinatorError
from barnabas.net.base.slices import SLICE_MS, SLICE_STEPS, SlicedCalls
from barnabas.net.coordination.groups.hosted_slot import MAX_WAITING_TURNS

CROWD = 10 * SLICE_STEPS


class Crowd:
    """Requests that each note when they are decided."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.decided: list[int] = []

    def ask(self, number: int) -> "asyncio.Task[object]":
        def decide(_: Any) -> CoordinatorResult[Any]:
            self.decided.append(number)
            return CoordinatorResult(records=(), response=number)

        return asyncio.create_task(self.world.groups.handle(GROUP, decide))


@simulated
async def test_the_loop_turns_while_a_crowd_is_decided_upon() -> None:
    crowd = Crowd(await World.start())
    tasks = [crowd.ask(number) for number in range(CROWD)]
    decided_per_pass = []
    while len(crowd.decided) < CROWD:
        before = len(crowd.decided)
        await asyncio.sleep(0)
        decided_per_pass.append(len(crowd.decided) - before)
    assert max(decided_per_pass) <= 2 * SLICE_STEPS  # what comes in the pass itself, and what waited for it
    assert await asyncio.gather(*tasks) == crowd.decided == list(range(CROWD))


@simulated
async def test_a_lone_request_waits_for_no_pass() -> None:
    crowd = Crowd(await World.start())
    task = crowd.ask(1)
    await asyncio.sleep(0)  # it begins
    assert crowd.decided == [1]
    assert await task == 1


@simulated
async def test_nothing_is_decided_for_a_client_that_has_gone_while_it_waited() -> None:
    crowd = Crowd(await World.start())
    tasks = [crowd.ask(number) for number in range(CROWD)]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    await turns(CROWD)
    assert crowd.decided == list(range(CROWD - 1))


@simulated
async def test_who_waits_for_a_turn_is_told_when_the_slot_has_moved() -> None:
    world = await World.start()
    crowd = Crowd(world)
    tasks = [crowd.ask(number) for number in range(CROWD)]
    await asyncio.sleep(0)
    world.show({})
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert len(crowd.decided) < CROWD
    assert all(isinstance(one, NotCoordinatorError) for one in outcomes[len(crowd.decided) :])


@simulated
async def test_time_passes_behind_the_requests_that_have_come_before() -> None:
    """A heartbeat that waits for its turn counts, though its session ends meanwhile."""
    world = await World.start()
    crowd = Crowd(world)
    tasks = [crowd.ask(number) for number in range(CROWD)]
    await asyncio.sleep(0)
    assert len(crowd.decided) < CROWD
    slot = world.slots.find(SLOT)
    assert slot is not None
    slot.time_is_up()
    assert world.machines[0].ticks == []
    await asyncio.gather(*tasks)
    await turns()
    assert len(world.machines[0].ticks) == 1


@simulated
async def test_a_crowd_beyond_the_limit_is_told_to_slow_down() -> None:
    crowd = Crowd(await World.start())
    tasks = [crowd.ask(number) for number in range(MAX_WAITING_TURNS + SLICE_STEPS + 1)]
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorNotAvailableError, match="try again later"):
        await tasks[-1]
    await asyncio.gather(*tasks[:-1])


@pytest.mark.parametrize("step_ms", [1, SLICE_MS, 3 * SLICE_MS])
@simulated
async def test_a_slice_ends_after_its_time(step_ms: int) -> None:
    clock_ms = 0
    done: list[int] = []

    def step(number: int) -> None:
        nonlocal clock_ms
        clock_ms += step_ms
        done.append(number)

    calls = SlicedCalls(lambda: clock_ms)
    counts = [0]
    for number in range(50):
        calls.add(lambda number=number: step(number))  # type: ignore[misc]
    counts.append(len(done))
    while len(calls):
        await asyncio.sleep(0)
        counts.append(len(done))
    most = max(1, SLICE_MS // step_ms)
    assert max(after - before for before, after in zip(counts, counts[1:], strict=False)) == most
    assert done == list(range(50)) and now_ms() == 0
