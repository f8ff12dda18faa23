"""What an honest client notices of a broker under attack: how long the loop answers nobody, and how much memory it takes.

A long answer has two causes that look the same from outside: the loop computes, or the machine gives it no processor. The kernel
tells them apart for each thread (`Processor`).
"""

import asyncio
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .attack import Address, api_versions, ping

PING_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """How long a thread computed, and how long it was ready to and waited for a processor."""

    busy_s: float = 0.0
    starved_s: float = 0.0

    @classmethod
    def of_loop(cls, pid: int) -> Self:
        """The loop of a broker runs in the main thread of its process. Zeros where the kernel does not tell."""
        try:
            return cls.read(Path(f"/proc/{pid}/task/{pid}/schedstat"))
        except (FileNotFoundError, ProcessLookupError):
            return cls()

    @classmethod
    def read(cls, schedstat: Path) -> Self:
        """Of a thread. Raises OSError if it has ended, or if the kernel does not tell."""
        busy, starved, _ = schedstat.read_text(encoding="ascii").split()
        return cls(busy_s=int(busy) / 1e9, starved_s=int(starved) / 1e9)

    def since(self, before: "Processor") -> "Processor":
        return Processor(
            busy_s=max(0.0, self.busy_s - before.busy_s), starved_s=max(0.0, self.starved_s - before.starved_s)
        )


def waits_s(pid: int) -> dict[str, float]:
    """How long each thread of a process has been ready to run without a processor. Empty where the kernel does not tell."""
    found: dict[str, float] = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            found[path.parent.name] = Processor.read(path).starved_s
    return found


class Waits:
    """What the machine makes an answer wait for, whatever the broker does: processors, of the broker and of who asks.

    The thread that holds Python's lock may be the one that waits, so that of the broker's threads counts that waited longest.
    """

    def __init__(self, pid: int) -> None:
        self._began_s = time.monotonic()
        self._processes = [(each, waits_s(each)) for each in (pid, os.getpid())]

    def held_s(self) -> float:
        """The time since then, without what the machine made it wait."""
        passed_s = time.monotonic() - self._began_s
        for pid, before in self._processes:
            passed_s -= max(
                (waited_s - before.get(thread, 0.0) for thread, waited_s in waits_s(pid).items()), default=0.0
            )
        return max(0.0, passed_s)


class Watch:
    """A context: pings on a connection of its own, and on another one where the broker hangs up. `pid` is the broker's."""

    def __init__(self, address: Address, pid: int) -> None:
        self._address = address
        self._pid = pid
        self._longest_s = 0.0
        self._asked_s: float | None = None  # since when an answer is outstanding
        self._asked = Processor()  # what the loop had used by then
        self._waits: Waits | None = None  # since then
        self._longest_held_s = 0.0
        self.longest_busy_s = 0.0  # the most that the loop computed between a question and its answer
        self.starved_s = 0.0  # for how long the loop had no processor in the longest answer
        self.pings = 0

    async def __aenter__(self) -> "Watch":
        reader, writer = await api_versions(self._address)
        self._task = asyncio.create_task(self._run(reader, writer))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._answered()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def begin(self) -> None:
        """Forget what was measured, so that the next attack is measured by itself."""
        self._longest_s = self._longest_held_s = self.longest_busy_s = self.starved_s = 0.0
        Path(f"/proc/{self._pid}/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM to VmRSS

    @property
    def longest_answer_s(self) -> float:
        """The answer that is outstanding counts, too."""
        outstanding_s = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        return max(self._longest_s, outstanding_s)

    @property
    def longest_held_s(self) -> float:
        """Of the longest answer, what was not the machine's fault: another program may have the processors."""
        return max(self._longest_held_s, 0.0 if self._waits is None else self._waits.held_s())

    def _answered(self) -> None:
        self._longest_held_s, self._waits = self.longest_held_s, None
        used = Processor.of_loop(self._pid).since(self._asked)
        if self.longest_answer_s > self._longest_s:
            self._longest_s, self.starved_s = self.longest_answer_s, used.starved_s
        self.longest_busy_s = max(self.longest_busy_s, used.busy_s)
        self._asked_s = None

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self._asked_s, self._asked = time.monotonic(), Processor.of_loop(self._pid)
                self._waits = Waits(self._pid)
                while True:
                    try:
                        await ping(reader, writer)
                        break
                    except OSError:
                        writer.transport.abort()
                        reader, writer = await self._connected()
                self._answered()
                self.pings += 1
                await asyncio.sleep(PING_INTERVAL_S)
        finally:
            writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await api_versions(self._address)
            except OSError:
                await asyncio.sleep(PING_INTERVAL_S)

    @property
    def peak_rss_mib(self) -> float:
        """As the kernel has seen it, also while the broker answered nobody."""
        return _memory_mib(self._pid, "VmHWM")

    @property
    def rss_mib(self) -> float:
        return rss_mib(self._pid)

    def __str__(self) -> str:
        return (
            f"longest answer {self.longest_answer_s * 1000:.0f} ms (held {self.longest_held_s * 1000:.0f} ms,"
            f" computed {self.longest_busy_s * 1000:.0f} ms),"
            f" peak RSS {self.peak_rss_mib:.0f} MiB, RSS at the end {rss_mib(self._pid):.0f} MiB, pings {self.pings}"
        )


def rss_mib(pid: int) -> float:
    return _memory_mib(pid, "VmRSS")


def _memory_mib(pid: int, name: str) -> float:
    """0 where the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return 0.0
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
