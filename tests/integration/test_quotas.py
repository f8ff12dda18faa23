"""Quotas on real brokers and real clients: counted bytes beside measured time. Only upper bounds: a loaded machine is slower."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from integration import kafka_wire
from integration.cluster import Cluster, until
from integration.wire import connected

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.access.quotas import DEFAULT, EntityQuotas, QuotaEntity, QuotaKind
from barnabas.log.vocabulary.errors import ThrottlingQuotaExceededError
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: scripts/setup.sh")

RATE = 100_000
BURST_S = 2
VALUE = bytes(1_000)
RUN_S = 6.0
REQUEST_BYTES = 1_100_000  # of one request of a client: it may be beyond the quota


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    windows = {"quota.window.num": str(BURST_S), "quota.window.size.seconds": "1"}
    with Cluster(tmp_path_factory.mktemp("quotas"), 1, overrides=windows) as made:
        yield made


async def topic(cluster: Cluster) -> str:
    await cluster.ready()
    name = f"t-{uuid.uuid4().hex[:8]}"
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=1, replication_factor=1)
    return name


async def limit(cluster: Cluster, entity: QuotaEntity, **values: float | None) -> None:
    async with cluster.admin() as admin:
        await admin.quotas.alter(entity, values)


def most_bytes(seconds: float) -> float:
    return RATE * (seconds + BURST_S) + REQUEST_BYTES


class Producing:
    """librdkafka, as fast as it can, without waiting for what it is told."""

    def __init__(self, cluster: Cluster, name: str, client_id: str) -> None:
        self.acknowledged_bytes = 0
        self._topic = name
        self._throttles: list[Any] = []
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "client.id": client_id,
                "batch.size": 50_000,
                "batch.num.messages": 40,
                "throttle_cb": self._throttles.append,
                "log_level": 0,
            }
        )

    @property
    def told_ms(self) -> float:
        """The longest time that it was told to wait."""
        return max((event.throttle_time for event in self._throttles), default=0) * 1000

    def run(self, seconds: float) -> float:
        """Returns how long it took."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < seconds:
            try:
                self.producer.produce(self._topic, VALUE, on_delivery=self._delivered)
            except BufferError:
                self.producer.poll(0.05)
            self.producer.poll(0)
        elapsed_s = time.monotonic() - began_s
        self.acknowledged_at_end = self.acknowledged_bytes
        self.producer.purge()
        self.producer.poll(0)
        return elapsed_s

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged_bytes += len(VALUE)


async def test_a_producer_gets_its_quota_and_the_one_beside_it_is_not_slowed(cluster: Cluster) -> None:
    name = await topic(cluster)
    await limit(cluster, QuotaEntity(client_id="slow"), producer_byte_rate=RATE)
    slow, fast = Producing(cluster, name, "slow"), Producing(cluster, name, "fast")
    slow_s, fast_s = await asyncio.gather(asyncio.to_thread(slow.run, RUN_S), asyncio.to_thread(fast.run, RUN_S))
    assert 0 < slow.acknowledged_at_end <= most_bytes(slow_s)
    assert slow.told_ms > 0 and fast.told_ms == 0
    assert fast.acknowledged_at_end > 4 * most_bytes(fast_s)


async def send_by_ours(cluster: Cluster, name: str, client_id: str, until_s: float) -> int:
    acknowledged = 0
    async with Producer(cluster.bootstrap, client_id=client_id, request_timeout_ms=30_000) as producer:
        while time.monotonic() < until_s:
            handles = [await producer.send(name, VALUE) for _ in range(20)]
            acknowledged += len(await asyncio.gather(*handles))
    return acknowledged


async def send_by_aiokafka(cluster: Cluster, name: str, client_id: str, until_s: float) -> int:
    aiokafka = pytest.importorskip("aiokafka")
    acknowledged = 0
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, client_id=client_id) as producer:
        while time.monotonic() < until_s:
            handles = [await producer.send(name, VALUE) for _ in range(20)]
            acknowledged += len(await asyncio.gather(*handles))
    return acknowledged


async def send_by_kafka_python(cluster: Cluster, name: str, client_id: str, until_s: float) -> int:
    kafka = pytest.importorskip("kafka")

    def send() -> int:
        acknowledged = 0
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), client_id=client_id)
        while time.monotonic() < until_s:
            for handle in [producer.send(name, VALUE) for _ in range(20)]:
                handle.get(timeout=60)
                acknowledged += 1
        producer.close()
        return acknowledged

    return await asyncio.to_thread(send)


@pytest.mark.parametrize("send", [send_by_ours, send_by_aiokafka, send_by_kafka_python])
async def test_every_client_gets_its_quota_and_no_error(cluster: Cluster, send: Any) -> None:
    name = await topic(cluster)
    await limit(cluster, QuotaEntity(client_id=send.__name__), producer_byte_rate=RATE)
    began_s = time.monotonic()
    acknowledged = await send(cluster, name, send.__name__, began_s + RUN_S)
    assert 0 < acknowledged * len(VALUE) <= most_bytes(time.monotonic() - began_s)


async def test_a_consumer_gets_its_quota(cluster: Cluster) -> None:
    name = await topic(cluster)
    filling = Producing(cluster, name, "filling")
    await asyncio.to_thread(filling.run, 2.0)
    await limit(cluster, QuotaEntity(client_id="reading"), consumer_byte_rate=RATE)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": "reading",
            "group.id": name,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])

    def read() -> tuple[int, float]:
        began_s, read_bytes = time.monotonic(), 0
        while time.monotonic() - began_s < RUN_S:
            read_bytes += sum(len(message.value()) for message in consumer.consume(1_000, 0.1) if not message.error())
        return read_bytes, time.monotonic() - began_s

    read_bytes, elapsed_s = await asyncio.to_thread(read)
    consumer.close()
    assert 0 < read_bytes <= most_bytes(elapsed_s)


async def test_a_client_that_comes_again_with_each_request_gets_no_more(cluster: Cluster) -> None:
    """Raw requests, one for each connection, until the broker refuses them: it owes at most what it can be told."""
    name = await topic(cluster)
    await limit(cluster, QuotaEntity(client_id="raw"), producer_byte_rate=RATE)
    host, port = cluster.nodes[0].host, cluster.nodes[0].port
    batch = encode_batch([bytes(500_000)], timestamps_ms=0)
    asked = kafka_wire.produce(name, bytes(batch))

    def send() -> int:
        try:
            with connected((host, port)) as sock:
                kafka_wire.call(sock, kafka_wire.PRODUCE, 9, asked)
        except (OSError, EOFError, AssertionError):
            return 0
        return 500_000

    accepted = sum([await asyncio.to_thread(send) for _ in range(30)])
    assert accepted <= RATE * (25 + BURST_S + 20) and accepted < 15_000_000


async def test_kafkas_admin_client_sets_and_describes_quotas_that_ours_sees(cluster: Cluster) -> None:
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.quotas.alter(
            QuotaEntity(user="u", client_id=DEFAULT), {QuotaKind.FETCH: 5.0, QuotaKind.REQUEST: 0.5}
        )

        async def seen() -> Any:
            return (
                EntityQuotas(
                    entity=QuotaEntity(user="u", client_id=DEFAULT),
                    values={"consumer_byte_rate": 5.0, "request_percentage": 0.5},
                )
                in await admin.quotas.find()
            )

        await until(seen, "the quota is described")


async def test_partitions_are_created_no_faster_than_the_quota(cluster: Cluster) -> None:
    await cluster.ready()
    await limit(cluster, QuotaEntity(client_id="test"), controller_mutation_rate=1.0)
    async with Admin(cluster.bootstrap, client_id="test", timeout_ms=2_000) as admin:
        await admin.create_topic(f"m-{uuid.uuid4().hex[:8]}", partitions=60, replication_factor=1)
        with pytest.raises(ThrottlingQuotaExceededError, match="controller_mutation_rate=1"):
            await admin.create_topic(f"m-{uuid.uuid4().hex[:8]}", partitions=1, replication_factor=1)
    await limit(cluster, QuotaEntity(client_id="test"), controller_mutation_rate=None)
