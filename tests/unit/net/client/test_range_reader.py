"""A range of one partition is read exactly, whatever its leader does; and a watch on the ends of logs is quiet and quick."""

import asyncio
from collections.abc import Sequence

import pytest
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import (
    InconsistentTopicIdError,
    NetworkError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import PartitionGoneError, TopicRecreatedError
from barnabas.net.client.consumer.end_watch import EndWatch
from barnabas.net.client.consumer.range_reader import UNKNOWN_TOPIC_PATIENCE_MS, RangeReader, batches_of
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import FetchRequest

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def fill(cluster: FakeCluster, partition: TopicPartition, values: Sequence[int], *, per_batch: int = 10) -> None:
    for first in range(0, len(values), per_batch):
        batch = [b"%d" % value for value in values[first : first + per_batch]]
        cluster.logs[partition].append(encode_batch(batch, timestamps_ms=1))
    for event in cluster.waiting:
        event.set()


async def started(cluster: FakeCluster) -> Client:
    client = cluster.client()
    client.want_topic("t")
    await client.start()
    return client


def reader(client: Client, start: int, end: int, *, topic_id: str = "", **options: int) -> RangeReader:
    limits = {"max_bytes": 1 << 20, "timeout_ms": 60_000, **options}
    return RangeReader(client, T0, start=start, end=end, is_committed_only=True, topic_id=topic_id, **limits)


async def values(found: RangeReader) -> list[int]:
    seen: list[int] = []
    while (chunk := await found.next_chunk()) is not None:
        seen += [int(record.value or b"") for _, records in batches_of(chunk, end=found.end) for record in records]
    return seen


def test_exactly_the_range_is_read_in_chunks() -> None:
    async def body() -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 1})
        fill(cluster, T0, range(100))
        client = await started(cluster)
        assert await values(reader(client, 13, 47, max_bytes=1)) == list(range(13, 47))
        assert await values(reader(client, 0, 100)) == list(range(100))
        assert await values(reader(client, 50, 50)) == []
        asked = cluster.sent(FetchRequest)
        assert [item.partitions[0].fetch_offset for item in asked[:4]] == [13, 20, 30, 40]
        await client.close()

    run(body())


def test_it_follows_its_leader() -> None:
    async def body() -> None:
        cluster = FakeCluster(brokers=3, topics={"t": 1})
        fill(cluster, T0, range(40))
        client = await started(cluster)
        found = reader(client, 0, 40, max_bytes=1)
        assert await found.next_chunk() is not None
        cluster.move_leader(T0, 2)
        assert await values(found) == list(range(10, 40))
        found = reader(client, 0, 40)
        cluster.script(
            ApiKey.FETCH, lambda node, request: NetworkError("cut"), lambda node, request: NetworkError("cut")
        )
        assert await values(found) == list(range(40))
        await client.close()

    run(body())


def test_what_the_log_does_not_have_is_told_and_can_be_skipped() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(40))
        cluster.logs[T0].start_offset = 25
        client = await started(cluster)
        found = reader(client, 5, 40)
        with pytest.raises(OffsetOutOfRangeError):
            await found.next_chunk()
        found.go_to(25)
        assert await values(found) == list(range(25, 40))  # Not 20 to 24, though they are in the same batch.
        await client.close()

    run(body())


def test_records_that_never_come_end_it_within_the_timeout() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(10))
        client = await started(cluster)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimedOutError, match="t-0 at offset 10 within 3000 ms"):
            await values(reader(client, 0, 11, timeout_ms=3_000))
        assert asyncio.get_running_loop().time() - began_s < 5
        await client.close()

    run(body())


def test_a_topic_that_is_gone_is_no_matter_of_patience() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1, "u": 1})
        client = await started(cluster)
        del cluster.logs[T0]
        cluster.offset += 1
        await client.refresh()
        with pytest.raises(PartitionGoneError, match="topic t"):
            await reader(client, 0, 1).next_chunk()
        await client.close()

    run(body())


# --- the watch ---


def test_an_idle_watch_asks_hardly_anything_and_hears_at_once() -> None:
    """As a streaming query does: it asks for the ends again and again, and waits a quarter of a second each time."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        cluster = FakeCluster(brokers=3, topics={"t": 3})
        client = cluster.client(metadata_max_age_ms=2_000)
        client.want_topic("t")
        await client.start()
        watch = EndWatch(client, is_committed_only=True)
        partitions = client.metadata.partitions("t")
        began_s, idle_s = loop.time(), 60
        before = len(cluster.requests)
        while loop.time() - began_s < idle_s:
            ends, _ = await watch.ends(partitions, timeout_ms=1_000)
            assert not await watch.wait(ends, timeout_ms=250)
        per_second = (len(cluster.requests) - before) / idle_s
        assert per_second <= 2, per_second  # The bound for a query is 10.

        loop.call_later(0.1, fill, cluster, T1, range(5))
        asked_s = loop.time()
        assert await watch.wait((await watch.ends(partitions, timeout_ms=1_000))[0], timeout_ms=250)
        assert loop.time() - asked_s == pytest.approx(0.1)
        assert (await watch.ends(partitions, timeout_ms=1_000))[0][T1] == 5
        await watch.close()
        await client.close()

    run(body())


def test_a_watch_survives_leaders_that_go_and_partitions_that_come() -> None:
    async def body() -> None:
        cluster = FakeCluster(brokers=3, topics={"t": 1})
        client = await started(cluster)
        watch = EndWatch(client, is_committed_only=False)
        ends, _ = await watch.ends([T0], timeout_ms=5_000)
        assert not await watch.wait(ends, timeout_ms=10)
        cluster.move_leader(T0, 1)
        cluster.drop_connections(0)
        assert await watch.wait(ends, timeout_ms=5_000)
        cluster.create("t", 2)
        await client.refresh()
        ends, _ = await watch.ends([T0, T1], timeout_ms=5_000)
        assert ends == {T0: 0, T1: 0}
        asyncio.get_running_loop().call_later(0.2, fill, cluster, T0, range(3))
        while (await watch.ends([T0, T1], timeout_ms=5_000))[0] == ends:
            await watch.wait(ends, timeout_ms=5_000)
        assert (await watch.ends([T0, T1], timeout_ms=5_000))[0][T0] == 3
        await watch.close()
        await client.close()

    run(body())


def test_ends_that_are_kept_never_pass_for_those_of_a_successor() -> None:
    """The metadata may have the new id before the watch tells its news: a plan had it beside ends of the old topic."""

    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(40))
        client = await started(cluster)
        watch = EndWatch(client, is_committed_only=True)
        found = await watch.ends([T0], timeout_ms=5_000)
        assert found[0] == {T0: 40}
        assert not await watch.wait(found[0], timeout_ms=10)
        before = len(cluster.requests)
        assert await watch.ends([T0], timeout_ms=5_000) == found
        assert len(cluster.requests) == before, "they are kept"
        cluster.make_anew("t")
        fill(cluster, T0, range(100, 105))
        await client.refresh()
        ends, topic_ids = await watch.ends([T0], timeout_ms=5_000)
        assert ends == {T0: 5}
        assert topic_ids != found[1]
        assert not await watch.wait({T0: 5}, timeout_ms=10), (
            "the old watch has told its error, which is no news any more"
        )
        await watch.close()
        await client.close()

    run(body())


def test_a_leader_that_refuses_is_not_asked_in_a_loop() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        client = await started(cluster)
        watch = EndWatch(client, is_committed_only=False)
        cluster.script(ApiKey.FETCH, lambda node, request: NetworkError("refused"), forever=True)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() - began_s < 10:
            await watch.wait((await watch.ends([T0], timeout_ms=1_000))[0], timeout_ms=250)
        assert len(cluster.requests) <= 10 * 10 + 5
        cluster.script(ApiKey.FETCH, lambda node, request: HANG, forever=True)
        await watch.close()
        await client.close()

    run(body())


@pytest.mark.parametrize("is_busy", [True, False], ids=["under load", "after a wait"])
def test_ends_are_told_with_the_id_of_their_topic_at_once_after_it_was_made_again(is_busy: bool) -> None:
    """The client would otherwise refresh its metadata after five minutes. Under load, a reader never waits for news."""

    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(20))
        client = await started(cluster)
        watch = EndWatch(client, is_committed_only=True)
        ends, ids = await watch.ends([T0], timeout_ms=1_000)
        assert (ends, ids) == ({T0: 20}, {"t": "t"})
        if not is_busy:
            assert not await watch.wait(ends, timeout_ms=250)
        cluster.make_anew("t")
        fill(cluster, T0, range(40))
        if not is_busy:
            assert await watch.wait(ends, timeout_ms=10_000)
        began_s = asyncio.get_running_loop().time()
        assert await watch.ends([T0], timeout_ms=1_000) == ({T0: 40}, {"t": "t'"})
        assert asyncio.get_running_loop().time() - began_s < 1
        await watch.close()
        await client.close()

    run(body())


def test_ends_of_a_watch_are_not_those_of_a_topic_that_the_client_has_learned_of_since() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(20))
        client = await started(cluster)
        watch = EndWatch(client, is_committed_only=True)
        ends, _ = await watch.ends([T0], timeout_ms=1_000)
        assert not await watch.wait(ends, timeout_ms=250)
        cluster.script(ApiKey.FETCH, lambda node, request: HANG, forever=True)  # the watch learns last
        cluster.make_anew("t")
        cluster.logs[T0].append(encode_batch([b"x"] * 40, timestamps_ms=1))
        await client.refresh()
        assert await watch.ends([T0], timeout_ms=1_000) == ({T0: 40}, {"t": "t'"})
        await watch.close()
        await client.close()

    run(body())


def test_a_range_of_a_topic_never_has_records_of_its_successor() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(40))
        client = await started(cluster)
        planned = client.metadata.topic_id("t")
        found = reader(client, 0, 40, topic_id=planned, max_bytes=1)
        assert await found.next_chunk() is not None
        cluster.make_anew("t")
        fill(cluster, T0, range(100, 140))
        with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again"):
            await values(found)
        assert found.position == 10
        await client.refresh()
        assert client.metadata.topic_id("t") != planned
        assert await values(reader(client, 0, 40, topic_id=client.metadata.topic_id("t"))) == list(range(100, 140))
        await client.close()

    run(body())


@pytest.mark.parametrize("is_by_id", [True, False])
def test_a_range_of_a_partition_that_the_successor_lacks_is_gone(is_by_id: bool) -> None:
    """Not a partition without a leader: that one is waited for, for the whole time of the task."""

    async def body() -> None:
        cluster = FakeCluster(topics={"t": 2})
        fill(cluster, T1, range(40))
        client = await started(cluster)
        planned = client.metadata.topic_id("t") if is_by_id else ""
        limits = {"max_bytes": 1 << 20, "timeout_ms": 60_000}
        found = RangeReader(client, T1, start=0, end=40, is_committed_only=True, topic_id=planned, **limits)
        cluster.make_anew("t")
        del cluster.logs[T1]
        await client.refresh()
        assert client.metadata.partition_count("t") == 1
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again"):
            await found.next_chunk()
        assert asyncio.get_running_loop().time() - began_s < 10
        await client.close()

    run(body())


def test_a_broker_that_still_has_the_older_topic_is_waited_for() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(10))
        client = await started(cluster)
        found = reader(client, 0, 10, topic_id=client.metadata.topic_id("t"))
        behind = [lambda node, request: InconsistentTopicIdError("another topic")] * 3
        cluster.script(ApiKey.FETCH, *behind)
        assert await values(found) == list(range(10))
        await client.close()

    run(body())


def test_the_patience_with_a_broker_that_is_behind_begins_again_after_an_answer() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(20))
        client = await started(cluster)
        found = reader(client, 0, 20, topic_id=client.metadata.topic_id("t"), max_bytes=1)
        for _ in range(2):
            cluster.script(ApiKey.FETCH, lambda node, request: InconsistentTopicIdError("another topic"))
            assert await found.next_chunk() is not None
            await asyncio.sleep(2 * UNKNOWN_TOPIC_PATIENCE_MS / 1000)
        assert found.position == 20
        await client.close()

    run(body())


def test_a_watch_notices_a_topic_that_was_made_again_with_as_many_records() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster, T0, range(10))
        client = await started(cluster)
        watch = EndWatch(client, is_committed_only=False)
        ends, _ = await watch.ends([T0], timeout_ms=1_000)
        planned = client.metadata.topic_id("t")
        cluster.make_anew("t")
        fill(cluster, T0, range(10))
        assert await watch.wait(ends, timeout_ms=5_000)
        await asyncio.sleep(1)
        assert client.metadata.topic_id("t") != planned
        await watch.close()
        await client.close()

    run(body())
