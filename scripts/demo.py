"""The demo behind demo.sh: a cluster of three broker processes carries a web server log while one of them is killed.

It ends with a table and one machine-readable line; the exit code is 1 when anything acknowledged is missing.
"""

import argparse
import asyncio
import contextlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from barnabas import Admin, BarnabasError, Consumer, Handle, Producer, TopicPartition
from barnabas.net.base.local import local_cluster
from barnabas.net.cli.verbs.local import probe_cluster

TOPIC = "access-log"
GROUP = "log-readers"
PARTITIONS = 6
BROKERS = 3
GENERATED_LINES = 10_000
LINE_HEADER = "line"  # carries the line's number, so that every record can be accounted for
PACE_SECONDS = 12.0  # the log is streamed over about this long, so that readers, the crash and the election overlap
CATCH_UP_SECONDS = 30.0
START_SECONDS = 30.0
ELECTION_POLL_SECONDS = 0.01
STATUS = re.compile(rb'" (\d{3}) ')


@dataclass
class Tally:
    """What happened to every line."""

    sent: int = 0
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)  # line -> partition, offset
    read: Counter[int] = field(default_factory=Counter)  # line -> times delivered to the group
    failed: int = 0
    by_status: Counter[bytes] = field(default_factory=Counter)
    by_address: Counter[bytes] = field(default_factory=Counter)
    leaderless_seconds: dict[int, float] = field(default_factory=dict)


class Story:
    """Prints what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:7.2f} s  {text}", flush=True)


class DemoCluster:
    """Three broker processes of this machine, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        plan = local_cluster.Plan(folder=directory, broker_count=BROKERS, base_port=0, die_with_parent=True)
        self._brokers = {broker.node_id: broker for broker in local_cluster.start(plan)}

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self._brokers.values())

    async def is_ready(self) -> bool:
        return await probe_cluster(list(self._brokers.values()))

    def kill(self, node_id: int) -> None:
        process = self._brokers[node_id].process
        process.kill()
        process.wait()

    def restart(self, node_id: int) -> None:
        self._brokers[node_id] = local_cluster.restart(self._brokers[node_id], die_with_parent=True)

    def stop(self) -> None:
        local_cluster.stop(list(self._brokers.values()))


def find_input(argument: str | None) -> tuple[str, list[bytes]]:
    if argument:
        return argument, Path(argument).read_bytes().splitlines()
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "apache_access.log"
    if shared.is_file():
        return str(shared), shared.read_bytes().splitlines()
    return f"{GENERATED_LINES} generated lines", list(generated_lines())


def generated_lines() -> Iterator[bytes]:
    rng = random.Random(1)
    for number in range(GENERATED_LINES):
        address = f"10.{rng.randrange(4)}.{rng.randrange(8)}.{rng.randrange(256)}"
        status = rng.choice((200, 200, 200, 304, 404, 500))
        yield f'{address} - - [17/May/2015:10:05:03 +0000] "GET /page/{number} HTTP/1.1" {status} 512'.encode()


async def stream(lines: list[bytes], producer: Producer, tally: Tally, halfway: asyncio.Event) -> None:
    """Send every line keyed by its client's address, acks=all, and note what was acknowledged."""

    async def note(number: int, handle: Handle) -> None:
        try:
            metadata = await handle
        except BarnabasError as error:
            tally.failed += 1
            print(f"line {number} was not acknowledged: {error}", file=sys.stderr)
        else:
            tally.acknowledged[number] = (metadata.partition, metadata.offset)

    waiting: set[asyncio.Task[None]] = set()
    chunk = max(1, len(lines) // 200)
    for start in range(0, len(lines), chunk):
        for number, line in enumerate(lines[start : start + chunk], start):
            key = line.split(b" ", 1)[0]
            handle = await producer.send(TOPIC, line, key=key, headers=[(LINE_HEADER, str(number).encode())])
            tally.sent += 1
            task = asyncio.create_task(note(number, handle))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        if start >= len(lines) // 2:
            halfway.set()
        await asyncio.sleep(PACE_SECONDS / 200)
    halfway.set()
    await producer.flush()
    if waiting:
        await asyncio.gather(*waiting)


async def read(consumer: Consumer, tally: Tally) -> None:
    """One member of the group: count requests by status and by address."""
    async for record in consumer:
        number = int(dict(record.headers)[LINE_HEADER])
        tally.read[number] += 1
        if tally.read[number] == 1:
            found = STATUS.search(record.value)
            tally.by_status[found.group(1) if found else b"?"] += 1
            tally.by_address[record.key] += 1


@contextlib.asynccontextmanager
async def watching(admin: Admin, story: Story) -> AsyncIterator[dict[int, tuple[int, tuple[int, ...]]]]:
    """Follow leaders and in-sync replicas of the topic, and tell every change as it happens."""
    seen: dict[int, tuple[int, tuple[int, ...]]] = {}

    async def watch() -> None:
        while True:
            with contextlib.suppress(BarnabasError, OSError):
                topic = await admin.describe_topic(TOPIC)
                for number, partition in enumerate(topic.partitions):
                    state = (partition.leader, tuple(sorted(partition.isr)))
                    before = seen.get(number)
                    seen[number] = state
                    if before is not None and before != state:
                        story.say(describe_change(number, before, state, partition.leader_epoch))
            await asyncio.sleep(ELECTION_POLL_SECONDS)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def describe_change(
    number: int, before: tuple[int, tuple[int, ...]], now: tuple[int, tuple[int, ...]], leader_epoch: int
) -> str:
    parts = [f"partition {number}:"]
    if before[0] != now[0]:
        parts.append(f"leader {before[0]} -> {now[0]} (epoch {leader_epoch})")
    if before[1] != now[1]:
        parts.append(f"in-sync replicas {list(before[1])} -> {list(now[1])}")
    return " ".join(parts)


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition is true, looking often; False when it did not become so in time."""

    async def asked() -> bool:
        return condition()

    return await until_async(asked, seconds)


async def until_async(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(ELECTION_POLL_SECONDS)
    return True


async def crash_and_recover(
    cluster: DemoCluster, seen: dict[int, tuple[int, tuple[int, ...]]], tally: Tally, story: Story
) -> None:
    """Kill the leader of partition 0, watch the election, bring the broker back, wait for full in-sync replicas."""
    victim = seen[0][0]
    led = [number for number, (leader, _) in seen.items() if leader == victim]
    story.say(f"kill -9 broker {victim}, which leads partitions {led}")
    killed = time.monotonic()
    cluster.kill(victim)
    tally.leaderless_seconds.update(dict.fromkeys(range(PARTITIONS), 0.0))
    pending = set(led)
    while pending and time.monotonic() - killed < CATCH_UP_SECONDS:
        for number in sorted(pending):
            if seen[number][0] not in (victim, -1):
                tally.leaderless_seconds[number] = time.monotonic() - killed
                pending.discard(number)
        await asyncio.sleep(ELECTION_POLL_SECONDS / 2)
    for number in pending:
        tally.leaderless_seconds[number] = float("inf")
    await asyncio.sleep(1.0)  # let the cluster be seen at work without the broker
    story.say(f"start broker {victim} again")
    cluster.restart(victim)
    full = await until(lambda: all(len(isr) == BROKERS for _, isr in seen.values()), CATCH_UP_SECONDS)
    story.say("every partition has its full in-sync replica set again" if full else "in-sync replicas are NOT full")


async def count_in_log(bootstrap: str, admin: Admin, tally: Tally) -> tuple[int, int]:
    """Read the whole topic once more, outside of the group. Returns (acknowledged lines missing, lines stored twice)."""
    stored: Counter[int] = Counter()
    async with Consumer(bootstrap=bootstrap) as consumer:
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_start()
        ends = {place: found.offset for place, found in (await admin.list_offsets(TOPIC)).items()}
        while [place for place, end in ends.items() if await consumer.position(place) < end]:
            for records in (await consumer.poll(timeout_ms=500)).values():
                stored.update(int(dict(record.headers)[LINE_HEADER]) for record in records)
    missing = sum(1 for number in tally.acknowledged if number not in stored)
    return missing, sum(count - 1 for count in stored.values())


async def first_acknowledgement(bootstrap: str) -> None:
    """One acks=all record at replication factor 3, so that "up" is measured to something that a user can rely on."""
    async with Producer(bootstrap=bootstrap, acks="all") as producer:
        await (await producer.send(TOPIC, b"0.0.0.0 first", partition=0, headers=[(LINE_HEADER, b"-1")]))


async def run(arguments: argparse.Namespace, directory: Path, story: Story) -> int:
    source, lines = find_input(arguments.file)
    started = time.monotonic()
    cluster = DemoCluster(directory)
    try:
        ready = await until_async(cluster.is_ready, START_SECONDS)
        if not ready:
            raise SystemExit(f"the cluster did not start; see {directory}/*/broker.log")
        bootstrap = cluster.bootstrap
        async with Admin(bootstrap=bootstrap) as admin:
            configs = {"min.insync.replicas": "2"}
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=BROKERS, configs=configs)
            await first_acknowledgement(bootstrap)
            up_to_ack_ms = (time.monotonic() - started) * 1000
            story.say(
                f"three brokers are up at {bootstrap}: first acks=all acknowledgement after {up_to_ack_ms:.0f} ms"
            )
            tally = Tally()
            await carry(lines, source, cluster, admin, tally, story)
            missing, duplicated = await count_in_log(bootstrap, admin, tally)
    finally:
        cluster.stop()
    return report(tally, missing, duplicated, up_to_ack_ms, len(lines))


async def carry(
    lines: list[bytes], source: str, cluster: DemoCluster, admin: Admin, tally: Tally, story: Story
) -> None:
    """Stream the lines, read them in a group of two, and crash a broker half-way."""
    story.say(f"streaming {source} ({len(lines)} lines) into {TOPIC} with acks=all; two members of {GROUP} read")
    halfway = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(2):
            consumer = Consumer(TOPIC, bootstrap=cluster.bootstrap, group=GROUP, auto_offset_reset="earliest")
            await stack.enter_async_context(consumer)
            readers.append(asyncio.create_task(read(consumer, tally)))
        seen = await stack.enter_async_context(watching(admin, story))
        producer = await stack.enter_async_context(Producer(bootstrap=cluster.bootstrap, acks="all"))
        streaming = asyncio.create_task(stream(lines, producer, tally, halfway))
        await halfway.wait()
        story.say(f"half-way: {len(tally.acknowledged)} acknowledged, {len(tally.read)} read")
        await until(lambda: len(seen) == PARTITIONS, CATCH_UP_SECONDS)
        await crash_and_recover(cluster, seen, tally, story)
        await streaming
        story.say(f"all sent: {tally.sent}, acknowledged {len(tally.acknowledged)}")
        await until(lambda: all(number in tally.read for number in tally.acknowledged), CATCH_UP_SECONDS)
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def report(tally: Tally, missing: int, duplicated: int, up_to_ack_ms: float, line_count: int) -> int:
    tally.read.pop(-1, None)
    unread = sum(1 for number in tally.acknowledged if number not in tally.read)
    redelivered = sum(count - 1 for count in tally.read.values())
    lost = max(missing, unread)
    worst = tally.leaderless_seconds
    print()
    print("requests by status:  ", "  ".join(f"{k.decode()}={n}" for k, n in tally.by_status.most_common(6)))
    print("busiest addresses:   ", "  ".join(f"{k.decode()}={n}" for k, n in tally.by_address.most_common(4)))
    print()
    rows = [
        ("sent", f"{tally.sent}"),
        ("acknowledged (acks=all)", f"{len(tally.acknowledged)}"),
        ("read by the group", f"{len(tally.read)}"),
        ("lost", f"{lost}"),
        ("stored twice", f"{duplicated}"),
        ("delivered again after the rebalance", f"{redelivered}"),
        *((f"seconds without a leader, partition {n}", f"{s:.3f}") for n, s in sorted(worst.items())),
        ('ms from "up" to the first acks=all acknowledgement', f"{up_to_ack_ms:.0f}"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value:>8}")
    print()
    print(
        f"sent={tally.sent} acknowledged={len(tally.acknowledged)} read={len(tally.read)} "
        f"lost={lost} duplicated={duplicated}"
    )
    complete = lost == 0 and duplicated == 0 and tally.failed == 0 and len(tally.acknowledged) == line_count
    return 0 if complete else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Show the main job of Barnabas on real processes.")
    parser.add_argument("file", nargs="?", help="lines to stream (default: a web server log, or generated lines)")
    parser.add_argument("--keep", action="store_true", help="keep the brokers' folders, with their logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="barnabas-demo-"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        return asyncio.run(run(arguments, directory, Story()))
    except KeyboardInterrupt:
        return 1
    finally:
        if arguments.keep:
            print(f"the brokers' folders are left in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
