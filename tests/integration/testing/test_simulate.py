"""`barnabas.testing.simulate`: a seed replays exactly, right programs pass, and mistakes in programs are found in a few seeds."""

import asyncio
import gc
import os
import subprocess
import sys
import time

import pytest

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.testing.simulation.simulate import Simulation, SimulationFailed, simulate

from .more_programs import batching, dead_lettering, retrying
from .programs import Main, billing, counting, sending

SEEDS = int(os.environ.get("BARNABAS_SIMULATE_SEEDS", "3"))  # of programs without a mistake; more find more
SECONDS = 6.0
PROGRAM_FAULTS = ("program_kill", "program_kill", "program_stall", "late_reset")
BROKER_FAULTS = ("kill", "stall", "cut", "reset")


@pytest.mark.parametrize(
    "program", [billing, sending, counting, batching, retrying, dead_lettering], ids=lambda program: program.__name__
)
def test_programs_without_a_mistake_pass(program: object) -> None:
    assert callable(program)
    for seed in range(SEEDS):
        result = simulate(program(), seed=seed, seconds=SECONDS)
        assert result.seed == seed and result.virtual_s > SECONDS


@pytest.mark.parametrize(
    ("program", "faults", "told", "known_seed"),
    [
        (billing(commits_first=True), PROGRAM_FAULTS, "were never billed", 0),
        (sending(is_idempotent=False), BROKER_FAULTS, "records of 30 orders", 1),
        (counting(keeps_counts=True), PROGRAM_FAULTS, "counted", 17),
        (batching(commits_failed=True), PROGRAM_FAULTS, "were never stored", 0),
        (retrying(reorders=True), BROKER_FAULTS, "out of order", 1),
        (dead_lettering(sends_before_commit=True), PROGRAM_FAULTS, "11 dead letters of 10 orders", 13),
    ],
    ids=[
        "commit before processing",
        "retries without idempotence",
        "lost update after a rebalance",
        "commit of a failed batch",
        "retries that overtake",
        "a dead letter before the commit",
    ],
)
def test_a_mistake_is_found_and_its_seed_repeats_it(
    program: Main, faults: tuple[str, ...], told: str, known_seed: int
) -> None:
    for seed in (known_seed, *range(20)):  # of the 200 that a user would try
        try:
            simulate(program, seed=seed, seconds=SECONDS, faults=faults)
        except SimulationFailed as failure:
            first = str(failure)
            break
    else:
        raise AssertionError("not found within 20 seeds")
    assert told in first and f"repeat it with seed={seed}" in first
    with pytest.raises(SimulationFailed) as again:
        simulate(program, seed=seed, seconds=SECONDS, faults=faults)
    assert str(again.value) == first


def test_a_seed_takes_the_same_course_in_every_process() -> None:
    text = (
        "from integration.testing.programs import billing; from barnabas.testing import simulate;"
        f"print(simulate(billing(), seed=5, seconds={SECONDS}).trace_hash)"
    )
    tests = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    hashes = {
        subprocess.check_output(
            [sys.executable, "-P", "-c", f"import sys; sys.path.append({tests!r}); {text}"],
            env={**os.environ, "PYTHONHASHSEED": number},
        )
        for number in ("1", "2")
    }
    hashes.add(f"{simulate(billing(), seed=5, seconds=SECONDS).trace_hash}\n".encode())
    assert len(hashes) == 1
    assert simulate(billing(), seed=6, seconds=SECONDS).trace_hash.encode() + b"\n" not in hashes


def test_a_main_that_is_cut_off_in_a_block_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its block waits for a connection that nobody answers any more."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    async def fails() -> None:
        await asyncio.sleep(1)
        raise LookupError("no such order")

    async def main(simulation: Simulation) -> None:
        async with Admin(simulation.bootstrap_servers):
            simulation.program(fails)
            await asyncio.sleep(1_000)

    with pytest.raises(SimulationFailed, match="no such order"):
        simulate(main, seed=1, seconds=1)
    gc.collect()
    assert told == []


def test_a_program_that_the_end_cuts_off_in_two_blocks_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    async def program(bootstrap: str) -> None:
        async with Admin(bootstrap), Admin(bootstrap):
            await asyncio.sleep(1_000)

    async def main(simulation: Simulation) -> None:
        simulation.program(program, simulation.bootstrap_servers)
        await asyncio.sleep(10)

    simulate(main, seed=1, seconds=1)
    gc.collect()
    assert told == []


def test_hours_pass_in_seconds() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.sleep(1_800)
        async with Admin(simulation.bootstrap_servers) as admin:
            assert await admin.list_topics() == []

    began_s = time.process_time()
    assert simulate(main, seed=1, seconds=1, brokers=1, config={"default.replication.factor": "1"}).virtual_s > 1_800
    assert time.process_time() - began_s < 100


def test_what_goes_wrong_is_told_with_the_seed() -> None:
    async def fails(simulation: Simulation) -> None:
        async def program() -> None:
            raise LookupError("no such customer")

        simulation.program(program)
        await simulation.quiet()

    async def ends_never(simulation: Simulation) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationFailed, match=r"no such customer\nrepeat it with seed=3") as failed:
        simulate(fails, seed=3, seconds=1)
    assert isinstance(failed.value.__cause__, LookupError)
    with pytest.raises(SimulationFailed, match="main did not return within 20 virtual seconds"):
        simulate(ends_never, seed=3, seconds=1, limit_s=20)
    with pytest.raises(ValueError, match="there are no faults earthquake; choose among kill, "):
        simulate(fails, faults=["earthquake"])


def test_a_supervisor_starts_programs_again_that_end_with_an_error_of_their_client() -> None:
    starts = []

    async def main(simulation: Simulation) -> None:
        async def program() -> None:
            starts.append(simulation.now_s)
            if len(starts) < 3:
                raise BarnabasError("the cluster was not there")

        simulation.program(program)
        await asyncio.sleep(10)

    simulate(main, seed=1, seconds=0.1)
    assert len(starts) == 3
