import copy
import gc
import sys
import threading
from random import Random

import pytest
from simulation.checkers.logs import check_log
from simulation.log_building import NOW_MS, append, base_offsets, read_all, retain

from barnabas.log.disk.files import RealFiles
from barnabas.log.folders.log_folder import KNOWN_METADATA_FILE
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.folders.log_upkeep import Refusals
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import (
    DiskFailedError,
    InconsistentClusterIdError,
    InvalidTopicError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import SimulatedDisk

A, B, C = (TopicPartition("a", 0), TopicPartition("b-c", 1), TopicPartition("a", 1))
DIRS = ("/one", "/two")


def manager(files, dirs=DIRS, node_id=0, **arguments):
    made = LogManager(files, dirs, node_id=node_id, **arguments)
    made.load(now_ms=NOW_MS)
    return made


def join(logs, cluster_id):
    logs.join_cluster(cluster_id)
    for folder in logs.folders:
        folder.write_meta()


def create(logs, *partitions):
    return [logs.get_or_create(partition, topic_id=f"id-{partition.topic}", now_ms=NOW_MS) for partition in partitions]


@pytest.mark.parametrize("how", ["clean", "kill", "power"])
def test_restart(how):
    disk = SimulatedDisk()
    logs = manager(disk)
    join(logs, "cluster")
    a, b, _ = create(logs, A, B, C)
    for _ in range(3):
        append(a, b"x", epoch=2)
    append(b, b"y")
    a.set_high_watermark(2)
    a.flush()
    b.flush()
    logs.checkpoints.take()
    directories = [folder.directory_id for folder in logs.folders]
    if how == "clean":
        logs.close()
    elif how == "kill":
        disk.kill()
    else:
        disk.power_loss(Random(1))
    again = manager(disk)
    assert (again.was_stopped_cleanly, again.may_have_lost_writes) == (how == "clean", how == "power")
    assert again.cluster_id == "cluster"
    assert [folder.directory_id for folder in again.folders] == directories
    assert set(again.logs) | {C} == {A, B, C}
    assert C in again.logs or how == "power"  # it has no record, so its folder may be gone
    log = again.get(A)
    assert (log.log_end_offset, log.high_watermark, log.topic_id, log.latest_epoch) == (3, 2, "id-a", 2)
    assert [folder.high_watermarks[A] for folder in again.folders if A in folder.high_watermarks] == [2]
    assert base_offsets(read_all(log)) == [0, 1, 2]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_bit_rot_behind_the_checkpoint_counts_as_a_loss(is_damaged):
    """A killed process leaves whole batches as they are. So this replica lacks records that may be acknowledged: nobody may
    count on it before it has them again."""
    disk = SimulatedDisk()
    logs = manager(disk)
    (log,) = create(logs, A)
    for _ in range(3):
        append(log, b"x" * 60)
    place = log.segments.all[0].batch_at(1)
    disk.kill()
    if is_damaged:
        disk.flip_bit(log.segments.all[0].path, place.position + place.size_bytes - 1)
    again = manager(disk)
    assert again.get(A).log_end_offset == (1 if is_damaged else 3)
    assert again.may_have_lost_writes == is_damaged


def test_a_loss_is_remembered_when_the_disk_refuses_the_cut():
    """The next try finds the shorter log, and no trace of what it lost."""
    disk = SimulatedDisk()
    (log,) = create(manager(disk), A)
    for _ in range(3):
        append(log, b"x" * 60)
    place = log.segments.all[0].batch_at(1)
    disk.kill()
    disk.flip_bit(log.segments.all[0].path, place.position + place.size_bytes - 1)
    disk.fail_next("flush", log.segments.all[0].path)
    assert A in manager(disk).offline
    disk.kill()
    again = manager(disk)
    assert (again.get(A).log_end_offset, again.get(A).has_lost_batches) == (1, False)
    assert again.may_have_lost_writes


def test_up_to_where_the_metadata_is_known_outlives_a_kill():
    disk = SimulatedDisk()
    logs = manager(disk)
    assert all(folder.known_metadata == MetadataPosition() for folder in logs.folders)
    known = MetadataPosition(recovery_epoch=1, controller_epoch=2, claim=3, offset=4)
    for folder in logs.folders:
        folder.known_metadata = known
    logs.folders[0].write_known_metadata()
    logs.folders[1].write_checkpoint()
    disk.power_loss(Random(1))
    again = manager(disk)
    assert [folder.known_metadata for folder in again.folders] == [known, known]
    again.close()
    disk.write_atomically(f"{DIRS[0]}/{KNOWN_METADATA_FILE}", b"nonsense")
    again = manager(disk)
    assert [folder.known_metadata for folder in again.folders] == [MetadataPosition(), known]


def test_a_loss_is_remembered_until_it_was_told():
    """Also when the first process that noticed it is killed, or stops cleanly, before it could register."""
    disk = SimulatedDisk()
    manager(disk)
    disk.power_loss(Random(1))
    assert manager(disk).may_have_lost_writes
    disk.kill()
    again = manager(disk)
    assert again.may_have_lost_writes
    again.close()
    again = manager(disk)
    assert again.may_have_lost_writes
    for folder in again.folders:
        folder.loss_was_told()
    assert not again.may_have_lost_writes
    disk.kill()
    assert not manager(disk).may_have_lost_writes


def test_partitions_are_spread_over_the_folders(tmp_path):
    logs = manager(RealFiles(), [str(tmp_path / "one"), str(tmp_path / "two")])
    create(logs, *(TopicPartition("t", number) for number in range(6)))
    assert len(list((tmp_path / "one").glob("t-*"))) == len(list((tmp_path / "two").glob("t-*"))) == 3
    assert (tmp_path / "one" / "t-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: id-t\n"
    logs.close()


def test_a_folder_in_use_is_refused(tmp_path):
    logs = manager(RealFiles(), [str(tmp_path)])
    with pytest.raises(StorageError, match="another broker is running on it"):
        manager(RealFiles(), [str(tmp_path)])
    logs.close()
    manager(RealFiles(), [str(tmp_path)]).close()


def test_a_folder_of_another_node_or_cluster_is_refused():
    disk = SimulatedDisk()
    logs = manager(disk)
    join(logs, "one")
    with pytest.raises(InconsistentClusterIdError):
        logs.join_cluster("two")
    logs.close()
    with pytest.raises(StorageError, match="belongs to node 0"):
        manager(disk, node_id=1)
    manager(disk)


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"]
)
def test_damaged_checkpoints_cost_a_scan_only(name):
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    append(a, b"x")
    logs.close()
    disk.write_atomically(f"/one/{name}", b"0\n17\n")
    logs = manager(disk)
    assert not logs.was_stopped_cleanly
    assert logs.get(A).log_end_offset == 1


def test_delete_and_create_again():
    disk = SimulatedDisk()
    logs = manager(disk)
    for log in create(logs, A, C):
        append(log, b"x")
    logs.delete(A, now_ms=NOW_MS)
    assert logs.get(A) is None
    with pytest.raises(UnknownTopicOrPartitionError):
        logs.delete(A, now_ms=NOW_MS)
    (a,) = create(logs, A)
    assert a.log_end_offset == 0
    for folder in logs.folders:
        logs.removals.remove_due(folder, NOW_MS + 59_999)
    assert any(name.endswith("-delete") for name in disk.list_dir("/one"))
    for folder in logs.folders:
        logs.removals.remove_due(folder, NOW_MS + 60_000)
    assert not any(name.endswith("-delete") for name in disk.list_dir("/one"))
    logs.delete(C, now_ms=NOW_MS)
    disk.kill()
    logs = manager(disk)
    assert set(logs.logs) == {A}
    for folder in logs.folders:
        logs.removals.remove_due(folder, NOW_MS)
    assert not any(name.endswith("-delete") for folder in DIRS for name in disk.list_dir(folder))


def test_illegal_names_never_touch_the_disk():
    logs = manager(SimulatedDisk())
    with pytest.raises(InvalidTopicError):
        create(logs, TopicPartition("../x", 0))


def test_retention_over_all_logs():
    logs = manager(SimulatedDisk(), defaults=LogConfig(segment_bytes=200, retention_ms=1000, file_delete_delay_ms=0))
    a, b = create(logs, A, B)
    for number in range(10):
        append(a, b"x" * 50, timestamp_ms=NOW_MS + number)
        append(b, b"x" * 50, timestamp_ms=NOW_MS + 5000)
    a.set_high_watermark(10)
    assert sum(logs.upkeep.run_retention(NOW_MS + 5000, {})) == a.log_start_offset == 10
    for folder in logs.folders:
        logs.removals.remove_due(folder, NOW_MS + 5000)
    assert (b.log_start_offset, a.log_end_offset, a.size_bytes) == (0, 10, 0)
    assert append(a, b"y") == 10
    logs.checkpoints.take()


def test_a_log_that_cannot_be_opened_is_left_out():
    disk = SimulatedDisk()
    logs = manager(disk)
    a, _ = create(logs, A, B)
    append(a, b"x")
    disk.kill()
    disk.fail_next("read", "*/a-0/*.log")
    logs = manager(disk)
    assert set(logs.offline) == {A}
    assert set(logs.logs) == {B}
    with pytest.raises(StorageError, match="offline"):
        create(logs, A)


def test_a_failed_flush_makes_the_stop_unclean():
    disk = SimulatedDisk()
    logs = manager(disk)
    a, b = create(logs, A, B)
    append(a, b"x")
    append(b, b"x")
    disk.fail_next("flush", "*/a-0/*.log")
    logs.close()
    again = manager(disk)
    assert [folder.was_stopped_cleanly for folder in again.folders] == [False, True]
    assert {key: log.log_end_offset for key, log in again.logs.items()} == {A: 1, B: 1}


def test_idle_partitions_hold_no_file():
    logs = manager(SimulatedDisk())
    (a,) = create(logs, A)
    append(a, b"x")
    a.flush()
    assert retain(logs, NOW_MS + 600_000) == {}
    assert not a.segments.all[-1].records.is_open
    assert append(a, b"y") == 1
    assert base_offsets(read_all(a)) == [0, 1]


def test_truncation_lowers_the_written_recovery_point_first():
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    for _ in range(5):
        append(a, b"x")
    a.flush()
    logs.checkpoints.take()
    a.truncate_to(2)
    assert b"a 0 2\n" in disk.read_bytes("/one/recovery-point-offset-checkpoint")


def test_a_power_loss_is_not_forgotten_before_it_was_reported():
    disk = SimulatedDisk()
    logs = manager(disk)
    append(*create(logs, A), b"x")
    disk.power_loss(Random(1))
    for _ in range(2):  # a start that fails on something else: stopped in good order, but nobody was told
        logs = manager(disk)
        assert logs.may_have_lost_writes
        logs.close()
    logs = manager(disk)
    assert logs.may_have_lost_writes and not logs.was_stopped_cleanly
    for folder in logs.folders:
        folder.loss_was_told()
    assert not logs.may_have_lost_writes
    disk.kill()
    assert not manager(disk).may_have_lost_writes


def test_a_stop_before_everything_was_loaded_is_not_clean():
    disk = SimulatedDisk()
    logs = manager(disk)
    append(*create(logs, A), b"x")
    disk.kill()
    LogManager(disk, DIRS, node_id=0).close()
    assert not LogManager(disk, DIRS, node_id=0).was_stopped_cleanly


def test_a_log_that_was_deleted_and_made_anew_does_not_believe_the_old_recovery_point():
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    for _ in range(5):
        append(a, b"x")
    a.flush()
    logs.checkpoints.take()
    logs.delete(A, now_ms=NOW_MS)
    create(logs, A)
    assert b"a 0 5\n" not in disk.read_bytes("/one/recovery-point-offset-checkpoint")


@pytest.mark.parametrize("how", ["truncation", "power loss"])
def test_a_log_that_ends_below_its_written_start_hides_nothing_that_is_appended_then(how):
    disk = SimulatedDisk()
    logs = manager(disk, DIRS[:1])
    (log,) = create(logs, A)
    append(log, b"x")
    log.flush()
    for _ in range(5):
        append(log, b"y")
    log.set_high_watermark(6)
    log.delete_records_before(5)
    logs.checkpoints.take()
    if how == "truncation":
        log.truncate_to(1)
    else:
        for seed in range(100):  # until all that was not flushed is gone
            disk.power_loss(Random(seed))
            logs = manager(disk, DIRS[:1])
            log = logs.get(A)
            if log.log_end_offset < 5:
                break
    start, end = log.log_start_offset, log.log_end_offset
    for _ in range(8):
        append(log, b"new")
    log.flush()
    disk.kill()
    again = manager(disk, DIRS[:1]).get(A)
    assert (again.log_start_offset, again.log_end_offset) == (start, end + 8)


@pytest.mark.parametrize("suffix", ["log", "index"])
def test_retention_that_is_refused_leaves_what_the_disk_has_and_says_so(suffix):
    """The segments were gone from memory and not from the disk: a reader between the two was given the last segment, and
    skipped all before it; a follower that copied the log lost it for good."""
    disk = SimulatedDisk()
    logs = manager(disk, defaults=LogConfig(segment_bytes=200, retention_bytes=300, file_delete_delay_ms=0))
    (a,) = create(logs, A)
    for _ in range(10):
        append(a, b"x" * 50)
    a.set_high_watermark(10)
    disk.fail_next("rename", f"*/{0:020d}.{suffix}")
    refused = retain(logs, NOW_MS)
    assert [path for path, error in refused.items() if isinstance(error, DiskFailedError)] == [
        a.directory.rpartition("/")[0]
    ]
    check_log(a, disk)
    offsets = base_offsets(read_all(a))
    assert offsets == list(range(a.log_start_offset, 10))
    assert retain(logs, NOW_MS) == {}
    check_log(a, disk)
    assert len(a.segments.all) < 10 and a.log_start_offset > 0


def test_retention_passes_over_a_log_that_was_deleted_between_two_steps():
    logs = manager(SimulatedDisk(), defaults=LogConfig(segment_bytes=200, retention_ms=1000, file_delete_delay_ms=0))
    for log in create(logs, A, B):
        for _ in range(10):
            append(log, b"x" * 50)
        log.set_high_watermark(10)
    refused: Refusals = {}
    steps = logs.upkeep.run_retention(NOW_MS + 5000, refused)
    (left,) = {A, B} - {A if next(steps) == 10 and not logs.get(A).size_bytes else B}
    deleted = logs.get(left)
    logs.delete(left, now_ms=NOW_MS)
    assert list(steps) == [] and refused == {}
    assert deleted.log_start_offset == 0


def test_a_settled_deletion_outlives_a_power_loss():
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    append(a, b"x")
    a.flush()
    logs.checkpoints.take()
    folder = logs.folder_of(A)
    logs.delete(A, now_ms=NOW_MS)
    logs.removals.settle(folder)
    for seed in range(20):
        after = copy.deepcopy(disk)
        after.power_loss(Random(seed))
        assert manager(after).get(A) is None


def test_a_log_whose_deletion_is_refused_is_still_there():
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    append(a, b"x")
    disk.fail_next("rename", f"{a.directory}")
    with pytest.raises(StorageError):
        logs.delete(A, now_ms=NOW_MS)
    assert logs.get(A) is a and base_offsets(read_all(a)) == [0]
    logs.delete(A, now_ms=NOW_MS)
    assert logs.get(A) is None and not disk.exists(a.directory)


def test_a_truncation_whose_lower_recovery_point_is_refused_writes_it_when_it_is_asked_again():
    """It was lowered in memory alone: the second try believed that the disk knew, and a crash then trusted what it cut off."""
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    for _ in range(3):
        append(a, b"x")
    a.flush()
    logs.checkpoints.take()
    disk.fail_next("write", "*/recovery-point-offset-checkpoint")
    with pytest.raises(StorageError):
        a.truncate_to(1)
    assert (a.failed, a.log_end_offset) == (False, 3)
    a.truncate_to(1)
    disk.kill()
    assert [folder.recovery_points[A] for folder in manager(disk).folders if A in folder.recovery_points] == [1]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_log_that_is_deleted_amid_a_checkpoint_is_left_out_of_it(is_made_anew):
    """Its files would have been refused, and with them the checkpoint; or a new log of the same name had got them."""
    disk = SimulatedDisk()
    logs = manager(disk, DIRS[:1], defaults=LogConfig(index_interval_bytes=1))
    for log in create(logs, A, B):
        for _ in range(3):
            append(log, b"x" * 100)
    steps = logs.checkpoints.save_indexes(logs.folders[0])
    next(steps)
    logs.delete(B, now_ms=NOW_MS)
    if is_made_anew:
        create(logs, B)
    assert list(steps) == []
    if is_made_anew:
        assert disk.list_dir("/one/b-c-1") == ["00000000000000000000.log", "partition.metadata"]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_flush_of_a_log_that_was_deleted_meanwhile_touches_nothing_of_the_next_one(is_made_anew):
    """The new log had got the leader epochs of the former one: after a crash it refused its leader's."""
    disk = SimulatedDisk()
    logs = manager(disk, DIRS[:1])
    (a,) = create(logs, A)
    append(a, b"x", epoch=7)
    pending = a.flushes.begin()
    logs.delete(A, now_ms=NOW_MS)
    if is_made_anew:
        create(logs, A)
    pending.perform()
    assert pending.error is None
    if is_made_anew:
        assert disk.list_dir("/one/a-0") == ["00000000000000000000.log", "partition.metadata"]


def test_a_folder_that_fails_before_a_deletion_is_flushed_does_not_keep_the_name_from_the_others():
    disk = SimulatedDisk()
    logs = manager(disk)
    (a,) = create(logs, A)
    append(a, b"x")
    a.flush()
    logs.checkpoints.take()
    logs.delete(A, now_ms=NOW_MS)
    disk.fail_folder("/one")
    logs.fail_folder("/one", "Input/output error", now_ms=NOW_MS)
    logs.give_up("/one")
    (again,) = create(logs, A)
    assert again.directory == "/two/a-0"


def test_logs_come_and_go_while_other_threads_walk_them():
    """What such a thread raises, unless it is the disk's refusal, ends the broker."""
    logs = manager(SimulatedDisk(), DIRS[:1])
    create(logs, *(TopicPartition("t", number) for number in range(300)))
    raised, is_over = [], threading.Event()

    def walk():
        while not is_over.is_set():
            try:
                for folder in logs.folders:
                    logs.removals.remove_due(folder, 0)
                logs.registry.in_folder(logs.folders[0])
            except Exception as error:
                raised.append(error)
                return

    walking = threading.Thread(target=walk)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        walking.start()
        for number in range(300):
            create(logs, TopicPartition("u", number))
            logs.delete(TopicPartition("t", number), now_ms=NOW_MS)
    finally:
        is_over.set()
        walking.join()
        sys.setswitchinterval(interval_s)
    assert raised == []


def test_logs_go_while_a_walk_of_another_thread_collects_garbage():
    """Finalizers run then, and let the thread go on that owns the logs; here it goes on in a callback of the collector."""
    logs = manager(SimulatedDisk(), DIRS[:1])
    create(logs, *(TopicPartition("t", number) for number in range(600)))
    for number in range(300):
        logs.delete(TopicPartition("t", number), now_ms=NOW_MS)
    goes = iter(range(300, 600))

    def another_goes(phase, info):
        if phase == "stop" and (number := next(goes, None)) is not None:
            logs.delete(TopicPartition("t", number), now_ms=NOW_MS)

    thresholds = gc.get_threshold()
    gc.callbacks.append(another_goes)
    gc.set_threshold(1)  # at every second object: whatever the walk makes, some logs go meanwhile
    try:
        found = logs.registry.in_folder(logs.folders[0])
        logs.removals.settle(logs.folders[0])
    finally:
        gc.callbacks.remove(another_goes)
        gc.set_threshold(*thresholds)
    assert len(found) <= 300 and next(goes, 600) > 300


class CheckpointedMeanwhile(dict[TopicPartition, int]):
    """Before an offset in it changes, a checkpoint in another thread writes what is noted, if it may."""

    writes = staticmethod(lambda: None)

    def __setitem__(self, key, value):
        self.checkpoint = threading.Thread(target=self.writes)
        self.checkpoint.start()
        self.checkpoint.join(timeout=0.1)
        super().__setitem__(key, value)


def test_a_checkpoint_amid_a_truncation_does_not_raise_the_written_recovery_point_again():
    disk = SimulatedDisk()
    logs = manager(disk, DIRS[:1])
    (a,) = create(logs, A)
    for _ in range(5):
        append(a, b"x")
    a.flush()
    logs.checkpoints.take()
    (folder,) = logs.folders
    folder.recovery_points = known = CheckpointedMeanwhile(folder.recovery_points)
    known.writes = folder.write_checkpoint
    a.truncate_to(2)
    known.checkpoint.join()
    assert b"a 0 2\n" in disk.read_bytes("/one/recovery-point-offset-checkpoint")


def test_offsets_of_a_log_that_a_power_loss_took_are_known_at_the_start():
    """So that callers on an event loop can have them removed in a thread before a new log gets the name."""
    disk = SimulatedDisk()
    logs = manager(disk, dirs=("/one",))
    (log,) = create(logs, A)
    for _ in range(3):
        append(log, b"x")
    log.set_high_watermark(3)
    log.flush()
    logs.checkpoints.take()
    disk.kill()
    disk.remove_tree(log.directory)

    again = manager(disk, dirs=("/one",))
    (folder,) = again.folders
    assert again.removals.unsettled_folder(A) is folder
    assert all(A not in offsets for offsets in folder.all_offsets)
    again.removals.settle(folder)
    assert again.removals.unsettled_folder(A) is None
    disk.kill()
    assert manager(disk, dirs=("/one",)).removals.unsettled_folder(A) is None
