"""Crashes between the making of a partition's folder and its first flush."""

from random import Random

import pytest
from simulation.log_building import NOW_MS, append, read_all

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.partition.partition_folder import PARTITION_METADATA, make_partition_folder, read_topic_id
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import SimulatedDisk

PARTITION = TopicPartition("orders", 0)
DIRECTORY = "/one/orders-0"
METADATA = f"{DIRECTORY}/{PARTITION_METADATA}"
WHOLE = b"version: 0\ntopic_id: abcdef\n"


def loaded(disk: SimulatedDisk) -> LogManager:
    logs = LogManager(disk, ["/one"], node_id=0)
    logs.load(now_ms=NOW_MS)
    return logs


def create(logs: LogManager, topic_id: str = "abcdef"):
    return logs.get_or_create(PARTITION, topic_id=topic_id, now_ms=NOW_MS)


def test_making_a_log_flushes_nothing() -> None:
    disk = SimulatedDisk()
    logs = loaded(disk)
    before = disk.flush_count
    create(logs)
    assert disk.flush_count == before
    assert disk.read_bytes(METADATA) == WHOLE
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert disk.flush_count == before + 1


def test_new_folders_share_the_flush_of_the_folder_above_them() -> None:
    """A topic may create a thousand of them."""
    synced: list[str] = []

    class Disk(SimulatedDisk):
        def sync_dir(self, path: str) -> None:
            if path == f"/one/{bad}":
                raise StorageError("this disk refuses")
            synced.append(path)
            super().sync_dir(path)

    bad = ""
    logs = loaded(Disk())
    new = [TopicPartition("orders", number) for number in range(10)]
    made = [logs.get_or_create(name, topic_id="abcdef", now_ms=NOW_MS) for name in new]
    bad = str(new[3])
    synced.clear()
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert synced.count("/one") == 1 and synced[-1] == "/one"  # when all that it is for has been flushed
    assert [log.folder.is_durable for log in made] == [number != 3 for number in range(10)]
    bad = ""
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert all(log.folder.is_durable for log in made) and synced.count("/one") == 2
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert synced.count("/one") == 2


def test_names_are_flushed_once_for_each_change() -> None:
    """A flush of a folder waits for the disk, and each flush of the log asks for one."""
    synced: list[str] = []

    class Disk(SimulatedDisk):
        def sync_dir(self, path: str) -> None:
            synced.append(path)
            super().sync_dir(path)

    folder = create(loaded(Disk())).folder
    for _ in range(3):
        folder.sync()
    assert synced.count(DIRECTORY) == 1
    folder.changed()
    for _ in range(3):
        folder.sync()
    assert synced.count(DIRECTORY) == 2


def test_a_folder_without_its_entry_above_is_not_durable() -> None:
    class Disk(SimulatedDisk):
        def sync_dir(self, path: str) -> None:
            if path == "/one" and is_refusing:
                raise StorageError("this disk refuses")
            super().sync_dir(path)

    is_refusing = False
    logs = loaded(Disk())
    log = create(logs)
    is_refusing = True
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert not log.folder.is_durable
    is_refusing = False
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert log.folder.is_durable


def test_metadata_that_exist_are_replaced_as_a_whole() -> None:
    disk = SimulatedDisk()
    make_partition_folder(disk, DIRECTORY, "of a topic before")
    make_partition_folder(disk, DIRECTORY, "abcdef")
    assert disk.read_bytes(METADATA) == WHOLE


@pytest.mark.parametrize("cut", [*range(len(WHOLE)), None])
def test_an_empty_folder_without_sound_metadata_is_made_anew(cut: int | None) -> None:
    disk = SimulatedDisk()
    create(loaded(disk), "before")
    disk.remove(METADATA)
    if cut is not None:
        disk.write_atomically(METADATA, WHOLE[:cut])
    disk.kill()
    logs = loaded(disk)
    assert not logs.logs and not logs.offline and not disk.exists(DIRECTORY)
    log = create(logs)
    assert (log.topic_id, append(log, b"x")) == ("abcdef", 0)
    disk.kill()
    assert loaded(disk).logs[PARTITION].topic_id == "abcdef"


@pytest.mark.parametrize("rest", [None, b"", WHOLE[:-3], WHOLE[:-1], b"\xff\xfe", b"version: 9\ntopic_id: abcdef\n"])
def test_records_without_sound_metadata_are_refused_with_the_cure(rest: bytes | None) -> None:
    disk = SimulatedDisk()
    append(create(loaded(disk)), b"x")
    disk.remove(METADATA)
    if rest is not None:
        disk.write_atomically(METADATA, rest)
    disk.kill()
    logs = loaded(disk)
    assert METADATA in logs.offline[PARTITION] and "another replica" in logs.offline[PARTITION]
    with pytest.raises(StorageError, match="offline"):
        create(logs)
    assert disk.exists(DIRECTORY)
    disk.write_atomically(METADATA, WHOLE)  # the cure that the message names
    disk.kill()
    assert loaded(disk).logs[PARTITION].log_end_offset == 1


@pytest.mark.parametrize("seed", range(60))
def test_no_power_loss_parts_records_from_their_topic(seed: int) -> None:
    """What was flushed stays; whatever else stays has its topic id."""
    rng = Random(seed)
    disk = SimulatedDisk()
    logs = loaded(disk)
    log = create(logs)
    flushed = appended = 0
    for step in range(rng.randint(0, 6)):
        match rng.randrange(4):
            case 0:
                log.flush()
                flushed = appended
            case 1:
                logs.upkeep.make_folders_durable(logs.folders[0])
            case 2:
                logs.checkpoints.take()
            case _:
                append(log, b"record %d" % step)
                appended += 1
    disk.power_loss(rng)
    again = loaded(disk)
    assert not again.offline
    log = create(again)
    assert log.topic_id == "abcdef"
    assert flushed <= log.log_end_offset <= appended
    assert len(read_all(log)) == log.size_bytes


def test_a_log_that_is_deleted_while_its_folder_is_flushed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The flush runs in a thread: it finds no folder of that name, and nothing is wrong."""

    class Disk(SimulatedDisk):
        def sync_dir(self, path: str) -> None:
            if path == DIRECTORY:
                logs.delete(PARTITION, now_ms=NOW_MS)
            super().sync_dir(path)

    logs = loaded(Disk())
    create(logs)
    caplog.clear()
    logs.upkeep.make_folders_durable(logs.folders[0])
    assert not logs.logs and not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_is_there_is_not_overwritten() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("/one")
    make_partition_folder(disk, DIRECTORY, "first")
    assert create(LogManager(disk, ["/one"], node_id=0), "second").topic_id == "first"
    assert read_topic_id(disk, DIRECTORY) == "first"
