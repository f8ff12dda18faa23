"""The registry of planted bugs: faults that tests put into the product; some seed of a simulation must find each of them.

A bug is planted by replacing a function or a class while histories run; nothing in the product knows of it. Its `level` says
which simulation runs: the smallest one that has what the bug needs. Each `*_bugs.py` here has a list `BUGS`.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .finding_seeds import FINDING_SEEDS
from .history import Result, Scenario

MOST_SEEDS = {
    "schedule": 20,
    "partition": 500,
    "transactions": 200,
    "log": 500,
    "journal": 300,
    "quorum": 120,
    "slow elections": 120,
    "voters": 60,
    "members": 200,
    "classic members": 200,
    "coordinator": 60,
    "prepared": 300,
    "cluster": 200,
    "groups": 120,
    "transactions in clusters": 70,
    "a controller that was stopped": 20,
    "a coordinator that is cut off": 20,
    "a coordinator that stands still": 20,
    "prepared in clusters": 40,
    "shares": 130,
    "stalls": 6,
    "flushes": 40,
    "calm clusters": 20,
}


Plant = Callable[[], AbstractContextManager[Any]]
Run = Callable[[int], object]
InHistories = dict[str, tuple[Plant, tuple[str, ...]]]  # by name: the bug, and the kinds of faults that show it
FAULTS_S = 6.0
# The product survives errors of a record and of a coordinator, and reports them: such a report finds no bug either.
_MISFITS = (TypeError, AttributeError, NameError)
_MISFIT = re.compile("|".join(rf"\b{kind.__name__}\b" for kind in _MISFITS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """`run(seed)` raises when the bug shows."""

    level: str
    name: str
    plant: Plant
    run: Run
    told: str = ""  # what the failure says, where other failures of `run` would not be about the bug


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    bug: Planted
    seeds: int  # how many were run; the last one shows it
    seed: int  # that one
    by: str  # what was said


class MisfitError(Exception):
    """What is planted replaces a function that is called in another way: it breaks the product, and is not the bug."""


def planted(level: str, run: Run, bugs: Mapping[str, Plant], *, told: str = "") -> list[Planted]:
    """Bugs, by name, that are looked for in the same histories."""
    return [Planted(level=level, name=name, plant=plant, run=run, told=told) for name, plant in bugs.items()]


def in_histories(level: str, run_history: Callable[[int, Scenario], Result], bugs: InHistories) -> list[Planted]:
    """Bugs that are looked for in histories of whole clusters; `run_history` says which."""

    def runner(kinds: tuple[str, ...]) -> Run:
        return lambda seed: passed(run_history(seed, Scenario(kinds=kinds, faults_s=FAULTS_S)))

    return [Planted(level=level, name=name, plant=plant, run=runner(kinds)) for name, (plant, kinds) in bugs.items()]


def passed(result: Result) -> None:
    assert not result.failure, result.failure


def all_bugs() -> list[Planted]:
    from . import (
        cluster_bugs,
        coordinator_bugs,
        disk_bugs,
        fetch_bugs,
        group_bugs,
        isr_transactions,
        member_bugs,
        partition_bugs,
        promise_bugs,
        quorum_bugs,
        share_bugs,
        slow_bugs,
        stall_bugs,
        transaction_bugs,
        voter_bugs,
    )

    rooms = (
        partition_bugs,
        disk_bugs,
        quorum_bugs,
        cluster_bugs,
        fetch_bugs,
        promise_bugs,
        group_bugs,
        isr_transactions,
        transaction_bugs,
        voter_bugs,
        member_bugs,
        coordinator_bugs,
        stall_bugs,
        share_bugs,
        slow_bugs,
    )
    levels = list(MOST_SEEDS)
    return sorted((bug for room in rooms for bug in room.BUGS), key=lambda bug: (levels.index(bug.level), bug.name))


def find(bug: Planted, known: Mapping[tuple[str, str], int] = FINDING_SEEDS) -> Found | None:
    """Run seeds until one shows the bug, a known one first. None: as many as its level grants have passed. Raises MisfitError."""
    seeds = list(range(MOST_SEEDS[bug.level]))
    if (first := known.get((bug.level, bug.name))) is not None:
        seeds.remove(first)
        seeds.insert(0, first)
    with bug.plant(), _quiet():
        for count, seed in enumerate(seeds, start=1):
            try:
                bug.run(seed)
            except Exception as error:  # a checker's, or an error of the product that stops it
                if isinstance(error, _MISFITS) or _MISFIT.search(str(error)):
                    raise MisfitError(f"{bug.name} does not fit the product any more: correct its patch") from error
                assert bug.told in str(error), f"{bug.name} was to be told as {bug.told!r}: {error}"
                by = str(error).splitlines()[0] if str(error) else repr(error)
                return Found(bug=bug, seeds=count, seed=seed, by=by)
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("barnabas")
    former = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(former)
