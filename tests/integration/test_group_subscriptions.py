"""What members subscribe to, on real brokers: lists, patterns, topics and partitions that come later, more members than work."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from integration.cluster import Cluster, until
from integration.group_reader import Reader, places, shared_evenly, shared_out
from integration.load import send


async def test_several_topics_are_shared_out_evenly(shared_cluster: Cluster) -> None:
    cluster = await shared_cluster.ready()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(cluster.admin())
        await admin.create_topic("debits", partitions=3, replication_factor=3)
        await admin.create_topic("credits", partitions=3, replication_factor=3)
        readers = [
            await stack.enter_async_context(Reader(cluster.bootstrap, "books", "debits", "credits")) for _ in range(2)
        ]
        wanted = places(debits=3, credits=3)
        await until(lambda: shared_evenly(readers, wanted), "three partitions each")
        for topic, number in wanted:
            await send(cluster.bootstrap, topic, [b"entry"], partition=number)
        await until(lambda: sum(sum(it.read.values()) for it in readers) == len(wanted), "every record is read")
        assert all(reader.read.keys() <= reader.owned for reader in readers)


async def test_new_partitions_and_new_topics_that_match_are_picked_up(
    shared_cluster: Cluster, report_line: Callable[[str], None]
) -> None:
    cluster = await shared_cluster.ready()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(cluster.admin())
        await admin.create_topic("logs-web", partitions=1, replication_factor=3)
        await admin.create_topic("other", partitions=1, replication_factor=3)
        readers = [
            await stack.enter_async_context(Reader(cluster.bootstrap, "searchers", pattern="logs-.*")) for _ in range(2)
        ]
        wanted = places(**{"logs-web": 1})
        await until(lambda: shared_out(readers, wanted), "what matches is read, and nothing else")

        # Members hear of it with their next heartbeat, group.consumer.heartbeat.interval.ms (5 s) later at most.
        began_s = time.monotonic()
        await admin.add_partitions("logs-web", 3)
        wanted |= places(**{"logs-web": 3})
        await until(lambda: shared_out(readers, wanted), "the new partitions are read")
        grown_s = time.monotonic() - began_s
        began_s = time.monotonic()
        await admin.create_topic("logs-mail", partitions=2, replication_factor=3)
        wanted |= places(**{"logs-mail": 2})
        await until(lambda: shared_out(readers, wanted), "the new topic is read")
        report_line(
            f"groups: new partitions read after {grown_s:.1f} s, a new topic {time.monotonic() - began_s:.1f} s"
        )

        for topic, number in wanted:
            await send(cluster.bootstrap, topic, [b"line"], partition=number)
        await until(lambda: sum(sum(it.read.values()) for it in readers) == len(wanted), "records of all are read")
        await admin.delete_topic("logs-mail")
        await until(lambda: shared_out(readers, wanted - places(**{"logs-mail": 2})), "the deleted topic is let go of")


@pytest.mark.parametrize("members", [5])
async def test_more_members_than_partitions_leave_some_idle_without_harm(shared_cluster: Cluster, members: int) -> None:
    cluster = await shared_cluster.ready()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(cluster.admin())
        await admin.create_topic("few", partitions=3, replication_factor=3)
        readers = [await stack.enter_async_context(Reader(cluster.bootstrap, "many", "few")) for _ in range(members)]
        wanted = places(few=3)

        async def all_have_joined() -> bool:
            return len((await admin.describe_group("many")).members) == members

        await until(all_have_joined, "all members have joined")
        await until(lambda: shared_evenly(readers, wanted), "every partition is read, each by another member")
        idle = [reader for reader in readers if not reader.owned]
        assert len(idle) == members - len(wanted)
        busy = next(reader for reader in readers if reader.owned)
        await busy.close()
        readers.remove(busy)
        await until(lambda: shared_evenly(readers, wanted), "an idle member takes over what the other one read")
        assert any(reader.owned for reader in idle)
