"""Producers with serializers: every way to send encodes, and what cannot be encoded is not sent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_transactions import TX, FakeTransactions
from unit.net.client.virtual_time import run

import barnabas.sync
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    InvalidConfigError,
    SchemaRegistryUnavailableError,
    SerializationError,
    TransactionAbortedError,
)
from barnabas.net.client.connection.loop_thread import loop_thread
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.serde.serdes import Part, SchemaNotLoaded

T0 = TopicPartition("t", 0)


class Loaded:
    """A serializer that loads a schema first."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.is_loaded = False

    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        if not self.is_loaded:
            raise SchemaNotLoaded(self.load)
        return f"{topic}.{part}:{data}".encode()

    async def load(self) -> None:
        await asyncio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        self.is_loaded = True


def test_every_way_to_send_encodes() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        options: dict[str, Any] = {"value_serializer": "json", "key_serializer": "text", "batch_size": 256}
        async with Producer(client=cluster.client(), **options) as producer:
            for number in range(20):  # Of several batches, also into one that is open.
                await producer.send("t", {"n": number})
            await producer.send("t", None, key="dead")
            await producer.send("t", [1], headers=[("h", b"")], partition=0, timestamp_ms=3)
            producer.send_nowait("t", "later")
            await producer.send_many("t", [1, None], ["a", "b"])
            await producer.send_many("t", [True])
        log = cluster.logs[T0]
        assert log.values() == [
            *(b'{"n":%d}' % number for number in range(20)), None, b"[1]", b'"later"', b"1", None, b"true",
        ]  # fmt: skip

    run(main())


def test_what_cannot_be_encoded_is_not_sent_and_says_which_part() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), value_serializer="json", key_serializer="text") as producer:
            with pytest.raises(SerializationError, match="the key of a record for topic 't' .* needs a str, not int"):
                await producer.send("t", 1, key=5)
            with pytest.raises(SerializationError, match="the value of a record"):
                await producer.send_many("t", [1, object(), 3])
            await producer.prepare("t")
            with pytest.raises(SerializationError, match="the value of a record"):
                producer.send_nowait("t", object())
            with pytest.raises(ValueError, match="shorter"):
                await producer.send_many("t", [1, 2], ["a"])
        assert cluster.logs[T0].values() == []

    run(main())


def test_schemas_are_loaded_first_and_a_registry_that_is_down_is_told() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        down = SchemaRegistryUnavailableError("down")
        async with Producer(client=cluster.client(), value_serializer=Loaded(down)) as producer:
            await producer.prepare("t")
            with pytest.raises(SerializationError, match="the schema for topic 't' is not loaded yet"):
                producer.send_nowait("t", 0)
            with pytest.raises(SchemaRegistryUnavailableError):
                await producer.send("t", 1)
            await producer.send("t", 2)
            producer.send_nowait("t", 3)
        assert cluster.logs[T0].values() == [b"t.value:2", b"t.value:3"]

    run(main())


def test_transactions_encode_and_a_record_that_cannot_be_encoded_aborts() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        FakeTransactions(cluster)
        producer = Producer(client=cluster.client(), transactional_id=TX, value_serializer="json")
        async with producer:
            async with producer.transaction() as transaction:
                await transaction.send("t", {"a": 1})
                await transaction.send_many("t", [1, 2])
            with pytest.raises(TransactionAbortedError):
                async with producer.transaction() as transaction:
                    await transaction.send("t", 3)
                    with pytest.raises(SerializationError):
                        await transaction.send("t", object())
        assert [value for value in cluster.logs[T0].values() if value is not None][:3] == [b'{"a":1}', b"1", b"2"]

    run(main())


@pytest.fixture
def blocking() -> Iterator[tuple[FakeCluster, Any]]:
    cluster = FakeCluster(topics={"t": 1})
    client: Any = loop_thread().call(_client_of(cluster))
    with barnabas.sync.Producer(client=client, value_serializer="json") as producer:
        yield cluster, producer


async def _client_of(cluster: FakeCluster) -> Any:
    return cluster.client()


def test_blocking_producers_encode_too(blocking: tuple[FakeCluster, Any]) -> None:
    cluster, producer = blocking
    handles = [producer.send("t", {"n": number}) for number in range(50)]
    assert [handle.result(10).offset for handle in handles] == list(range(50))
    assert producer.send_many("t", [1, None]).result()[1].offset == 51
    with pytest.raises(SerializationError):
        producer.send("t", object())
    assert cluster.logs[T0].values()[-3:] == [b'{"n":49}', b"1", None]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="key_serializer is 'xml'"):
        Producer(key_serializer="xml")
