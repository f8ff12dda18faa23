"""The means by which tests read what was committed: all of it, also where the markers come late."""

import asyncio
import signal
from collections.abc import Callable

import pytest
from integration import whole_topic
from integration.cluster import SHARED_SESSION, Cluster, describe_cluster
from integration.test_spark_sink import read

from barnabas.net.client.producer.producer import Producer


def by_librdkafka(cluster: Cluster) -> list[bytes]:
    return [value.encode() for value in whole_topic.values(cluster.bootstrap, "late", partitions=1)]


def by_the_sdk(cluster: Cluster) -> list[bytes]:
    return [record.value or b"" for record in read(cluster, "late")]


@pytest.mark.parametrize("values", [by_librdkafka, by_the_sdk])
async def test_a_commit_that_was_answered_is_read_although_its_marker_comes_late(
    new_cluster: Callable[..., Cluster], values: Callable[[Cluster], list[bytes]]
) -> None:
    """A follower stands still, so the marker is not in the log of all replicas."""
    session = {key.replace(".", "_"): value for key, value in SHARED_SESSION.items()}
    cluster = await new_cluster(3, **session).ready()
    async with (
        cluster.admin() as admin,
        Producer(cluster.bootstrap, transactional_id="t") as producer,
    ):
        async with producer.transaction():
            pass
        coordinator = (await admin.transactions.describe("t")).summary.coordinator
        needed = {coordinator, (await describe_cluster(cluster)).controller_id}
        still = next(node for node in cluster.nodes if node.node_id not in needed)
        await admin.create_topic("late", assignment=[[coordinator, still.node_id]])
        transaction = producer.transaction()
        await transaction.begin()
        await (await transaction.send("late", b"x", partition=0))
        still.signal(signal.SIGSTOP)
        await transaction.commit()
        reading = asyncio.create_task(asyncio.to_thread(values, cluster))
        assert not (await asyncio.wait({reading}, timeout=2))[0], "the reader waits"
        still.signal(signal.SIGCONT)
        assert await reading == [b"x"]
