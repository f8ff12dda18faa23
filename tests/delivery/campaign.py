"""Workers and brokers are killed at random moments; afterwards every effect is held against every record that there is.

Two workers share a group. A producer writes all the time (acks=all), so that there is always something in work. Kills come at
random moments, mostly of a worker, sometimes of a broker; whoever was killed is started again. At the end everything is read
and the effects are counted by partition and offset:

    at-most-once      no record has two effects; at most one poll's records a kill have none
    at-least-once     no record has none; at most one poll's records a kill have two
    effectively-once  every record has one; the group is set to random offsets meanwhile, which must change nothing
"""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from integration import postgres
from integration.cluster import SESSION, Cluster, active_brokers, clean_environment, full_isr, until

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

from .worker import GROUP, POLL_RECORDS, SEMANTICS, connect

TOPIC = "work"
PARTITIONS = 6
OVERRIDES = {**SESSION, "group.consumer.heartbeat.interval.ms": "500"}  # some heartbeats within a worker's session
WORKERS = 2
BROKERS = 3
BROKER_KILL_SHARE = 0.1
SEEK_SHARE = 0.3  # of the rounds, with effectively-once
ROUNDS_WITHOUT_SEEK = 3  # at the end: what the group has committed then tells how far the workers are
MIN_PAUSE_S, MAX_PAUSE_S = 0.2, 2.5
PRODUCE_PAUSE_S = 0.01
DRAIN_TIMEOUT_S = 180.0

Place = tuple[int, int]  # partition and offset


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of the records. Counts are of records (partition and offset), not of values."""

    semantics: str
    records: int
    worker_kills: int
    broker_kills: int
    worker_exits: int  # ends that nobody caused: a worker stops at an error, as a user's does
    lost: list[Place] = field(default_factory=list)
    doubled: dict[Place, int] = field(default_factory=dict)
    foreign: list[Place] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def interruptions(self) -> int:
        return self.worker_kills + self.worker_exits + self.broker_kills

    def violations(self) -> list[str]:
        """What was promised and not kept."""
        found = [f"effects of records that do not exist: {self.foreign[:3]}"] if self.foreign else []
        if self.semantics != "at-most-once" and self.lost:
            found.append(f"{len(self.lost)} records have no effect: {self.lost[:3]}")
        if self.semantics != "at-least-once" and self.doubled:
            found.append(f"{len(self.doubled)} records have more than one effect: {list(self.doubled.items())[:3]}")
        # Each interruption of one worker interrupts one poll of it, and by a rebalance one of the other's.
        limit = WORKERS * POLL_RECORDS * self.interruptions
        for name, count in (("lost", len(self.lost)), ("doubled", sum(self.doubled.values()))):
            if count > limit:
                found.append(f"{count} records were {name}, more than {limit}, a poll's a worker and interruption")
        return found

    def line(self) -> str:
        return (
            f"{self.semantics:16}  records {self.records:7}  kills {self.worker_kills:4} + {self.broker_kills} brokers"
            f"  other ends {self.worker_exits:3}  lost {len(self.lost):5}  doubled {sum(self.doubled.values()):5}"
            f"  {self.seconds:6.1f} s"
        )


class Sink:
    """Where effects go: a file, or a table of SQLite or PostgreSQL."""

    def __init__(self, address: str, *, is_database: bool) -> None:
        self.address = address
        self._is_database = is_database
        if is_database:
            connection = connect(address)
            connection.execute("CREATE TABLE effects (partition_id INTEGER, record_offset BIGINT, value TEXT)")
            connection.commit()
            connection.close()

    def effects(self) -> list[tuple[Place, str]]:
        if not self._is_database:
            path = Path(self.address)
            lines = path.read_text().splitlines() if path.exists() else []
            return [((int(partition), int(offset)), value) for partition, offset, value in map(str.split, lines)]
        connection = connect(self.address)
        rows = connection.execute("SELECT partition_id, record_offset, value FROM effects").fetchall()
        connection.close()
        return [((partition, offset), value) for partition, offset, value in rows]


class Worker:
    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self.exits = 0
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "delivery.worker", *self._arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[1])}, start_new_session=True,
            )  # fmt: skip

    def look_after(self) -> None:
        """Start it again if it has ended by itself."""
        if self.process.poll() is not None:
            self.exits += 1
            self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def opened(semantics: str, database: str, folder: Path) -> Iterator[Sink]:
    if semantics != "effectively-once":
        yield Sink(str(folder / "effects.txt"), is_database=False)
    elif database == "sqlite":
        yield Sink(str(folder / "effects.db"), is_database=True)
    else:
        with postgres.running() as address:
            yield Sink(address, is_database=True)


def run(
    folder: Path, *, semantics: str, kills: int, seed: int, database: str = "sqlite", say: Callable[[str], None] = print
) -> Outcome:
    assert semantics in SEMANTICS
    folder.mkdir(parents=True, exist_ok=True)
    with (
        opened(semantics, database, folder) as sink,
        Cluster(folder / "cluster", BROKERS, overrides=OVERRIDES) as cluster,
    ):
        return asyncio.run(_Campaign(cluster, sink, folder, semantics, random.Random(seed), say).run(kills))


class _Campaign:
    def __init__(
        self,
        cluster: Cluster,
        sink: Sink,
        folder: Path,
        semantics: str,
        rng: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._sink = sink
        self._folder = folder
        self._semantics = semantics
        self._rng = rng
        self._say = say
        self._broker_kills = 0
        self._worker_kills = 0
        self._is_over = False
        self._workers: list[Worker] = []

    async def run(self, kills: int) -> Outcome:
        started_s = time.monotonic()
        await self._cluster.ready()
        async with self._cluster.admin() as admin:
            await admin.create_topic(
                TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
            )
            arguments = [self._semantics, self._cluster.bootstrap, TOPIC, self._sink.address]
            self._workers = [Worker(arguments, self._folder / f"worker-{number}.log") for number in range(WORKERS)]
            try:
                producing = asyncio.create_task(self._produce())
                await until(self._sink.effects, "the workers work")
                for number in range(kills):
                    await asyncio.sleep(self._rng.uniform(MIN_PAUSE_S, MAX_PAUSE_S))
                    if number < kills - ROUNDS_WITHOUT_SEEK:
                        await self._seek(admin)
                    await self._kill_somebody(admin)
                    if (number + 1) % 10 == 0:
                        self._say(f"{self._semantics}: {number + 1} of {kills} kills")
                self._is_over = True
                await producing
                ends = await self._drain(admin)
            finally:
                self._is_over = True
                for worker in self._workers:
                    worker.kill()
        return self._account(ends, time.monotonic() - started_s)

    async def _produce(self) -> None:
        async with Producer(self._cluster.bootstrap, acks="all", request_timeout_ms=5_000) as producer:
            number = 0
            while not self._is_over:
                for partition in range(PARTITIONS):
                    await producer.send(TOPIC, b"%d" % number, partition=partition)
                    number += 1
                await asyncio.sleep(PRODUCE_PAUSE_S)
            await producer.flush()

    async def _seek(self, admin: Admin) -> None:
        """As `group seek` does, forward too."""
        if self._semantics != "effectively-once" or self._rng.random() >= SEEK_SHARE:
            return
        ends = await admin.list_offsets(TOPIC)
        place = self._rng.choice(sorted(ends))
        try:
            await admin.reset_offsets(GROUP, {place: self._rng.randint(0, ends[place].offset)})
        except BarnabasError as error:
            self._say(f"seek refused: {error.message}")

    async def _kill_somebody(self, admin: Admin) -> None:
        for worker in self._workers:
            worker.look_after()
        if self._rng.random() < BROKER_KILL_SHARE:
            self._broker_kills += 1
            node_id = self._rng.randrange(BROKERS)
            self._cluster.kill(node_id)
            await asyncio.sleep(self._rng.uniform(0, 1))
            self._cluster.start(node_id)

            async def is_back() -> bool:
                return len(await active_brokers(self._cluster)) == BROKERS

            await until(is_back, f"broker {node_id} is back")
            await full_isr(admin, [TOPIC])
        else:
            self._worker_kills += 1
            worker = self._rng.choice(self._workers)
            worker.kill()
            worker.start()

    async def _drain(self, admin: Admin) -> dict[TopicPartition, int]:
        """Wait until the group has no lag; with at-most-once the last poll's effects are waited for too."""
        ends = {place: item.offset for place, item in (await admin.list_offsets(TOPIC)).items()}

        async def is_drained() -> bool:
            for worker in self._workers:
                worker.look_after()
            lags = await admin.group_offsets(GROUP)
            return all(place in lags and lags[place].committed >= end for place, end in ends.items())

        await until(is_drained, "all is read", timeout_s=DRAIN_TIMEOUT_S)
        if self._semantics == "at-most-once":
            await self._finish_processing()
        return ends

    async def _finish_processing(self) -> None:
        """A worker that has committed says nothing when it has processed too: ask it to end behind its poll."""
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(asyncio.to_thread(worker.process.wait, DRAIN_TIMEOUT_S) for worker in self._workers))

    def _account(self, ends: dict[TopicPartition, int], seconds: float) -> Outcome:
        counted = Counter(place for place, _ in self._sink.effects())
        every = {(place.partition, offset) for place, end in ends.items() for offset in range(end)}
        return Outcome(
            semantics=self._semantics,
            records=len(every),
            worker_kills=self._worker_kills,
            broker_kills=self._broker_kills,
            worker_exits=sum(worker.exits for worker in self._workers),
            lost=sorted(every - set(counted)),
            doubled={place: count - 1 for place, count in sorted(counted.items()) if count > 1},
            foreign=sorted(set(counted) - every),
            seconds=seconds,
        )
