"""More programs with mistakes, and the same without: a failed batch, retries out of order, a dead letter that comes twice."""

import asyncio

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.testing.simulation.simulate import Simulation

from .programs import ORDERS, Main, consumer_of, send_orders, until

AT_ONCE = 3  # records that are in flight
QUIET_S = 20.0  # virtual, for records that are still to be read


async def stored_in(simulation: Simulation, topic: str) -> list[int]:
    found: list[int] = []
    async with Consumer(
        bootstrap=simulation.bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        partitions = await consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(*partitions)
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for batch in (await consumer.poll()).values():
                found += [int(record.value or b"") for record in batch]
    return found


def batching(*, commits_failed: bool = False) -> Main:
    """Each order is written to a database that fails now and then; the offsets of a batch that failed must not be committed."""

    async def main(simulation: Simulation) -> None:
        stored: set[bytes] = set()

        async def work() -> None:
            async with consumer_of(simulation) as consumer:
                while True:
                    for batch in (await consumer.poll(timeout_ms=500, max_records=5)).values():
                        await asyncio.sleep(0.02)
                        if simulation.rng.random() < 0.9:
                            stored.update(bytes(record.value or b"") for record in batch)
                        elif not commits_failed:  # the database is away: the batch is read again
                            consumer.seek(TopicPartition(batch[0].topic, batch[0].partition), batch[0].offset)
                    await consumer.commit()

        await simulation.create_topic("orders", partitions=2)
        simulation.program(work)
        await send_orders(simulation)
        await simulation.quiet()
        await until(lambda: len(stored) == ORDERS)
        assert len(stored) == ORDERS, f"{ORDERS - len(stored)} orders were never stored"

    return main


def retrying(*, reorders: bool = False) -> Main:
    """A program sends failed records again. Those that come after them must wait, or the order is lost."""

    async def main(simulation: Simulation) -> None:
        await simulation.create_topic("orders")
        waiting = list(range(ORDERS))
        async with Producer(
            simulation.bootstrap_servers, delivery_timeout_ms=1_500, request_timeout_ms=500
        ) as producer:
            while waiting:
                failed: list[int] = []
                for number in waiting[:AT_ONCE]:
                    try:
                        await (await producer.send("orders", b"%d" % number))
                    except BarnabasError:
                        failed.append(number)
                        if not reorders:
                            break
                sent = AT_ONCE if reorders else waiting.index(failed[0]) + 1 if failed else AT_ONCE
                waiting = waiting[sent:] + failed if reorders else failed + waiting[sent:]
                await asyncio.sleep(0.3)
        await simulation.quiet()
        first = list(dict.fromkeys(await stored_in(simulation, "orders")))
        assert first == sorted(first), f"out of order: {first}"

    return main


def dead_lettering(*, sends_before_commit: bool = False) -> Main:
    """Each third order cannot be billed. Its dead letter and its offset must be one transaction, or there are two of them."""

    async def main(simulation: Simulation) -> None:
        name = None if sends_before_commit else "billing"

        async def work() -> None:
            async with (
                consumer_of(simulation) as consumer,
                Producer(simulation.bootstrap_servers, transactional_id=name) as producer,
            ):
                async for record in consumer:
                    if int(record.value or b"") % 3:
                        continue
                    if sends_before_commit:
                        await (await producer.send("dead", record.value))
                        await consumer.commit()
                    else:
                        async with producer.transaction() as transaction:
                            await transaction.send("dead", record.value)
                            await transaction.commit_offsets(consumer)

        await simulation.create_topic("orders", partitions=2)
        await simulation.create_topic("dead")
        simulation.program(work)
        await send_orders(simulation)
        await simulation.quiet()
        await asyncio.sleep(QUIET_S)
        letters = await stored_in(simulation, "dead")
        told = f"{len(letters)} dead letters of {len(set(letters))} orders"
        assert len(letters) == len(set(letters)) == ORDERS // 3, told

    return main
