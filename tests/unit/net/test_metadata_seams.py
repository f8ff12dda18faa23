"""Logs and replicas of a broker under the metadata that it is shown: what is taken up, what is not, what is deleted."""

import asyncio
from typing import Any, cast

import pytest
from unit.net.shell_world import NoEffects

from barnabas.kraft.metadata.image import (
    BrokerImage,
    Endpoint,
    MetadataChanges,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.errors import RequestTimedOutError
from barnabas.net.base.settings.config import load
from barnabas.net.logs.log_service import LogService
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.testing.simulation.disk import SimulatedDisk

NODE = 1
EPOCH = 7
HERE = (NODE, 2)
ELSEWHERE = (2, 3)


class Clock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def wall_ms(self) -> int:
        return self.time_ms


class Source:
    """Publishes what a test says."""

    async def start(self, publish: Any) -> None:
        self.publish = publish

    async def close(self) -> None:
        """Nothing runs."""


def topic(name: str, replicas: tuple[int, ...] = HERE, topic_id: str = "") -> TopicImage:
    partition = PartitionImage(replicas=replicas, isr=replicas, leader=replicas[0], leader_epoch=3, partition_epoch=5)
    return TopicImage(name=name, topic_id=topic_id or f"id-{name}", partitions=(partition,))


def image(*topics: TopicImage, epoch: int = EPOCH, configs: dict[str, dict[str, str]] | None = None) -> MetadataImage:
    broker = BrokerImage(
        node_id=NODE,
        broker_epoch=epoch,
        incarnation="i",
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1),),
        fenced=False,
    )
    return MetadataImage(
        offset=10,
        brokers={NODE: broker},
        topics={item.name: item for item in topics},
        topic_names={item.topic_id: item.name for item in topics},
        topic_configs=configs or {},
    )


class _Effects(NoEffects):
    def __init__(self, log_service: LogService) -> None:
        self._log_service = log_service

    def took_up(self, image: MetadataImage) -> None:
        self._log_service.set_strays_aside(image)


class World:
    """A broker's logs and replicas over one simulated disk, without anything else of a broker."""

    def __init__(self, disk: SimulatedDisk | None = None, **overrides: str) -> None:
        self.clock = Clock()
        self.fatal: list[str] = []
        self.logs = LogManager(disk or SimulatedDisk(), ("/d",), node_id=NODE)
        self.logs.load(now_ms=0)
        self.metadata = MetadataService(cast(Any, Source()))
        self.log_service = LogService(
            logs=self.logs,
            metadata=self.metadata,
            config=load(None, {"node.id": str(NODE), **overrides}, {}),
            clock=cast(Any, self.clock),
            fatal=self.fatal.append,
            is_current=lambda: self.replication.is_current,
            flush=lambda log: log.flush(),
        )
        self.replication = ReplicationService(
            node_id=NODE,
            manager=ReplicaManager(NODE, self.log_service),
            clock=cast(Any, self.clock),
            effects=_Effects(self.log_service),
        )
        self.metadata.subscribe(self.log_service.published)
        self.metadata.subscribe(self.replication.published)

    def show(self, shown: MetadataImage, *changed: str) -> None:
        publication = MetadataPublication(
            image=shown,
            changes=MetadataChanges(topics=frozenset(changed)),
            group_records=(),
            leader=Leadership(leader_id=0, term=1, is_self=False),
            is_active_controller=False,
        )
        self.metadata._published(publication)

    @property
    def names(self) -> set[str]:
        return {topic_partition.topic for topic_partition in self.logs.logs}

    @property
    def roles(self) -> set[str]:
        return {partition.topic_partition.topic for partition in self.replication.manager.partitions()}


async def test_no_role_is_taken_before_the_own_registration_shows() -> None:
    world = World()
    world.show(image(topic("a"), epoch=EPOCH - 1), "a")
    world.replication.registered(EPOCH)
    assert world.roles == set() and not world.replication.is_current
    world.show(image(topic("a"), epoch=EPOCH - 1), "a")
    assert world.roles == set() and not world.replication.is_current
    world.show(image(topic("a")))
    assert world.roles == {"a"} and world.replication.is_current


async def test_a_topic_that_was_deleted_while_the_registration_was_lost_goes() -> None:
    world = World()
    world.replication.registered(EPOCH)
    world.show(image(topic("a"), topic("b")), "a", "b")
    world.show(image(topic("a"), epoch=EPOCH + 9), "b")  # another process has registered; not acted upon
    assert world.roles == {"a", "b"}
    world.replication.registered(EPOCH + 10)
    world.show(image(topic("a"), epoch=EPOCH + 10))
    assert world.roles == world.names == {"a"}


async def test_logs_that_the_cluster_gave_to_others_meanwhile_are_set_aside_and_kept() -> None:
    """Metadata that was restored from an old backup knows nothing of newer topics: their records were deleted."""
    disk = SimulatedDisk()
    world = World(disk)
    world.replication.registered(EPOCH)
    names = ("kept", "deleted", "moved", "renewed")
    world.show(image(*(topic(name) for name in names)), *names)
    world.logs.close()
    world = World(disk)
    assert world.names == set(names)
    world.show(image(epoch=EPOCH - 1))  # older than our registration: proves nothing
    assert world.names == set(names)
    world.replication.registered(EPOCH)
    world.show(image(topic("kept"), topic("moved", ELSEWHERE), topic("renewed", ELSEWHERE, "id-2")))
    assert world.names == {"kept"}
    strays = world.logs.removals.strays("/d")
    assert sorted(path.removeprefix("/d/").partition("-")[0] for path in strays) == ["deleted", "moved", "renewed"]
    for folder in world.logs.folders:
        world.logs.removals.remove_due(folder, 10**15)
    world.logs.close()
    world = World(disk)
    for folder in world.logs.folders:
        world.logs.removals.remove_due(folder, 10**15)
    assert world.names == {"kept"} and world.logs.removals.strays("/d") == strays
    assert all(disk.exists(f"{path}/{0:020d}.log") for path in strays)


async def test_retention_waits_for_the_topics_own_settings() -> None:
    """A broker that waits long for its quorum must not delete by its own settings what a topic keeps for ever."""
    world = World(**{"log.retention.check.interval.ms": "1", "replica.high.watermark.checkpoint.interval.ms": "1"})
    deleted: list[int] = []
    world.logs.upkeep.run_retention = lambda now_ms, refused: deleted.append(now_ms) or ()  # type: ignore[method-assign, func-returns-value]
    upkeep = asyncio.create_task(world.log_service.run())
    world.clock.time_ms += 1_000
    await asyncio.sleep(0.1)
    assert deleted == []
    world.replication.registered(EPOCH)
    world.show(image(topic("a")))
    world.clock.time_ms += 1_000
    await asyncio.sleep(0.1)
    assert deleted != []
    upkeep.cancel()
    await asyncio.gather(upkeep, return_exceptions=True)
    assert world.fatal == []


async def test_cancelled_upkeep_ends_after_its_thread() -> None:
    world = World(**{"replica.high.watermark.checkpoint.interval.ms": "1"})
    ended: list[str] = []
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def remove_slowly(_folder: LogFolder, _now_ms: int) -> None:
        loop.call_soon_threadsafe(started.set)
        asyncio.run(asyncio.sleep(0.1))
        ended.append("remove")

    world.logs.removals.remove_due = remove_slowly  # type: ignore[method-assign]
    upkeep = asyncio.create_task(world.log_service.run())
    await started.wait()
    upkeep.cancel()
    await asyncio.gather(upkeep, return_exceptions=True)
    assert ended == ["remove"] and upkeep.cancelled()


async def test_whoever_stops_waiting_for_metadata_is_forgotten() -> None:
    world = World()
    with pytest.raises(RequestTimedOutError):
        await world.metadata.wait_for_offset(99, timeout_ms=1)
    waiting = asyncio.create_task(world.metadata.wait_for_offset(10, timeout_ms=5_000))
    await asyncio.sleep(0)
    assert len(world.metadata._waiters) == 1
    world.show(image())
    await waiting
    assert world.metadata._waiters == {}
