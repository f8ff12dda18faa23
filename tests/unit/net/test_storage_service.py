"""The disks of a broker as a shell: what fails goes offline, is told to the controller, and comes back when asked for."""

import asyncio

import pytest
from msgspec.structs import replace
from simulation.log_building import batch_of
from unit.net.shell_world import NoEffects, Shell, broker, image_of, partition, simulated, topic, turns

from barnabas.kraft.metadata.image import FOLDER_FULL, FOLDER_HANGING, FOLDER_OFFLINE, MetadataImage, TopicImage
from barnabas.kraft.metadata.requests import Done, ReportOfflineReplicas, TopicNumbers
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.replication.effects import StorageFailed
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    RequestTimedOutError,
    StorageError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.folder_writers import HANGS_AFTER_MS
from barnabas.net.base.settings.config import load
from barnabas.net.base.turn import Turn
from barnabas.net.logs.impaired_folders import HAND_OVER_AFTER_MS
from barnabas.net.logs.log_loading import close_logs, load_logs
from barnabas.net.logs.log_service import LogService
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.logs.storage_service import HANG_LOOK_INTERVAL_MS, StorageService
from barnabas.net.testing.simulation.disk import SimulatedDisk

EPOCH = 100
COUNT = 4
ALL = [TopicPartition("t", number) for number in range(COUNT)]
FOLDERS = ("/one", "/two")


def of(*numbers: int) -> tuple[TopicNumbers, ...]:
    return (TopicNumbers(topic_id="id-t", partitions=numbers),) if numbers else ()


class _Effects(NoEffects):
    def __init__(self, world: "World") -> None:
        self._world = world

    def storage_failed(self, effect: StorageFailed) -> None:
        self._world.storage.storage_failed(effect)

    def took_up(self, image: MetadataImage) -> None:
        self._world.storage.took_up(image)


class World:
    """Broker 0 with two folders; it leads the topic t. The controller does what reports ask, at once."""

    def __init__(self, shell: Shell, disk: SimulatedDisk, folders: tuple[str, ...], journal: str | None) -> None:
        self.shell, self.disk = shell, disk
        self.fatal: list[str] = []
        self.hanging: tuple[str, ...] = ()
        self.logs = LogManager(disk, folders, node_id=0)
        turn = Turn()
        self.log_service = LogService(
            logs=self.logs,
            metadata=shell.metadata,
            config=load(None, {"node.id": "0", "log.dirs": ",".join(folders)}, {}),
            clock=shell.clock,
            fatal=self.fatal.append,
            is_current=lambda: True,
            flush=lambda log: None,
            folder_refused=lambda path, error: self.storage.folder_refused(path, error),
        )
        self.manager = ReplicaManager(
            0, self.log_service, storage_trouble=lambda at, error: self.storage.trouble(at, error)
        )
        self.replication = ReplicationService(
            node_id=0,
            manager=self.manager,
            clock=shell.clock,
            effects=_Effects(self),
            turn=turn,
        )
        self.storage = StorageService(
            node_id=0,
            logs=self.logs,
            log_service=self.log_service,
            replication=self.replication,
            metadata=shell.metadata,
            controller=shell.controller,
            broker_epoch=lambda: EPOCH,
            clock=shell.clock,
            turn=turn,
            fatal=self.fatal.append,
            journal_folder=journal,
            hanging=lambda: self.hanging,
        )
        self.offset = 10
        self.epoch = 1
        shell.metadata.subscribe(self.replication.published)
        shell.source.decide = self.decide

    @classmethod
    async def start(
        cls,
        disk: SimulatedDisk | None = None,
        *,
        folders: tuple[str, ...] = FOLDERS,
        journal: str | None = None,
        image: MetadataImage | None = None,
    ) -> "World":
        world = cls(await Shell.start(), disk or SimulatedDisk(), folders, journal)
        await load_logs(world.logs, world.shell.clock)
        world.replication.registered(EPOCH)
        if image is None:
            world.shell.source.publish(image_of(broker(0, epoch=EPOCH), broker(1), offset=9))
        world.shell.source.publish(image or world.image())
        world.running = asyncio.create_task(world.storage.run())
        return world

    def image(
        self, offline: frozenset[int] = frozenset(), *, topics: tuple[TopicImage, ...] | None = None
    ) -> MetadataImage:
        partitions = [
            replace(
                partition(1 if number in offline else 0, epoch=self.epoch, isr=(1,) if number in offline else (0, 1)),
                offline_replicas=(0,) if number in offline else (),
            )
            for number in range(COUNT)
        ]
        found = (topic("t", *partitions),) if topics is None else topics
        return image_of(broker(0, epoch=EPOCH), broker(1), topics=found, offset=self.offset)

    def decide(self, request: object) -> object:
        assert isinstance(request, ReportOfflineReplicas)
        self.offset += 1
        self.epoch += 1
        offline = frozenset(number for group in request.offline for number in group.partitions)
        self.shell.source.publish(self.image(offline))
        return Done(offset=self.offset)

    @property
    def reports(self) -> list[ReportOfflineReplicas]:
        return self.shell.source.asked(ReportOfflineReplicas)

    def append(self, number: int) -> None:
        at = self.manager.partition(ALL[number])
        self.replication.append(at, batch_of(b"x" * 100, timestamp_ms=self.shell.clock.wall_ms()), acks=1)

    def in_folder(self, path: str) -> list[int]:
        return [number for number in range(COUNT) if self.disk.exists(f"{path}/t-{number}")]


@simulated
async def test_a_write_that_fails_takes_the_folder_out_and_is_told_at_once() -> None:
    world = await World.start()
    bad, good = world.in_folder("/two"), world.in_folder("/one")
    assert len(bad) == len(good) == 2
    world.disk.fail_folder("/two")
    with pytest.raises(StorageError):
        world.append(bad[0])
    await turns(30)
    (report,) = world.reports
    assert report.offline == of(*bad) and report.report == 1 and report.lost == ()
    (folder,) = report.troubled_folders
    assert (folder.path, folder.state) == ("/two", FOLDER_OFFLINE) and "Input/output error" in folder.cause
    for number in bad:
        with pytest.raises(StorageError, match="/two is offline"):
            world.manager.partition(ALL[number])
    for number in good:
        world.append(number)
    assert world.fatal == []


@pytest.mark.parametrize("turns_between", range(4))
@simulated
async def test_an_end_that_meets_news_of_a_disk_is_the_end(turns_between: int) -> None:
    world = await World.start()
    await turns()
    world.storage.reports.wake()
    await turns(turns_between)
    world.running.cancel()
    await turns()
    assert world.running.cancelled()


@simulated
async def test_a_flush_and_a_checkpoint_that_fail_do_the_same() -> None:
    world = await World.start()
    world.disk.fail_folder("/two")
    for path, error in world.logs.checkpoints.take().items():
        world.storage.folder_refused(path, error)
    await turns(30)
    assert world.reports[0].offline == of(*world.in_folder("/two"))
    world = await World.start()
    world.storage.log_failed(ALL[world.in_folder("/one")[0]], StorageError("flush"))
    await turns(30)
    assert world.reports[0].offline == of(*world.in_folder("/one"))


@simulated
async def test_files_that_a_disk_does_not_let_go_take_its_folder_out() -> None:
    world = await World.start()
    old = TopicPartition("old", 0)
    world.logs.get_or_create(old, topic_id="id-old", now_ms=0)
    folder = world.logs.folder_of(old)
    assert folder is not None
    world.logs.delete(old, now_ms=0)
    world.disk.fail_next("remove", f"{folder.path}/old-0*")
    upkeep = asyncio.create_task(world.log_service.run())
    await asyncio.sleep(5)
    upkeep.cancel()
    assert world.reports[-1].offline == of(*world.in_folder(folder.path)) != ()
    assert [place.path for place in world.logs.folders] == [path for path in FOLDERS if path != folder.path]


@simulated
async def test_the_last_folder_and_the_one_with_the_journal_stop_the_broker() -> None:
    world = await World.start()
    world.storage.folder_failed("/two", "EIO")
    await turns()
    assert world.fatal == []
    world.storage.folder_failed("/one", "EIO")
    await turns()
    assert world.fatal == ["the last data folder that was left has failed: /one: EIO"]
    world = await World.start(journal="/one/__cluster_metadata")
    world.storage.folder_failed("/one", "EIO")
    await turns()
    assert world.fatal == ["the data folder with the quorum's journal has failed: /one: EIO"]
    world = await World.start(folders=("/one",))
    world.storage.folder_failed("/one", "EIO")
    await turns()
    assert world.fatal == ["the data folder has failed: /one: EIO"]


@simulated
async def test_a_folder_comes_back_as_followers_that_nobody_counts_on() -> None:
    world = await World.start()
    bad = world.in_folder("/two")
    world.disk.fail_folder("/two")
    world.storage.folder_failed("/two", "EIO")
    await turns(30)
    with pytest.raises(StorageError):
        await world.storage.bring_back("/two")
    world.disk.mend_folder("/two")
    back = await world.storage.bring_back("/two")
    assert (back.state, back.partitions, back.offline_partitions) == ("online", 2, ())
    last = world.reports[-1]
    assert last.offline == () and last.lost == of(*bad) and last.troubled_folders == ()
    assert all(world.manager.partition(ALL[number]).log_end_offset == 0 for number in range(COUNT))
    with pytest.raises(InvalidRequestError, match="not one of this broker's data folders"):
        await world.storage.bring_back("/three")


@simulated
async def test_nothing_comes_back_before_the_cluster_knows_that_it_was_gone() -> None:
    """It could lead again in the leader epoch of before, with other records at the same offsets."""
    world = await World.start()
    world.shell.source.decide = lambda request: RequestTimedOutError("the controller is cut off")
    world.storage.folder_failed("/two", "EIO")
    await turns(30)
    asked = asyncio.create_task(world.storage.bring_back("/two"))
    await asyncio.sleep(30)
    assert not asked.done() and "/two" in world.logs.offline_folders
    world.shell.source.decide = world.decide
    assert (await asked).state == "online"


@simulated
async def test_nothing_comes_back_before_the_broker_knows_what_is_its_own() -> None:
    """Every log would have been deleted as a stray, in all folders."""
    disk = SimulatedDisk()
    first = await World.start(disk)
    before = {path: first.in_folder(path) for path in FOLDERS}
    first.running.cancel()
    disk.kill()
    world = await World.start(disk, image=image_of(broker(0, epoch=EPOCH - 1), broker(1), offset=3))
    with pytest.raises(BrokerNotAvailableError, match="is starting"):
        await world.storage.bring_back("/two")
    assert {path: world.in_folder(path) for path in FOLDERS} == before
    world.shell.source.publish(world.image())
    assert (await world.storage.bring_back("/two")).state == "online"
    assert {path: world.in_folder(path) for path in FOLDERS} == before


@simulated
async def test_a_start_without_a_folder_holds_back_until_the_cluster_knows() -> None:
    disk = SimulatedDisk()
    first = await World.start(disk)
    bad = first.in_folder("/two")
    first.running.cancel()
    disk.kill()
    disk.fail_folder("/two")
    image = image_of(
        broker(0, epoch=EPOCH), broker(1), topics=(topic("t", *[partition(1, epoch=5)] * COUNT),), offset=10
    )
    world = await World.start(disk, image=image)
    assert world.storage.reports.holds_back
    await turns(30)
    assert world.reports[0].offline == of(*bad) and not world.storage.reports.holds_back
    assert not any(disk.exists(f"/one/t-{number}") for number in bad)


@simulated
async def test_a_disk_that_was_wiped_is_told_before_anybody_counts_on_it() -> None:
    alone = replace(partition(-1, epoch=5, isr=()), eligible_leader_replicas=(0,))
    image = image_of(
        broker(0, epoch=EPOCH),
        broker(1),
        topics=(topic("t", alone, *[partition(1, epoch=5, isr=(1,))] * 3),),
        offset=10,
    )
    world = await World.start(image=image)
    assert world.storage.reports.holds_back
    await turns(30)
    assert world.reports[0].lost == of(0) and world.reports[0].offline == ()


@simulated
async def test_a_full_folder_is_told_and_hands_over_after_a_while_and_ends_by_itself() -> None:
    world = await World.start()
    world.disk.capacity_bytes = world.disk.used_bytes + 50
    with pytest.raises(StorageError):
        world.append(0)
    await turns(30)
    (report,) = world.reports
    assert [folder.state for folder in report.troubled_folders] == [FOLDER_FULL]
    assert report.offline == report.hand_over == ()
    await asyncio.sleep(HAND_OVER_AFTER_MS / 1000 + 1.5)
    path = report.troubled_folders[0].path
    assert world.reports[-1].hand_over == of(*world.in_folder(path))
    assert (await world.storage.describe())[FOLDERS.index(path)].folder.state == FOLDER_FULL
    world.disk.capacity_bytes = 1 << 40
    await asyncio.sleep(4)
    assert world.reports[-1].troubled_folders == () and not any(folder.is_full for folder in world.logs.folders)
    world.append(0)


@simulated
async def test_reports_are_repeated_until_they_are_taken_with_new_numbers() -> None:
    world = await World.start()
    world.shell.source.decide = lambda request: StorageError("no")
    world.storage.folder_failed("/two", "EIO")
    await asyncio.sleep(1)
    assert len(world.reports) > 2
    numbers = [report.report for report in world.reports]
    assert numbers == sorted(set(numbers))
    world.shell.source.decide = world.decide
    await asyncio.sleep(1)
    assert world.reports[-1].offline == of(*world.in_folder("/two"))


@simulated
async def test_folders_are_closed_together_and_a_second_time_does_nothing() -> None:
    world = await World.start()
    world.running.cancel()
    await close_logs(world.logs)
    await close_logs(world.logs)
    world.logs.close()
    again = LogManager(world.disk, FOLDERS, node_id=0)
    assert again.was_stopped_cleanly


def test_a_disk_that_hangs_is_noticed_in_time_for_an_election_within_ten_seconds() -> None:
    flushes_of_a_checkpoint, slow_flush_ms, report_and_election_ms = 7, 1_000, 2_000
    assert flushes_of_a_checkpoint * slow_flush_ms <= HANGS_AFTER_MS
    assert HANGS_AFTER_MS + HANG_LOOK_INTERVAL_MS + report_and_election_ms <= 10_000


@simulated
async def test_a_folder_whose_disk_hangs_hands_over_at_once_and_ends_by_itself() -> None:
    world = await World.start()
    path = FOLDERS[0]
    world.hanging = (path,)
    await asyncio.sleep(HANG_LOOK_INTERVAL_MS / 1000 + 0.01)
    assert world.reports[-1].hand_over == of(*world.in_folder(path))
    await asyncio.sleep(2.2)
    assert len([report for report in world.reports if report.hand_over]) <= 3  # asked again every second
    report = world.reports[-1]
    assert [(folder.path, folder.state) for folder in report.troubled_folders] == [(path, FOLDER_HANGING)]
    assert any(report.hand_over == of(*world.in_folder(path)) for report in world.reports)
    assert report.offline == () and world.fatal == []
    assert (await world.storage.describe())[0].folder.state == FOLDER_HANGING
    hanging = [at.topic_partition.partition for at in world.manager.partitions() if at.storage.disk_hangs]
    assert of(*hanging) == of(*world.in_folder(path)) and hanging
    world.hanging = ()
    await asyncio.sleep(2.5)
    assert not any(at.storage.disk_hangs for at in world.manager.partitions())
    assert world.reports[-1].troubled_folders == ()
