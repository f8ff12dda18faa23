"""Transactions of the SDK against three real brokers: all or nothing, over partitions and offsets; fencing, timeouts, aborts."""

import asyncio
from collections.abc import Callable
from random import Random
from uuid import uuid4

import pytest
from integration.cluster import Cluster, until
from integration.lossy_proxy import put_behind_proxies

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import TransactionState
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import ProducerFencedError, TransactionStateError, TransactionTimedOutError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.prepared import PreparedTransaction
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.sync import Producer as BlockingProducer  # type: ignore[import-not-found]  # not in the tree that mypy sees

PARTITIONS = 3


async def topic_of(cluster: Cluster) -> str:
    await cluster.ready()
    name = f"tx-{uuid4().hex[:8]}"
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    return name


async def committed_values(cluster: Cluster, topic: str) -> list[bytes]:
    """What a reader of committed records sees up to the last stable offsets."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[bytes] = []
    async with Consumer(bootstrap=cluster.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(places)
        await consumer.seek_to_start(*places)
        ends = await consumer.end_offsets(*places)
        while any([await consumer.position(place) < ends[place] for place in places]):
            for records in (await consumer.poll(timeout_ms=500)).values():
                found += [record.value or b"" for record in records]
    return sorted(found)


async def eventually(cluster: Cluster, topic: str, expected: list[bytes]) -> None:
    """The markers are written after the commit was answered."""

    async def are_seen() -> bool:
        return await committed_values(cluster, topic) == expected

    await until(are_seen, f"{expected} are seen")


async def test_records_are_seen_if_their_transaction_is_committed(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)
    async with Producer(shared_cluster.bootstrap, transactional_id=topic) as producer:
        async with producer.transaction() as one:
            for number in range(PARTITIONS):
                await one.send(topic, b"one-%d" % number, partition=number)
            await one.send_many(topic, [b"one-3", b"one-4"], [b"a", b"b"])
            with pytest.raises(TransactionStateError, match="one at a time"):
                await producer.transaction().begin()
            with pytest.raises(TransactionStateError, match=r"transaction\.send"):
                await producer.send(topic, b"outside")
        assert one.outcome == "committed"
        with pytest.raises(ValueError, match="the application") as raised:
            async with producer.transaction() as two:
                await (await two.send(topic, b"two", partition=0))
                await two.send(topic, b"two", partition=1)
                raise ValueError("the application")
        assert two.outcome == "aborted" and raised.value.__notes__ == ["the transaction was aborted"]
        async with producer.transaction() as three:
            await three.send(topic, b"three", partition=0)
        async with producer.transaction():
            pass
    await eventually(shared_cluster, topic, [*(b"one-%d" % number for number in range(5)), b"three"])


async def test_offsets_count_when_their_transaction_is_committed(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)
    place = TopicPartition(topic, 0)
    async with (
        Producer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        Consumer(
            topic,
            bootstrap=shared_cluster.bootstrap,
            group=topic,
            auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
    ):
        async with producer.transaction() as transaction:
            await transaction.send_many(topic, [b"1", b"2"], partition=0)
        while not await consumer.poll():
            pass
        with pytest.raises(ValueError, match="no"):
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(consumer)
                raise ValueError("no")
        assert await consumer.committed(place) == {}
        async with producer.transaction() as transaction:
            await transaction.commit_offsets(consumer)
        assert await consumer.committed(place) == {place: await consumer.position(place)}


async def test_a_second_producer_fences_the_first_and_aborts_what_it_has_begun(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)
    async with Producer(shared_cluster.bootstrap, transactional_id=topic) as first:
        transaction = first.transaction()
        await transaction.begin()
        await (await transaction.send(topic, b"of the first", partition=0))
        async with Producer(shared_cluster.bootstrap, transactional_id=topic) as second:
            with pytest.raises(ProducerFencedError, match="create another producer"):
                await transaction.commit()
            assert transaction.outcome == "aborted"
            with pytest.raises(ProducerFencedError):
                await first.transaction().begin()
            async with second.transaction() as another:
                await another.send(topic, b"of the second", partition=0)
    await eventually(shared_cluster, topic, [b"of the second"])


async def is_aborted(admin: Admin, transactional_id: str) -> bool:
    return (await admin.transactions.describe(transactional_id)).summary.state == TransactionState.COMPLETE_ABORT


async def test_after_a_timeout_the_same_producer_goes_on(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)
    async with (
        shared_cluster.admin() as admin,
        Producer(shared_cluster.bootstrap, transactional_id=topic, transaction_timeout_ms=300) as producer,
    ):
        with pytest.raises(TransactionTimedOutError, match="transaction_timeout_ms=300"):
            async with producer.transaction() as transaction:
                await (await transaction.send(topic, b"late", partition=0))
                await until(lambda: is_aborted(admin, topic), "the coordinator aborts it")
                await transaction.send(topic, b"too late", partition=0)
        assert transaction.outcome == "aborted"

        async def goes_on() -> bool:
            """On a busy machine the next one may time out, too: then nothing of it is kept."""
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"next", partition=0)
            return True

        await until(goes_on, "a transaction ends in time")
    await eventually(shared_cluster, topic, [b"next"])


async def joined(consumer: Consumer) -> bool:
    await consumer.poll(timeout_ms=100)
    return bool(consumer.assignment)


async def test_lost_answers_of_every_kind_lose_and_double_nothing(new_cluster: Callable[..., Cluster]) -> None:
    """Each request to produce, to end a transaction and to commit its offsets arrives twice, and some answers are lost."""
    cluster = new_cluster(3)
    apis = frozenset({ApiKey.PRODUCE, ApiKey.END_TRANSACTION, ApiKey.TRANSACTIONAL_OFFSET_COMMIT})
    proxies = await put_behind_proxies(cluster, Random(5), loses=0.2, apis=apis)
    bootstrap = [f"127.0.0.1:{proxy.port}" for proxy in proxies]
    topic = await topic_of(cluster)
    kept: list[bytes] = []
    async with (
        Producer(bootstrap, transactional_id=topic) as producer,
        Consumer(topic, bootstrap=bootstrap, group=topic, auto_commit=False) as consumer,
    ):
        await until(lambda: joined(consumer), "the consumer commits as a member")
        for number in range(20):
            transaction = producer.transaction()
            await transaction.begin()
            values = [b"%d-%d" % (number, item) for item in range(4)]
            await transaction.send_many(topic, values, values)
            await transaction.commit_offsets(consumer, {TopicPartition(topic, 0): number})
            if number % 3:
                await transaction.commit()
                kept += values
            else:
                await transaction.abort()
            assert transaction.outcome == ("committed" if number % 3 else "aborted")
        assert await consumer.committed((topic, 0)) == {TopicPartition(topic, 0): 19}
    assert sum(proxy.lost for proxy in proxies) > 3
    await eventually(cluster, topic, sorted(kept))
    for proxy in proxies:
        await proxy.close()


async def test_another_process_decides_and_a_blocking_producer_prepares(shared_cluster: Cluster) -> None:
    topic = await topic_of(shared_cluster)

    def prepare() -> list[str]:
        with BlockingProducer(shared_cluster.bootstrap, transactional_id=f"{topic}-0") as producer:
            texts = []
            for number in range(2):
                if number:
                    producer.take_over(f"{topic}-{number}")
                with producer.transaction() as transaction:
                    transaction.send(topic, b"%d" % number)
                    prepared = transaction.prepare("a test")
                texts.append(str(prepared))
        return texts

    committed, aborted = await asyncio.to_thread(prepare)
    assert await committed_values(shared_cluster, topic) == []
    async with shared_cluster.admin() as admin:
        for _ in range(2):
            await admin.transactions.end_prepared(PreparedTransaction.parse(aborted), is_commit=False)
            await admin.transactions.end_prepared(PreparedTransaction.parse(committed), is_commit=True)
    await eventually(shared_cluster, topic, [b"0"])
