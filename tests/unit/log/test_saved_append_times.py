"""What a follower and a restart know of when records were appended."""

import pytest
from simulation.log_building import DIRECTORY, NOW_MS, append, batch_of, open_log

from barnabas.log.format.record_batch import NO_TIMESTAMP, read_header
from barnabas.log.segment.saved_append_times import SavedAppendTimes
from barnabas.net.testing.simulation.disk import SimulatedDisk


@pytest.mark.parametrize(
    ("timestamp_ms", "now_ms", "found_ms"),
    [
        (NOW_MS - 5_000, NOW_MS, NOW_MS - 5_000),  # an old record that is copied late
        (NOW_MS + 5_000, NOW_MS, NOW_MS),  # of a producer whose clock runs ahead
        (NOW_MS, NOW_MS, NOW_MS),
        (NO_TIMESTAMP, NOW_MS, NOW_MS),
        (NOW_MS, 0, NOW_MS),  # the replica does not know the time
    ],
)
def test_a_copied_batch_is_as_old_as_it_says_unless_that_lies_ahead(
    timestamp_ms: int, now_ms: int, found_ms: int
) -> None:
    saved = SavedAppendTimes(SimulatedDisk(), DIRECTORY)
    saved.note_replicated(read_header(batch_of(b"x", timestamp_ms=timestamp_ms)), now_ms, is_fresh=False)
    found = saved.times.time_of(0)
    assert found is not None and (found.time_ms, found.is_exact) == (found_ms, False)


def test_a_fresh_batch_was_appended_now_whatever_it_says() -> None:
    saved = SavedAppendTimes(SimulatedDisk(), DIRECTORY)
    saved.note_replicated(read_header(batch_of(b"x", timestamp_ms=5)), NOW_MS, is_fresh=True)
    found = saved.times.time_of(0)
    assert found is not None and (found.time_ms, found.is_exact) == (NOW_MS, True)


def test_without_its_file_the_times_of_a_log_are_estimated_by_its_records() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for number in range(3):
        append(log, b"x", timestamp_ms=NOW_MS + 10_000 * number)
    disk.kill()
    times = SavedAppendTimes(disk, DIRECTORY)
    segments = open_log(disk).segments.all
    times.load(segments, log_start_offset=0)
    for offset in range(3):
        found = times.times.time_of(offset)
        written_ms = disk.modified_ms(segments[0].path)
        assert found is not None and not found.is_exact
        assert found.time_ms == min(NOW_MS + 10_000 * offset, written_ms)
    assert times.times.time_of(3) is None
