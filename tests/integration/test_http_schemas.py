"""Every operation of the HTTP API is called on a real cluster, and each answer is as `/openapi.json` says."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest
from integration.cluster import Cluster, full_isr, until
from integration.http_shapes import Caller
from jsonschema import Draft202012Validator

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.positions.pipeline_reports import (
    PIPELINES_TOPIC,
    PIPELINES_TOPIC_CONFIGS,
    PipelineReport,
)
from barnabas.net.client.positions.reports import encoded_report
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.share.share_consumer import ShareConsumer

pytestmark = pytest.mark.timeout(240)

# What a test cannot make succeed in a minute, and why.
NOT_CALLED = {
    ("DELETE", "/v3/clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/hanging-transactions/{producer_id}"):
        "only a fault of a broker leaves one; 204 without a body",
}  # fmt: skip
TOPIC = "topics/{topic_name}"
PARTITION = f"{TOPIC}/partitions/{{partition_id}}"
BROKER = "brokers/{broker_id}"
GROUP = "consumer-groups/{consumer_group_id}"
ORDERS: dict[str, Any] = {"topic_name": "orders", "partition_id": 0}


async def test_answers_of_all_operations(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(4, voters=3, secure=True).ready()
    call = await asyncio.to_thread(Caller, cluster)
    _check_schemas(call)
    await _topics(call, cluster)
    await _records(call)
    await _pipelines(call, cluster)
    await _groups(call, cluster)
    await _transactions(call, cluster)
    await _access(call)
    await _looking(call)
    await _brokers(call, cluster)
    missing = call.operations - call.answered - set(NOT_CALLED)
    assert not missing, sorted(missing)
    assert not set(NOT_CALLED) & call.answered


def _check_schemas(call: Caller) -> None:
    for methods in call.document["paths"].values():
        for operation in methods.values():
            for told in operation["responses"].values():
                for content in told.get("content", {}).values():
                    Draft202012Validator.check_schema(content["schema"])


async def _topics(call: Caller, cluster: Cluster) -> None:
    assigned = [{"partition_id": 0, "broker_ids": [0, 1, 2]}, {"partition_id": 1, "broker_ids": [1, 2, 0]}]
    new = {"topic_name": "orders", "replicas_assignments": assigned}
    await call("POST", "topics", {**new, "validate_only": True})
    await call("POST", "topics", new)
    await call("POST", "topics", {"topic_name": "gone"})
    async with cluster.admin() as admin:
        await full_isr(admin, ["orders"])
    await call("GET", "topics")
    await call("GET", "topics", query="?page_size=1")
    await call("GET", TOPIC, topic_name="orders")
    await call("PATCH", TOPIC, {"partitions_count": 3}, topic_name="orders")
    await call("DELETE", TOPIC, topic_name="gone")
    await call("GET", f"{TOPIC}/barnabas/partition", query="?key=five", topic_name="orders")
    for path in ("/overview", "/partitions", "/partitions/-/reassignment"):
        await call("GET", TOPIC + path, topic_name="orders")
    for path in ("", "/replicas"):
        await call("GET", PARTITION + path, **ORDERS)
    await call("GET", f"{PARTITION}/replicas/{{broker_id}}", broker_id=1, **ORDERS)
    await _configs(call, f"{TOPIC}/configs", "retention.ms", topic_name="orders")
    await _configs(call, f"{BROKER}/configs", "follower.replication.throttled.rate", broker_id=1)
    await _configs(call, "broker-configs", "follower.replication.throttled.rate")
    cluster.nodes[3].signal(signal.SIGSTOP)  # so that the move lasts
    await call("POST", f"{PARTITION}/reassignment", {"replicas": [0, 1, 3]}, **ORDERS)
    await call("GET", f"{PARTITION}/reassignment", **ORDERS)
    for path in ("topics/-/partitions/-/reassignment", "barnabas/moves"):
        assert (await call("GET", path))["data"]
    await call("DELETE", f"{PARTITION}/reassignment", **ORDERS)
    cluster.nodes[3].signal(signal.SIGCONT)


async def _configs(call: Caller, path: str, key: str, **names: Any) -> None:
    await call("GET", path, **names)
    await call("PUT", f"{path}/{{name}}", {"value": "60000000"}, name=key, **names)
    await call("GET", f"{path}/{{name}}", name=key, **names)
    await call("DELETE", f"{path}/{{name}}", name=key, **names)
    await call("POST", f"{path}:alter", {"data": [{"name": key, "operation": "DELETE"}]}, **names)


async def _records(call: Caller) -> None:
    value = {"type": "STRING", "data": "five pears"}
    headers = [{"name": "h", "value": None}]
    await call("POST", f"{TOPIC}/records", {"partition_id": 0, "value": value, "headers": headers}, topic_name="orders")
    entries = [{"id": "1", "key": value, "value": None, "partition_id": 0}, {"id": "2", "partition_id": 99}]
    told = await call("POST", f"{TOPIC}/records:batch", {"entries": entries}, topic_name="orders")
    assert len(told["successes"]) == len(told["failures"]) == 1
    binary = {"type": "BINARY", "data": "//8="}
    await call("POST", f"{TOPIC}/records", {"partition_id": 0, "value": binary}, topic_name="orders")
    read = await call("GET", f"{PARTITION}/records", **ORDERS)
    assert [item["value"] and sorted(item["value"]) for item in read["data"]] == [
        ["size", "text"],
        None,
        ["base64", "size"],
    ]
    await call("DELETE", f"{PARTITION}/records", query="?before_offset=1", **ORDERS)
    await call("POST", f"{PARTITION}/leader", {"broker_id": 1}, **ORDERS)


async def _pipelines(call: Caller, cluster: Cluster) -> None:
    assert (await call("GET", "barnabas/pipelines"))["data"] == [], "without a topic of reports"
    async with cluster.admin() as admin:
        await admin.create_topic(PIPELINES_TOPIC, partitions=1, replication_factor=3, configs=PIPELINES_TOPIC_CONFIGS)
    async with Producer(cluster.bootstrap, **cluster.security) as producer:
        for name in ("a", "b", "a"):
            report = PipelineReport(pipeline=name, state="failed", at_ms=1, interval_ms=1, lag=7, last_error="why")
            await producer.send(PIPELINES_TOPIC, encoded_report(report), key=name.encode(), partition=0)
        await producer.send(PIPELINES_TOPIC, b"no report", key=b"c", partition=0)
    found = (await call("GET", "barnabas/pipelines"))["data"]
    assert [row["pipeline"] for row in found] == ["a", "b"]


async def _groups(call: Caller, cluster: Cluster) -> None:
    name: dict[str, Any] = {"consumer_group_id": "billing"}
    async with Consumer(
        "orders", bootstrap=cluster.bootstrap, group="billing", auto_commit=False, **cluster.security
    ) as consumer:
        while len(consumer.assignment) < 3:
            await consumer.poll(timeout_ms=200)
        await consumer.commit({TopicPartition("orders", 0): 1})
        await call("GET", "consumer-groups")
        for path in ("", "/consumers", "/lags", "/lag-summary", "/lag-history", "/explain", "/rebalances"):
            await call("GET", GROUP + path, **name)
        (member,) = (await call("GET", f"{GROUP}/consumers", **name))["data"]
        one: dict[str, Any] = {"consumer_id": member["consumer_id"], **name}
        await call("GET", f"{GROUP}/consumers/{{consumer_id}}", **one)
        assigned = await call("GET", f"{GROUP}/consumers/{{consumer_id}}/assignments", **one)
        assert len(assigned["data"]) == 3
        await call("GET", f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}", **ORDERS, **name)
        moved = await call("POST", f"{GROUP}/seek", {"to": "end"}, **name)
        assert moved["data"]
        await call("POST", f"{GROUP}/seek/undo", {}, **name)
        await call("DELETE", f"{GROUP}/consumers/{{consumer_id}}", **one)

    queue: dict[str, Any] = {"consumer_group_id": "packers"}
    async with ShareConsumer("orders", bootstrap=cluster.bootstrap, group="packers", **cluster.security) as packer:
        partitions: list[Any] = []
        async with asyncio.timeout(60):
            while not partitions:
                await packer.poll(timeout_ms=500)
                partitions = (await call("GET", f"{GROUP}/share-partitions", **queue))["data"]

    async def is_empty() -> bool:  # A member that was removed may be joining again when its consumer closes.
        return not (await call("GET", f"{GROUP}/consumers", **name))["data"]

    await until(is_empty, "the group has no members")
    await call("DELETE", f"{GROUP}/offsets/{{topic_name}}", topic_name="orders", **name)

    async def is_deleted() -> bool:
        status, _ = await asyncio.to_thread(call.ask, "DELETE", GROUP, None, "", name)
        return status == 204

    await until(is_deleted, "the group is empty, and deleted")


async def _transactions(call: Caller, cluster: Cluster) -> None:
    async with Producer(cluster.bootstrap, transactional_id="bank", **cluster.security) as producer:
        transaction = producer.transaction()
        await transaction.__aenter__()
        sent = await transaction.send("orders", b"1", partition=0)
        await sent  # written, so the coordinator knows the partition
        listed = await call("GET", "transactions")
        assert [item["transactional_id"] for item in listed["data"]] == ["bank"]
        described = await call("GET", "transactions/{transactional_id}", transactional_id="bank")
        assert described["partitions"]
        await call("GET", "hanging-transactions")
        await call("DELETE", "transactions/{transactional_id}", transactional_id="bank")


async def _access(call: Caller) -> None:
    rule = {
        "resource_type": "TOPIC", "resource_name": "orders", "pattern_type": "LITERAL", "principal": "User:eve",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip
    await call("POST", "acls", rule)
    assert (await call("GET", "acls"))["data"]
    assert (await call("DELETE", "acls", rule))["data"]
    await call("POST", "quotas", {"user": "eve", "quotas": {"producer_byte_rate": 1_000_000}})
    assert (await call("GET", "quotas"))["data"]
    assert (await call("DELETE", "quotas", {"user": "eve"}))["data"]
    await call("PUT", "users/{user}", {"password": "pencil"}, user="eve")
    assert (await call("GET", "users"))["data"]
    await call("DELETE", "users/{user}", user="eve")


async def _looking(call: Caller) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/", "/console/settings", "/v3/clusters"):
        await call("GET", path)
    await call("GET", "/console/{file}", file="app.js")
    for path in ("", "health", "doctor", "quorum", "overview", "overview/stream", "brokers", "barnabas/moves"):
        await call("GET", path)
    assert (await call("GET", "events"))["data"]


async def _brokers(call: Caller, cluster: Cluster) -> None:
    for path in ("", "/partition-replicas", "/barnabas/folders", "/barnabas/history"):
        await call("GET", BROKER + path, broker_id=1)
    (folder,) = (await call("GET", f"{BROKER}/barnabas/folders", broker_id=1))["data"]
    await call("POST", f"{BROKER}/barnabas/folders:bring-back", {"path": folder["path"]}, broker_id=1)
    await call("PUT", "quorum/voters/{broker_id}", broker_id=3)
    await call("DELETE", "quorum/voters/{broker_id}", broker_id=3)

    last: dict[str, Any] = {"broker_id": 3}
    await call("POST", f"{BROKER}/barnabas/fill", **last)
    await call("POST", f"{BROKER}/barnabas/decommission", **last)
    await call("DELETE", f"{BROKER}/barnabas/decommission", **last)
    await call("POST", f"{BROKER}/barnabas/decommission", **last)

    async def is_empty() -> bool:
        held = await call("GET", f"{BROKER}/partition-replicas", **last)
        return not held["data"]

    await until(is_empty, "broker 3 holds nothing")
    await call("POST", f"{BROKER}/barnabas/drain", **last)
    await until(lambda: not cluster.nodes[3].is_running, "broker 3 has stopped")

    async def is_gone() -> bool:
        status, _ = await asyncio.to_thread(call.ask, "DELETE", BROKER, None, "", last)
        return status in (204, 404)

    await until(is_gone, "broker 3 is unregistered")
    call.answered.add(("DELETE", f"/v3/clusters/{{cluster_id}}/{BROKER}"))  # by hand, or by its decommission
