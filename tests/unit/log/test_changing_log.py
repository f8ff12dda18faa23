"""A log that belongs to another thread, which truncates it: what goes on beside it leaves it alone."""

from simulation.checkers.logs import check_producers
from simulation.log_building import NOW_MS, append, base_offsets, batch_of, open_log, read_all, retain

from barnabas.log.compaction.cleaner import LogCleaner
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segment.damage import DamagedRange
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import SimulatedDisk

A = TopicPartition("a", 0)
OLD = LogConfig(segment_bytes=200, retention_ms=1, cleanup_policy=("compact", "delete"), min_cleanable_dirty_ratio=0.0)


def manager(disk: SimulatedDisk) -> LogManager:
    logs = LogManager(disk, ["/one"], node_id=0)
    logs.load(now_ms=NOW_MS)
    return logs


def log_of(logs: LogManager, *, count: int = 6, config: LogConfig | None = None) -> PartitionLog:
    log = logs.get_or_create(A, topic_id="id-a", config=config, now_ms=NOW_MS)
    for sequence in range(count):
        producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append_as_leader(batch_of(b"x" * 60, producer=producer), leader_epoch=1, now_ms=NOW_MS)
    return log


def test_a_flush_that_was_under_way_says_nothing_of_what_is_cut_off() -> None:
    """The number of truncations rises in the owner's thread, so that no flush ends between a look at it and the cut."""
    log = log_of(manager(SimulatedDisk()))
    pending = log.flushes.begin(NOW_MS)
    assert pending is not None
    log.begin_change()
    pending.perform()
    log.flushes.finish(pending)
    assert log.recovery_point == 0 and log.flushes.begin(NOW_MS) is None
    log.truncate_to(3)
    log.end_change()
    assert (log.log_end_offset, log.recovery_point) == (3, 0) and log.flushes.begin(NOW_MS) is not None


def test_the_segments_of_a_changing_log_are_not_counted_for_a_flush() -> None:
    """Another thread is about to remove some; the flusher neither looks at them nor lets the log wait for a later group."""
    log = log_of(manager(SimulatedDisk()), config=LogConfig(segment_bytes=200))
    assert log.flushes.sealed() == len(log.segments.all) - 1 > 0
    log.begin_change()
    assert log.flushes.sealed() == 0
    log.end_change()
    assert log.flushes.sealed() > 0


def test_a_checkpoint_amid_a_truncation_does_not_raise_the_recovery_point_again() -> None:
    """The truncation has lowered it on the disk: what is appended behind the cut and never flushed must be scanned."""
    disk = SimulatedDisk()
    logs = manager(disk)
    log = log_of(logs)
    log.flush()
    logs.checkpoints.take()
    log.begin_change()
    folder = logs.folders[0]
    folder.lower("recovery-point-offset-checkpoint", folder.recovery_points, A, 3)
    logs.checkpoints.take()  # between the lowered recovery point and the cut
    assert folder.recovery_points[A] == 3
    log.truncate_to(3)
    log.end_change()
    disk.kill()
    assert manager(disk).logs[A].log_end_offset == 3


def test_upkeep_leaves_the_log_alone() -> None:
    disk = SimulatedDisk()
    logs = manager(disk)
    log = log_of(logs, config=OLD)
    log.flush()
    log.set_high_watermark(6)
    log.begin_change()
    count = len(log.segments.all)
    assert retain(logs, NOW_MS + 1_000_000) == {} and len(log.segments.all) == count
    assert LogCleaner(logs, disk, map_size_bytes=1 << 20).next_cleaning(NOW_MS) is None
    logs.upkeep.expire_producers(NOW_MS + 1_000_000, expiration_ms=1)
    assert 7 in log.producers.last_batches()
    assert logs.upkeep.due_for_flush(NOW_MS + 1_000_000) == []
    assert log.damage.view(0) is None
    found = DamagedRange(path=log.segments.all[0].path, segment_base_offset=0, first_offset=0, end_offset=1, position=0,
                         end_position=60)  # fmt: skip
    assert not log.damage.note(found) and not log.damage.is_known


def test_a_log_that_is_deleted_is_let_go_when_the_change_is_over() -> None:
    disk = SimulatedDisk()
    logs = manager(disk)
    log = log_of(logs)
    log.begin_change()
    logs.delete(A, now_ms=NOW_MS)
    assert log.is_released and log.segments.all[-1].records.is_open  # the thread works on it
    log.end_change()
    assert not log.segments.all[-1].records.is_open


def test_a_stop_that_dropped_the_change_flushes_the_log_as_it_is() -> None:
    disk = SimulatedDisk()
    logs = manager(disk)
    log = log_of(logs)
    log.begin_change()
    logs.close()
    assert log.recovery_point == 6
    again = manager(disk)
    assert again.was_stopped_cleanly and base_offsets(read_all(again.logs[A])) == list(range(6))
    check_producers(again.logs[A])


def test_a_new_replica_of_a_log_that_begins_inside_of_a_batch_starts_over_before_it() -> None:
    leader, follower = open_log(SimulatedDisk()), open_log(SimulatedDisk())
    append(leader, b"a", b"b", b"c", b"d")
    append(leader, b"e")
    follower.truncate_fully_and_start_at(2)  # the leader's log start offset, after DeleteRecords
    records = read_all(leader)
    assert follower.begins_inside(records)
    follower.start_over_before(records)
    assert follower.log_start_offset == follower.log_end_offset == 0  # a crash leaves an empty log, as it was before
    follower.append_as_follower(records, now_ms=NOW_MS)
    follower.set_high_watermark(5)
    follower.delete_records_before(2)  # both as the leader's answer says
    assert (follower.log_start_offset, follower.log_end_offset) == (2, 5)
    assert not follower.begins_inside(records)
