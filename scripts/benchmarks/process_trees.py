"""CPU of processes and all below them, by process: what Spark and its Python workers spend."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class Times(NamedTuple):
    """Of a process, in seconds of CPU."""

    parent: int
    own_s: float
    waited_s: float  # of ended children that it waited for, with all below them

    @property
    def both_s(self) -> float:
        return self.own_s + self.waited_s


def tree_cpu(roots: Sequence[int], without: Sequence[int] = (), proc: Path = _PROC) -> dict[int, Times]:
    """Each of these processes and all below them, except for `without` and all below those."""
    stats = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            user, system, waited_user, waited_system = (int(field) / _TICKS for field in fields[11:15])
            stats[int(entry.name)] = Times(int(fields[1]), user + system, waited_user + waited_system)
    children = defaultdict(list)
    for pid, times in stats.items():
        children[times.parent].append(pid)
    found, left = {}, list(roots)
    while left:
        pid = left.pop()
        if pid in stats and pid not in without:
            found[pid] = stats[pid]
            left += children[pid]
    return found


def spent(before: Mapping[int, Times], after: Mapping[int, Times]) -> float:
    """Seconds of CPU between two calls of `tree_cpu`.

    What a process that ended in between had spent before is in its parent again if that waited for it, and is taken off there. If
    it did not, as Spark's daemons with their workers, nothing is taken off, and what the process spent in between is missing.
    """
    ended_s: dict[int, float] = defaultdict(float)  # by the nearest process above that is still there
    for pid, times in before.items():
        if pid not in after:
            above = times.parent
            while above in before and above not in after:
                above = before[above].parent
            ended_s[above] += times.both_s
    total_s = 0.0
    for pid, times in after.items():
        earlier = before.get(pid, Times(times.parent, 0, 0))
        total_s += times.both_s - earlier.both_s
        total_s -= min(ended_s[pid], times.waited_s - earlier.waited_s)
    return total_s
