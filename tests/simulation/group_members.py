"""Members of groups in the simulation: the SDK's own `Consumer`, each in a process of its own that can die and stand still.

What a member does with records is what applications do: it takes some, works on them for a while (at times for much too
long), is done with them, commits by itself or has the SDK commit. It tells the checker all of it, and never asks it.
"""

import asyncio
from collections.abc import Iterable
from random import Random

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import SimulatedClock
from barnabas.net.client.connection.client import Client, inside_of
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.testing.simulation.cluster import CLIENT_PORT, SimulatedCluster, rack_of, wait_until
from barnabas.net.testing.simulation.process import NOBODY, SimulatedProcess

from .checkers.groups import GroupChecker, Partition

MAX_POLL_INTERVAL_MS = 2_000
REBALANCE_TIMEOUT_MS = 2_000
SESSION_TIMEOUT_MS = 1_500
HANG_STEP_S = 0.1
LONGEST_HANG_S = 3.0  # longer than max.poll.interval.ms
# What an application may be told by a consumer in a cluster that is broken; it then starts a new one.
EXPECTED = frozenset({ErrorCode.FENCED_INSTANCE_ID, ErrorCode.NETWORK_EXCEPTION, ErrorCode.UNRELEASED_INSTANCE_ID})


class SimulatedMember:
    """One application. `start` makes a new process of it; `topics` or `pattern` say what it reads."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        checker: GroupChecker,
        rng: Random,
        *,
        name: str,
        group: str,
        topics: tuple[str, ...] = (),
        pattern: str | None = None,
        instance_id: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.checker = checker
        self.rng = rng
        self.name = name
        self.group = group
        self.topics = topics
        self.pattern = pattern
        self.instance_id = instance_id
        self.process: SimulatedProcess | None = None
        self.hangs_until = 0.0
        self.must_close = False
        self.must_live = False  # from the end of the faults on
        self.failures: list[str] = []
        self._incarnations = 0
        self._consumer: Consumer | None = None
        cluster.client_names.append(name)

    # --- what the checker asks ----------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return f"{self.name}/{self._incarnations}"

    @property
    def member_id(self) -> str:
        session = None if self._consumer is None else self._consumer._subscriber.session
        return "" if session is None else session.ownership.member_id

    @property
    def epoch(self) -> int:
        session = None if self._consumer is None else self._consumer._subscriber.session
        return -1 if session is None else session.ownership.epoch

    @property
    def has_lived(self) -> bool:
        return self._incarnations > 0

    @property
    def is_alive(self) -> bool:
        return self.process is not None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.stalled_until <= self.cluster.loop.time()

    def holds(self, partition: Partition) -> bool:
        consumer = self._consumer
        if self.process is None or consumer is None or consumer._subscriber.session is None:
            return False
        return (
            TopicPartition(*partition) in consumer._reading.states
            and partition not in consumer._subscriber.session.ownership._lost
        )

    # --- life and death -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.process is not None:
            return
        self._incarnations += 1
        self.must_close = False
        self.hangs_until = 0.0
        process = self.process = self.cluster.start_guest(self.name, self._incarnations)
        self.checker.members.append(self)
        self.cluster.loop.create_task(self._live(process), context=process.context.copy())

    def kill(self) -> None:
        """kill -9: the member does not leave its group."""
        if self.process is not None:
            self.cluster.kill_guest(self.name)
            self._gone()

    def stall(self, duration_s: float) -> None:
        self.cluster.stall_process(self.process, duration_s)

    def hang(self, duration_s: float) -> None:
        """Its handler takes so long; its heartbeats go on."""
        self.hangs_until = self.cluster.loop.time() + duration_s

    def close(self) -> None:
        self.must_close = True
        self.must_live = False
        self.hangs_until = 0.0

    def heal(self) -> None:
        """A member that is closing just now starts once more when it has."""
        self.must_live = True
        self.hangs_until = 0.0
        if self.process is not None and self.process.stalled_until > self.cluster.loop.time():
            self.cluster.loop.resume(self.process)

    def _gone(self) -> None:
        self.process = None
        self._consumer = None
        self.checker.members.remove(self)

    def _ended(self, process: SimulatedProcess) -> None:
        """The process has come to its own end."""
        if self.process is process and not self.cluster.is_over:
            self.cluster.loop.call_soon(self._replace, context=NOBODY)

    def _replace(self) -> None:
        self.kill()
        if self.must_live:
            self.start()

    # --- what the application does ------------------------------------------------------------------------------------

    async def _live(self, process: SimulatedProcess) -> None:
        try:
            consumer = self._consumer = self._make_consumer()
            while not self.must_close:
                try:
                    await consumer.start()
                    break
                except BarnabasError as error:  # no broker answers: an operator starts it again
                    self.cluster.loop.note(f"{self.identity} cannot start: {error.code.name}")
                    await asyncio.sleep(self.rng.uniform(0.05, 0.2))
            try:
                while not self.must_close:
                    await self._step(consumer)
            except BarnabasError as error:
                self.cluster.loop.note(f"{self.identity} gives up: {error.code.name} {error.message}")
                if error.code not in EXPECTED:
                    self.failures.append(f"{self.identity}: {error!r}")
                await consumer.close()
            else:
                await consumer.close()
        finally:
            self._ended(process)

    def _make_consumer(self) -> Consumer:
        rng = Random(self.rng.getrandbits(64))
        self._commits_itself = rng.random() < 0.4
        self._walks = rng.random() < 0.3
        self._names_offsets = rng.choice((0.0, 0.0, 0.3))  # commit_nowait, beside whatever else commits
        client = Client(
            [f"node-{node.node_id}:{CLIENT_PORT}" for node in self.cluster.nodes],
            client_id=self.identity,
            request_timeout_ms=1_500,
            network=self.cluster.world.node(self.name),
            clock=SimulatedClock(self.cluster.loop),
            rng=rng,
        )
        consumer = Consumer(
            *self.topics,
            group=self.group,
            pattern=self.pattern,
            instance_id=self.instance_id,
            auto_offset_reset="earliest",
            auto_commit=not self._commits_itself,
            auto_commit_interval_ms=rng.choice((100, 400)),
            on_assigned=self._assigned if self._listens else None,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            fetch_max_wait_ms=200,
            request_timeout_ms=1_500,
            rack=self._rack(),
            client=client,
        )
        if not self._listens:
            self._watch_adoptions(consumer)
        return consumer

    @property
    def _listens(self) -> bool:
        """Every other member has a listener, and therefore asks for offsets that came with its assignment."""
        return self._number % 2 == 0

    def _watch_adoptions(self, consumer: Consumer) -> None:
        subscriber = consumer._subscriber
        genuine = subscriber.adopted

        def adopted(partitions: list[TopicPartition]) -> None:
            genuine(partitions)
            self._assigned(partitions)

        subscriber.adopted = adopted  # type: ignore[method-assign]

    def _rack(self) -> str:
        """Of one of the brokers, if these have racks."""
        return rack_of(self._number % len(self.cluster.nodes)) if self.cluster.has_racks else ""

    @property
    def _number(self) -> int:
        return int("".join(filter(str.isdigit, self.name)) or "0")

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.cluster.loop.note(f"{self.identity} takes {[str(it) for it in partitions]} in epoch {self.epoch}")
        for topic, number in partitions:
            self.checker.adopted(self, (topic, number))

    async def _step(self, consumer: Consumer) -> None:
        timeout_ms = self.rng.choice((0, 50, 300))
        if self._walks:
            await self._walk(consumer, timeout_ms)
        else:
            found = await consumer.poll(timeout_ms=timeout_ms, max_records=self.rng.choice((1, 5, 50)))
            rounds = {
                (topic, number): self.checker.was_polled(self, (topic, number), records[0].offset, records[-1].offset)
                for (topic, number), records in found.items()
            }
            await self._work()
            for place, records in found.items():
                self._done(place, (record.offset for record in records), rounds[place.topic, place.partition])
            if self.rng.random() < self._names_offsets:
                self._commit_soon(consumer, {place: records[-1].offset + 1 for place, records in found.items()})
        if self._commits_itself and self.rng.random() < 0.4:
            await self._commit(consumer)

    async def _walk(self, consumer: Consumer, timeout_ms: int) -> None:
        """`async for`: the record in hand is done when the next one is asked for."""
        for record in await inside_of(consumer).walk_batch(timeout_ms=timeout_ms):
            partition = (record.topic, record.partition)
            rounds = self.checker.was_polled(self, partition, record.offset, record.offset)
            await self._work()
            self._done(TopicPartition(*partition), (record.offset,), rounds)
            if self.rng.random() < self._names_offsets:
                self._commit_soon(consumer, {TopicPartition(*partition): record.offset + 1})
            if self.must_close:
                return

    def _done(self, place: TopicPartition, offsets: Iterable[int], rounds: int) -> None:
        self.checker.of(self.group, (place.topic, place.partition)).processed(offsets, rounds)

    async def _work(self) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02)))
        loop = self.cluster.loop
        await wait_until(lambda: self.hangs_until <= loop.time(), limit_s=LONGEST_HANG_S, every_s=HANG_STEP_S)

    def _commit_soon(self, consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
        if not offsets:
            return
        try:
            consumer.commit_nowait(offsets)
        except BarnabasError as error:
            self.cluster.loop.note(f"{self.identity} cannot commit soon: {error.code.name}")

    async def _commit(self, consumer: Consumer) -> None:
        try:
            await consumer.commit()
        except BarnabasError as error:
            self.cluster.loop.note(f"{self.identity} cannot commit: {error.code.name}")
