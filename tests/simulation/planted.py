"""The suite of planted bugs: classical faults of replicated logs, each put in from a test, each to be found by some seed.

A bug is planted by replacing a function or a class for as long as histories run; nothing in the product knows of it. Its `level`
is where it is looked for: in the smallest machine that has what it needs.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .history import Result, Scenario

MOST_SEEDS = {
    "schedule": 20,
    "partition": 500,
    "transactions": 200,
    "log": 500,
    "journal": 300,
    "quorum": 120,
    "cluster": 40,
    "groups": 40,
}


Plant = Callable[[], AbstractContextManager[Any]]
InHistories = dict[str, tuple[Plant, tuple[str, ...]]]  # by name: the bug, and the kinds of faults that show it
FAULTS_S = 6.0
# The product survives errors of a record and of a coordinator, and reports them: such a report finds no bug either.
_MISFITS = (TypeError, AttributeError, NameError)
_MISFIT = re.compile("|".join(rf"\b{kind.__name__}\b" for kind in _MISFITS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """`run(seed)` is true, or raises, when the bug shows."""

    level: str
    name: str
    plant: Plant
    run: Callable[[int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    bug: Planted
    seeds: int  # how many were run; the last one shows it
    by: str  # what was said


class MisfitError(Exception):
    """What is planted replaces a function that is called in another way: it breaks the product, and is not the bug."""


def in_histories(level: str, bugs: InHistories, run_history: Callable[[int, Scenario], Result]) -> list[Planted]:
    """Bugs that are looked for in histories of whole clusters; `run_history` says which."""

    def runner(kinds: tuple[str, ...]) -> Callable[[int], bool]:
        def run(seed: int) -> bool:
            result = run_history(seed, Scenario(kinds=kinds, faults_s=FAULTS_S))
            assert not result.failure, result.failure
            return False

        return run

    return [Planted(level=level, name=name, plant=plant, run=runner(kinds)) for name, (plant, kinds) in bugs.items()]


def all_bugs() -> list[Planted]:
    from . import (
        cluster_bugs,
        disk_bugs,
        group_bugs,
        isr_bugs,
        isr_transactions,
        partition_bugs,
        promise_bugs,
        quorum_bugs,
    )

    own = [*partition_bugs.bugs(isr_bugs.PLANTED), *disk_bugs.bugs(), *quorum_bugs.bugs(), *cluster_bugs.bugs()]
    own += [*promise_bugs.bugs(), *group_bugs.bugs(), *isr_transactions.bugs()]
    return sorted(own, key=lambda bug: (list(MOST_SEEDS).index(bug.level), bug.name))


def find(bug: Planted, first: int = 0) -> Found | None:
    """Run seeds until one shows the bug; None: as many as its level grants have passed. Raises MisfitError."""
    with bug.plant(), _quiet():
        for count in range(1, MOST_SEEDS[bug.level] + 1):
            try:
                if bug.run(first + count - 1):
                    return Found(bug=bug, seeds=count, by="")
            except Exception as error:  # a checker's, or an error of the product that stops it
                if isinstance(error, _MISFITS) or _MISFIT.search(str(error)):
                    raise MisfitError(f"{bug.name} does not fit the product any more: correct its patch") from error
                return Found(bug=bug, seeds=count, by=str(error).splitlines()[0] if str(error) else repr(error))
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
