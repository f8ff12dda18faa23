"""More brokers than voters, and more topics than fit on a screen."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from integration.cluster import Cluster, active_brokers, full_isr, partitions_of, until
from integration.load import Load, read_all, send

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer

Maker = Callable[..., Cluster]
MIN_ISR_2 = {"min.insync.replicas": "2"}
TOPICS = [f"topic-{number:03d}" for number in range(100)]


async def test_observers_hold_lead_and_coordinate_and_outlive_a_voter(new_cluster: Maker) -> None:
    cluster = await new_cluster(5).ready()
    async with cluster.admin() as admin:
        quorum = await admin.describe_quorum()
        assert sorted(quorum.voters) == [0, 1, 2]
        # Every broker leads one partition; 3 and 4 are observers.
        assignment = [[node, (node + 1) % 5, (node + 2) % 5] for node in range(5)]
        await admin.create_topic("spread", assignment=assignment, configs=MIN_ISR_2)
        leaders = [item.leader for item in await partitions_of(admin, "spread")]
        assert leaders == [0, 1, 2, 3, 4]
        async with Load(cluster.bootstrap, "spread", partitions=5) as load:
            await until(lambda: load.count > 300, "the load runs")
            await groups_work(cluster, prefix="before", count=12)
            victim = next(node for node in (0, 1, 2) if node == quorum.leader_id)
            cluster.kill(victim)
            count = load.count
            await until(lambda: load.count > count + 300, "writes go on without a voter")
            await groups_work(cluster, prefix="after", count=12)
            cluster.start(victim)
            await full_isr(admin, ["spread"])
        assert not load.failed
        observers = [node for node in (await admin.describe_quorum()).observers]
    load.check(await read_all(cluster.bootstrap, "spread"))
    assert set(observers) <= {3, 4}


async def groups_work(cluster: Cluster, *, prefix: str, count: int) -> None:
    """So many groups that their slots lie on all brokers: each reads, commits, and resumes."""

    async def one(name: str) -> None:
        async with Consumer(
            "spread", bootstrap=cluster.bootstrap, group=name, auto_offset_reset="earliest", auto_commit=False
        ) as consumer:
            while not (found := await consumer.poll(max_records=10)):
                pass
            place, records = next(iter(found.items()))
            await consumer.commit({place: records[-1].offset + 1})
            assert await consumer.committed(place) == {place: records[-1].offset + 1}

    async with asyncio.timeout(60):
        await asyncio.gather(*(one(f"{prefix}-{number}") for number in range(count)))


async def test_a_broker_joins_a_running_cluster(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("before", partitions=3, replication_factor=3)
        began_s = time.monotonic()
        added = cluster.add(3)
        await cluster.ready()
        print(f"a fourth broker joined in {time.monotonic() - began_s:.2f} s")
        assert await active_brokers(cluster) == {0, 1, 2, 3}
        await admin.create_topic("new", assignment=[[3, 0, 1]], configs=MIN_ISR_2)
        assert await send(added.address, "new", [b"led by the new one"]) == [0]
        cluster.kill(3)
        await until(lambda: led_by_another(cluster), "another leads")
        assert await send(cluster.bootstrap, "new", [b"meanwhile"]) == [1]
        cluster.start(3)
        await full_isr(admin, ["before", "new"])
    stored = await read_all(added.address, "new")
    assert stored == {TopicPartition("new", 0): {0: b"led by the new one", 1: b"meanwhile"}}


async def led_by_another(cluster: Cluster) -> bool:
    async with cluster.admin() as admin:
        return (await partitions_of(admin, "new"))[0].leader not in (-1, 3)


async def test_100_topics_of_3_partitions_and_3_replicas(new_cluster: Maker) -> None:
    """Creation, the crash of a leader, and its recovery. The times are for the report; the bounds only catch disasters."""
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        began_s = time.monotonic()
        for name in TOPICS:
            await admin.create_topic(name, partitions=3, replication_factor=3, configs=MIN_ISR_2)
        created_s = time.monotonic() - began_s
        await full_isr(admin, TOPICS)
        ready_s = time.monotonic() - began_s
        for name in TOPICS[::10]:
            await send(cluster.bootstrap, name, [b"kept"])
        controller = (await admin.describe_cluster()).controller_id
        topics = await admin.describe_topics(include_internal=False)
        leaders = Counter(item.leader for topic in topics for item in topic.partitions)
        # A broker whose disk stalls for a session while 300 logs are made loses its leaderships, so who has most is asked.
        led, victim = max((leaders[node], node) for node in range(3) if node != controller)
        assert led > 0
        cluster.kill(victim)
        killed_s = time.monotonic()

        async def all_led() -> bool:
            found = [item for topic in await admin.describe_topics(include_internal=False) for item in topic.partitions]
            return len(found) == 300 and all(item.leader not in (-1, victim) for item in found)

        await until(all_led, "all partitions have another leader")
        elected_s = time.monotonic() - killed_s
        assert await send(cluster.bootstrap, TOPICS[0], [b"meanwhile"], partition=1) == [0]
        cluster.start(victim)
        began_s = time.monotonic()
        await full_isr(admin, TOPICS)
        recovered_s = time.monotonic() - began_s
    for name in TOPICS[::10]:
        stored = await read_all(cluster.bootstrap, name)
        assert stored[TopicPartition(name, 0)] == {0: b"kept"}
    rss = ", ".join(f"{node.rss_mib():.0f}" for node in cluster.nodes)
    print(
        f"\n100 topics x 3 partitions x factor 3: created in {created_s:.2f} s, full ISR after {ready_s:.2f} s; "
        f"kill -9 of the leader of {led}: all led again after {elected_s:.2f} s, full ISR {recovered_s:.2f} s after its "
        f"restart; RSS {rss} MiB"
    )
    assert created_s < 80 and elected_s < 40 and recovered_s < 80
