"""Transactions in whole clusters: producers die, stop and fence each other, and so do brokers (see `transaction_history`).

A failure prints its seed; `scripts/simulate --transactions --seed N --trace` replays it.
BARNABAS_TRANSACTION_SIMULATION_SECONDS (60) is how long seeds are run. With BARNABAS_PREPARED_SIMULATION_SEEDS (6) seeds, some
transactions are prepared, and decided by a driver: `scripts/simulate --prepared`.
"""

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from .cut_off_members import run_cut_off_member
from .history import Result
from .transaction_history import run_cut_off, run_cut_off_decision, run_prepared, run_stopped, run_transactions

SECONDS = float(os.environ.get("BARNABAS_TRANSACTION_SIMULATION_SECONDS", "60"))
# The same seeds at every run of CI, so that a change is judged by what it changed.
FIRST_SEED = int(os.environ.get("BARNABAS_TRANSACTION_SIMULATION_FIRST_SEED", "20"))
MOST_SEEDS = int(os.environ.get("BARNABAS_TRANSACTION_SIMULATION_SEEDS", "8"))
ENOUGH_SEEDS = 8
CUT_OFF_SEEDS = 8
STOPPED_SEEDS = 4
PREPARED_SEEDS = int(os.environ.get("BARNABAS_PREPARED_SIMULATION_SEEDS", "6"))
REACHED = ("commits", "aborts", "fenced", "crashes", "zombies", "prepared_takeovers", "truncations", "early_commits")


def passed(result: Result, kind: str = "--transactions") -> Result:
    replay = f"scripts/simulate {kind} --seed {result.seed} --trace"
    assert not result.failure, f"seed {result.seed} failed, replay with: {replay}\n{result.failure}"
    return result


def test_a_broker_whose_last_folder_has_failed_takes_up_a_new_topic() -> None:
    """A seed that failed once: the publication of the metadata raised an IndexError."""
    passed(run_transactions(103))


def test_markers_do_not_wait_for_a_connection_that_was_begun_in_a_cut() -> None:
    """A seed that failed once: the kernel tried again after ten seconds, and so long the markers of two transactions waited."""
    passed(run_transactions(430184))


def test_a_coordinator_that_was_replaced_in_a_cut_tells_old_clients_no_offsets() -> None:
    """A campaign on real processes found it: aiokafka went back to an older offset, and wrote outputs twice."""
    results = [passed(run_cut_off(seed)) for seed in range(CUT_OFF_SEEDS)]
    assert not any(result.counts.get("former_answers") for result in results)


def test_a_controller_that_was_stopped_tells_old_clients_no_offsets_of_its_group() -> None:
    results = [passed(run_stopped(seed)) for seed in range(STOPPED_SEEDS)]
    assert not any(result.counts.get("former_answers") for result in results)


def test_a_coordinator_that_was_replaced_in_a_cut_calls_no_prepared_transaction_over() -> None:
    """Who carries out the decision would take that for "it has ended": a committed transaction stayed prepared for ever."""
    results = [passed(run_cut_off_decision(seed)) for seed in range(CUT_OFF_SEEDS)]
    assert not any(result.counts.get("former_answers") for result in results)


def test_a_coordinator_that_was_replaced_in_a_cut_ends_no_static_member() -> None:
    """It knows the process before as the member with this instance id; FENCED_INSTANCE_ID is final for clients."""
    results = [passed(run_cut_off_member(seed)) for seed in range(STOPPED_SEEDS)]
    assert not any(result.counts.get("former_answers") for result in results)


@pytest.mark.timeout(SECONDS + 240)
def test_fresh_seeds(report_line: Callable[[str], None]) -> None:
    began, results = time.monotonic(), list[Result]()
    while time.monotonic() - began < SECONDS and len(results) < MOST_SEEDS:
        results.append(passed(run_transactions(FIRST_SEED + len(results))))
    totals = Counter[str]()
    for result in results:
        totals.update(result.counts)
    report_line(
        f"transactions in clusters: seeds {FIRST_SEED}-{results[-1].seed} ({len(results)}), "
        f"{sum(r.events for r in results)} events, " + " ".join(f"{name}={totals[name]}" for name in REACHED)
    )
    assert totals["commits"] > 10 * len(results)  # the faults must leave something to commit
    if len(results) >= ENOUGH_SEEDS:
        assert not [name for name in REACHED if not totals[name]], totals  # what is never reached is not tested


@pytest.mark.timeout(240)
def test_what_a_driver_has_decided_is_what_readers_find(report_line: Callable[[str], None]) -> None:
    results = [passed(run_prepared(seed), "--prepared") for seed in range(1, PREPARED_SEEDS + 1)]
    totals = Counter[str]()
    for result in results:
        totals.update(result.counts)
    names = ("prepared", "driven_commits", "driven_aborts", "unsure_decisions")
    report_line(f"prepared in clusters: {len(results)} seeds, " + " ".join(f"{name}={totals[name]}" for name in names))
    assert not [name for name in names if not totals[name]], totals


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run_transactions(3), run_transactions(3)
    assert (first.trace_hash, first.counts) == (second.trace_hash, second.counts)
