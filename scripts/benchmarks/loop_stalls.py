"""`scripts/benchmark stalls`: how late the loops of three brokers are: idle, under load, beside retention, compaction and slow
flushes, and while 1,000 partitions on all brokers are created, described and deleted.

Late: the brokers' own histogram (`barnabas_loop_delay_seconds`), ten checks a second each: how many of the checks of all
brokers were more than 10 ms late, and the bound that 99.9 % kept. Below a thousand checks, that is the bound of the latest one.
Answer: the longest time to an answer of a client that asks each loop every 20 ms. Held: the same without the time in which a
thread of the broker or of this client was ready and had no processor. Computed: the most processor time of a loop within one
answer, which depends least on what else the machine does. The load is one client with acks=all that never waits; how
many of its records a follower fetches at once stands below.
"""

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from clusters import CLIENT, LOAD_RECORDS, Cluster
from measure import cpu_of

from barnabas import Admin

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the watch of hostile clients, and the library that makes a disk slow

from faults.shim import Shim, build, why_not  # noqa: E402
from hostile.watch import Watch  # noqa: E402

BROKERS = 3
WIDE = 1_000  # partitions
SLOW_FLUSH_US = 200_000
LATE_S = 0.01
QUANTILE = 0.999
SETTLE_S = 3.0
BEGIN_TIMEOUT_S = 60.0
FULL_TIMEOUT_S = 120.0
WIDE_TIMEOUT_MS = 120_000  # of one request: a busy machine needs long for the files of so many partitions
POLL_S = 0.25  # rarely: the answer about 1,000 partitions costs the broker a part of what is measured
SMALL_SEGMENTS = {"segment.bytes": "1000000"}
KINDS: Mapping[str, Mapping[str, str]] = {
    "load": {},
    "load, retention": {**SMALL_SEGMENTS, "retention.bytes": "5000000"},
    "load, compaction": {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "load, flushes of 200 ms": {"flush.messages": "10000"},
}
OFTEN = {"log_cleaner_backoff_ms": "100", "log_retention_check_interval_ms": "500"}
_BUCKET = re.compile(r'barnabas_loop_delay_seconds_bucket\{le="([^"]+)"\} (\d+)')
_FETCHES = re.compile(r'barnabas_request_seconds_count\{api="follower_fetch",part="total"\} (\d+)')


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark stalls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load; default: 40")
    parser.add_argument("--turns", type=int, default=3, help="of creation and deletion; default: 3")
    options = parser.parse_args(arguments)
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; all of {BROKERS} brokers together, CPU of all brokers"
    )
    print(
        f"{'':26}{'s':>7}{'CPU s':>8}{'checks':>8}{'late':>6}{'99.9 %':>10}{'answer':>10}{'held':>10}{'computed':>10}"
    )
    with _slow_disk() as slow_flushes, Cluster(BROKERS, **OFTEN) as cluster:
        asyncio.run(_Stalls(cluster, slow_flushes).run(options.seconds, options.turns))
    return 0


@contextlib.contextmanager
def _slow_disk() -> Iterator[Callable[[bool], None] | None]:
    """Makes every flush of the brokers that are started meanwhile slow, or stops to; None where that cannot be built."""
    if why := why_not():
        print(f"without slow flushes: {why}")
        yield None
        return
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        data = Path(tempfile.gettempdir()) / "barnabas-benchmark-"  # how the folders of clusters begin
        shim = Shim(build(Path(name)), Path(name) / "orders", data)
        os.environ.update(shim.environment)
        try:
            yield lambda slow: shim.order(sync_us=SLOW_FLUSH_US) if slow else shim.order()
        finally:
            os.environ.clear()
            os.environ.update(before)


class _Stalls:
    def __init__(self, cluster: Cluster, slow_flushes: Callable[[bool], None] | None) -> None:
        self._cluster = cluster
        self._slow_flushes = slow_flushes
        self._watches = [Watch(_address(broker.address), broker.process.pid) for broker in cluster.brokers]

    async def run(self, seconds: float, turns: int) -> None:
        async with AsyncExitStack() as stack:
            for watch in self._watches:
                await stack.enter_async_context(watch)
            async with self._measured("idle"):
                await asyncio.sleep(seconds)
            for name, configs in KINDS.items():
                if "flushes" not in name:
                    await self._under_load(name, configs, seconds)
                elif self._slow_flushes is not None:
                    self._slow_flushes(True)
                    await self._under_load(name, configs, seconds)
                    self._slow_flushes(False)
            for turn in range(turns):
                await self._wide_topic(f"wide-{turn}")

    async def _under_load(self, name: str, configs: Mapping[str, str], seconds: float) -> None:
        topic = re.sub(r"\W+", "-", name)
        async with Admin(self._cluster.bootstrap) as admin:
            await admin.create_topic(topic, partitions=BROKERS, replication_factor=BROKERS, configs=configs)
            command = ("produce", "--bootstrap", self._cluster.bootstrap, "--topic", topic, "--api", "send_key")
            load = await asyncio.create_subprocess_exec(
                sys.executable, str(CLIENT), *command, "--acks", "all", "--count", str(LOAD_RECORDS)
            )
            try:
                await self._begun(admin, topic)
                await asyncio.sleep(SETTLE_S)
                records, fetches = await _record_count(admin, topic), await self._follower_fetches()
                async with self._measured(name):
                    await asyncio.sleep(seconds)
                records, fetches = (
                    await _record_count(admin, topic) - records,
                    await self._follower_fetches() - fetches,
                )
                gathered = records * (BROKERS - 1) / max(fetches, 1)
                print(
                    f"  {records / seconds:,.0f} records/s, {gathered:,.0f} of them in a fetch of a follower",
                    flush=True,
                )
            finally:
                if load.returncode is None:
                    load.kill()
                await load.wait()
            await admin.delete_topic(topic)
        await asyncio.sleep(SETTLE_S)

    async def _wide_topic(self, name: str) -> None:
        async with Admin(
            self._cluster.bootstrap, timeout_ms=WIDE_TIMEOUT_MS, request_timeout_ms=WIDE_TIMEOUT_MS
        ) as admin:
            async with self._measured(f"create {WIDE} x {BROKERS}, answer") as done:
                await admin.create_topic(name, partitions=WIDE, replication_factor=BROKERS)
                done()
                await self._in_sync(admin, name)
            async with self._measured(f"describe {WIDE}"):
                await admin.describe_topic(name)
            await asyncio.sleep(SETTLE_S)
            async with self._measured(f"delete {WIDE} x {BROKERS}, answer") as done:
                await admin.delete_topic(name)
                done()
                await asyncio.sleep(SETTLE_S)  # until the brokers have closed them

    async def _begun(self, admin: Admin, topic: str) -> None:
        deadline = time.monotonic() + BEGIN_TIMEOUT_S
        while time.monotonic() < deadline:
            if await _record_count(admin, topic):
                return
            await asyncio.sleep(POLL_S)
        raise TimeoutError(f"the load did not begin within {BEGIN_TIMEOUT_S:.0f} s")

    async def _in_sync(self, admin: Admin, name: str) -> None:
        deadline = time.monotonic() + FULL_TIMEOUT_S
        while time.monotonic() < deadline:
            topic = await admin.describe_topic(name)
            if all(part.leader >= 0 and len(part.isr) == BROKERS for part in topic.partitions):
                return
            await asyncio.sleep(POLL_S)
        raise TimeoutError(f"{name} has no full ISR after {FULL_TIMEOUT_S:.0f} s")

    @contextlib.asynccontextmanager
    async def _measured(self, name: str) -> AsyncIterator[Callable[[], None]]:
        """Prints a line at the end. The time is that until `done` is called, if it is."""
        before = await self._buckets()
        cpu, began = self._cpu(), time.monotonic()
        ended: list[float] = []
        for watch in self._watches:
            watch.begin()
        yield lambda: ended.append(time.monotonic())
        seconds = (ended or [time.monotonic()])[0] - began
        used = self._cpu() - cpu
        after = await self._buckets()
        counts = {bound: count - before[bound] for bound, count in after.items()}
        checks = counts[float("inf")]
        kept = min((bound for bound, count in counts.items() if count >= QUANTILE * checks), default=0.0)
        times = [
            max(getattr(watch, figure) for watch in self._watches) * 1000
            for figure in ("longest_answer_s", "longest_held_s", "longest_busy_s")
        ]
        print(
            f"{name:26}{seconds:7.2f}{used:8.2f}{checks:8}{checks - counts[LATE_S]:6}{kept * 1000:7.0f} ms"
            + "".join(f"{value:7.0f} ms" for value in times),
            flush=True,
        )

    def _cpu(self) -> float:
        return sum(map(cpu_of, self._cluster.pids()))

    async def _buckets(self) -> dict[float, int]:
        """Checks of all brokers that were at most so late, in seconds."""
        found: dict[float, int] = {}
        for bound, count in _BUCKET.findall(await self._metrics()):
            found[float(bound)] = found.get(float(bound), 0) + int(count)
        return found

    async def _follower_fetches(self) -> int:
        return sum(map(int, _FETCHES.findall(await self._metrics())))

    async def _metrics(self) -> str:
        return await asyncio.to_thread(self._cluster.metrics)


async def _record_count(admin: Admin, topic: str) -> int:
    return sum(end.offset for end in (await admin.list_offsets(topic)).values())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
