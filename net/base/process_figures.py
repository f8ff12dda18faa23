"""Memory, descriptors and processor time of this process, as Linux tells them in /proc; elsewhere what Python knows."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")  # of version 2; a container sees its own limit there


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """-1: unknown."""

    cpu_s: float
    memory_bytes: int = -1
    memory_limit_bytes: int = -1  # of the container, else of the machine
    descriptors: int = -1
    descriptor_limit: int = -1
    started_s: float = -1.0  # since 1970


def read_process(proc: Path = _PROC, cgroup_limit: Path = _CGROUP_LIMIT) -> ProcessFigures:
    """Takes milliseconds with thousands of descriptors: not for an event loop."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessFigures(
        cpu_s=usage.ru_utime + usage.ru_stime,
        memory_bytes=_memory_bytes(proc),
        memory_limit_bytes=_memory_limit_bytes(proc, cgroup_limit),
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


def _memory_limit_bytes(proc: Path, cgroup_limit: Path) -> int:
    try:
        text = cgroup_limit.read_text(encoding="ascii").strip()
        if text.isdigit():
            return int(text)
    except OSError:
        pass
    try:
        first = (proc / "meminfo").read_text(encoding="ascii").splitlines()[0]
        return int(first.split()[1]) * 1024  # MemTotal: 1234 kB
    except (OSError, ValueError, IndexError):
        return -1


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
