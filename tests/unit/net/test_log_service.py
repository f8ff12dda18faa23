"""The logs' upkeep: configuration from the metadata, retention and checkpoints on time, and no end by one trouble."""

import asyncio
from typing import Any

import pytest
from simulation.log_building import append
from unit.net.shell_world import Shell, image_of, simulated, turns

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.replication.log_change import LogChange
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.folder_writers import HANGS_AFTER_MS
from barnabas.net.base.settings.config import load
from barnabas.net.logs.log_service import LogService
from barnabas.net.testing.simulation.disk import SimulatedDisk

TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
CHECKPOINT = "/data/replication-offset-checkpoint"
RECOVERY_POINTS = "/data/recovery-point-offset-checkpoint"
HOUR_MS = 3_600_000
SETTINGS = {
    "node.id": "0",
    "log.dirs": "/data",
    "log.retention.check.interval.ms": "10000",
    "replica.high.watermark.checkpoint.interval.ms": "4000",
    "log.retention.ms": str(HOUR_MS),
    "log.segment.delete.delay.ms": "1000",
}


class World:
    def __init__(self, shell: Shell, disk: SimulatedDisk, settings: dict[str, str]) -> None:
        self.shell = shell
        self.disk = disk
        self.config = load(None, SETTINGS | settings, {})
        self.logs = LogManager(disk, ["/data"], node_id=0)
        self.logs.load(now_ms=shell.clock.wall_ms())
        self.fatal: list[str] = []
        self.is_current = True
        self.service = LogService(
            logs=self.logs,
            metadata=shell.metadata,
            config=self.config,
            clock=shell.clock,
            fatal=self.fatal.append,
            is_current=lambda: self.is_current,
            flush=lambda log: log.flush(now_ms=shell.clock.wall_ms()),
        )
        shell.metadata.subscribe(self.service.published)

    @classmethod
    async def start(cls, disk: SimulatedDisk | None = None, **settings: str) -> "World":
        return cls(await Shell.start(), disk or SimulatedDisk(), settings)

    def run(self) -> None:
        self.running = asyncio.create_task(self.service.run())

    def topic_configs(self, *, offset: int = 11, **configs: dict[str, str]) -> None:
        self.shell.source.publish(image_of(topic_configs=configs, offset=offset))

    def old_log(self, topic_partition: TopicPartition = TP) -> PartitionLog:
        """Three segments; all records are committed, and were made two hours ago."""
        log = self.service.create_log(topic_partition, f"id-{topic_partition.topic}")
        for number in range(3):
            append(log, b"x", timestamp_ms=self.shell.clock.wall_ms() - 2 * HOUR_MS)
            if number < 2:
                log.tail.roll(self.shell.clock.wall_ms(), log.config)
        log.set_high_watermark(3)
        return log


# --- settings of the cluster ------------------------------------------------------------------------------------------


@simulated
async def test_min_insync_replicas_is_the_clusters_whatever_the_file_says() -> None:
    world = await World.start(**{"min.insync.replicas": "1", "log.segment.bytes": "2048"})
    log = world.service.create_log(TP, "id-t")
    own = world.service.create_log(OTHER, "id-u")
    for offset, value in ((11, "2"), (12, "3")):
        configs = {"": {"min.insync.replicas": value, "log.flush.interval.messages": "1"}}
        topics = {"u": {"min.insync.replicas": "4"}}
        world.shell.source.publish(image_of(broker_configs=configs, topic_configs=topics, offset=offset))
        assert (log.config.min_insync_replicas, log.config.flush_messages) == (int(value), 1)
        assert (own.config.min_insync_replicas, own.config.segment_bytes) == (4, 2048)


# --- configuration and the cluster ------------------------------------------------------------------------------------


@simulated
async def test_a_log_has_its_topics_configuration_over_the_brokers() -> None:
    world = await World.start(**{"log.segment.bytes": "2048"})
    world.topic_configs(t={"retention.ms": "5"})
    log, other = world.service.create_log(TP, "id-t"), world.service.create_log(OTHER, "id-u")
    assert (log.config.retention_ms, log.config.segment_bytes) == (5, 2048)
    assert (other.config.retention_ms, other.config.segment_bytes) == (HOUR_MS, 2048)
    assert world.service.get(TP) is log


@simulated
async def test_a_change_reaches_the_logs_of_its_topic_and_its_removal_too() -> None:
    world = await World.start()
    log, other = world.service.create_log(TP, "id-t"), world.service.create_log(OTHER, "id-u")
    world.topic_configs(t={"min.insync.replicas": "2"}, offset=11)
    assert (log.config.min_insync_replicas, other.config.min_insync_replicas) == (2, 1)
    world.topic_configs(offset=12)
    assert log.config.min_insync_replicas == 1


@simulated
async def test_a_default_that_is_set_while_the_broker_runs_reaches_its_logs_and_its_removal_too() -> None:
    world = await World.start()
    log, other = world.service.create_log(TP, "id-t"), world.service.create_log(OTHER, "id-u")
    own = {"t": {"retention.ms": "9"}}

    def show(offset: int, **brokers: dict[str, str]) -> tuple[int, int]:
        configs = {name.removeprefix("_"): values for name, values in brokers.items()}
        world.shell.source.publish(image_of(topic_configs=own, broker_configs=configs, offset=offset))
        return log.config.retention_ms, other.config.retention_ms

    for_all = {"log.retention.ms": "70", "log.segment.bytes": "4096"}
    assert show(11, _=for_all) == (9, 70)
    assert world.service.create_log(TopicPartition("v", 0), "id-v").config.segment_bytes == 4096
    assert show(12, _=for_all, _0={"log.retention.ms": "60"}) == (9, 60), "set for this broker"
    assert show(13, _=for_all, _1={"log.retention.ms": "60"}) == (9, 70), "set for another one"
    assert show(14, _={"log.retention.ms": "banana"}) == (9, HOUR_MS), "the file's, rather than none"
    wrong = {"min.insync.replicas": "0", "log.retention.ms": "40"}
    assert show(16, _=wrong) == (9, HOUR_MS), "what cannot be used leaves the former values"
    assert show(17) == (9, HOUR_MS)


@simulated
async def test_a_log_that_was_there_before_gets_its_topics_configuration_when_it_is_assigned() -> None:
    disk = SimulatedDisk()
    first = await World.start(disk)
    first.service.create_log(TP, "id-t")
    first.logs.close()
    world = await World.start(disk)
    world.shell.metadata.image = image_of(topic_configs={"t": {"retention.ms": "7"}})
    assert world.service.create_log(TP, "id-t").config.retention_ms == 7


@simulated
async def test_a_value_that_we_do_not_know_leaves_the_defaults() -> None:
    world = await World.start()
    world.topic_configs(t={"retention.ms": "5", "invented.in.version.9": "x"})
    assert world.service.create_log(TP, "id-t").config.retention_ms == HOUR_MS


@simulated
async def test_a_deleted_log_is_gone_and_its_files_follow() -> None:
    world = await World.start()
    world.service.create_log(TP, "id-t")
    world.service.delete(TP)
    assert world.service.get(TP) is None
    world.run()
    await asyncio.sleep(0.9)
    assert any(name.endswith("-delete") for name in world.disk.list_dir("/data"))
    await asyncio.sleep(2)
    assert not any(name.endswith("-delete") for name in world.disk.list_dir("/data"))


@simulated
async def test_a_former_log_that_cannot_be_deleted_holds_up_only_its_own_partition() -> None:
    """The refusal ended the take-up of the metadata, and all partitions behind this one had no role."""
    world = await World.start()
    world.service.create_log(TP, "former")
    world.disk.fail_next("rename", "/data/t-0")
    assert world.service.made_ready(TP, "new") is None
    log = world.service.get(TP)
    assert log is not None and log.topic_id == "former"


@simulated
async def test_a_disk_that_hangs_does_not_hold_up_the_metadata_for_ever() -> None:
    world = await World.start()
    world.service.create_log(TP, "former")
    loop = asyncio.get_running_loop()
    hangs: asyncio.Future[None] = loop.create_future()
    loop.run_in_executor = lambda *_: hangs  # type: ignore[method-assign]
    ready = world.service.made_ready(TP, "new")
    assert ready is not None
    await asyncio.sleep(HANGS_AFTER_MS / 1000 - 1)
    assert not ready.done()
    await asyncio.sleep(2)
    assert ready.done()
    with pytest.raises(StorageError, match="has flushed the deletion"):  # it does not wait in the loop either
        world.service.create_log(TP, "new")
    assert world.service.made_ready(TP, "new") is None, "nobody waits for it again"
    hangs.set_result(None)


@simulated
async def test_a_log_that_was_deleted_meanwhile_is_not_changed() -> None:
    """Another log may have its name by then."""
    world = await World.start()
    world.service.create_log(TP, "id").begin_change()
    loop, waiting = asyncio.get_running_loop(), asyncio.Event()
    run = loop.run_in_executor

    async def later(*arguments: Any) -> None:
        await waiting.wait()
        await run(*arguments)

    loop.run_in_executor = lambda *arguments: loop.create_task(later(*arguments))  # type: ignore[method-assign]
    performed: list[str] = []
    changed = world.service.change_log(TP, LogChange(what="a truncation", work=lambda: performed.append("changed")))
    await asyncio.sleep(0)
    world.service.delete(TP)
    waiting.set()
    await changed
    assert performed == []


@simulated
async def test_the_cluster_is_joined_once_and_another_one_is_fatal() -> None:
    world = await World.start()
    world.shell.source.publish(image_of(cluster_id=""))
    assert world.logs.cluster_id is None and world.fatal == []
    world.shell.source.publish(image_of(cluster_id="one"))
    assert world.logs.cluster_id == "one"
    world.shell.source.publish(image_of(cluster_id="two"))
    assert world.logs.cluster_id == "one"
    assert len(world.fatal) == 1 and "belongs to cluster one" in world.fatal[0]


@simulated
async def test_a_folder_that_cannot_note_its_cluster_is_fatal() -> None:
    world = await World.start()
    world.disk.fail_next("write", "*meta.properties")
    world.shell.source.publish(image_of(cluster_id="one"))
    await turns()
    assert len(world.fatal) == 1 and "cannot write" in world.fatal[0]


# --- upkeep -----------------------------------------------------------------------------------------------------------


@simulated
async def test_old_segments_go_at_the_retention_interval_and_their_files_after_the_delay() -> None:
    world = await World.start()
    log = world.old_log()
    world.run()
    await asyncio.sleep(9.9)
    assert log.log_start_offset == 0
    await asyncio.sleep(1.2)
    assert log.log_start_offset == 3
    first_segment = "/data/t-0/00000000000000000000.log"
    assert not world.disk.exists(first_segment)
    await asyncio.sleep(3)
    assert not [name for name in world.disk.list_dir("/data/t-0") if name.endswith(".deleted")]


@simulated
async def test_checkpoints_are_written_at_their_interval() -> None:
    world = await World.start()
    world.old_log()
    world.run()
    await asyncio.sleep(3.9)
    assert not world.disk.exists(CHECKPOINT)
    await asyncio.sleep(1.2)
    assert b"t 0 3" in world.disk.read_bytes(CHECKPOINT)


@simulated
async def test_recovery_points_have_an_interval_of_their_own() -> None:
    world = await World.start(**{"log.flush.offset.checkpoint.interval.ms": "7000"})
    log = world.old_log()
    log.flush()
    world.run()
    await asyncio.sleep(6.9)
    assert world.disk.exists(CHECKPOINT)
    assert not world.disk.exists(RECOVERY_POINTS)
    await asyncio.sleep(1.2)
    assert b"t 0 3" in world.disk.read_bytes(RECOVERY_POINTS)


@simulated
async def test_a_topic_that_wants_it_is_flushed_in_time() -> None:
    world = await World.start()
    world.topic_configs(t={"flush.ms": "500"})
    log, lazy = world.service.create_log(TP, "id-t"), world.service.create_log(OTHER, "id-u")
    for item in (log, lazy):
        append(item, b"x", timestamp_ms=world.shell.clock.wall_ms())
    world.run()
    await asyncio.sleep(2.1)
    assert (log.recovery_point, lazy.recovery_point) == (1, 0)


@pytest.mark.parametrize("action", ["write", "remove"])
@simulated
async def test_a_disk_that_refuses_once_is_met_again_at_the_next_round(action: str) -> None:
    world = await World.start()
    log = world.old_log()
    world.run()
    world.disk.fail_next(action)
    await asyncio.sleep(25)
    assert not world.running.done() and world.fatal == []
    assert log.log_start_offset == 3 and world.disk.exists(CHECKPOINT)
    assert not [name for name in world.disk.list_dir("/data/t-0") if name.endswith(".deleted")]


@simulated
async def test_files_that_cannot_be_removed_hold_up_no_checkpoint() -> None:
    world = await World.start(**{"replica.high.watermark.checkpoint.interval.ms": "20000"})
    world.old_log()
    world.run()
    for _ in range(1_000):
        world.disk.fail_next("remove", "*.deleted")
    await asyncio.sleep(22)
    assert world.disk.exists(CHECKPOINT)


@simulated
async def test_nothing_goes_before_the_metadata_is_current() -> None:
    world = await World.start()
    log = world.old_log()
    world.is_current = False
    world.run()
    await asyncio.sleep(30)
    assert log.log_start_offset == 0
    world.is_current = True
    await asyncio.sleep(1.1)
    assert log.log_start_offset == 3
