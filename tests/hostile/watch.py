"""What an honest client notices of a broker under attack: how long the loop answers nobody, and how much memory it takes."""

import asyncio
import re
import time
from pathlib import Path

from .attack import Address, api_versions, ping

PING_INTERVAL_S = 0.02


class Watch:
    """A context: pings on a connection of its own. `pid` is the broker's."""

    def __init__(self, address: Address, pid: int) -> None:
        self._address = address
        self._pid = pid
        self.longest_answer_s = 0.0
        self.pings = 0

    async def __aenter__(self) -> "Watch":
        self._reader, self._writer = await api_versions(self._address)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.transport.abort()

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            await ping(self._reader, self._writer)
            self.longest_answer_s = max(self.longest_answer_s, time.monotonic() - began)
            self.pings += 1
            await asyncio.sleep(PING_INTERVAL_S)

    @property
    def peak_rss_mib(self) -> float:
        """As the kernel has seen it, also while the broker answered nobody."""
        return _memory_mib(self._pid, "VmHWM")

    def __str__(self) -> str:
        return (
            f"longest answer {self.longest_answer_s * 1000:.0f} ms, peak RSS {self.peak_rss_mib:.0f} MiB,"
            f" RSS at the end {rss_mib(self._pid):.0f} MiB, pings {self.pings}"
        )


def rss_mib(pid: int) -> float:
    return _memory_mib(pid, "VmRSS")


def _memory_mib(pid: int, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024
