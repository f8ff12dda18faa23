"""A roll that the disk refuses: the former segment goes on growing, and nothing of the new one is left behind."""

import pytest
from simulation.disk import SimulatedDisk
from simulation.log_building import NOW_MS, append, base_offsets, open_log, read_all

from barnabas.log.disk.files import AppendFile
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import StorageError

CONFIG = LogConfig(index_interval_bytes=1)


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
