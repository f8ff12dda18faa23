"""Batches that grow while their broker is busy: the rule, and a producer that follows it."""

import asyncio
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import InvalidConfigError
from barnabas.net.client.producer.batch_growth import BUSY_REQUESTS, BatchGrowth
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import ProduceRequest

T0 = TopicPartition("t", 0)
ANSWER_S = 0.01  # of a broker that is slow enough for batches to pile up


@pytest.mark.parametrize(
    ("room", "requests", "sealed", "then"),
    [
        (100, 0, 0, 100),  # idle: it leaves
        (100, BUSY_REQUESTS - 1, 0, 100),
        (100, BUSY_REQUESTS, 0, 200),  # busy: it would wait
        (100, 0, 1, 200),  # another one waits before it
        (300, BUSY_REQUESTS - 1, 0, 300),  # what has grown leaves, too
        (300, 5, 8, 400),
        (650, 5, 8, 700),
        (700, 5, 8, 700),  # the largest
        (900, 5, 8, 900),  # of one large record
    ],
)
def test_a_full_batch_grows_where_it_would_wait(room: int, requests: int, sealed: int, then: int) -> None:
    growth = BatchGrowth(step_bytes=100, max_bytes=700)
    assert growth.room_of_full(room, requests=requests, sealed=sealed) == then


def test_a_refused_size_halves_the_limit_for_good() -> None:
    growth = BatchGrowth(step_bytes=100, max_bytes=700)
    assert (growth.first_bytes, growth.whole_bytes(5_000)) == (100, 5_000)
    growth.refused(390)
    assert growth.room_of_full(100, requests=5, sealed=5) == 195
    assert (growth.first_bytes, growth.whole_bytes(5_000)) == (100, 195)
    growth.refused(60)
    assert (growth.first_bytes, growth.whole_bytes(5_000)) == (30, 30)
    assert growth.room_of_full(100, requests=5, sealed=5) == 100, "a batch never shrinks"
    for size in (3, 2, 1, 1):
        growth.refused(size)
    assert growth.first_bytes == 1


def slow(cluster: FakeCluster) -> Any:
    async def produce(node_id: int, request: ProduceRequest) -> r.ProduceResponse:
        await asyncio.sleep(ANSWER_S)
        return cluster.produce(node_id, request)

    return produce


def batch_sizes(request: ProduceRequest) -> list[int]:
    return [header.size_bytes for item in request.partitions for header in iter_headers(item.records)]


async def _send_to_a_slow_broker(cluster: FakeCluster, api: str, count: int, **options: Any) -> list[int]:
    """Returns the sizes of the requests' batches, refused ones included."""
    values = [b"%09d" % number + bytes(990) for number in range(count)]
    async with Producer(client=cluster.client(), **options) as producer:
        if api == "send":
            handles = [await producer.send("t", value) for value in values]
        else:
            handles = list(await producer.send_many("t", values, [b"key"] * count if api == "with key" else None))
        places = [await handle for handle in handles]
    assert [place.offset for place in places] == list(range(count))
    assert cluster.logs[T0].values() == values
    return [size for request in cluster.sent(ProduceRequest) for size in batch_sizes(request)]


@pytest.mark.parametrize("api", ["send", "send_many", "with key"])
def test_batches_grow_while_their_broker_is_busy(api: str) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, slow(cluster), forever=True)
        sizes = await _send_to_a_slow_broker(cluster, api, 6_000)
        assert 60_000 < sizes[0] <= 65_536, "the first one leaves at once"
        assert max(sizes) <= 524_288
        assert sum(size > 400_000 for size in sizes) > 5
        assert len(sizes) < 30, "with 64 KB a batch, there were 95"

    run(main())


def test_a_batch_size_that_is_asked_for_is_kept_unless_a_larger_one_is_allowed() -> None:
    async def main() -> None:
        for options, largest in (
            ({"batch_size": 10_000}, 10_000),
            ({"batch_size": 10_000, "max_batch_size": 40_000}, 40_000),
            ({"max_batch_size": 20_000}, 20_000),
        ):
            cluster = FakeCluster(topics={"t": 1})
            cluster.script(ApiKey.PRODUCE, slow(cluster), forever=True)
            sizes = await _send_to_a_slow_broker(cluster, "send", 1_000, **options)
            assert largest - 1_100 < max(sizes) <= largest

    run(main())
    with pytest.raises(InvalidConfigError, match=r"max_batch_size \(5000\) must be at least batch_size \(10000\)"):
        Producer(batch_size=10_000, max_batch_size=5_000)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_topic_that_takes_only_small_batches_refuses_few(idempotent: bool) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, slow(cluster), forever=True)
        cluster.logs[T0].max_batch_bytes = 100_000
        sizes = await _send_to_a_slow_broker(cluster, "send", 6_000, enable_idempotence=idempotent)
        assert sum(size > 100_000 for size in sizes) <= 8, "those on their way when the first was refused"
        assert max(sizes[len(sizes) // 2 :]) <= 100_000

    run(main())


def test_what_has_grown_leaves_with_the_next_answer_and_a_lone_record_at_once() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, slow(cluster), forever=True)
        loop = asyncio.get_running_loop()
        async with Producer(client=cluster.client()) as producer:
            began = loop.time()
            await (await producer.send("t", b"alone"))
            assert loop.time() - began == pytest.approx(ANSWER_S, abs=0.01)
            began = loop.time()
            sent = await producer.send_many("t", [bytes(60_000)] * 4)
            await sent
            assert loop.time() - began == pytest.approx(2 * ANSWER_S, abs=0.02)
        assert len(cluster.sent(ProduceRequest)[-1].partitions[0].records) > 100_000

    run(main())


def test_a_full_buffer_keeps_batches_from_growing() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, slow(cluster), forever=True)
        sizes = await _send_to_a_slow_broker(cluster, "send", 3_000, buffer_memory=200_000)
        assert max(sizes) <= 200_000

    run(main())
