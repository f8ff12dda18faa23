"""Clients that ask for what is not there (SASL) end at once, with an error that says so, instead of waiting."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.cluster import Cluster

AT_ONCE_S = 15.0  # a second where nothing else runs; their own timeouts are 30 seconds and more
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}


def timed(function: Callable[[], Any]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


def failure_of(expression: str) -> str:
    """What kafka-python ends with, in a process of its own: a producer that could not start leaves its sockets open."""
    command = [sys.executable, "-c", f"from kafka import KafkaProducer; {expression}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=AT_ONCE_S * 4, check=False)
    assert ended.returncode != 0
    return ended.stderr.splitlines()[-1]


async def test_a_client_with_sasl_ends_at_once(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    bootstrap = shared_cluster.bootstrap

    def librdkafka() -> None:
        told: list[KafkaError] = []
        client = AdminClient({"bootstrap.servers": bootstrap, **SASL, "error_cb": told.append})
        ends = time.monotonic() + AT_ONCE_S
        while not told and time.monotonic() < ends:
            client.poll(0.1)
        assert told and told[0].code() == KafkaError._AUTHENTICATION and "SASL" in told[0].str()

    def kafka_python() -> None:
        keywords = "security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN', sasl_plain_username='u', sasl_plain_password='p'"
        assert "IncompatibleBrokerVersion" in failure_of(f"KafkaProducer(bootstrap_servers={bootstrap!r}, {keywords})")

    for client in (librdkafka, kafka_python):
        assert await asyncio.to_thread(timed, client) < AT_ONCE_S, client.__name__


async def test_operations_on_a_group_are_told(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("operated", partitions=1, replication_factor=3)

    def described() -> list[str]:
        consumer = Consumer({"bootstrap.servers": shared_cluster.bootstrap, "group.id": "operated"})
        consumer.commit(offsets=[TopicPartition("operated", 0, 0)], asynchronous=False)
        consumer.close()
        client = AdminClient({"bootstrap.servers": shared_cluster.bootstrap})
        found = client.describe_consumer_groups(["operated"], include_authorized_operations=True)["operated"].result()
        return sorted(operation.name for operation in found.authorized_operations)

    expected = ["ALTER_CONFIGS", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ"]
    assert await asyncio.to_thread(described) == expected
