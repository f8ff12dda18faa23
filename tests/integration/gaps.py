"""The pauses that a client feels: a producer that sends one record with acks=all after another, and looks at the clock."""

import asyncio
import time

from integration.cluster import until

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.producer.producer import Producer


class AckTimes:
    """Sends one record at a time, and notes when each was acknowledged (monotonic seconds)."""

    def __init__(self, bootstrap: str, topic: str, *, partition: int = 0) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partition = partition
        self._stop = asyncio.Event()
        self.acknowledged_s: list[float] = []
        self.failed: list[BarnabasError] = []

    async def __aenter__(self) -> "AckTimes":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._task

    async def _run(self) -> None:
        async with Producer(
            self._bootstrap, acks="all", request_timeout_ms=5_000, delivery_timeout_ms=60_000, on_error=lambda *_: None
        ) as producer:
            while not self._stop.is_set():
                try:
                    await (await producer.send(self._topic, b"tick", partition=self._partition))
                except BarnabasError as error:
                    self.failed.append(error)
                else:
                    self.acknowledged_s.append(time.monotonic())

    async def more(self, count: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged_s) + count
        await until(lambda: len(self.acknowledged_s) >= wanted, f"{count} more are acknowledged")

    def longest_gap_ms(self, since_s: float) -> float:
        """The longest time between two acknowledgements of which the second came after `since_s`."""
        times_s = self.acknowledged_s
        return max(
            (
                1000 * (later - earlier)
                for earlier, later in zip(times_s, times_s[1:], strict=False)
                if later >= since_s
            ),
            default=0.0,
        )


def percentiles(gaps_ms: list[float]) -> str:
    ordered = sorted(gaps_ms)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {ordered[-1]:.0f} ms of {len(ordered)}"
