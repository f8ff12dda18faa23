"""Runs fuzz targets, one seeded case after the other: the same seed makes the same case, on every machine.

Memory is bounded by the kernel (`bound_memory`), so that a case that would take more is a failure like any other.
"""

import resource
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from fuzz import disk_targets, kafka_targets, login_targets, record_targets, wire_targets

Target = Callable[[Random], None]
TARGETS: Final[dict[str, Target]] = {
    target.__name__.replace("_", "-"): target
    for target in (
        *wire_targets.TARGETS,
        *kafka_targets.TARGETS,
        *login_targets.TARGETS,
        *disk_targets.TARGETS,
        *record_targets.TARGETS,
    )
}
MAX_CASE_S: Final = 10.0  # of a case that should take milliseconds: beyond it a few bytes stop a broker's loop
MAX_CASE_MIB: Final = 400  # above what the process has when it begins; the largest batch unpacks to 128 MiB
MAX_FAILURES: Final = 20
_ROUND: Final = 25  # cases of a target before the next one has its turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    target: str
    seed: int
    reason: str

    def __str__(self) -> str:
        replay = f"replay: scripts/fuzz --only {self.target} --seed {self.seed} --cases 1"
        return f"{self.target} seed {self.seed}\n{self.reason}\n{replay}"


@dataclass(slots=True, kw_only=True)
class Outcome:
    cases: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def run_case(name: str, seed: int) -> Failure | None:
    began = time.process_time()  # A case on a busy machine may wait for long.
    try:
        TARGETS[name](Random(f"{name}:{seed}"))
    except Exception:
        return Failure(target=name, seed=seed, reason=traceback.format_exc(limit=-6))
    if time.process_time() - began > MAX_CASE_S:
        return Failure(target=name, seed=seed, reason=f"computed for {time.process_time() - began:.1f} s")
    return None


def run(names: Sequence[str], *, first_seed: int, cases: int | None = None, seconds: float | None = None) -> Outcome:
    """Run the targets in turns, for so many cases each or for so long."""
    outcome = Outcome(cases=dict.fromkeys(names, 0))
    deadline = None if seconds is None else time.monotonic() + seconds
    for name, seed in _turns(names, first_seed, cases):
        if (deadline is not None and time.monotonic() > deadline) or len(outcome.failures) >= MAX_FAILURES:
            break
        failure = run_case(name, seed)
        outcome.cases[name] += 1
        if failure is not None:
            outcome.failures.append(failure)
    return outcome


def _turns(names: Sequence[str], first_seed: int, cases: int | None) -> Iterator[tuple[str, int]]:
    start = first_seed
    end = None if cases is None else first_seed + cases
    while end is None or start < end:
        stop = start + _ROUND if end is None else min(start + _ROUND, end)
        for name in names:
            for seed in range(start, stop):
                yield name, seed
        start = stop


def bound_memory() -> None:
    """From now on an allocation far beyond what a case may need raises MemoryError, which no target expects."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    limit = used + MAX_CASE_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
