"""Data folders that fail, cannot be used at a start, and come back; loading them one by one; clean stops."""

from random import Random

import pytest
from simulation.log_building import NOW_MS, append

from barnabas.log.folders.folder_loading import LoadingStoppedError, LoadProgress
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.folders.offline_logs import OfflineLogs
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import DiskFailedError, InconsistentClusterIdError, StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import SimulatedDisk

DIRS = ("/one", "/two")
A, B, C, D = (TopicPartition("t", number) for number in range(4))


def manager(disk: SimulatedDisk, **arguments: object) -> LogManager:
    made = LogManager(disk, DIRS, node_id=0, **arguments)
    made.load(now_ms=NOW_MS)
    return made


def refused_high_watermarks(logs: LogManager) -> set[str]:
    """Where they cannot be written."""
    refused = set()
    for folder in logs.folders:
        logs.checkpoints.note_high_watermarks(folder)
        try:
            logs.checkpoints.write_high_watermarks(folder)
        except StorageError:
            refused.add(folder.path)
    return refused


def create(logs: LogManager, *partitions: TopicPartition):
    return [logs.get_or_create(partition, topic_id="id", now_ms=NOW_MS) for partition in partitions]


def two_folders(disk: SimulatedDisk) -> LogManager:
    """A and C lie in /one, B and D in /two; each has a record that was flushed, and one that was not."""
    logs = manager(disk)
    for log in create(logs, A, B, C, D):
        append(log, b"flushed")
        log.flush()
        append(log, b"not flushed")
    logs.checkpoints.take()
    return logs


def config_for(topic: str) -> LogConfig:
    return LogConfig()


def bring_back(logs: LogManager, path: str) -> None:
    logs.attach(logs.reopen_folder(path, now_ms=NOW_MS, config_for=config_for), now_ms=NOW_MS)


def test_a_folder_that_fails_takes_its_own_logs_only() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    assert logs.fail_folder("/two", "EIO", now_ms=NOW_MS) == [B, D]
    logs.give_up("/two")
    assert set(logs.logs) == {A, C} and set(logs.offline) == {B, D} == set(logs.offline.in_folder("/two"))
    assert (logs.offline_folders["/two"].since_ms, logs.offline_folders["/two"].was_in_use) == (NOW_MS, True)
    assert logs.fail_folder("/two", "again", now_ms=NOW_MS) == []
    for is_new in (True, False):
        with pytest.raises(StorageError, match="is offline"):
            logs.get_or_create(B, topic_id="id", now_ms=NOW_MS, is_new=is_new)
    assert logs.checkpoints.take() == {}
    logs.close()
    assert not disk.locks


def test_it_comes_back_with_what_was_flushed_and_knows_that_it_lost_something() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    disk.fail_folder("/two")
    logs.fail_folder("/two", "EIO", now_ms=NOW_MS)
    logs.give_up("/two")
    with pytest.raises(DiskFailedError):
        logs.reopen_folder("/two", now_ms=NOW_MS, config_for=config_for)
    assert "/two" in logs.offline_folders and "/two/.lock" not in disk.locks
    disk.mend_folder("/two", Random(3))
    bring_back(logs, "/two")
    assert logs.offline == {} and logs.offline_folders == {} and set(logs.logs) == {A, B, C, D}
    assert all(1 <= logs.logs[partition].log_end_offset <= 2 for partition in (B, D))
    assert [folder.path for folder in logs.folders] == list(DIRS)
    assert not logs.folders[1].was_stopped_cleanly
    append(logs.logs[B], b"again")


def test_a_mended_disk_that_could_note_the_loss_is_lossy_at_the_next_start() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    logs.fail_folder("/two", "a failed flush", now_ms=NOW_MS)
    logs.give_up("/two")
    disk.kill()
    again = manager(disk)
    assert again.may_have_lost_writes and again.offline == {}


def test_a_folder_of_another_cluster_does_not_come_back() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    logs.join_cluster("one")
    logs.fail_folder("/two", "EIO", now_ms=NOW_MS)
    logs.give_up("/two")
    disk.write_atomically("/two/meta.properties", b"version=1\nnode.id=0\ndirectory.id=x\ncluster.id=two\n")
    with pytest.raises(InconsistentClusterIdError):
        logs.reopen_folder("/two", now_ms=NOW_MS, config_for=config_for)
    assert "/two/.lock" not in disk.locks


@pytest.mark.parametrize("action", ["lock", "read", "write"])
def test_a_start_goes_on_with_the_folders_that_can_be_used(action: str) -> None:
    disk = SimulatedDisk()
    two_folders(disk)
    disk.power_loss(Random(1))
    disk.fail_next(action, "/two/*")
    logs = manager(disk)
    assert list(logs.offline_folders) == ["/two"] and set(logs.logs) == {A, C}
    assert logs.offline_folders["/two"].since_ms == NOW_MS
    # What the cluster had assigned before may lie in there; what it assigns from now on does not.
    with pytest.raises(StorageError, match="may be in a data folder that is offline: /two"):
        logs.get_or_create(B, topic_id="id", now_ms=NOW_MS, is_new=False)
    assert not disk.exists("/one/t-1") and logs.offline.in_folder("/two") == [B]
    create(logs, TopicPartition("later", 0))
    bring_back(logs, "/two")
    assert logs.get(B) is not None and logs.offline == {}


def test_a_start_without_any_folder_is_none() -> None:
    disk = SimulatedDisk()
    for path in DIRS:
        disk.fail_next("lock", f"{path}/*")
    with pytest.raises(StorageError, match="/one"):
        manager(disk)


def test_without_a_folder_a_new_log_is_refused() -> None:
    """Metadata with a new topic may come before the broker stops."""
    logs = two_folders(SimulatedDisk())
    for path in DIRS:
        logs.fail_folder(path, "EIO", now_ms=NOW_MS)
        logs.give_up(path)
    with pytest.raises(StorageError, match="every data folder of the broker is offline"):
        logs.get_or_create(TopicPartition("new", 0), topic_id="id", now_ms=NOW_MS)


def test_a_folder_that_cannot_be_listed_is_offline() -> None:
    disk = SimulatedDisk()
    two_folders(disk)
    disk.kill()
    disk.fail_next("list", "/two")
    logs = manager(disk)
    assert list(logs.offline_folders) == ["/two"] and set(logs.logs) == {A, C}


def test_a_replica_whose_topic_was_deleted_meanwhile_is_set_aside_when_its_folder_is_back() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    logs.fail_folder("/two", "EIO", now_ms=NOW_MS)
    logs.give_up("/two")
    logs.delete(B, now_ms=NOW_MS)
    new = logs.get_or_create(B, topic_id="another", now_ms=NOW_MS)
    bring_back(logs, "/two")
    assert logs.get(B) is new and B not in logs.offline
    assert len(logs.removals.strays("/two")) == 1


def test_one_bad_log_is_taken_out_alone_and_tried_again() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    logs.fail_log(A, "a damaged batch")
    assert set(logs.offline) == {A} and logs.offline_folders == {} and logs.offline.in_folder("/one") == [A]
    logs.attach(logs.reload_offline("/one", now_ms=NOW_MS, config_for=config_for), now_ms=NOW_MS)
    assert logs.offline == {} and logs.logs[A].log_end_offset == 2


def test_a_refusal_in_one_folder_holds_up_no_other() -> None:
    disk = SimulatedDisk()
    logs = two_folders(disk)
    disk.fail_folder("/one")
    assert set(logs.checkpoints.take()) == {"/one"} == refused_high_watermarks(logs)
    assert b"t 1 1" in disk.read_bytes("/two/recovery-point-offset-checkpoint")


def test_removal_goes_on_past_a_refusal() -> None:
    disk = SimulatedDisk()
    logs = manager(disk, defaults=LogConfig(segment_bytes=200, retention_ms=1, file_delete_delay_ms=0))
    for log in create(logs, A, B):
        for _ in range(6):
            append(log, b"x" * 90)
        log.set_high_watermark(6)
    assert list(logs.upkeep.run_retention(NOW_MS + 10, {}))
    deleted = [f"{DIRS[at]}/t-{at}/{name}" for at in (0, 1) for name in disk.list_dir(f"{DIRS[at]}/t-{at}")
               if name.endswith(".deleted")]  # fmt: skip
    assert len(deleted) > 4
    disk.fail_next("remove", deleted[0])
    with pytest.raises(StorageError, match="remove"):
        logs.removals.remove_due(logs.folders[0], NOW_MS + 10)
    logs.removals.remove_due(logs.folders[1], NOW_MS + 10)
    assert [path for path in deleted if disk.exists(path)] == deleted[:1]
    for folder in logs.folders:
        logs.removals.remove_due(folder, NOW_MS + 10)
    assert not disk.exists(deleted[0])


def test_segments_that_have_ended_are_flushed_so_that_a_crash_costs_a_short_scan() -> None:
    """Also with Kafka's defaults, which never flush by time or count."""
    disk = SimulatedDisk()
    logs = manager(disk, defaults=LogConfig(segment_bytes=10_000))
    (log,) = create(logs, A)
    for _ in range(100):
        append(log, b"x" * 900)
        for due in logs.upkeep.due_for_flush(NOW_MS):
            due.flush(now_ms=NOW_MS)
    logs.checkpoints.take()
    written, flushed = log.size_bytes, log.recovery_point
    disk.kill()
    disk.bytes_read = 0
    progress = LoadProgress(path="/one")
    again = LogManager(disk, DIRS, node_id=0)
    loaded = again.load_folder(again.folders[0], now_ms=NOW_MS, progress=progress)
    assert loaded.logs[A].log_end_offset == 100 and (progress.partitions_done, progress.is_done) == (1, True)
    read = [segment.size_bytes for segment in loaded.logs[A].segments.all if segment.next_offset > flushed]
    assert progress.scanned_bytes == sum(read) <= 20_000 < written
    assert disk.bytes_read < 60_000


def test_loading_stops_when_it_is_asked_to() -> None:
    disk = SimulatedDisk()
    two_folders(disk)
    disk.kill()
    logs = LogManager(disk, DIRS, node_id=0)
    with pytest.raises(LoadingStoppedError):
        logs.load_folder(logs.folders[0], now_ms=NOW_MS, progress=LoadProgress(path="/one", wants_stop=True))


def test_taking_a_failed_folder_out_waits_for_no_disk_and_it_stays_locked_until_it_is_given_up() -> None:
    """The loop takes it out; a thread writes down the loss, behind whatever another one still does there."""
    disk = SimulatedDisk()
    logs = manager(disk)
    operations: list[tuple[str, str]] = []
    disk.before_operation = lambda action, path, write: operations.append((action, path))
    logs.fail_folder("/two", "EIO", now_ms=NOW_MS)
    assert operations == []
    with pytest.raises(StorageError, match="locked"):
        logs.reopen_folder("/two", now_ms=NOW_MS, config_for=lambda topic: LogConfig())
    logs.give_up("/two")
    assert ("write", "/two/.barnabas_lost_writes") in operations and logs.failing == {}
    loaded = logs.reopen_folder("/two", now_ms=NOW_MS, config_for=lambda topic: LogConfig())
    assert loaded.folder.may_have_lost_writes


def test_a_partition_that_may_be_in_any_offline_folder_is_offline_with_each_of_them_and_with_no_other() -> None:
    offline = {"/one": "EIO", "/two": "EIO"}
    logs = OfflineLogs(offline)
    logs.note({A: "cannot be opened"}, "/three")
    logs.note({B: "not found"}, None)
    assert [logs.in_folder(path) for path in ("/one", "/two", "/three")] == [[B], [B], [A]]
    del offline["/one"]
    logs.folder_is_back("/one")
    assert [logs.in_folder(path) for path in ("/one", "/two")] == [[], [B]] and B in logs
    offline.clear()
    logs.folder_is_back("/two")
    assert set(logs) == {A}


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_stop_counts_for_one_start(seed: int) -> None:
    """Else the loss of power after the next start would look like a clean stop, and nobody would look for lost records."""
    disk = SimulatedDisk()
    manager(disk).close()
    assert manager(disk).was_stopped_cleanly
    disk.power_loss(Random(seed))
    again = manager(disk)
    assert (again.was_stopped_cleanly, again.may_have_lost_writes) == (False, True)


def test_a_log_that_may_have_been_here_is_made_while_no_folder_is_offline() -> None:
    logs = manager(SimulatedDisk())
    log = logs.get_or_create(A, topic_id="id", now_ms=NOW_MS, is_new=False)
    assert logs.get_or_create(A, topic_id="id", now_ms=NOW_MS) is log and not logs.offline
