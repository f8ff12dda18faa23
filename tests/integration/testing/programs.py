"""A program that bills orders, and the same with a mistake in it; what simulations of users' programs are tried with."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.testing.simulation.cluster import wait_until
from barnabas.net.testing.simulation.simulate import Simulation

ORDERS = 30
PATIENCE_S = 60.0  # virtual, once everything is healed
Main = Callable[[Simulation], Coroutine[Any, Any, object]]


def consumer_of(simulation: Simulation, **options: Any) -> Consumer:
    return Consumer(
        "orders",
        bootstrap=simulation.bootstrap_servers,
        group="billing",
        auto_offset_reset="earliest",
        auto_commit=False,
        **options,
    )


async def send_orders(simulation: Simulation, **options: Any) -> None:
    async with Producer(simulation.bootstrap_servers, **options) as producer:
        for number in range(ORDERS):
            await (await producer.send("orders", b"%d" % number, key=b"%d" % (number % 4)))
            await asyncio.sleep(0.2)


async def until(condition: Callable[[], bool]) -> None:
    await wait_until(condition, limit_s=PATIENCE_S, every_s=0.5)


def billing(*, commits_first: bool = False) -> Main:
    """Every order is billed at least once, unless the offset is committed before the work is done."""

    async def main(simulation: Simulation) -> None:
        billed: set[bytes] = set()

        async def bill() -> None:
            async with consumer_of(simulation) as consumer:
                async for record in consumer:
                    if commits_first:
                        await consumer.commit()
                    await asyncio.sleep(0.05)
                    billed.add(bytes(record.value or b""))
                    if not commits_first:
                        await consumer.commit()

        await simulation.create_topic("orders", partitions=2)
        simulation.program(bill)
        await send_orders(simulation)
        await simulation.quiet()
        await until(lambda: len(billed) == ORDERS)
        assert len(billed) == ORDERS, f"{ORDERS - len(billed)} orders were never billed"

    return main


def sending(*, is_idempotent: bool = True) -> Main:
    """Every order is stored once, unless retries are not recognized."""

    async def main(simulation: Simulation) -> None:
        await simulation.create_topic("orders", partitions=2)
        await send_orders(simulation, enable_idempotence=is_idempotent, request_timeout_ms=1_000)
        await simulation.quiet()
        stored: list[bytes] = []
        async with Consumer(bootstrap=simulation.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            partitions = await consumer.partitions_for("orders")
            consumer.assign(partitions)
            ends = await consumer.end_offsets(*partitions)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for batch in (await consumer.poll()).values():
                    stored += [bytes(record.value or b"") for record in batch]
        assert len(stored) == len(set(stored)) == ORDERS, f"{len(stored)} records of {len(set(stored))} orders"

    return main


def counting(*, keeps_counts: bool = False) -> Main:
    """Two members count the orders of each customer in a table; offset and count are one transaction of it. A member that keeps
    its counts across a rebalance overwrites those of the member that had the partition in between."""

    async def main(simulation: Simulation) -> None:
        table: dict[bytes, int] = {}
        offsets: dict[TopicPartition, int] = {}  # in the same database

        async def count() -> None:
            counts: dict[bytes, int] = {}

            def assigned(partitions: list[TopicPartition]) -> None:
                if not keeps_counts:
                    counts.clear()

            async with consumer_of(simulation, on_assigned=assigned, session_timeout_ms=1_500) as consumer:
                async for record in consumer:
                    place, key = TopicPartition(record.topic, record.partition), bytes(record.key or b"")
                    if record.offset < offsets.get(place, 0):
                        continue  # counted already
                    if record.offset > offsets.get(place, 0):
                        raise AssertionError(f"{place} has a gap before {record.offset}")
                    counts[key] = counts.get(key, table.get(key, 0)) + 1
                    table[key], offsets[place] = counts[key], record.offset + 1
                    try:
                        await consumer.commit()
                    except BarnabasError:
                        counts.clear() if not keeps_counts else None

        await simulation.create_topic("orders", partitions=4)
        for _ in range(2):
            simulation.program(count)
        await send_orders(simulation)
        await simulation.quiet()
        await until(lambda: sum(offsets.values()) == ORDERS)
        assert sum(table.values()) == ORDERS, f"counted {sum(table.values())} of {ORDERS} orders"

    return main
