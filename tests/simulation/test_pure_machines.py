"""Many seeds of the machines that run alone. BARNABAS_PURE_SEEDS (300) is how many of each, 1,000 in `scripts/test.sh long`; a
failure names its seed, `scripts/simulate --pure-seed MACHINE SEED` repeats it. (Groups have theirs in
tests/unit/consumer_groups, quorums in tests/unit/kraft, partitions in test_isr_simulation, too.)
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from . import journal_machine, log_machine
from .pure_machines import run

SEEDS = int(os.environ.get("BARNABAS_PURE_SEEDS", "300"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", ["partition", "log", "journal", "controller"])
def test_every_seed_keeps_the_invariants(machine: str, report_line: Callable[[str], None]) -> None:
    logger = logging.getLogger("barnabas")
    former = logger.level
    logger.setLevel(logging.CRITICAL)  # torn tails are cut by the thousand here
    began, events = time.monotonic(), 0
    try:
        for seed in range(SEEDS):
            try:
                events += run(machine, seed)
            except Exception as error:
                raise AssertionError(f"{machine}: seed {seed} failed: {error!r}") from error
    finally:
        logger.setLevel(former)
    report_line(f"pure machine {machine}: {SEEDS} seeds, {events} events in {time.monotonic() - began:.0f} s")
    assert events > SEEDS


@pytest.mark.parametrize("arguments", [("--pure", "1", "--machine", "raft"), ("--pure-seed", "raft", "1")])
def test_a_machine_that_does_not_exist_is_named_with_those_that_do(arguments: tuple[str, ...]) -> None:
    """Each of its seeds failed, a million in a minute, and filled the disk."""
    script = Path(__file__).parents[2] / "scripts" / "simulate"
    told = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=50)
    assert told.returncode == 1 and told.stderr.endswith(
        "take one of partition, log, journal, controller, groups, quorum\n"
    )


def test_a_log_that_is_cut_and_grows_again_outlives_losses_of_power() -> None:
    for seed in range(SEEDS // 10):
        assert log_machine.run_seed(seed, log_machine.CutAndGrown).crashes == log_machine.CutAndGrown.ROUNDS


def test_answers_of_a_leader_reach_over_the_ends_of_a_followers_segments() -> None:
    """Without that no seed could find what a roll within an append does."""
    assert sum(log_machine.run_seed(seed).rolls_within_an_answer for seed in range(10)) > 0


def test_the_same_seed_takes_the_same_course() -> None:
    for seed in (3, 17):
        assert log_machine.run_seed(seed) == log_machine.run_seed(seed)
        assert journal_machine.run_seed(seed) == journal_machine.run_seed(seed)


# Product: log 651 a log start that was written down above the new log end hid what was appended then; journal 1242, 2254, 4156
# a rename that a killed process had not flushed was believed, and a power loss took it back; log 2799, 3594, 5020 a crash took a
# log start back, and the log knew no leader epoch of what it held; log 6469 the same, and it knew those of the later part.
# log 596 the log start of a folder that a power loss took hid what was appended to the log that was made in its place.
# Model: log 8991, 9238 a stop on a full disk is no clean one, and flushes nothing; log 23244 a power
# loss left an empty log whose start lies inside of a batch that is gone.
@pytest.mark.parametrize(
    ("machine", "seed"),
    [
        ("log", 596),
        ("log", 651),
        ("log", 2799),
        ("log", 3594),
        ("log", 5020),
        ("log", 5275),
        ("log", 6469),
        ("log", 7108),
        ("log", 8991),
        ("log", 9238),
        ("log", 23244),
        ("journal", 1242),
        ("journal", 2254),
        ("journal", 4156),
    ],
)
def test_seeds_that_failed_once(machine: str, seed: int) -> None:
    run(machine, seed)
