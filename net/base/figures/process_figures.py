"""Memory, descriptors and processor time of this process, as Linux tells them in /proc; elsewhere what Python knows."""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
MAX_GROUPS: Final = 64  # control groups around this one that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """-1: unknown."""

    cpu_s: float
    memory_bytes: int = -1
    memory_limit_bytes: int = -1  # the smallest of the machine, the container and systemd's MemoryMax
    descriptors: int = -1
    descriptor_limit: int = -1
    started_s: float = -1.0  # since 1970


def read_process(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> ProcessFigures:
    """Takes milliseconds with thousands of descriptors: not for an event loop."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessFigures(
        cpu_s=usage.ru_utime + usage.ru_stime,
        memory_bytes=_memory_bytes(proc),
        memory_limit_bytes=_memory_limit_bytes(proc, cgroups),
        descriptors=_descriptors(proc),
        descriptor_limit=-1 if limit == resource.RLIM_INFINITY else limit,
        started_s=_started_s(proc),
    )


def _memory_bytes(proc: Path) -> int:
    try:
        pages = int((proc / "self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return -1
    return pages * os.sysconf("SC_PAGE_SIZE")


def _memory_limit_bytes(proc: Path, cgroups: Path) -> int:
    """A process may use no more than each control group around it may, and no more than the machine has."""
    limits = [limit for path in _limit_files(proc, cgroups) if (limit := _number_in(path)) >= 0]
    try:
        first = (proc / "meminfo").read_text(encoding="ascii").splitlines()[0]
        limits.append(int(first.split()[1]) * 1024)  # MemTotal: 1234 kB
    except (OSError, ValueError, IndexError):
        pass
    return min(limits, default=-1)


def _limit_files(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Of version 2 and of version 1. A container may see the path of its host and, at the root, its own group."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in ["0::/", *lines]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for group in (inner, *inner.parents)[:MAX_GROUPS]:
            yield root / group / name


def _number_in(path: Path) -> int:
    """-1: there is none, or it says that there is no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return -1
    return int(text) if text.isdigit() else -1


def _descriptors(proc: Path) -> int:
    try:
        return len(os.listdir(proc / "self/fd")) - 1  # one is the listing's own
    except OSError:
        return -1


def _started_s(proc: Path) -> float:
    try:
        ticks = int((proc / "self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        booted = next(line for line in (proc / "stat").read_text(encoding="ascii").splitlines() if line[:6] == "btime ")
        return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return -1.0
