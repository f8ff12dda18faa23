"""The transactional load of a campaign: chains of transforms and a bank in processes of their own, and readers of both.

Each input of the chain becomes one record of MIDDLE and one of SINK, by transactions that also commit the offsets of what was
read. The bank moves money between accounts, each of which is a partition. A share of all transactions is aborted on purpose.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.positions.offset_lookup import LATEST

from ..checker import Report
from ..cluster import FaultCluster
from ..final_reads import committed_offsets, read_partitions
from ..history import History, OpenTransaction, Partition, Poll, StableOffset, Stuck
from ..injector import Kind
from ..workload import LIFE_S, first_of
from .checker import judge
from .clients import Client
from .final_checks import open_transactions, read_by_librdkafka, read_by_tables
from .injections import client_faults
from .layout import (
    BANKS,
    COPIES,
    CUT,
    MAX_REREAD,
    MIDDLE,
    SINK,
    SOURCE,
    STAGES,
    TOPIC_CONFIG,
    TOPICS,
    TRANSACTION_TIMEOUT_MS,
    Role,
)
from .tables import by_partition

PACE_S: Final = 0.06  # between records of the source, between transactions of the bank
STABLE_EVERY_S: Final = 0.3
POLL_MS: Final = 200
KEEP_S: Final = 0.2
DRAIN_S: Final = 90.0  # with two timeouts of transactions, and two sessions of members
STOP_S: Final = 60.0
GRACE_S: Final = 5.0  # a transaction whose producer is dead ends within its timeout and this
OPEN_S: Final = 3.0  # how long the end waits for a moment in which a client has an open transaction
OPEN_CHECK_S: Final = 0.01
ROLES: Final[tuple[tuple[Role, int], ...]] = (
    ("source", 1),
    ("librdkafka_transform", 2),
    ("aiokafka_transform", TOPICS[MIDDLE]),
    ("librdkafka_bank", 1),
    ("aiokafka_bank", 1),
    ("sdk_transform", 2),
    ("sdk_bank", 1),
    ("librdkafka_reader", 1),
)
TRANSFORMS: Final[tuple[Role, ...]] = ("librdkafka_transform", "aiokafka_transform", "sdk_transform")
PARTITIONS: Final = tuple((topic, number) for topic, count in TOPICS.items() for number in range(count))


class TransactionalLoad:
    """A `Load`."""

    topics: Mapping[str, int] = TOPICS
    topic_config: Mapping[str, Mapping[str, str]] = TOPIC_CONFIG
    progressing: tuple[Partition, ...] = tuple(place for place in PARTITIONS if place[0] in (SINK, COPIES, *BANKS))
    roles: tuple[tuple[Role, int], ...] = ROLES
    hopeless_s: float = DRAIN_S  # a chain that stands still for so long does not end
    surplus_s: float = DRAIN_S  # one that has more outputs than inputs for so long does not end either

    def __init__(self, cluster: FaultCluster, history: History, rng: Random, slowness: float) -> None:
        self.bootstrap = cluster.bootstrap
        self.history = history
        self.acked: dict[Partition, int] = defaultdict(int)  # records that a reader of committed ones has got
        self.clients: dict[str, Client] = {}
        folder = cluster.folder / "clients"
        folder.mkdir(parents=True)
        for role, count in self.roles:
            for slot in range(count):
                client = Client(folder, role, slot, self.bootstrap, Random(rng.random()), PACE_S * slowness)
                self.clients[client.name] = client
        self.faults: Mapping[str, Kind] = client_faults(self.clients, history, folder)
        self._cluster = cluster
        self._rng = rng
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._read_errors: Counter[str] = Counter()
        self._highest: dict[Partition, int] = {}

    def start(self) -> None:
        for client in self.clients.values():
            client.start()
        self._tasks = [
            self._task(self._keep_running()),
            self._task(self._watch_stable_offsets()),
            self._task(self._read_on()),
            self._task(self._read_tables()),
        ]

    def failure(self) -> BaseException | None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=str(work))

    def _of(self, *roles: str) -> list[Client]:
        return [client for client in self.clients.values() if client.role in roles]

    # --- the end -----------------------------------------------------------------------------------------------------

    async def stop_producing(self) -> None:
        """The bank dies in the middle of its transactions, which must end without it."""
        for client in self._of("source"):
            client.stop()
        alive = self._of("librdkafka_bank", "aiokafka_bank", "sdk_bank")
        until_s = time.monotonic() + OPEN_S
        while alive and time.monotonic() < until_s:
            for client in [client for client in alive if client.is_in_transaction]:
                client.end()
                alive.remove(client)
            await first_of(self._over, OPEN_CHECK_S)
        for client in alive:
            client.end()
        limit_s = TRANSACTION_TIMEOUT_MS / 1000 + GRACE_S
        banks = [place for place in PARTITIONS if place[0] in (*BANKS, CUT)]
        await self._until_stable(banks, limit_s)

    async def drain(self, ends: Mapping[Partition, int]) -> None:
        began_s = hopeful_s = time.monotonic()
        last: Counter[str] = Counter()
        while not (counts := self._counts())[SOURCE] == counts[MIDDLE] == counts[SINK] == counts[COPIES] or any(
            client.is_running for client in self._of("source")
        ):
            now_s = time.monotonic()
            has_surplus = counts[SOURCE] < max(counts[MIDDLE], counts[SINK], counts[COPIES])
            if counts != last and not has_surplus:
                hopeful_s = now_s
            last = counts
            patience_s = self.surplus_s if has_surplus else self.hopeless_s
            if now_s > min(began_s + DRAIN_S, hopeful_s + patience_s) or self.failure() is not None:
                self._stuck(f"the chain has not come to its end in {now_s - began_s:.0f} s: {dict(counts)}")
                await self._tell_standing()
                break
            await first_of(self._over, KEEP_S)
        for client in self.clients.values():
            client.stop()
        await self._until_ended()
        await self._until_stable(PARTITIONS, TRANSACTION_TIMEOUT_MS / 1000 + GRACE_S)
        self._over.set()
        _, pending = await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in pending:
            self._stuck(f"{task.get_name()} has not ended after {STOP_S:g} s")
            task.cancel()

    async def _tell_standing(self) -> None:
        """Which member owns what, as its coordinator and as it says itself: who does not go on?"""
        async with self._cluster.admin() as admin:
            for topic, _, group in STAGES:
                try:
                    found = await admin.describe_group(group)
                    lag = {str(place): item for place, item in (await admin.group_offsets(group)).items()}
                except BarnabasError as error:
                    self._stuck(f"group {group} of {topic} cannot be described: {error!r}")
                    continue
                owners = {member.member_id: [str(place) for place in member.assigned] for member in found.members}
                self._stuck(f"group {group} is {found.state}, generation {found.group_epoch}: {owners}; {lag}")
        for client in self._of(*TRANSFORMS):
            self._stuck(client.standing())

    def _counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (topic, _), count in self.acked.items():
            counts[topic] += count
        return counts

    async def _until_ended(self) -> None:
        deadline_s = time.monotonic() + STOP_S
        while running := [client.name for client in self.clients.values() if client.is_running]:
            if time.monotonic() > deadline_s:
                self._stuck(f"these clients have not ended after {STOP_S:g} s: {running}")
                break
            await first_of(self._over, KEEP_S)
        for client in self.clients.values():
            client.end()

    async def _until_stable(self, partitions: "list[Partition] | tuple[Partition, ...]", limit_s: float) -> None:
        """Without producers every last stable offset reaches the high watermark."""
        deadline_s = time.monotonic() + limit_s
        async with self._cluster.admin() as admin:
            while True:
                behind: object = "no answer"
                try:
                    asked = {TopicPartition(*place): LATEST for place in partitions}
                    ends = await admin.find_offsets(asked)
                    stable = await admin.find_offsets(asked, isolation_level="read_committed")
                    behind = {
                        str(place): (stable[place].offset, item.offset)
                        for place, item in ends.items()
                        if stable[place].offset < item.offset
                    }
                except BarnabasError as error:
                    self._read_errors[type(error).__name__] += 1
                if not behind:
                    return
                if time.monotonic() > deadline_s:
                    text = f"{limit_s:g} s after the last producer: last stable offset, end = {behind}"
                    self.history.add(OpenTransaction(what=text, at_s=time.monotonic()))
                    return
                await first_of(self._over, KEEP_S)

    async def read_all(self, name: str, ends: Mapping[Partition, int]) -> None:
        """Up to the last stable offsets: `drain` has told if a transaction does not end, behind which nobody reads."""
        history, bootstrap = self.history, self.bootstrap
        async with self._cluster.admin() as admin:
            asked = {TopicPartition(*place): LATEST for place in ends}
            stable = await admin.find_offsets(asked, isolation_level="read_committed")
        ends = {(place.topic, place.partition): item.offset for place, item in stable.items()}
        for what in await self._left_open(sorted(ends)):
            history.add(OpenTransaction(what=f"{name}: {what}", at_s=time.monotonic()))
        for topic, _, group in STAGES:
            places = [(topic, number) for number in range(TOPICS[topic])]
            await asyncio.to_thread(committed_offsets, bootstrap, history, group, places)
        await asyncio.to_thread(read_by_librdkafka, bootstrap, history, f"{name}, by librdkafka", ends)
        await read_by_tables(bootstrap, history, f"{name}, as tables", ends)
        await read_partitions(bootstrap, history, name, ends, isolation_level="read_committed")

    async def _left_open(self, partitions: "list[Partition]") -> list[str]:
        """What does not end within its timeout. A transaction without records holds back no stable offset, and its client may
        have ended a moment ago."""
        deadline_s = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000 + GRACE_S
        while found := await asyncio.to_thread(open_transactions, self.bootstrap, partitions):
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(KEEP_S)
        return found

    async def cancel(self) -> None:
        for client in self.clients.values():
            client.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        found = {name: client.errors for name, client in self.clients.items() if client.errors}
        return {"readers": self._read_errors, **found}

    def judge(self, fault_kinds: frozenset[str]) -> Report:
        for client in self.clients.values():
            for event in client.events():
                self.history.add(event)
        return judge(self.history, fault_kinds)

    def _stuck(self, what: str) -> None:
        self.history.add(Stuck(what=what, at_s=time.monotonic()))

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        while not self._over.is_set():
            for client in self.clients.values():
                client.keep_running()
            await first_of(self._over, KEEP_S)

    async def _watch_stable_offsets(self) -> None:
        places = {TopicPartition(*place): LATEST for place in PARTITIONS}
        async with self._cluster.admin() as admin:
            while not self._over.is_set():
                began_s = time.monotonic()
                try:
                    stable = await admin.find_offsets(places, isolation_level="read_committed")
                    ended_s = time.monotonic()
                    ends = await admin.find_offsets(places)
                except BarnabasError as error:
                    self._read_errors[type(error).__name__] += 1
                else:
                    for place, item in stable.items():
                        self.history.add(
                            StableOffset(
                                partition=(place.topic, place.partition),
                                last_stable_offset=item.offset,
                                high_watermark=ends[place].offset,
                                began_s=began_s,
                                ended_s=ended_s,
                            )
                        )
                await first_of(self._over, STABLE_EVERY_S)

    async def _read_on(self) -> None:
        """Everything once; what it gets is the progress of the load."""
        async with self._reader("sdk-reader") as consumer:
            consumer.assign(sorted(PARTITIONS))
            while not self._over.is_set():
                try:
                    found = await consumer.poll(timeout_ms=POLL_MS)
                except BarnabasError as error:
                    self._read_errors[type(error).__name__] += 1
                    continue
                for place, records in found.items():
                    values = [(record.offset, (record.value or b"").decode()) for record in records]
                    self._note("sdk-reader", 0, (place.topic, place.partition), values)
                    self.acked[place.topic, place.partition] += len(values)
                    self._highest[place.topic, place.partition] = values[-1][0]

    async def _read_tables(self) -> None:
        session = 0
        while not self._over.is_set():
            ends_s = time.monotonic() + self._rng.uniform(*LIFE_S)
            try:
                async with self._reader("arrow-reader") as consumer:
                    consumer.assign(sorted(PARTITIONS))
                    for partition, last in self._highest.items():
                        if last > MAX_REREAD:
                            consumer.seek(partition, last - MAX_REREAD)
                    while not self._over.is_set() and time.monotonic() < ends_s:
                        table = await consumer.poll_arrow(timeout_ms=POLL_MS)
                        for place, values in by_partition(table).items():
                            self._note("arrow-reader", session, place, values)
            except BarnabasError as error:
                self._read_errors[type(error).__name__] += 1
                await first_of(self._over, KEEP_S)
            session += 1

    def _reader(self, name: str) -> Consumer:
        return Consumer(
            bootstrap=self.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed", client_id=name
        )

    def _note(self, process: str, session: int, partition: Partition, values: list[tuple[int, str]]) -> None:
        self.history.add(
            Poll(
                process=process,
                group="",
                session=session,
                partition=partition,
                at_s=time.monotonic(),
                records=tuple(values),
            )
        )
