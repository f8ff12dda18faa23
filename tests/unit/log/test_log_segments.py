"""What the disk refuses to the active segment: a roll, the rebuild of its indexes, its own file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.log_building import (
    DIRECTORY,
    NOW_MS,
    append,
    base_offsets,
    batch_of,
    end_transaction,
    open_log,
    read_all,
    transactional,
)
from unit.log.refusing_files import RefusingFiles

from barnabas.log.disk.files import AppendFile, RealFiles
from barnabas.log.partition.log_flushes import IDLE_MS
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import DiskFullError, StorageError
from barnabas.net.testing.simulation.disk import SimulatedDisk

CONFIG = LogConfig(index_interval_bytes=1)
LAST_OFFSET_DELTA_END = 26  # the position of its last byte in a batch


class LateRefusals(SimulatedDisk):
    """Refuses to open the `.log` file of a segment when the file has already been made, as a failing fstat() does."""

    refuses_made = ""
    refuses_removal = False

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        file = super().open_append(path, create=create)
        if self.refuses_made and path.endswith(self.refuses_made):
            raise StorageError(f"cannot open {path}: refused by the test")
        return file

    def remove(self, path: str) -> None:
        if self.refuses_removal and path.endswith(".log"):
            raise StorageError(f"cannot remove {path}: refused by the test")
        super().remove(path)


def test_after_a_refused_roll_the_log_goes_on_and_a_start_finds_all_of_it() -> None:
    disk = LateRefusals()
    log = open_log(disk, config=CONFIG)
    append(log, b"a")
    disk.refuses_made = "1.log"
    with pytest.raises(StorageError):
        log.tail.roll(NOW_MS, log.config)
    disk.refuses_made = ""
    assert [segment.is_active for segment in log.segments.all] == [True]
    assert append(log, b"b", timestamp_ms=NOW_MS + 1) == 1
    log.release()
    disk.kill()
    again = open_log(disk, config=CONFIG)
    assert base_offsets(read_all(again)) == [0, 1] and len(again.segments.all) == 1
    assert again.offset_for_timestamp(NOW_MS + 1) == (1, NOW_MS + 1)


def test_a_log_whose_refused_segment_cannot_be_removed_takes_no_more_writes() -> None:
    """A start would take the file that is left for the end of the log."""
    disk = LateRefusals()
    log = open_log(disk, config=CONFIG)
    append(log, b"a")
    append(log, b"b")
    disk.refuses_made = "2.log"
    disk.refuses_removal = True
    with pytest.raises(StorageError):
        log.tail.roll(NOW_MS, log.config)
    disk.refuses_made = ""
    with pytest.raises(StorageError, match="accepts no more writes"):
        append(log, b"c")


def test_a_rebuild_of_indexes_that_fails_leaves_the_end_of_the_log() -> None:
    """Else a refused append would take the end of the log back, and later records would get offsets that others have."""
    files = RefusingFiles(SimulatedDisk())
    log = open_log(files, config=CONFIG)
    for _ in range(12):
        append(log, bytes(200_000))  # a rebuild reads a MiB at once
    size_bytes = log.size_bytes // 12
    files.disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 9 * size_bytes + LAST_OFFSET_DELTA_END)
    files.arm(3, StorageError)
    with pytest.raises(StorageError, match="refused by the test"):
        log.read(9, max_bytes=1, up_to_offset=12)
    assert [action for action, _ in files.log] == [
        "read_at"
    ] * 3  # the batch of the index entry, and two parts of the segment
    files.arm(1, DiskFullError)
    with pytest.raises(DiskFullError):
        append(log, b"refused")
    assert log.log_end_offset == 12
    files.arm(0, StorageError)
    log.tail.roll(NOW_MS, log.config)
    assert log.segments.active.base_offset == 12
    assert append(log, b"behind") == 12


def test_an_active_segment_whose_file_is_missing_is_not_made_again(tmp_path: Path) -> None:
    """An idle log has closed its file. A new file would begin in the middle of the log, and the records before would be lost
    without a word."""
    log = open_log(RealFiles(), str(tmp_path / "orders-0"), config=CONFIG)
    append(log, b"a")
    log.flush()
    log.flushes.release_if_idle(NOW_MS + IDLE_MS)
    path = tmp_path / "orders-0" / f"{0:020d}.log"
    path.unlink()
    for use in (
        lambda: append(log, b"b"),
        lambda: read_all(log),
        lambda: log.segments.files_to_flush(log.segments.all, 0),
    ):
        with pytest.raises(
            StorageError, match="the file is missing: only the broker may change its data folders"
        ) as refused:
            use()
        assert str(path) in refused.value.message
    assert not path.exists()
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)


def _aborts(log: PartitionLog) -> None:
    log.append_as_leader(transactional(7, 0, b"x"), leader_epoch=0, now_ms=NOW_MS)
    end_transaction(log, 7, commits=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.tail.roll(NOW_MS, log.config),
        lambda log: log.segments.retire_first(NOW_MS),
        _aborts,
    ],
    ids=["a new segment", "a segment that goes", "the first entry of an index of aborted transactions"],
)
def test_names_that_come_or_go_are_made_durable_with_the_next_flush(change: Callable[[PartitionLog], object]) -> None:
    files = RefusingFiles(SimulatedDisk())
    log = open_log(files, config=CONFIG)
    append(log, b"a")
    log.tail.roll(NOW_MS, log.config)
    append(log, b"b")
    log.flush()
    names = files.list_dir(DIRECTORY)
    change(log)
    append(log, b"c")
    assert files.list_dir(DIRECTORY) != names
    files.arm(0, StorageError)
    log.flush()
    assert ("sync_dir", DIRECTORY) in files.log


def test_a_segment_is_as_old_as_its_begin() -> None:
    """Without timestamps, a segment ages since it was begun, also by a roll or when the log was started over."""
    log = open_log(SimulatedDisk(), config=LogConfig(segment_ms=1_000))
    for now_ms in (NOW_MS, NOW_MS + 1_500, NOW_MS + 2_000):
        log.append_as_leader(batch_of(b"a", timestamp_ms=-1), leader_epoch=0, now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments.all] == [0, 1]
    log.truncate_fully_and_start_at(5)
    for now_ms in (NOW_MS + 2_700, NOW_MS + 2_800):
        log.append_as_leader(batch_of(b"b", timestamp_ms=-1), leader_epoch=0, now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments.all] == [5]


@pytest.mark.parametrize("timestamps_ms", [(NOW_MS, -1), (-1, NOW_MS), (-1, -1)])
def test_a_segment_ages_by_the_clock_if_its_first_or_its_newest_record_has_no_timestamp(
    timestamps_ms: tuple[int, int],
) -> None:
    log = open_log(SimulatedDisk(), config=LogConfig(segment_ms=1_000))
    for now_ms, timestamp_ms in zip((NOW_MS, NOW_MS + 1_500), timestamps_ms, strict=True):
        log.append_as_leader(batch_of(b"a", timestamp_ms=timestamp_ms), leader_epoch=0, now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments.all] == [0, 1]


def test_a_segment_that_was_cut_to_nothing_is_as_old_as_its_next_batch() -> None:
    log = open_log(SimulatedDisk(), config=LogConfig(segment_ms=1_000))
    append(log, b"a", b"b")
    assert log.segments.active.records.first_timestamp_ms == NOW_MS
    log.truncate_to(1)  # inside of the batch
    assert log.log_end_offset == 0
    log.append_as_leader(batch_of(b"b", timestamp_ms=NOW_MS + 700), leader_epoch=0, now_ms=NOW_MS + 700)
    assert log.segments.active.records.first_timestamp_ms == NOW_MS + 700
