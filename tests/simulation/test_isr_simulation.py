"""One partition under seeded faults: every invariant after every event; and the simulation finds bugs when there are
some.

`run_seed(seed)` of isr_cluster replays a failure. More seeds: BARNABAS_ISR_SEEDS=10000 pytest
tests/simulation/test_isr_simulation.py
"""

import os
from dataclasses import replace

import pytest

from barnabas.log.replication.leader import LeaderState
from barnabas.log.replication.replica import Replica

from .isr_bugs import _with_machines
from .isr_cluster import IsrCluster, run_seed
from .isr_scenario import Scenario
from .isr_schedules import SCHEDULES, ScheduledCluster, run_schedule

SEEDS = int(os.environ.get("BARNABAS_ISR_SEEDS", "400"))  # some four seconds


def test_invariants_hold_and_everything_makes_progress_after_the_last_fault() -> None:
    acknowledged = 0
    for seed in range(SEEDS):
        try:
            acknowledged += len(run_seed(seed).acked)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert acknowledged > 10 * SEEDS  # the faults must leave something to lose


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_directed_schedules(schedule: type[ScheduledCluster], min_isr: int) -> None:
    for seed in range(SEEDS // 10):
        run_schedule(schedule, seed, Scenario(min_isr=min_isr))


@pytest.mark.parametrize("scenario", [Scenario(node_count=5, min_isr=3), Scenario(min_isr=1, flush_first=True)])
def test_other_sizes(scenario: Scenario) -> None:
    for seed in range(SEEDS // 8):
        run_seed(seed, scenario)


def test_a_broker_with_another_min_isr_than_the_controller_commits_nothing_that_an_eligible_replica_lacks() -> None:
    for seed in range(SEEDS // 4):
        run_seed(seed, Scenario(min_isr=2, min_isr_of_brokers=1))


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in (3, 17):
        first, second = run_seed(seed), run_seed(seed)
        assert (first.trace, first.events, first.acked) == (second.trace, second.events, second.acked)
    assert run_seed(3).trace != run_seed(4).trace


ADDED = Scenario(node_count=4, min_isr=2, added=1)


class WaitsForEverybody(LeaderState):
    """The high watermark counts replicas that are not in the ISR."""

    def _is_joining(self, replica: Replica, now_ms: int) -> bool:
        return True


def acknowledged_while_a_replica_is_held_back(scenario: Scenario) -> int:
    acknowledged = 0
    for seed in range(SEEDS // 8):
        cluster = IsrCluster(seed, scenario)
        cluster.run(1_500)
        acknowledged += len(cluster.acked)
        cluster.heal_and_finish()
        assert 3 in cluster.controller.isr, f"seed {seed}: it was never taken in"
    return acknowledged


def test_a_replica_that_is_being_added_holds_up_nobody_and_is_in_sync_in_the_end() -> None:
    assert acknowledged_while_a_replica_is_held_back(ADDED) > 10 * (SEEDS // 8)


def test_a_high_watermark_that_waits_for_replicas_outside_of_the_isr_is_noticed() -> None:
    waits = replace(ADDED, partition_class=_with_machines("WaitsForEverybody", WaitsForEverybody))
    assert acknowledged_while_a_replica_is_held_back(waits) == 0
