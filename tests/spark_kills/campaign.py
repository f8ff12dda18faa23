"""Spark drivers and brokers are killed in the middle of a job from topic to topic; then every record is held against its copy.

A producer writes numbers all the time (acks=all). A driver copies them; as soon as it makes progress, it is killed at a random
moment, and before it in some rounds a broker, too. The next driver goes on from the checkpoint. Meanwhile a reader of committed
records follows the copies. At the end the last driver copies what is left, and both topics are read: effectively-once has each
record once, at-least-once has none less than once. The reader has seen what is there then, and nothing that was aborted.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from integration.cluster import SESSION, Cluster, active_brokers, full_isr, until
from integration.decided import markers_written

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

from .driver import Driver

SOURCE, TARGET = "numbers", "copies"
PARTITIONS = 2
BROKERS = 3
RECORDS_PER_BATCH = (
    2_000  # More than come meanwhile, so that nobody falls behind; there is always a micro-batch under way.
)
BROKER_KILL_SHARE = 0.5
MAX_PAUSE_S = 1.5  # About what a micro-batch takes on a busy machine: so a kill finds any step of it.
PRODUCE_PAUSE_S = 0.1
# A driver computes for 25 s until its first micro-batch. Beside 30 processes on two cores, it did not get that in two minutes.
START_TIMEOUT_S = 400.0
DRAIN_TIMEOUT_S = 300.0
POLL_RECORDS = 10_000


@dataclass(slots=True, kw_only=True)
class Outcome:
    delivery: str
    driver_kills: int = 0
    broker_kills: int = 0
    driver_ends: int = 0  # that nobody caused: a query that died of something
    replays: int = 0  # drivers that found a micro-batch planned and not committed
    records: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    seen: int = 0  # by the reader that followed the copies
    seen_otherwise: list[int] = field(default_factory=list)  # more or less often than they are there
    seconds: float = 0.0

    def violations(self) -> list[str]:
        """What was promised and not kept."""
        found = [f"records that nobody sent: {self.foreign[:5]}"] if self.foreign else []
        if self.seen_otherwise and self.delivery == "effectively_once":
            found.append(f"a reader has seen other records than are there: {self.seen_otherwise[:5]}")
        if self.lost:
            found.append(f"{len(self.lost)} records are lost: {self.lost[:5]}")
        if self.doubled and self.delivery == "effectively_once":
            found.append(f"{len(self.doubled)} records are there twice: {self.doubled[:5]}")
        return found

    def line(self) -> str:
        return (
            f"{self.delivery:16}  records {self.records:7}  kills {self.driver_kills} drivers + {self.broker_kills} brokers"
            f"  replayed batches {self.replays}  seen {self.seen}  other ends {self.driver_ends}"
            f"  lost {len(self.lost)}  doubled {len(self.doubled)}  {self.seconds:.0f} s"
        )


def run(folder: Path, *, delivery: str, kills: int, seed: int, say: Callable[[str], None] = print) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(folder / "cluster", BROKERS, overrides=SESSION) as cluster:
        return asyncio.run(_Campaign(cluster, folder, delivery, random.Random(seed), say).run(kills))


class _Campaign:
    def __init__(
        self, cluster: Cluster, folder: Path, delivery: str, rng: random.Random, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._rng = rng
        self._say = say
        self._outcome = Outcome(delivery=delivery)
        self._drivers: list[Driver] = []
        self._is_over = False
        self._seen: Counter[int] = Counter()

    async def run(self, kills: int) -> Outcome:
        began_s = time.monotonic()
        await self._cluster.ready()
        async with self._cluster.admin() as admin:
            for topic in (SOURCE, TARGET):
                await admin.create_topic(
                    topic, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
                )
            producing = asyncio.create_task(self._produce())
            following = asyncio.create_task(self._follow())
            try:
                for number in range(kills):
                    await self._round(
                        admin, is_broker_too=number % 2 == 1 or self._rng.random() < BROKER_KILL_SHARE / 2
                    )
                    self._say(f"{self._outcome.delivery}: {number + 1} of {kills} drivers killed")
                self._is_over = True
                await producing
                await self._drain()
                await until(lambda: all(driver.is_gone() for driver in self._drivers), "workers have ended too")
                copies = len(await self._read(TARGET))
                await until(lambda: self._seen.total() >= copies, "the reader has seen all copies")
            finally:
                self._is_over = True
                producing.cancel()
                following.cancel()
                for driver in self._drivers:
                    driver.clean_up()
                # With their connections closed: a failure would be reported as a warning of those.
                await asyncio.gather(producing, following, return_exceptions=True)
        await self._account()
        self._outcome.seconds = time.monotonic() - began_s
        return self._outcome

    async def _produce(self) -> None:
        async with Producer(self._cluster.bootstrap, acks="all", request_timeout_ms=5_000) as producer:
            number = 0
            while not self._is_over:
                for _ in range(20):
                    await producer.send(SOURCE, b"%d" % number, key=b"%d" % (number % 97))
                    number += 1
                await asyncio.sleep(PRODUCE_PAUSE_S)
            await producer.flush()

    def _start(self, *more: str) -> Driver:
        self._outcome.replays += self._has_unfinished_batch()
        driver = Driver(
            ["--bootstrap", self._cluster.bootstrap, "--topic", SOURCE, "--to", f"topic:{TARGET}",
             "--delivery", self._outcome.delivery, "--checkpoint", str(self._folder / "checkpoint"),
             *more, "SELECT key, value FROM records"],
            self._folder / "driver.log",
        )  # fmt: skip
        self._drivers.append(driver)
        return driver

    def _has_unfinished_batch(self) -> bool:
        """The checkpoint has a micro-batch that was planned and is not committed: it will be run again."""
        planned, committed = (
            {item.name for item in (self._folder / "checkpoint" / name).glob("[0-9]*")}
            for name in ("offsets", "commits")
        )
        return bool(planned - committed)

    async def _round(self, admin: Admin, *, is_broker_too: bool) -> None:
        """A driver starts, makes progress, and is killed."""
        driver = self._start("--max-records", str(RECORDS_PER_BATCH))
        await self._progress(driver)
        if is_broker_too:
            await self._kill_broker(driver)
        await asyncio.sleep(self._rng.uniform(0, MAX_PAUSE_S))
        driver.kill()
        self._outcome.driver_kills += 1
        await self._all_back(admin)

    async def _kill_broker(self, driver: Driver) -> None:
        """The driver has to live through it, unless it is killed next."""
        node_id = self._rng.randrange(BROKERS)
        await asyncio.sleep(self._rng.uniform(0, MAX_PAUSE_S))
        self._cluster.kill(node_id)
        self._outcome.broker_kills += 1
        if self._rng.random() < 0.5:
            await self._progress(driver)
        self._cluster.start(node_id)

    async def _progress(self, driver: Driver) -> None:
        """Records have come into the target since now."""
        before: int = await until(self._copied, "the target's end is known", timeout_s=START_TIMEOUT_S)

        async def has_more() -> bool:
            assert not driver.has_ended, f"the driver has ended: {self._folder / 'driver.log'}"
            return await self._copied() > before

        await until(has_more, "the driver copies", timeout_s=START_TIMEOUT_S)

    async def _copied(self) -> int:
        """One more than the records in the target, so that an answer is always true."""
        async with self._cluster.admin() as admin:
            return 1 + sum(item.offset for item in (await admin.list_offsets(TARGET)).values())

    async def _all_back(self, admin: Admin) -> None:
        async def are_back() -> bool:
            return len(await active_brokers(self._cluster)) == BROKERS

        await until(are_back, "all brokers are back")
        await full_isr(admin, [SOURCE, TARGET])

    async def _drain(self) -> None:
        driver = self._start("--available-now")
        await until(lambda: driver.has_ended, "the rest is copied", timeout_s=DRAIN_TIMEOUT_S)
        assert driver.process.returncode == 0, f"the last driver failed: {self._folder / 'driver.log'}"

    async def _account(self) -> None:
        sent, copies = Counter(await self._read(SOURCE)), Counter(await self._read(TARGET))
        self._outcome.seen = self._seen.total()
        self._outcome.seen_otherwise = sorted((self._seen - copies) + (copies - self._seen))
        assert set(sent.values()) == {1}, "the producer itself has doubled something"
        self._outcome.records = len(sent)
        self._outcome.lost = sorted(set(sent) - set(copies))
        self._outcome.foreign = sorted(set(copies) - set(sent))
        self._outcome.doubled = sorted(number for number, count in copies.items() if count > 1)

    async def _follow(self) -> None:
        async with Consumer(bootstrap=self._cluster.bootstrap, isolation_level="read_committed") as consumer:
            partitions = [TopicPartition(TARGET, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_start(*partitions)
            while True:
                for records in (await consumer.poll(max_records=POLL_RECORDS)).values():
                    self._seen.update(int(record.value or b"-1") for record in records)

    async def _read(self, topic: str) -> list[int]:
        """All values of a topic."""
        found: list[int] = []
        await markers_written(self._cluster.bootstrap)
        async with Consumer(bootstrap=self._cluster.bootstrap, isolation_level="read_committed") as consumer:
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_start(*partitions)
            ends = await consumer.end_offsets(*partitions)

            async def is_read() -> bool:
                for records in (await consumer.poll(max_records=POLL_RECORDS)).values():
                    found.extend(int(record.value or b"-1") for record in records)
                return all([await consumer.position(partition) >= end for partition, end in ends.items()])

            await until(is_read, f"{topic} is read")
        return found
