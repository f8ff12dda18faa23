"""CPU of processes and all below them, by process: what Spark and its Python workers spend."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu(roots: Sequence[int], without: Sequence[int] = ()) -> dict[int, float]:
    """Seconds of CPU of each of these processes and of all below them, with those of ended children that were waited for."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    children = defaultdict(list)
    for pid, (parent, _) in stats.items():
        children[parent].append(pid)
    found, left = {}, list(roots)
    while left:
        pid = left.pop()
        if pid in stats and pid not in without:
            found[pid] = stats[pid][1]
            left += children[pid]
    return found


def spent(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Seconds of CPU between two calls of `tree_cpu`. A process that ended in between takes away nothing: Spark's daemons do not
    wait for their workers, so the time of an idle one that Spark ended is in no other process."""
    return sum(seconds - before.get(pid, 0) for pid, seconds in after.items())
