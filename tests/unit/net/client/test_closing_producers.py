"""A producer that is closed while it starts, opens connections or waits, once or twice, cancelled or not: each record ends with a
result or an error, and nothing is left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from unit.net.client.consumer_world import consumer, filled
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.fake_transactions import FakeTransactions
from unit.net.client.virtual_time import run

from barnabas.net.client.connection.errors import BarnabasError, ClientClosedError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.ending import ABORT_WAIT_MS
from barnabas.net.client.transactions.machine import Outcome
from barnabas.net.wire.protocol.api_keys import ApiKey

from .test_closing import MOST_STEPS, check_tasks

PARTITIONS = 4
Maker = Callable[[FakeCluster], Producer | Consumer]
Close = Callable[[Producer], Awaitable[Any]]


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def check_nothing_is_left(cluster: FakeCluster) -> None:
    assert not cluster.connections
    check_tasks()


def idempotent(cluster: FakeCluster) -> Producer:
    return Producer(client=cluster.client())


def plain(cluster: FakeCluster) -> Producer:
    return Producer(client=cluster.client(), enable_idempotence=False, acks=1)


def unacknowledged(cluster: FakeCluster) -> Producer:
    return Producer(client=cluster.client(), acks=0)


def never_named(cluster: FakeCluster) -> Producer:
    cluster.script(ApiKey.INIT_PRODUCER_ID, lambda *_: HANG, forever=True)
    return Producer(client=cluster.client())


def silent(cluster: FakeCluster) -> Producer:
    cluster.script(ApiKey.PRODUCE, lambda *_: HANG, forever=True)
    return Producer(client=cluster.client(), enable_idempotence=False, acks=1)


def member(cluster: FakeCluster) -> Consumer:
    FakeGroups(cluster)
    return consumer(cluster, "t", group="g")


def reader(cluster: FakeCluster) -> Consumer:
    return consumer(cluster, "t")


@pytest.mark.parametrize("make", [idempotent, plain, unacknowledged, member, reader])
def test_a_close_in_the_middle_of_the_start_leaves_nothing_open(make: Maker) -> None:
    async def main() -> None:
        for steps in range(1, MOST_STEPS):
            cluster = filled(0, partitions=PARTITIONS, brokers=PARTITIONS)
            client = make(cluster)
            starting = asyncio.create_task(client.start())
            await passes(steps)
            has_started = starting.done()
            await client.close()
            await asyncio.wait([starting])
            assert isinstance(starting.exception(), ClientClosedError | None)
            check_nothing_is_left(cluster)
            if has_started:
                break
        assert 2 < steps < MOST_STEPS - 1

    run(main())


async def close_after(steps: int, make: Callable[[FakeCluster], Producer], close: Close) -> None:
    """Broker 1 refuses connections, and broker 2 accepts one without a word."""
    cluster = filled(0, partitions=PARTITIONS, brokers=PARTITIONS)
    cluster.down.add(1)
    cluster.frozen.add(2)
    producer = make(cluster)
    await producer.start()
    handles = [await producer.send("t", b"v", partition=number) for number in range(PARTITIONS)]
    await passes(steps)
    await close(producer)
    await passes(MOST_STEPS)
    check_nothing_is_left(cluster)
    for handle in handles:
        async with asyncio.timeout(0):  # A record without an end is a TimeoutError.
            try:
                await handle
            except BarnabasError as error:
                assert isinstance(error, ClientClosedError), error


async def at_once(producer: Producer) -> None:
    await producer.close(timeout_ms=0)


async def twice(producer: Producer) -> None:
    await asyncio.gather(producer.close(timeout_ms=50), producer.close(timeout_ms=10))


async def cancelled(producer: Producer, *, after: int, times: int) -> None:
    close = asyncio.create_task(producer.close())
    await passes(after)
    for _ in range(times):
        close.cancel()
        await passes(1)
    await asyncio.wait([close])


@pytest.mark.parametrize("make", [idempotent, plain, unacknowledged, never_named, silent])
@pytest.mark.parametrize(
    "close",
    [at_once, twice, *(partial(cancelled, after=after, times=times) for after in (1, 3, 8) for times in (1, 3))],
)
def test_a_close_while_connections_are_opened_leaves_nothing_behind(
    make: Callable[[FakeCluster], Producer], close: Close
) -> None:
    async def main() -> None:
        for steps in (0, 1, 2, 3, 5, 8, 13):
            await close_after(steps, make, close)

    run(main())


def transactional(cluster: FakeCluster) -> Producer:
    FakeTransactions(cluster)
    cluster.script(ApiKey.END_TRANSACTION, lambda *_: HANG, forever=True)
    return Producer(client=cluster.client(), transactional_id="tx")


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("timeout_ms", [None, 50])
def test_a_close_with_an_open_transaction_whose_coordinator_is_silent_ends_in_time(
    timeout_ms: float | None, is_cancelled: bool
) -> None:
    async def main() -> None:
        cluster = filled(0)
        producer = transactional(cluster)
        await producer.start()
        transaction = producer.transaction()
        await transaction.begin()
        await transaction.send("t", b"v")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        close = asyncio.create_task(producer.close(timeout_ms=timeout_ms))
        await asyncio.sleep(0.01)
        if is_cancelled:
            close.cancel()
        await asyncio.wait([close])
        assert close.cancelled() == is_cancelled
        assert loop.time() - begin <= (timeout_ms or ABORT_WAIT_MS) / 1000 + 0.1
        check_nothing_is_left(cluster)

    run(main())


SENDS = {
    "one": lambda producer: producer.send("t", b"v"),
    "many": lambda producer: producer.send_many("t", [b"v", b"w"]),
    "table": lambda producer: producer.send_table("t", pa.table({"value": [b"v", b"w"]})),
}


@pytest.mark.parametrize("kind", SENDS)
@pytest.mark.parametrize("turns", range(MOST_STEPS))
def test_a_close_ends_a_send_that_learns_its_topic(turns: int, kind: str) -> None:
    """The record that came into the buffer behind its close had no end."""

    async def main() -> None:
        cluster = filled(0)
        producer = plain(cluster)
        await producer.start()
        sending = asyncio.ensure_future(SENDS[kind](producer))
        await passes(turns)
        await producer.close()
        async with asyncio.timeout(0.1):
            try:
                await (await sending)
            except ClientClosedError:
                pass
        check_nothing_is_left(cluster)

    run(main())


@pytest.mark.parametrize("turns", range(MOST_STEPS))
def test_a_second_close_during_a_commit_raises_nothing_and_the_commit_has_an_outcome(turns: int) -> None:
    """Both closes abort the transaction; the slower one failed, and so did the commit, with an error of asyncio."""

    async def main() -> None:
        cluster = filled(0)
        FakeTransactions(cluster)
        producer = Producer(client=cluster.client(), transactional_id="tx")
        await producer.start()
        transaction = producer.transaction()
        await transaction.begin()
        await transaction.send("t", b"v")
        committing = asyncio.create_task(transaction.commit())
        await passes(turns)
        await asyncio.gather(producer.close(), producer.close())
        await asyncio.wait([committing])
        assert isinstance(committing.exception(), BarnabasError | None)
        assert (transaction.outcome is Outcome.COMMITTED) == (committing.exception() is None)
        check_nothing_is_left(cluster)

    run(main())
