"""The short way of records into open batches, as callers of a producer see it."""

import asyncio
import inspect
from typing import Any

from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.producer.producer import Producer

T0 = TopicPartition("t", 0)


def test_records_that_are_sent_without_waiting_keep_their_order() -> None:
    """Each call that finds no room leaves the short way to those after it only when it has begun."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        sizes = [10, 900, 20, 30, 800, 40, 50, 1000, 10]
        values = [b"%d" % number * size for number, size in enumerate(sizes)]
        async with Producer(client=cluster.client(), batch_size=1024) as producer:
            for key in (None, b"k"):
                await producer.send("t", values[0], key=key)  # leaves room for small ones
                await asyncio.gather(*[producer.send("t", value, key=key) for value in values[1:]])
        assert cluster.logs[T0].values() == values + values

    run(main())


def test_records_behind_an_unusual_one_go_the_short_way_again() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), linger_ms=1_000) as producer:
            await producer.send("t", b"first")
            for unusual in ({"headers": [("h", b"1")]}, {"timestamp_ms": 5}, {"partition": 0}):
                call: Any = producer.send("t", b"unusual", **unusual)
                behind: Any = producer.send("t", b"behind")
                assert inspect.iscoroutine(call) and inspect.iscoroutine(behind), "it must not overtake"
                await call
                await behind
                again: Any = producer.send("t", b"usual")
                assert not inspect.iscoroutine(again)
                await again

    run(main())


def test_a_subclass_may_have_its_own_send() -> None:
    class Shouting(Producer):
        async def send(self, topic: str, value: Any, **options: Any) -> Any:
            return await super().send(topic, value.upper(), **options)

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Shouting(client=cluster.client()) as producer:
            for value in (b"a", b"b", b"c"):
                await producer.send("t", value)
        assert cluster.logs[T0].values() == [b"A", b"B", b"C"]

    run(main())
