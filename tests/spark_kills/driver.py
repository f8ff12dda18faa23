"""A Spark driver as users start it: scripts/pipelines/sql in a process of its own, which is killed with kill -9.

Two processes make a driver: Python, and the JVM that it starts. Both are killed at the same moment. Workers of Python that they
leave behind are not: on a real machine nobody would, and what they still send must do no harm.
"""

import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

from integration.cluster import clean_environment
from integration.programs import QUICK_JAVA

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "scripts" / "pipelines" / "sql"
JAVA_OPTIONS = " ".join((*QUICK_JAVA, "-Xmx1g"))


class Driver:
    def __init__(self, arguments: list[str], log: Path) -> None:
        """Started by the constructor."""
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(PIPELINE), *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=clean_environment() | {"JDK_JAVA_OPTIONS": JAVA_OPTIONS}, start_new_session=True,
            )  # fmt: skip
        # Processes that were started by one that has been killed, with the time of their start: numbers are given out again.
        self._left: set[tuple[int, str]] = set()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """kill -9 of Python and the JVM."""
        below = _below(self.process.pid)
        workers = {(pid, _started(pid)) for pid in below if _name(pid).startswith("python")}
        for pid in [self.process.pid, *(pid for pid in below if _name(pid) == "java")]:
            _kill(pid)
        self.process.wait()
        self._left |= {worker for worker in workers if worker[1]}

    def is_gone(self) -> bool:
        """Nothing that it started runs any more. Asked after `kill`; workers end when they notice that the JVM has."""
        self._left = {(pid, start) for pid, start in self._left if _started(pid) == start}
        return not self._left

    def clean_up(self) -> None:
        """At the end of a test, whatever has happened in it."""
        if not self.has_ended:
            self.kill()
        for pid, start in self._left:
            if _started(pid) == start:
                _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _name(pid: int) -> str:
    """The command of a process; "" when it is gone, or dead and not reaped yet."""
    name, fields = _stat(pid)
    return "" if fields[0] == "Z" else name


def _started(pid: int) -> str:
    """When the process was started, in ticks since the machine was; "" when it is gone, or dead and not reaped yet."""
    _, fields = _stat(pid)
    return "" if fields[0] == "Z" else fields[19]


def _stat(pid: int) -> tuple[str, list[str]]:
    """The command, and what follows it in /proc/PID/stat, from the state on."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")
    except OSError:
        return "", ["Z"]
    return before.partition("(")[2], after.split()


def _below(root: int) -> list[int]:
    """All processes that it has started, and those that they have."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            children[int(fields[1])].append(int(entry.name))
    found, left = [], [root]
    while left:
        left += children[pid := left.pop()]
        found += children[pid]
    return found
