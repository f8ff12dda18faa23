"""One history of a share group: whole brokers, the SDK's `ShareConsumer` in programs that die, faults on both sides.
`run_shares(seed)`; the cluster, the programs and the faults are those of `barnabas.testing.simulate`.

- a record whose acknowledgement was confirmed by `commit` is never given out again, to any program;
- the SDK returns no record whose lock may be over;
- deliveries of a record are counted from one, and no count is above the limit;
- in the end every record was accepted, or is a dead letter, and the group has no lag.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.share.messages import SharePartitionAnswer
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.share.leader_session import LeaderSession
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.client.share.share_record import ShareRecord
from barnabas.net.testing.simulation.cluster import wait_until
from barnabas.net.testing.simulation.simulate import Simulation, SimulationResult, simulate

from .checkers.violation import Violation

TOPIC, GROUP = "jobs", "workers"
PARTITIONS: Final = 2
RECORDS: Final = 60
WORKERS: Final = 3
SECONDS: Final = 8.0  # of faults
DELIVERIES: Final = 20
PATIENCE_S: Final = (
    120.0  # virtual, after the last fault: locks of dead members run out, some of them one after the other
)
LOCK_MS: Final = 2_000
ANY_CLOCK: Final = {"message.timestamp.after.max.ms": str(2**63 - 1)}  # some histories set the clocks of brokers back
Place = tuple[TopicPartition, int]


class Ledger:
    """What the world outside of the programs has seen; it survives them."""

    def __init__(self) -> None:
        self.accepted: set[Place] = set()
        self.dead: set[Place] = set()
        self.confirmed: dict[Place, float] = {}  # when, in ms
        self.returned = 0

    @property
    def done(self) -> int:
        return len(self.accepted | self.dead)

    def was_returned(self, record: ShareRecord, asked_ms: float, now_ms: float) -> Place:
        """`asked_ms`: when the fetch began that brought it. One that began before the confirmation may have brought it from a
        leader that was replaced since, and whose locks were over."""
        self.returned += 1
        place = record.topic_partition, record.offset
        told = f"{place[0]} offset {place[1]}"
        if self.confirmed.get(place, now_ms) < asked_ms:
            raise Violation(f"{told} is given out again, although its acknowledgement was confirmed")
        if now_ms >= asked_ms + LOCK_MS:
            raise Violation(f"{told} is returned after {now_ms - asked_ms:.0f} ms: its lock may be over")
        if not 1 <= record.delivery_count <= DELIVERIES:
            raise Violation(f"{place[0]} offset {place[1]}: delivery {record.delivery_count}")
        return place

    async def keep(self, record: ShareRecord, error: Exception) -> None:
        await asyncio.sleep(0.01)
        self.dead.add((record.topic_partition, record.offset))


class NotedConsumer(ShareConsumer):
    """It notes when it has asked for the records that it gets."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asked_ms: dict[tuple[int, int], float] = {}  # by partition and offset

    def _take(self, item: SharePartitionAnswer, session: LeaderSession, deadline_ms: float) -> None:
        super()._take(item, session, deadline_ms)
        for acquired in item.acquired:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                self.asked_ms[item.partition, offset] = deadline_ms - LOCK_MS


async def work(simulation: Simulation, ledger: Ledger, rng: Random) -> None:
    """An application: takes some records, works, accepts most of them, and at times waits until that is stored."""
    consumer = NotedConsumer(
        TOPIC,
        bootstrap=simulation.bootstrap_servers,
        group=GROUP,
        max_records=rng.choice((1, 5, 20)),
        fetch_max_wait_ms=200,
        request_timeout_ms=1_500,
        dead_letter=ledger.keep,
        max_deliveries=DELIVERIES - 2,
    )
    async with consumer:
        settled: set[Place] = set()  # acknowledged finally, and not confirmed
        while True:
            records = await consumer.poll(max_records=rng.choice((1, 3, 20)), timeout_ms=300)
            now_ms = simulation.now_s * 1000
            for record in records:
                asked_ms = consumer.asked_ms[record.partition, record.offset]
                place = ledger.was_returned(record, asked_ms, now_ms)
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
                kind = rng.choices(("accept", "release", "reject"), (85, 10, 5))[0]
                if kind == "accept":
                    ledger.accepted.add(place)
                consumer.acknowledge(record, kind)
                if kind != "release":
                    settled.add(place)
            if rng.random() < 0.6:
                try:
                    await consumer.commit(timeout_ms=5_000)
                except BarnabasError as error:  # one was refused, or it is not known: it does not say which
                    simulation.loop.note(f"not confirmed: {error.code.name}")
                else:
                    ledger.confirmed |= dict.fromkeys(settled, simulation.now_s * 1000)
                settled.clear()


async def insisted(ask: Callable[[], Awaitable[object]]) -> None:
    """An operator tries again while the cluster is broken."""
    while True:
        try:
            await ask()
            return
        except BarnabasError:
            await asyncio.sleep(0.5)


def history(ledger: Ledger) -> Callable[[Simulation], Coroutine[Any, Any, None]]:
    async def main(simulation: Simulation) -> None:
        async with Admin(simulation.bootstrap_servers, request_timeout_ms=1_500) as admin:
            await insisted(
                lambda: admin.create_topic(TOPIC, partitions=PARTITIONS, configs=ANY_CLOCK, if_not_exists=True)
            )
            settings = {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": str(DELIVERIES),
                "share.record.lock.duration.ms": str(LOCK_MS),
            }
            await insisted(lambda: admin.alter_config(GROUP, settings, resource_type="group"))
            for _ in range(WORKERS):
                simulation.program(work, simulation, ledger, Random(simulation.rng.getrandbits(64)))
            async with Producer(simulation.bootstrap_servers, request_timeout_ms=1_500) as producer:
                for number in range(RECORDS):
                    await (await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS))
                    await asyncio.sleep(simulation.rng.choice((0.0, 0.05, 0.2)))
            await simulation.quiet()
            await wait_until(lambda: ledger.done >= RECORDS, limit_s=PATIENCE_S, every_s=0.5)
            if ledger.done < RECORDS:
                raise Violation(
                    f"{RECORDS - ledger.done} of {RECORDS} records were neither accepted nor kept as dead letters"
                )
            lag: dict[TopicPartition, int] = {}
            for _ in range(int(PATIENCE_S)):
                lag = {place: item.lag for place, item in (await admin.group_offsets(GROUP)).items()}
                if len(lag) == PARTITIONS and not any(lag.values()):
                    return
                await asyncio.sleep(1)
            raise Violation(f"the group has a lag: {lag}")

    return main


def run_shares(seed: int, faults: Sequence[str] = ()) -> tuple[SimulationResult, Ledger]:
    """Raises SimulationFailed, which names the seed."""
    ledger = Ledger()
    return simulate(history(ledger), seed=seed, seconds=SECONDS, faults=faults, limit_s=600), ledger
