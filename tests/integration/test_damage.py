"""A byte changes on one broker's disk: it is told, nobody is served it, and a healthy replica's copy takes its place."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from integration.cluster import Cluster, Node, full_isr, partitions_of, until
from integration.load import read_all, send

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer

Maker = Callable[..., Cluster]
TOPIC = "orders"
PLACE = TopicPartition(TOPIC, 0)
VALUES = [b"%04d-" % number + b"x" * 1_000 for number in range(120)]
SETTINGS = {"log_scrub_interval_ms": "300", "replica_lag_time_max_ms": "3000"}
CONFIGS = {"segment.bytes": "30000", "min.insync.replicas": "2"}


async def filled(cluster: Cluster, admin: Admin, *replicas: int) -> None:
    await admin.create_topic(TOPIC, assignment=[list(replicas)], configs=CONFIGS)
    await full_isr(admin, [TOPIC])
    for first in range(0, len(VALUES), 10):  # batches of ten: a segment has a few
        await send(cluster.bootstrap, TOPIC, VALUES[first : first + 10])


def segments(node: Node) -> list[Path]:
    return sorted((node.data / f"{TOPIC}-0").glob("*.log"))


def flip(path: Path) -> int:
    """Change one bit of the second batch; returns where the batch begins."""
    data = path.read_bytes()
    second = list(iter_headers(data))[1]
    position = second.position + second.size_bytes // 2
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 0x10]))
        os.fsync(file.fileno())
    return second.position


async def repaired(cluster: Cluster, admin: Admin, node: Node, since: int) -> None:
    """It told, resigned, set the file aside, and is back with the data of the others."""
    for event in ("event=damaged", "event=resigned", "event=damage_set_aside"):
        await until(lambda event=event: any(event in line for line in node.log_since(since)), event)  # type: ignore[misc]
    await full_isr(admin, [TOPIC])
    assert (await read_all(cluster.bootstrap, TOPIC))[PLACE] == dict(enumerate(VALUES))
    assert list((node.data / f"{TOPIC}-0").glob("*.log.damaged"))

    def is_equal() -> bool:
        copies = [b"".join(path.read_bytes() for path in segments(other)) for other in cluster.nodes]
        return [len(copy) for copy in copies] == [len(copies[0])] * 3 and all(
            [header.crc for header in iter_headers(copy, verify_crc=True)] == [h.crc for h in iter_headers(copies[0])]
            for copy in copies
        )

    await until(is_equal, "all copies are sound and equal")


async def test_a_follower_whose_disk_changed_while_it_was_down_is_repaired(new_cluster: Maker) -> None:
    cluster = await new_cluster(3, **SETTINGS).ready()
    node = cluster.nodes[1]
    async with cluster.admin() as admin:
        await filled(cluster, admin, 0, 1, 2)
        await until(lambda: len(segments(node)) >= 4, "the follower has segments that grow no more")
        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running, "it has stopped")
        flip(segments(node)[1])
        since = node.log_size()
        cluster.start(1)
        await repaired(cluster, admin, node, since)


async def test_a_leader_whose_disk_changes_while_it_runs_hands_over_and_is_repaired(new_cluster: Maker) -> None:
    cluster = await new_cluster(3, **SETTINGS).ready()
    node = cluster.nodes[0]
    async with cluster.admin() as admin:
        await filled(cluster, admin, 0, 1, 2)
        assert (await partitions_of(admin, TOPIC))[0].leader == 0
        since = node.log_size()
        flip(segments(node)[1])
        await repaired(cluster, admin, node, since)


async def test_the_only_replica_serves_everything_round_the_damage(new_cluster: Maker) -> None:
    """Nobody can repair it: the refusal names the offsets, the file and where to go on."""
    cluster = await new_cluster(1, **SETTINGS).ready()
    node = cluster.nodes[0]
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, assignment=[[0]], configs={"segment.bytes": "30000"})
        for first in range(0, len(VALUES), 10):
            await send(cluster.bootstrap, TOPIC, VALUES[first : first + 10])
        since = node.log_size()
        path = segments(node)[1]
        flip(path)
        await until(lambda: any("event=damaged" in line for line in node.log_since(since)), "it is told")
        (line,) = [line for line in node.log_since(since) if "event=damaged" in line]
        first, last = (int(number) for number in line.split("offsets ")[1].split(" ")[0].split(".."))
        assert str(path) in line and 0 < first <= last < len(VALUES)
        for start, end in ((0, first), (last + 1, len(VALUES))):
            async with Consumer(bootstrap=cluster.bootstrap) as consumer:
                consumer.assign([PLACE])
                consumer.seek(PLACE, start)
                seen: dict[int, bytes] = {}
                while len(seen) < end - start:
                    for record in (await consumer.poll(timeout_ms=500)).get(PLACE, []):
                        assert record.value is not None
                        seen[record.offset] = record.value
                assert seen == {offset: VALUES[offset] for offset in range(start, end)}
    assert node.is_running
