"""What an honest client notices of a broker under attack: how long the loop answers nobody, and how much memory it takes."""

import asyncio
import re
import time
from pathlib import Path

from .attack import Address, api_versions, ping

PING_INTERVAL_S = 0.02


class Watch:
    """A context: pings on a connection of its own, and on another one where the broker hangs up. `pid` is the broker's."""

    def __init__(self, address: Address, pid: int) -> None:
        self._address = address
        self._pid = pid
        self._longest_s = 0.0
        self._asked_s: float | None = None  # since when an answer is outstanding
        self.pings = 0

    async def __aenter__(self) -> "Watch":
        reader, writer = await api_versions(self._address)
        self._task = asyncio.create_task(self._run(reader, writer))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._longest_s, self._asked_s = self.longest_answer_s, None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def begin(self) -> None:
        """Forget what was measured, so that the next attack is measured by itself."""
        self._longest_s = 0.0
        Path(f"/proc/{self._pid}/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM to VmRSS

    @property
    def longest_answer_s(self) -> float:
        """The answer that is outstanding counts, too."""
        outstanding_s = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        return max(self._longest_s, outstanding_s)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self._asked_s = time.monotonic()
                while True:
                    try:
                        await ping(reader, writer)
                        break
                    except OSError:
                        writer.transport.abort()
                        reader, writer = await self._connected()
                self._longest_s, self._asked_s = self.longest_answer_s, None
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
            f"longest answer {self.longest_answer_s * 1000:.0f} ms, peak RSS {self.peak_rss_mib:.0f} MiB,"
            f" RSS at the end {rss_mib(self._pid):.0f} MiB, pings {self.pings}"
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
