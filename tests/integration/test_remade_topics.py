"""A topic is deleted and created again between the request for its offsets and the reading of its records: no reader takes
records of the new topic for those of the old one.

The new topic has more records than the old one, so that every offset of the old one exists in it. Tasks of Spark have a file of
their own.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from integration.cluster import Cluster

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import LATEST, Admin
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import TopicRecreatedError
from barnabas.net.client.connection.records import OffsetAndTimestamp
from barnabas.net.client.consumer.read_table import read_table
from barnabas.net.client.consumer.table_range import TableQuery
from barnabas.net.client.consumer.table_scan import TopicScan
from barnabas.net.client.producer.batch_copier import BatchCopier
from barnabas.net.client.producer.producer import Producer
from barnabas.net.programs.backup.contents import PartitionContents
from barnabas.net.programs.backup.taking import Taking, TakingConfig
from barnabas.net.programs.connect.postgres.changes.position import Position, encode
from barnabas.net.programs.connect.postgres.delivery import POSITION_KEY, _position_before

pytestmark = pytest.mark.timeout(120)
OLD, NEW = [b"old %d" % number for number in range(20)], [b"new %d" % number for number in range(40)]


async def make(cluster: Cluster, topic: str, values: list[bytes], *, key: bytes | None = None) -> str:
    """A topic of one partition with these records; returns its id."""
    async with cluster.admin() as admin:
        await admin.create_topic(topic, partitions=1, replication_factor=1)
        topic_id = (await admin.describe_topic(topic)).topic_id
    async with Producer(cluster.bootstrap) as producer:
        for value in values:
            await producer.send(topic, value, key=key)
    return topic_id


async def remake(cluster: Cluster, topic: str, values: list[bytes] = NEW, *, key: bytes | None = None) -> str:
    async with cluster.admin() as admin:
        await admin.delete_topic(topic)
    return await make(cluster, topic, values, key=key)


async def refused(reading: Awaitable[object], topic: str, ids: tuple[str, str]) -> None:
    """It raises the error that names the topic, both ids and the cure."""
    with pytest.raises(TopicRecreatedError) as caught:
        await reading
    check_told(caught.value.message, topic, ids)


def check_told(told: str, topic: str, ids: tuple[str, str]) -> None:
    assert f"topic {topic} was deleted and created again" in told, told
    assert f"its id was {ids[0]} and is {ids[1]} now" in told and "start again" in told, told


@pytest.fixture
async def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return await new_cluster(1).ready()


async def test_readers_of_a_planned_range_refuse_the_new_topic(cluster: Cluster, tmp_path: Path) -> None:
    """Each takes the offsets, then the topic is made again, then it reads."""
    topics = {name: await make(cluster, name, OLD) for name in ("scanned", "streamed", "kept", "copied")}
    async with cluster.admin() as admin:
        end = (await admin.list_offsets("kept"))[TopicPartition("kept", 0)]
        ranges = await TableQuery(topic="scanned").ranges(admin.client)
        await admin.client.wait_for_topic("copied", timeout_ms=10_000)
        table = await asyncio.to_thread(read_table, "streamed", bootstrap=cluster.bootstrap, stream=True)
        ids = {name: (old, await remake(cluster, name)) for name, old in topics.items()}

        scan = TopicScan(admin.client, TableQuery(topic="scanned"), ranges)
        taking = Taking(TakingConfig(bootstrap=cluster.bootstrap, folder=tmp_path))
        await asyncio.gather(
            refused(scan.next_part(), "scanned", ids["scanned"]),
            refused(asyncio.to_thread(table.read_all), "streamed", ids["streamed"]),
            refused(keep(taking, admin, tmp_path, end), "kept", ids["kept"]),
            refused(copy(admin.client), "copied", ids["copied"]),
        )
        await scan.close()
    assert taking.taken.bytes == 0 and taking.taken.offsets == 0
    again = await asyncio.to_thread(read_table, "streamed", bootstrap=cluster.bootstrap)
    assert again["value"].to_pylist() == NEW


async def keep(taking: Taking, admin: Admin, folder: Path, end: OffsetAndTimestamp) -> None:
    """As `barnabas cluster backup` takes a partition whose end it knows."""
    await taking._partition(admin, TopicPartition("kept", 0), folder, PartitionContents(), end)


async def copy(client: Client) -> None:
    """From a stage that the client knows, as the driver of a sink does."""
    source = TopicPartition("copied", 0)
    await BatchCopier(client, timeout_ms=20_000).copy(
        source, [(0, 1)], TopicPartition("kept", 0), producer_id=1, producer_epoch=0
    )


async def test_a_backup_refuses_a_topic_that_was_made_again_since_it_was_described(
    cluster: Cluster, tmp_path: Path
) -> None:
    await make(cluster, "orders", OLD)
    async with cluster.admin() as admin:
        topic = await admin.describe_topic("orders")
        ids = (topic.topic_id, await remake(cluster, "orders"))
        taking = Taking(TakingConfig(bootstrap=cluster.bootstrap, folder=tmp_path / "backup"))
        await refused(taking._topic(admin, topic, None), "orders", ids)
    assert not (tmp_path / "backup").exists()


async def test_a_connector_does_not_go_on_from_a_position_under_the_end_of_an_older_topic(cluster: Cluster) -> None:
    positions = [encode(Position(system_id="1", database="d", slot="s", lsn=lsn)) for lsn in (10, 20, 30)]
    old = await make(cluster, "positions", positions[:1], key=POSITION_KEY)
    async with cluster.admin() as admin:
        (end,) = (await admin.list_offsets("positions", timestamp_ms=LATEST)).values()
        found = await _position_before(admin, "positions", end.offset, end.topic_id)
        assert found is not None and found.lsn == 10
        new = await remake(cluster, "positions", positions[1:], key=POSITION_KEY)
        await refused(_position_before(admin, "positions", end.offset, end.topic_id), "positions", (old, new))


async def test_a_reader_that_follows_over_http_is_told_of_the_new_topic(cluster: Cluster) -> None:
    old = await make(cluster, "followed", OLD)
    async with cluster.admin() as admin:
        cluster_id = (await admin.describe_cluster()).cluster_id
    topic = f"http://{cluster.nodes[0].property('admin.listener')}/v3/clusters/{cluster_id}/topics/followed"
    events: list[tuple[str, dict[str, object]]] = []
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=60)) as session,
        session.get(f"{topic}/partitions/0/records?offset=0", headers={"Accept": "text/event-stream"}) as stream,
    ):
        kind, new, last = "", "", ""
        async for line in stream.content:
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"id: "):
                last = line[4:].decode().strip()
            elif line.startswith(b"data: "):
                events.append((kind, json.loads(line[6:])))
                kind = ""
            if len(events) > len(OLD):
                break
            if len(events) == len(OLD) and not new:
                new = await remake(cluster, "followed")
        # As a browser that connects again.
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        async with session.get(f"{topic}/partitions/0/records", headers=headers) as stream:
            told_again = await stream.text()
    assert last == f"{len(OLD) - 1}@{old}"
    assert "event: failure" in told_again and "id: " not in told_again
    check_told(told_again, "followed", (old, new))
    (kind, told), records = events[-1], [told for _, told in events[:-1]]
    assert [record["value"] for record in records] == [{"size": len(value), "text": value.decode()} for value in OLD]
    assert kind == "failure"
    check_told(str(told["message"]), "followed", (old, new))
