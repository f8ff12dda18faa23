"""Programs with the SDK are cancelled, cancelled twice and closed before any of their events (see `any_turn`).

BARNABAS_ANY_TURN_SAMPLE (16) events of each program are tried in each way, chosen by BARNABAS_ANY_TURN_SEED (1);
`scripts/test.sh long` tries all of them.
"""

import os
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from barnabas.net.testing.simulation.simulate import Simulation, simulate

from .any_turn import SECOND_CANCELS, AnyTurn
from .any_turn_programs import INPUT, OUTPUT, Programs
from .checkers.violation import Violation

SAMPLE = int(os.environ.get("BARNABAS_ANY_TURN_SAMPLE", "16"))
SEED = int(os.environ.get("BARNABAS_ANY_TURN_SEED", "1"))
ONE_BROKER = {"default.replication.factor": "1", "min.insync.replicas": "1"}


def run_any_turn(name: str, *, is_frozen: bool, sample: int) -> tuple[int, int]:
    """How many events the program takes, and how many trials passed."""
    counts = (0, 0)

    async def main(simulation: Simulation) -> None:
        nonlocal counts
        for topic in (INPUT, OUTPUT):
            await simulation.create_topic(topic, partitions=2)
        programs = Programs(simulation.bootstrap_servers)
        await programs.fill()
        turns = AnyTurn(simulation, programs.by_name[name])
        events = await turns.undisturbed()
        dice = Random(SEED)
        ways: dict[str, Callable[[int], Awaitable[None]]] = {
            "cancelled": lambda k: turns.cancelled(k, is_frozen=is_frozen),
            "cancelled twice": lambda k: turns.cancelled(k, again=dice.choice(SECOND_CANCELS), is_frozen=is_frozen),
            "closed": lambda k: turns.closed(k, is_frozen=is_frozen),
        }
        for way, disturb in ways.items():
            for k in sorted(dice.sample(range(events), min(sample, events))):
                try:
                    await disturb(k)
                except Exception as error:
                    raise Violation(f"{name}, {way} before event {k} of {events}: {error!r}") from error
        await programs.check(turns.trials)
        counts = events, len(turns.trials)

    simulate(main, seed=SEED, faults=("stall",), seconds=0, brokers=1, config=ONE_BROKER, limit_s=1e6)
    return counts


@pytest.mark.timeout(SAMPLE * 5 + 120)
@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("name", Programs("").by_name)
def test_a_program_may_be_disturbed_before_any_of_its_events(name: str, is_frozen: bool) -> None:
    sample = SAMPLE // 4 if is_frozen else SAMPLE
    events, trials = run_any_turn(name, is_frozen=is_frozen, sample=sample)
    assert events > 40 and trials > min(sample, events) * 3
