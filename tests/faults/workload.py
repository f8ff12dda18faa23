"""The clients of a campaign, which write down all that they see: producers, consumers, a group, and an admin."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as ConfluentProducer

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.handles import Handle
from barnabas.net.client.producer.producer import Producer

from .checker import Expected, Report, check
from .final_reads import committed_offsets, read_partitions
from .history import UNKNOWN_OFFSET, Commit, CommittedRead, EndOffset, History, Outcome, Partition, Poll, Send, Stuck
from .injector import Kind

TOPIC: Final = "campaign"
PARTITIONS: Final = 6
GROUP: Final = "readers"
PACE_S: Final = 0.02  # one record for each partition and producer
MAX_REREAD: Final = 3_000  # records of a partition that a new reader begins before the end
COMMIT_EVERY_S: Final = 0.4
ENDS_EVERY_S: Final = 0.2
TOPICS_EVERY_S: Final = 1.0
LIFE_S: Final = (8.0, 25.0)  # of a member of the group, before another takes its place
POLL_MS: Final = 200
DRAIN_S: Final = 60.0
WHY_S: Final = 10.0
MAX_SILENCE_S: Final = 60.0  # a client that hears nothing for longer than this, though the cluster is well, hangs
# The errors by which a producer says for certain that nothing was written come before anything is sent.
NEVER_SENT: Final = ("BufferExhaustedError", "RecordTooLargeError", "UnknownTopicOrPartitionError")


class Workload:
    """A `Load`. Every client is a task; one that dies of a bug is seen at once by `failure`."""

    topics: Mapping[str, int] = {TOPIC: PARTITIONS}
    topic_config: Mapping[str, Mapping[str, str]] = {}
    progressing: tuple[Partition, ...] = tuple((TOPIC, number) for number in range(PARTITIONS))
    faults: Mapping[str, Kind] = {}

    def __init__(self, bootstrap: str, history: History, rng: Random, *, pace_s: float = PACE_S) -> None:
        self.bootstrap = bootstrap
        self.history = history
        self.topics_made = 0
        self.slowest_topic_call_s = 0.0
        self.topic_errors: dict[str, int] = defaultdict(int)
        self.commit_errors: dict[str, int] = defaultdict(int)
        self.poll_errors: dict[str, int] = defaultdict(int)
        self.acked_s: dict[Partition, float] = {}
        self.acked: dict[Partition, int] = defaultdict(int)
        self._rng = rng
        self._pace_s = pace_s
        self._ends: dict[Partition, int] = {}  # as last told
        self._producing: list[asyncio.Task[None]] = []
        self._watching: list[asyncio.Task[None]] = []
        self._members: list[asyncio.Task[None]] = []
        self._no_more_records = asyncio.Event()
        self._no_more_churn = asyncio.Event()
        self._over = asyncio.Event()
        self._committed: dict[Partition, int] = defaultdict(lambda: -1)
        self._counter = 0
        self._live: dict[str, Consumer] = {}  # members of the group

    def start(self) -> None:
        self._producing = [
            self._task(self._produce("all-0", acks=-1)),
            self._task(self._produce("all-1", acks=-1)),
            self._task(self._produce("one-0", acks=1)),
            self._task(self._produce_by_librdkafka("rdk-0")),
        ]
        self._watching = [
            self._task(self._watch_ends()),
            self._task(self._make_topics()),
            self._task(self._consume("reader-0", lives=False)),
            self._task(self._consume("reader-1", lives=True)),
        ]
        self._members = [self._task(self._members_of_slot(slot)) for slot in range(3)]

    def failure(self) -> BaseException | None:
        """The bug, in the workload or in the SDK, that ended a client."""
        for task in (*self._producing, *self._watching, *self._members):
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    async def stop_producing(self) -> None:
        """No record after this; every one that was sent has an outcome, or the producer hangs."""
        self._no_more_records.set()
        await self._in_time(self._producing, "producers flush")

    async def drain(self, ends: Mapping[Partition, int]) -> None:
        """The group has committed everything, and everybody stops."""
        self._no_more_churn.set()
        deadline_s = time.monotonic() + DRAIN_S
        while (behind := self._behind(ends)) and time.monotonic() < deadline_s and self.failure() is None:
            await first_of(self._over, 0.1)
        if behind and self.failure() is None:
            why = await self._why(behind)
            self._stuck(f"the group did not read on for {DRAIN_S:g} s: committed, end = {behind}; {why}")
        self._over.set()
        await self._in_time([*self._watching, *self._members], "consumers stop")

    def _behind(self, ends: Mapping[Partition, int]) -> dict[Partition, tuple[int, int]]:
        return {
            partition: (self._committed[partition], end)
            for partition, end in ends.items()
            if end and self._committed[partition] < end
        }

    async def _why(self, partitions: Iterable[Partition]) -> str:
        """What the coordinator says of the group, and the members of themselves: it happens once in many campaigns."""
        told = [describe_reading(name, consumer, partitions) for name, consumer in self._live.items()]
        try:
            async with self._admin("why") as admin, asyncio.timeout(WHY_S):
                group = await admin.explain_group(GROUP)
            told += [f"{member}" for member in group.members] + [f"{item}" for item in group.unowned]
        except (BarnabasError, TimeoutError) as error:
            told.append(f"the group cannot be explained: {error!r}")
        return "; ".join(told)

    async def read_all(self, name: str, ends: Mapping[Partition, int]) -> None:
        await asyncio.to_thread(committed_offsets, self.bootstrap, self.history, GROUP, ends)
        await read_partitions(self.bootstrap, self.history, name, ends)

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        return {"topics": self.topic_errors, "commits": self.commit_errors, "polls": self.poll_errors}

    def judge(self, fault_kinds: frozenset[str]) -> Report:
        least = PARTITIONS * 50
        report = check(self.history, Expected(acknowledged=least, polled=least, fault_kinds=fault_kinds))
        report.figures = {
            "acknowledged": report.acknowledged,
            "acknowledged_acks_1": report.acknowledged_by_leader,
            "lost": report.lost,
            "lost_acks_1": report.lost_acks_1,
            "duplicates_acks_1": report.duplicates_acks_1,
            "unknown": report.unknown,
            "refused": report.refused,
            "polled": report.polled,
            "topics_made": self.topics_made,
            "slowest_topic_call_s": round(self.slowest_topic_call_s, 1),
        }
        return report

    async def cancel(self) -> None:
        tasks = [*self._producing, *self._watching, *self._members]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_time(self, tasks: list[asyncio.Task[None]], what: str) -> None:
        _, pending = await asyncio.wait(tasks, timeout=MAX_SILENCE_S)
        for task in pending:
            self._stuck(f"{what}: {task.get_name()} has not ended after {MAX_SILENCE_S:g} s")
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=str(work))

    def _stuck(self, what: str) -> None:
        self.history.add(Stuck(what=what, at_s=time.monotonic()))

    # --- producers ---------------------------------------------------------------------------------------------------

    async def _produce(self, name: str, *, acks: int) -> None:
        queues: list[asyncio.Queue[tuple[str, int, float, Handle] | None]] = [
            asyncio.Queue() for _ in range(PARTITIONS)
        ]
        collectors = [
            asyncio.create_task(self._collect(name, acks, number, queue)) for number, queue in enumerate(queues)
        ]
        async with Producer(
            self.bootstrap, acks="all" if acks == -1 else acks, client_id=name, on_error=lambda *_: None
        ) as producer:
            sequence = 0
            while not self._no_more_records.is_set():
                for number, queue in enumerate(queues):
                    value = f"{name}:{number}:{sequence}"
                    began_s = time.monotonic()
                    handle = await producer.send(TOPIC, value.encode(), partition=number)
                    queue.put_nowait((value, sequence, began_s, handle))
                sequence += 1
                await first_of(self._no_more_records, self._pace_s)
            await producer.flush()
            for queue in queues:
                queue.put_nowait(None)
            await asyncio.gather(*collectors)

    async def _collect(
        self, name: str, acks: int, number: int, queue: "asyncio.Queue[tuple[str, int, float, Handle] | None]"
    ) -> None:
        partition = (TOPIC, number)
        while (item := await queue.get()) is not None:
            value, sequence, began_s, handle = item
            outcome: Outcome = "ok"
            offset, error = -1, ""
            try:
                offset = (await handle).offset
            except BarnabasError as problem:
                error = f"{type(problem).__name__}: {problem.message}"
                outcome = "fail" if type(problem).__name__ in NEVER_SENT else "info"
            ended_s = time.monotonic()
            if outcome == "ok" and acks == -1:
                self.acked_s[partition] = ended_s
                self.acked[partition] += 1
            self.history.add(
                Send(
                    process=name,
                    partition=partition,
                    value=value,
                    sequence=sequence,
                    acks=acks,
                    began_s=began_s,
                    ended_s=ended_s,
                    outcome=outcome,
                    offset=offset,
                    error=error,
                )
            )

    async def _produce_by_librdkafka(self, name: str) -> None:
        """Kafka's most used client, idempotent, with its usual five requests under way."""
        loop = asyncio.get_running_loop()
        producer = ConfluentProducer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": name,
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # it never gives up
                "linger.ms": 0,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

        def delivered(number: int, sequence: int, began_s: float, error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            found = (error, UNKNOWN_OFFSET if error is not None or offset is None else offset)
            loop.call_soon_threadsafe(self._delivered, name, number, sequence, began_s, found)

        def round_of(sequence: int) -> None:
            for number in range(PARTITIONS):
                value = f"{name}:{number}:{sequence}".encode()
                told = partial(delivered, number, sequence, time.monotonic())
                try:
                    producer.produce(TOPIC, value, partition=number, on_delivery=told)
                except BufferError:  # its queue is full while a partition has no leader
                    producer.poll(self._pace_s)
            producer.poll(0)

        sequence = 0
        while not self._no_more_records.is_set():
            await asyncio.to_thread(round_of, sequence)
            sequence += 1
            await first_of(self._no_more_records, self._pace_s)
        left = await asyncio.to_thread(producer.flush, MAX_SILENCE_S)
        if left:
            self._stuck(f"{name}: {left} records have no outcome after {MAX_SILENCE_S:g} s")

    def _delivered(
        self, name: str, number: int, sequence: int, began_s: float, found: tuple[KafkaError | None, int]
    ) -> None:
        error, offset = found
        ended_s = time.monotonic()
        partition = (TOPIC, number)
        if error is None:
            self.acked_s[partition] = ended_s
            self.acked[partition] += 1
        self.history.add(
            Send(
                process=name,
                partition=partition,
                value=f"{name}:{number}:{sequence}",
                sequence=sequence,
                acks=-1,
                began_s=began_s,
                ended_s=ended_s,
                outcome="ok" if error is None else "info",
                offset=offset,
                error="" if error is None else str(error),
            )
        )

    # --- consumers ---------------------------------------------------------------------------------------------------

    async def _consume(self, slot: str, *, lives: bool) -> None:
        """Reads all partitions from the start; with `lives`, a new one takes its place after a while, and begins where some
        of what was read before comes again."""
        number = 0
        while not self._over.is_set():
            ends_s = time.monotonic() + self._rng.uniform(*LIFE_S) if lives else float("inf")
            name = f"{slot}.{number}"
            number += 1
            with self._counting(self.poll_errors):
                await self._read_as(name, ends_s, MAX_REREAD if lives else None)

    async def _read_as(self, name: str, ends_s: float, reread: int | None) -> None:
        async with Consumer(bootstrap=self.bootstrap, auto_offset_reset="earliest", client_id=name) as consumer:
            consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
            for partition, end in self._ends.items():
                if reread is not None and end > reread:
                    consumer.seek(partition, end - reread)
            while not self._over.is_set() and time.monotonic() < ends_s:
                await self._poll(consumer, name, "", defaultdict(int))

    @contextmanager
    def _counting(self, errors: dict[str, int]) -> Iterator[None]:
        """Count the errors that the SDK may raise during faults, for example when no broker answers."""
        try:
            yield
        except BarnabasError as error:
            errors[type(error).__name__] += 1

    async def _poll(self, consumer: Consumer, name: str, group: str, sessions: dict[TopicPartition, int]) -> None:
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        with self._counting(self.poll_errors):
            found = await consumer.poll(timeout_ms=POLL_MS)
        at_s = time.monotonic()
        for place, records in found.items():
            self.history.add(
                Poll(
                    process=name,
                    group=group,
                    session=sessions[place],
                    partition=(place.topic, place.partition),
                    at_s=at_s,
                    records=tuple((record.offset, (record.value or b"").decode()) for record in records),
                )
            )

    # --- the group ---------------------------------------------------------------------------------------------------

    async def _members_of_slot(self, slot: int) -> None:
        number = 0
        while not self._over.is_set():
            life_s = self._rng.uniform(*LIFE_S) if slot else float("inf")  # slot 0 stays, and must be served for ever
            with self._counting(self.poll_errors):
                await self._member(f"member-{slot}.{number}", life_s)
            number += 1

    async def _member(self, name: str, life_s: float) -> None:
        """Commits by hand, and looks at what was committed before each commit: a loss would be written over."""
        sessions: dict[TopicPartition, int] = defaultdict(int)

        def assigned(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                sessions[partition] += 1

        ends_s = time.monotonic() + life_s
        async with Consumer(
            TOPIC,
            bootstrap=self.bootstrap,
            group=GROUP,
            auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            on_assigned=assigned,
            client_id=name,
        ) as consumer:
            self._live[name] = consumer
            try:
                await self._take_part(consumer, name, sessions, ends_s)
            finally:
                del self._live[name]

    async def _take_part(
        self, consumer: Consumer, name: str, sessions: dict[TopicPartition, int], ends_s: float
    ) -> None:
        committed_s = time.monotonic()
        while not self._over.is_set():
            await self._poll(consumer, name, GROUP, sessions)
            if time.monotonic() - committed_s > COMMIT_EVERY_S:
                await self._commit(consumer, name)
                committed_s = time.monotonic()
            if time.monotonic() > ends_s and not self._no_more_churn.is_set():
                return

    async def _commit(self, consumer: Consumer, name: str) -> None:
        began_s = time.monotonic()
        try:
            found = await consumer.committed()
        except BarnabasError as error:
            self.commit_errors[f"read {type(error).__name__}"] += 1
            return
        ended_s = time.monotonic()
        offsets: dict[TopicPartition, int] = {}
        for place in consumer.assignment:
            partition = (place.topic, place.partition)
            committed = found.get(place, -1)
            self._committed[partition] = max(self._committed[partition], committed)
            self.history.add(
                CommittedRead(
                    process=name,
                    group=GROUP,
                    partition=partition,
                    offset=committed,
                    began_s=began_s,
                    ended_s=ended_s,
                )
            )
            position = await _position(consumer, place)
            if position > committed:
                offsets[place] = position
        if offsets:
            await self._commit_offsets(consumer, name, offsets)

    async def _commit_offsets(self, consumer: Consumer, name: str, offsets: dict[TopicPartition, int]) -> None:
        began_s = time.monotonic()
        outcome: Outcome = "ok"
        try:
            await consumer.commit(offsets)
        except BarnabasError as error:
            self.commit_errors[type(error).__name__] += 1
            outcome = "info"
        ended_s = time.monotonic()
        for place, offset in offsets.items():
            self.history.add(
                Commit(
                    process=name,
                    group=GROUP,
                    partition=(place.topic, place.partition),
                    offset=offset,
                    began_s=began_s,
                    ended_s=ended_s,
                    outcome=outcome,
                )
            )

    # --- the admin ---------------------------------------------------------------------------------------------------

    async def _watch_ends(self) -> None:
        async with self._admin("ends") as admin:
            while not self._over.is_set():
                began_s = time.monotonic()
                try:
                    ends = await admin.list_offsets(TOPIC)
                except BarnabasError:
                    ends = {}
                ended_s = time.monotonic()
                for place, item in ends.items():
                    self._ends[place.topic, place.partition] = item.offset
                    self.history.add(
                        EndOffset(
                            process="ends",
                            partition=(place.topic, place.partition),
                            offset=item.offset,
                            began_s=began_s,
                            ended_s=ended_s,
                        )
                    )
                await first_of(self._over, ENDS_EVERY_S)

    async def _make_topics(self) -> None:
        """Topics come and go while everything else happens."""
        async with self._admin("topics") as admin:
            while not self._over.is_set():
                self._counter += 1
                name = f"passing-{self._counter}"
                if await self._try(admin.create_topic(name, partitions=2)):
                    self.topics_made += 1
                    await self._try(admin.delete_topic(name))
                await first_of(self._over, TOPICS_EVERY_S)

    async def _try(self, call: Awaitable[object]) -> bool:
        began_s = time.monotonic()
        try:
            with self._counting(self.topic_errors):
                await call
                return True
            return False
        finally:
            self.slowest_topic_call_s = max(self.slowest_topic_call_s, time.monotonic() - began_s)

    def _admin(self, name: str) -> Admin:
        return Admin(self.bootstrap, client_id=name)


def describe_reading(name: str, consumer: Consumer, partitions: Iterable[Partition]) -> str:
    """What a member knows of these partitions, and what it waits for."""
    client, told = consumer._client, [f"{name} has {len(consumer.assignment)} partitions"]
    for place in (TopicPartition(*partition) for partition in partitions):
        if (state := consumer._reading.states.get(place)) is not None:
            leader = client.metadata.leader(place)
            told.append(
                f"{place} position {state.position} fetch_offset {state.fetch_offset} high_watermark {state.high_watermark}"
                f" in_flight {state.in_flight} backing_off {state.is_backing_off} paused {state.is_paused}"
                f" buffered {state.buffered_bytes} last_fetched_epoch {state.last_fetched_epoch}"
                f" reset {state.reset_timestamp_ms} version {state.version} leader {leader}"
            )
    return ", ".join([*told, f"fetches under way {consumer._fetcher._in_flight}", f"{client.metadata.brokers}"])


async def _position(consumer: Consumer, place: TopicPartition) -> int:
    """Where the next record is; -1 where that is not known yet, or the partition has just gone to another member."""
    try:
        async with asyncio.timeout(0.2):
            offset: int = await consumer.position(place)
            return offset
    except (BarnabasError, TimeoutError):
        return -1


async def first_of(event: asyncio.Event, pause_s: float) -> None:
    """The pace of a client: until the event, at most this long."""
    try:
        async with asyncio.timeout(pause_s):
            await event.wait()
    except TimeoutError:
        pass
