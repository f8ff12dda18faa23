"""Kafka's command lines against three real brokers: kcat, and kafka-python's `python -m kafka.admin`."""

import asyncio
import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
from integration.cluster import Cluster
from integration.load import read_all, send

from barnabas.log.vocabulary.topic_partition import TopicPartition

TOOL_TIMEOUT_S = 60
needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat here: apt-get install kcat")


def run(*command: str, stdin: str = "") -> str:
    """What a tool prints; a failure shows what it complained about."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


async def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    return await asyncio.to_thread(run, "kcat", "-b", bootstrap, *arguments, stdin=stdin)


async def kafka_admin(cluster: Cluster, *arguments: str) -> Any:
    """What `python -m kafka.admin` answers."""
    command = [sys.executable, "-m", "kafka.admin", "-b", cluster.bootstrap, "--format", "json", *arguments]
    return json.loads(await asyncio.to_thread(run, *command))


async def create(cluster: Cluster, name: str, partitions: int = 1) -> None:
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic(name, partitions=partitions, replication_factor=3)


# --- kcat -------------------------------------------------------------------------------------------------------------


@needs_kcat
async def test_kcat_lists_the_same_from_every_broker(shared_cluster: Cluster) -> None:
    await create(shared_cluster, "listed", partitions=3)
    for node in shared_cluster.nodes:
        found = json.loads(await kcat(node.address, "-L", "-J"))
        assert {item["id"]: item["name"] for item in found["brokers"]} == {
            other.node_id: other.address for other in shared_cluster.nodes
        }
        assert found["controllerid"] in (0, 1, 2)
        (described,) = json.loads(await kcat(node.address, "-L", "-J", "-t", "listed"))["topics"]
        assert [item["partition"] for item in described["partitions"]] == [0, 1, 2]
        assert all(len(item["replicas"]) == 3 and item["leader"] >= 0 for item in described["partitions"])


@needs_kcat
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
async def test_what_kcat_produces_is_read_by_kcat_and_by_us(shared_cluster: Cluster, codec: str) -> None:
    topic = f"kcat-{codec}"
    await create(shared_cluster, topic)
    lines = [f"key{number}:{'value ' * 20}{number}" for number in range(50)]
    await kcat(
        shared_cluster.bootstrap,
        "-P",
        "-t",
        topic,
        "-K:",
        "-z",
        codec,
        "-H",
        "h=1",
        "-X",
        "acks=all",
        stdin="\n".join(lines),
    )
    printed = await kcat(
        shared_cluster.bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%o %h %k:%s\n"
    )
    assert printed.splitlines() == [f"{number} h=1 {line}" for number, line in enumerate(lines)]
    (ours,) = (await read_all(shared_cluster.bootstrap, topic)).values()
    assert [value.decode() for _, value in sorted(ours.items())] == [line.partition(":")[2] for line in lines]


@needs_kcat
async def test_kcat_asks_for_offsets_and_reads_as_a_group(shared_cluster: Cluster) -> None:
    await create(shared_cluster, "grouped", partitions=2)
    for partition in range(2):
        values = [b"%d-%d" % (partition, number) for number in range(3 + partition)]
        await send(shared_cluster.bootstrap, "grouped", values, partition=partition)
    assert "offset 3" in await kcat(shared_cluster.bootstrap, "-Q", "-t", "grouped:0:-1")
    group = ("-G", "kcat-group", "-e", "-q", "-X", "auto.offset.reset=earliest", "grouped")
    first = await kcat(shared_cluster.bootstrap, *group)
    assert sorted(first.split()) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2", "1-3"]
    await send(shared_cluster.bootstrap, "grouped", [b"new"])
    assert (await kcat(shared_cluster.bootstrap, *group)).split() == ["new"], "what was committed is not read again"
    ends = await kcat(shared_cluster.bootstrap, "-Q", "-t", "grouped:0:-1")
    assert "offset 4" in ends


# --- python -m kafka.admin --------------------------------------------------------------------------------------------


async def test_kafka_admin_looks_at_the_cluster(shared_cluster: Cluster) -> None:
    await create(shared_cluster, "looked-at", partitions=2)
    described = await kafka_admin(shared_cluster, "cluster", "describe")
    assert [item["broker_id"] for item in described["brokers"]] == [0, 1, 2]
    folders = await kafka_admin(shared_cluster, "cluster", "describe-log-dirs")
    assert sorted(item["broker"] for item in folders) == [0, 1, 2]
    versions = await kafka_admin(shared_cluster, "cluster", "broker-version", "--broker", "0")
    assert versions
    assert "looked-at" in await kafka_admin(shared_cluster, "topics", "list")
    (topic,) = await kafka_admin(shared_cluster, "topics", "describe", "-t", "looked-at")
    assert len(topic["partitions"]) == 2
    quorum = await kafka_admin(shared_cluster, "cluster", "describe-quorum")
    (partition,) = quorum["topics"][0]["partitions"]
    assert partition["error"] is None or "NoError" in partition["error"]
    assert [item["replica_id"] for item in partition["current_voters"]] == [0, 1, 2]
    assert partition["leader_id"] in (0, 1, 2) and partition["high_watermark"] > 0
    listed = await kafka_admin(shared_cluster, "configs", "list")
    assert listed["broker"] == ["0", "1", "2"] and "looked-at" in listed["topic"]


async def test_kafka_admin_describes_alters_and_resets_configurations(shared_cluster: Cluster) -> None:
    await create(shared_cluster, "by-command")
    named = ("-r", "topic", "-n", "by-command")
    altered = await kafka_admin(shared_cluster, "configs", "alter", *named, "-c", "retention.ms=777000")
    assert altered == {"topic": {"by-command": "OK"}}
    found = (await kafka_admin(shared_cluster, "configs", "describe", *named, "--modified"))["topic"]["by-command"]
    assert {key: item["value"] for key, item in found.items()} == {"retention.ms": "777000"}
    refused = await kafka_admin(shared_cluster, "configs", "alter", *named, "-c", "retention.ms=soon")
    assert "[Error 40]" in refused["topic"]["by-command"]
    await kafka_admin(shared_cluster, "configs", "reset", *named, "-c", "retention.ms")
    assert await kafka_admin(shared_cluster, "configs", "describe", *named, "--modified") == {
        "topic": {"by-command": {}}
    }


@needs_kcat
async def test_kafka_admin_looks_at_groups_and_deletes_them(shared_cluster: Cluster) -> None:
    await create(shared_cluster, "for-groups")
    await send(shared_cluster.bootstrap, "for-groups", [b"v"])
    await kcat(shared_cluster.bootstrap, "-G", "watched", "-e", "-q", "-X", "auto.offset.reset=earliest", "for-groups")
    assert "watched" in {item["group_id"] for item in await kafka_admin(shared_cluster, "groups", "list")}
    described = await kafka_admin(shared_cluster, "groups", "describe", "-g", "watched")
    assert "Empty" in json.dumps(described)
    offsets = await kafka_admin(shared_cluster, "groups", "list-offsets", "-g", "watched")
    assert "for-groups" in json.dumps(offsets)
    await kafka_admin(shared_cluster, "groups", "delete", "-g", "watched")
    assert "watched" not in {item["group_id"] for item in await kafka_admin(shared_cluster, "groups", "list")}


async def test_kafka_admin_creates_topics_that_we_see_and_deletes_them(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    await kafka_admin(
        shared_cluster, "topics", "create", "-t", "made", "--num-partitions", "2", "--replication-factor", "3"
    )
    async with shared_cluster.admin() as admin:
        assert len((await admin.describe_topic("made")).partitions) == 2
    await send(shared_cluster.bootstrap, "made", [b"v"])
    assert TopicPartition("made", 0) in await read_all(shared_cluster.bootstrap, "made")
    await kafka_admin(shared_cluster, "topics", "delete", "-t", "made")
    assert "made" not in await kafka_admin(shared_cluster, "topics", "list")
