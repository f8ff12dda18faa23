"""Brokers come and go, and no group notices: their members' partitions stay where they are."""

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

from integration.cluster import Cluster, full_isr, until
from integration.group_reader import Reader, places, shared_evenly
from integration.load import Load

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse

TOPIC, GROUP = "orders", "billing"
PARTITIONS, MEMBERS = 6, 3


async def described_whole(admin: Admin) -> DescribeGroupResponse | None:
    """A member knows of a partition earlier than the coordinator knows that it does."""
    found = await admin.describe_group(GROUP)
    known = sum(len(item.partitions) for member in found.members for item in member.assigned)
    return found if known == PARTITIONS else None


async def test_broker_churn_causes_no_rebalance(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(cluster.admin())
        await admin.create_topic(
            TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
        )
        readers = [await stack.enter_async_context(Reader(cluster.bootstrap, GROUP, TOPIC)) for _ in range(MEMBERS)]
        await until(lambda: shared_evenly(readers, places(orders=PARTITIONS)), "every member has its share")
        load = await stack.enter_async_context(Load(cluster.bootstrap, TOPIC, partitions=PARTITIONS))
        before = await until(lambda: described_whole(admin), "the coordinator knows what every member has")
        for reader in readers:
            reader.changes.clear()

        for node_id in {0, 1, 2} - {before.coordinator}:
            await kill_and_restart(cluster, admin, readers, node_id)
            now = await admin.describe_group(GROUP)
            assert (now.group_epoch, now.coordinator) == (before.group_epoch, before.coordinator)
        await kill_and_restart(cluster, admin, readers, before.coordinator)
        after = await admin.describe_group(GROUP)
        assert after.group_epoch == before.group_epoch
        assert after.coordinator != before.coordinator  # it has moved, and stays where it is
        assert {it.member_id: it.assigned for it in after.members} == {
            it.member_id: it.assigned for it in before.members
        }
        assert [reader.changes for reader in readers] == [[], [], []]
        assert not load.failed


async def kill_and_restart(cluster: Cluster, admin: Admin, readers: list[Reader], node_id: int) -> None:
    """Every partition is read on while the broker is away, and commits go through."""
    cluster.kill(node_id)
    await until(lambda: has_left(admin, node_id), f"broker {node_id} is noticed to be gone")
    seen = total(readers)
    await until(
        lambda: all(total(readers)[place] > seen[place] for place in places(orders=PARTITIONS)),
        f"every partition is read on without broker {node_id}",
    )
    seen = total(readers)
    committed = await offsets(admin)

    async def are_committed() -> bool:
        now = await offsets(admin)
        return all(now[place] > committed.get(place, 0) for place in seen)

    await until(are_committed, "offsets of every partition are committed")
    cluster.start(node_id)
    await full_isr(admin, [TOPIC])


async def has_left(admin: Admin, node_id: int) -> bool:
    return any(item.node_id == node_id and item.fenced for item in (await admin.describe_cluster()).brokers)


async def offsets(admin: Admin) -> dict[TopicPartition, int]:
    return {place: item.committed for place, item in (await admin.group_offsets(GROUP)).items()}


def total(readers: list[Reader]) -> Counter[TopicPartition]:
    return sum((reader.read for reader in readers), Counter())
