"""A log of many segments: what is asked of it costs no visit to each of them, and a lying index is found out."""

import struct
import threading
from collections import Counter

import pytest
from simulation.log_building import DIRECTORY, NOW_MS, append, base_offsets, open_log, read_all

from barnabas.log.segment.open_segments import OpenSegments
from barnabas.log.settings.config import LogConfig
from barnabas.net.testing.simulation.disk import SimulatedDisk

SEGMENTS = 60
CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1)


class CountingDisk(SimulatedDisk):
    def __init__(self) -> None:
        super().__init__()
        self.opened: Counter[str] = Counter()

    def open_append(self, path, *, create=True):
        self.opened[path.rpartition(".")[2]] += 1
        return super().open_append(path, create=create)

    def map_readonly(self, path):
        self.opened["mapped"] += 1
        return super().map_readonly(path)

    def modified_ms(self, path):
        self.opened["looked at"] += 1
        return super().modified_ms(path)


def filled(disk, *, timestamps=lambda number: NOW_MS + number, **arguments):
    log = open_log(disk, config=CONFIG, **arguments)
    number = 0
    while len(log.segments.all) < SEGMENTS:
        append(log, b"x" * 100, timestamp_ms=timestamps(number))
        number += 1
    log.set_high_watermark(log.log_end_offset)
    return log


def reopened(disk, **arguments):
    disk.kill()
    disk.opened.clear()
    return open_log(disk, config=CONFIG, was_stopped_cleanly=True, **arguments)


def test_opening_and_retention_visit_no_old_segment() -> None:
    disk = CountingDisk()
    filled(disk).close()
    log = reopened(disk)
    log.set_high_watermark(log.log_end_offset)
    assert disk.opened["mapped"] == 0 and disk.opened["log"] <= 2
    assert log.delete_old_segments(NOW_MS) == []
    assert disk.opened["mapped"] <= 2 and disk.opened["looked at"] == 0  # of the oldest, which stays
    assert log.size_bytes == len(read_all(log))


def test_a_look_up_by_time_opens_two_segments_once_the_ages_are_known() -> None:
    disk = CountingDisk()
    log = filled(disk)
    log.close()
    opened = OpenSegments(limit=5)
    log = reopened(disk, open_segments=opened)
    assert log.offset_for_timestamp(NOW_MS + 100) == (100, NOW_MS + 100)
    disk.opened.clear()
    for number in range(0, log.log_end_offset, 37):
        assert log.offset_for_timestamp(NOW_MS + number) == (number, NOW_MS + number)
        assert disk.opened["log"] + disk.opened["mapped"] <= 3
        disk.opened.clear()
    assert log.max_timestamp() == (log.log_end_offset - 1, NOW_MS + log.log_end_offset - 1)
    assert sum(segment.records.is_open for segment in log.segments.all if not segment.is_active) <= 5


def test_timestamps_that_do_not_rise() -> None:
    log = filled(SimulatedDisk(), timestamps=lambda number: NOW_MS + number * 7 % 100)
    stamps = [NOW_MS + number * 7 % 100 for number in range(log.log_end_offset)]
    for wanted in range(NOW_MS - 1, NOW_MS + 101):
        first = next(((offset, stamp) for offset, stamp in enumerate(stamps) if stamp >= wanted), None)
        assert log.offset_for_timestamp(wanted) == first
    log.delete_records_before(150)
    log.delete_old_segments(NOW_MS)
    log.truncate_to(300)
    for wanted in (NOW_MS, NOW_MS + 50, NOW_MS + 99):
        later = ((offset, stamps[offset]) for offset in range(150, 300) if stamps[offset] >= wanted)
        assert log.offset_for_timestamp(wanted) == next(later)
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments.all)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("shift", [-1, 1, 7])
def test_an_index_that_rises_and_lies_is_made_anew(suffix: str, shift: int) -> None:
    """Every entry but the ends is off by something: what is read is what was written."""
    disk = CountingDisk()
    log = filled(disk)
    truth, end = read_all(log), log.log_end_offset
    log.close()
    entry = struct.Struct(">II" if suffix == "index" else ">qI")
    for name in disk.list_dir(DIRECTORY):
        if name.endswith("." + suffix):
            entries = list(entry.iter_unpack(disk.read_bytes(f"{DIRECTORY}/{name}")))
            for number in range(1, len(entries) - 1):
                entries[number] = (entries[number][0], entries[number][1] + shift)
            disk.write_atomically(f"{DIRECTORY}/{name}", b"".join(entry.pack(*item) for item in entries))
    log = reopened(disk)
    for offset in range(end):
        assert base_offsets(log.read(offset, max_bytes=300, up_to_offset=end).read())[0] == offset
        assert log.offset_for_timestamp(NOW_MS + offset) == (offset, NOW_MS + offset)
    assert read_all(log) == truth


def test_a_look_for_damage_leaves_a_segment_as_open_as_it_was() -> None:
    disk = CountingDisk()
    filled(disk).close()
    segment = reopened(disk).segments.all[0]
    assert not segment.records.is_open
    assert segment.view().size_bytes == segment.size_bytes
    assert not segment.records.is_open and not segment.indexes.are_loaded
    segment.batch_at(segment.base_offset)
    assert segment.records.is_open
    segment.view()
    assert segment.records.is_open and segment.indexes.are_loaded


class SegmentThatIsForgotten:
    """Of a log that another thread truncates just when the owner of all logs lets go of it."""

    is_active = False

    def __init__(self, opened: OpenSegments) -> None:
        self._opened = opened
        self.released = 0
        self.is_truncated = False

    def __hash__(self) -> int:
        if self.is_truncated:
            self.is_truncated = False
            thread = threading.Thread(target=self._opened.forget, args=(self,))
            thread.start()
            thread.join(timeout=0.1)  # it ends in this time only where nothing makes it wait
        return id(self)

    def release(self) -> None:
        self.released += 1


def test_a_segment_may_be_forgotten_in_another_thread_while_it_is_let_go():
    opened = OpenSegments(limit=1, lock=threading.Lock())
    first, second = SegmentThatIsForgotten(opened), SegmentThatIsForgotten(opened)
    opened.used(first)
    first.is_truncated = True
    opened.used(second)
    assert first.released == 1 and second.released == 0


def test_nothing_is_released_by_others_once_logs_close_in_threads_of_their_own():
    opened = OpenSegments(limit=1)
    segments = [SegmentThatIsForgotten(opened) for _ in range(3)]
    opened.leave_to_their_logs()
    for segment in segments:
        opened.used(segment)
    assert [segment.released for segment in segments] == [0, 0, 0]
