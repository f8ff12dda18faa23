"""Kafka's own admin clients about configurations, disks and access, against three real brokers; settings as clients feel them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from integration.cluster import Cluster
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    ResourcePatternFilter,
    ResourceType,
)

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
READ_TIMEOUT_S = 60


@contextmanager
def admin_of(cluster: Cluster) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))) as admin:
        yield admin


def configs_of(admin: KafkaAdminClient, kind: ConfigResourceType, name: str, **options: Any) -> dict[str, Any]:
    found = admin.describe_configs([ConfigResource(kind, name)], config_filter="all", **options)
    described: dict[str, Any] = found[kind.name.lower()][name]
    return described


async def create(cluster: Cluster, name: str, **configs: str) -> None:
    keys = {key.replace("_", "."): value for key, value in configs.items()}
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=1, replication_factor=3, configs=keys)


# --- configurations ---------------------------------------------------------------------------------------------------


async def test_kafka_python_describes_alters_and_resets(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "configured", retention_ms="12345")
    await asyncio.to_thread(describe_alter_and_reset, shared_cluster)


def describe_alter_and_reset(cluster: Cluster) -> None:
    with admin_of(cluster) as admin:
        found = configs_of(admin, TOPIC, "configured", include_synonyms=True)
        assert set(found) >= set(TOPIC_KEYS)
        assert (found["retention.ms"]["value"], found["retention.ms"]["config_source"]) == (
            "12345",
            "DYNAMIC_TOPIC_CONFIG",
        )
        assert [item["source"] for item in found["retention.ms"]["synonyms"]] == [
            "DYNAMIC_TOPIC_CONFIG",
            "DEFAULT_CONFIG",
        ]
        altered = admin.alter_configs(
            [ConfigResource(TOPIC, "configured", {"retention.ms": "777000", "cleanup.policy": ("APPEND", "compact")})]
        )
        assert altered == {"topic": {"configured": "OK"}}
        found = configs_of(admin, TOPIC, "configured")
        assert (found["retention.ms"]["value"], found["cleanup.policy"]["value"]) == ("777000", "delete,compact")
        # The older request says all that shall be set: what it does not name goes back to its default.
        whole = ConfigResource(TOPIC, "configured", {"segment.bytes": "4096"})
        assert admin._manager.run(admin._send_alter_configs_requests, [whole], False, False) == altered
        found = configs_of(admin, TOPIC, "configured")
        assert [found[key]["value"] for key in ("segment.bytes", "retention.ms", "cleanup.policy")] == [
            "4096", "604800000", "delete"]  # fmt: skip
        admin.reset_configs([ConfigResource(TOPIC, "configured", {"segment.bytes": None})])
        assert configs_of(admin, TOPIC, "configured")["segment.bytes"]["config_source"] == "DEFAULT_CONFIG"


async def test_a_brokers_configuration_is_its_own_and_any_broker_takes_changes(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await asyncio.to_thread(look_at_brokers, shared_cluster)


def look_at_brokers(cluster: Cluster) -> None:
    rate = "leader.replication.throttled.rate"
    with admin_of(cluster) as admin:
        for node in cluster.nodes:
            found = configs_of(admin, BROKER, str(node.node_id))
            assert (found["node.id"]["value"], found["node.id"]["read_only"]) == (str(node.node_id), True)
            assert found["node.id"]["config_source"] == "STATIC_BROKER_CONFIG"
            changed = admin.alter_configs(
                [ConfigResource(BROKER, str(node.node_id), {rate: str(10**9 + node.node_id)})]
            )
            assert changed == {"broker": {str(node.node_id): "OK"}}
            assert configs_of(admin, BROKER, str(node.node_id))[rate]["value"] == str(10**9 + node.node_id)
        for key, told in (("controlled.shutdown.timeout.ms", "restart"), ("num.partitions", "for the whole cluster")):
            refused = admin.alter_configs([ConfigResource(BROKER, "0", {key: "5"})], raise_on_unknown=False)
            assert told in refused["broker"]["0"]


async def test_aiokafka_describes_and_alters(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "by-aiokafka")
    admin = AIOKafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap)
    await admin.start()
    try:
        resource = AioConfigResource(AioConfigResourceType.TOPIC, "by-aiokafka", configs={"retention.ms": "777000"})
        await admin.alter_configs([resource])
        async with asyncio.timeout(
            READ_TIMEOUT_S
        ):  # aiokafka asks any broker, and one may learn of the change a little later
            while await retention_by_aiokafka(admin, "by-aiokafka") != "777000":
                pass
    finally:
        await admin.close()


async def retention_by_aiokafka(admin: AIOKafkaAdminClient, topic: str) -> str:
    (answer,) = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic)])
    (found,) = answer.resources
    (value,) = (entry[1] for entry in found[4] if entry[0] == "retention.ms")
    return str(value)


WRONG = {
    "compression.type": "rar",
    "cleanup.policy": "shred",
    "message.timestamp.type": "Yesterday",
    "message.timestamp.before.max.ms": "-1",
    "message.timestamp.after.max.ms": "soon",
    "message.timestamp.difference.max.ms": "5",
    "max.message.bytes": "-5",
    "message.format.version": "banana",
    "min.insync.replicas": "0",
    "retention.msec": "5",
}


async def test_a_wrong_setting_is_refused_with_invalid_config_and_changes_nothing(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "refusing")
    await asyncio.to_thread(refuse_all, shared_cluster)


def refuse_all(cluster: Cluster) -> None:
    with admin_of(cluster) as admin:
        before = configs_of(admin, TOPIC, "refusing")
        for key, value in WRONG.items():
            wrong = ConfigResource(TOPIC, "refusing", {"retention.ms": "5", key: value})
            refused = admin.alter_configs([wrong], raise_on_unknown=False)["topic"]["refusing"]
            assert refused.startswith("[Error 40]") and key in refused, refused
        assert configs_of(admin, TOPIC, "refusing") == before
        together = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
        refused = admin.alter_configs([ConfigResource(TOPIC, "refusing", together)])["topic"]["refusing"]
        assert refused.startswith("[Error 40]")
        taken = {"message.format.version": "3.0-IV1", "message.downconversion.enable": "false"}
        assert admin.alter_configs([ConfigResource(TOPIC, "refusing", taken)]) == {"topic": {"refusing": "OK"}}
        assert configs_of(admin, TOPIC, "refusing")["message.format.version"]["value"] == "3.0-IV1"
        dry = admin.alter_configs([ConfigResource(TOPIC, "refusing", {"retention.ms": "5"})], validate_only=True)
        assert dry == {"topic": {"refusing": "OK"}}
        assert configs_of(admin, TOPIC, "refusing")["retention.ms"]["value"] == before["retention.ms"]["value"]


# --- the cluster ------------------------------------------------------------------------------------------------------


async def test_the_cluster_its_disks_and_its_lack_of_an_authorizer(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "on-disk")
    async with Producer(shared_cluster.bootstrap, acks="all") as producer:
        await (await producer.send("on-disk", b"x" * 10_000))
    await asyncio.to_thread(look_at_the_cluster, shared_cluster)


def look_at_the_cluster(cluster: Cluster) -> None:
    with admin_of(cluster) as admin:
        described = admin.describe_cluster()
        assert [item["broker_id"] for item in described["brokers"]] == [0, 1, 2]
        assert described["controller_id"] in (0, 1, 2) and "ALTER_CONFIGS" in described["authorized_operations"]
        for item in admin.describe_log_dirs():
            (folder,) = item["log_dirs"]
            assert folder["log_dir"] == str(cluster.nodes[item["broker"]].data)
            assert folder["total_bytes"] > folder["usable_bytes"] > 0
            sizes = {topic["name"]: topic["partitions"][0]["partition_size"] for topic in folder["topics"]}
            assert sizes["on-disk"] > 10_000
        with pytest.raises(kafka.errors.SecurityDisabledError, match="authorizer"):
            everything = ACLFilter(
                None,
                None,
                ACLOperation.ANY,
                ACLPermissionType.ANY,
                ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
            )
            admin.describe_acls(everything)


# --- settings as clients feel them ------------------------------------------------------------------------------------


def sent(cluster: Cluster, topic: str, value: bytes, **options: Any) -> Any:
    """What kafka-python is told of a record that it sends; raises its error."""
    keep = {key: options.pop(key) for key in ("timestamp_ms", "key") if key in options}
    settings: dict[str, Any] = {"acks": "all", "enable_idempotence": False, "retries": 0, **options}
    with KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), **settings) as producer:
        future = producer.send(topic, value, partition=0, **keep)
        producer.flush(timeout=30)
        return future.get(timeout=30)


def received(cluster: Cluster, topic: str, count: int) -> list[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), auto_offset_reset="earliest", group_id=None
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline_s:
            for records in consumer.poll(timeout_ms=1_000).values():
                found.extend(records)
        return found


async def test_log_append_time_is_told_to_producers_and_readers_of_both_protocols(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "stamped", message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    theirs = await asyncio.to_thread(sent, shared_cluster, "stamped", b"theirs", timestamp_ms=1_000)
    async with Producer(shared_cluster.bootstrap, acks="all") as producer:
        ours = await (await producer.send("stamped", b"ours", timestamp_ms=2_000))
    after_ms = int(time.time() * 1000)
    stamps = [theirs.timestamp, ours.timestamp_ms]
    assert before_ms <= stamps[0] <= stamps[1] <= after_ms
    read = await asyncio.to_thread(received, shared_cluster, "stamped", 2)
    assert [(item.value, item.timestamp, item.timestamp_type) for item in read] == [
        (b"theirs", stamps[0], 1), (b"ours", stamps[1], 1)]  # fmt: skip
    found: list[int] = []
    async with Consumer("stamped", bootstrap=shared_cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(READ_TIMEOUT_S):
            while len(found) < 2:
                for records in (await consumer.poll(timeout_ms=500)).values():
                    found.extend(record.timestamp_ms for record in records)
    assert found == stamps


async def test_timestamps_out_of_bounds_are_refused(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    bounds = {"message_timestamp_before_max_ms": "60000", "message_timestamp_after_max_ms": "60000"}
    await create(shared_cluster, "bounded", **bounds)
    now_ms = int(time.time() * 1000)
    for far_ms in (-3_600_000, 3_600_000):
        with pytest.raises(kafka.errors.InvalidTimestampError):
            await asyncio.to_thread(sent, shared_cluster, "bounded", b"v", timestamp_ms=now_ms + far_ms)
    told = await asyncio.to_thread(sent, shared_cluster, "bounded", b"v", timestamp_ms=now_ms)
    assert (told.offset, told.timestamp) == (0, now_ms)


async def test_a_batch_above_the_topics_limit_is_refused_until_the_limit_is_raised(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "small", max_message_bytes="1000")
    with pytest.raises(kafka.errors.MessageSizeTooLargeError):
        await asyncio.to_thread(sent, shared_cluster, "small", b"x" * 2_000)
    await asyncio.to_thread(raise_limit, shared_cluster)
    assert (await asyncio.to_thread(sent, shared_cluster, "small", b"x" * 2_000)).offset == 0


def raise_limit(cluster: Cluster) -> None:
    with admin_of(cluster) as admin:
        admin.alter_configs([ConfigResource(TOPIC, "small", {"max.message.bytes": "5000"})])


async def test_a_topics_codec_is_what_is_stored_whatever_the_producer_chose(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "squeezed", compression_type="gzip", max_message_bytes="100000")
    for codec in (None, "gzip", "lz4"):
        await asyncio.to_thread(sent, shared_cluster, "squeezed", b"z" * 5_000, compression_type=codec)
    read = await asyncio.to_thread(received, shared_cluster, "squeezed", 3)
    assert [item.value for item in read] == [b"z" * 5_000] * 3
    (segment,) = (shared_cluster.nodes[0].data / "squeezed-0").glob("*.log")
    assert [header.compression for header in iter_headers(segment.read_bytes())] == [Compression.GZIP] * 3


async def test_a_compacted_topic_takes_no_record_without_a_key(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await create(shared_cluster, "keyed", cleanup_policy="compact")
    with pytest.raises(kafka.errors.InvalidRecordError):
        await asyncio.to_thread(sent, shared_cluster, "keyed", b"v")
    assert (await asyncio.to_thread(sent, shared_cluster, "keyed", b"v", key=b"k")).offset == 0
