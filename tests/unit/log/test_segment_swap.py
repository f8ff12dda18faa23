"""A cleaning that is killed at every step, and at every change of the disk within the steps: nothing is lost, nothing torn."""

from collections.abc import Callable
from random import Random

import pytest
from simulation.compaction import append_keyed, clean, latest, records_in, start_cleaning
from simulation.log_building import DIRECTORY, open_log

from barnabas.log.disk.files import AppendFile
from barnabas.log.format.record_batch import Buffer
from barnabas.log.partition.recovery import recover_log
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import CorruptRecordError
from barnabas.net.testing.simulation.disk import SimulatedDisk

COMPACT = LogConfig(cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0)
MERGING = LogConfig(cleanup_policy=("compact",), segment_bytes=2500, index_interval_bytes=100, file_delete_delay_ms=0)
BROKER_DEFAULTS = LogConfig(segment_bytes=600, index_interval_bytes=100)  # all that a start knows of a topic


class Crash(Exception):
    """The process is gone."""


class CrashingDisk(SimulatedDisk):
    """Dies before the n-th change of a folder or flush of a file from `arm` on."""

    def __init__(self) -> None:
        super().__init__()
        self.changes_left: int | None = None

    def arm(self, changes: int) -> None:
        self.changes_left = changes

    def _change(self) -> None:
        if self.changes_left is not None:
            if not self.changes_left:
                self.changes_left = None
                raise Crash
            self.changes_left -= 1

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        if create and not self.exists(path):
            self._change()
        return super().open_append(path, create=create)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._change()
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self._change()
        super().sync_dir(path)

    def write_atomically(self, path: str, data: Buffer) -> None:
        self._change()
        super().write_atomically(path, data)


def written_log(disk: SimulatedDisk) -> tuple[list[tuple[int, bytes, bytes | None]], int]:
    """Write a log that is dirty and on the disk; return its records and the end of what is sealed."""
    log = open_log(disk, config=COMPACT)
    written = []
    for number in range(60):
        key, value = b"k%d" % (number % 4), b"%d" % number * 20
        append_keyed(log, (key, value), epoch=number // 13)
        written.append((number, key, value))
    log.flush()
    return written, log.segments.all[-1].base_offset


def crash_while(disk: CrashingDisk, changes: int, action: Callable[[], None]) -> bool:
    disk.arm(changes)
    try:
        action()
    except Crash:
        return True
    disk.changes_left = None
    return False


def reopen(disk: SimulatedDisk, config: LogConfig = BROKER_DEFAULTS):  # type: ignore[no-untyped-def]
    log = open_log(disk, config=config)
    log.set_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_at_every_change_of_the_disk_loses_nothing_and_the_next_cleaning_finishes(loses_power: bool) -> None:
    changes, finished = 0, False
    while not finished:
        for seed in range(6 if loses_power else 1):
            disk = CrashingDisk()
            written, end = written_log(disk)
            log = reopen(disk, MERGING)
            finished = not crash_while(disk, changes, lambda log=log, disk=disk: clean(log, disk))  # type: ignore[misc]
            if loses_power:
                disk.power_loss(Random(seed))
            else:
                disk.kill()
            log = reopen(disk)
            expected = latest(written, end_offset=end)
            found = records_in(log)
            assert set(expected) <= set(found) <= set(written), (changes, seed)
            assert found == sorted(found), (changes, seed)
            assert log.log_end_offset == len(written), (changes, seed)
            assert [log.end_offset_for_epoch(epoch) for epoch in range(5)] == [
                (epoch, min(13 * (epoch + 1), 60)) for epoch in range(5)
            ]
            leftovers = [name for name in disk.list_dir(DIRECTORY) if name.endswith((".cleaned", ".swap", ".deleted"))]
            assert not leftovers, (changes, seed)
            log.config = MERGING
            clean(log, disk)
            assert records_in(log) == expected, (changes, seed)
            assert append_keyed(log, (b"new", b"record"), epoch=9) == len(written)
        changes += 1
    assert changes > 40, "there were steps to die at"


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_during_the_recovery_of_a_crash(loses_power: bool) -> None:
    """The swap is offered; then the start that finishes it dies at every change, too."""
    for changes in range(200):
        disk = CrashingDisk()
        written, end = written_log(disk)
        log = reopen(disk, MERGING)
        cleaning = start_cleaning(log, disk)
        assert cleaning is not None
        steps = cleaning.steps()
        for _ in range(3):  # fill the map, clean, flush the offer
            next(steps)()
        disk.kill()
        crashed = crash_while(disk, changes, lambda disk=disk: reopen(disk))  # type: ignore[misc]
        if loses_power:
            disk.power_loss(Random(changes))
        else:
            disk.kill()
        log = reopen(disk, MERGING)
        found = records_in(log)
        assert found[: len(found) - (60 - end)] != written[:end], "the swap was finished"
        assert set(latest(written, end_offset=end)) <= set(found) <= set(written)
        assert log.log_end_offset == len(written)
        if not crashed:
            assert changes > 5
            return
    raise AssertionError("a start does not come to its end")


def test_an_index_that_was_left_behind_by_its_log_is_brought_in() -> None:
    """A disk that remembers the renames in another order: the log has its name, its index has not."""
    disk = SimulatedDisk()
    written, end = written_log(disk)
    log = reopen(disk, MERGING)
    clean(log, disk)
    first = f"{DIRECTORY}/{0:020d}"
    disk.rename(f"{first}.index", f"{first}.index.swap")
    disk.kill()
    log = reopen(disk)
    assert records_in(log) == latest(written, end_offset=end)
    assert disk.exists(f"{first}.index")


def test_a_swap_is_not_finished_with_a_segment_that_is_damaged() -> None:
    """The segments that it replaces would be removed, and with them the only sound copy of its records."""
    disk = SimulatedDisk()
    written_log(disk)
    log = reopen(disk, MERGING)
    clean(log, disk)
    cleaned = log.segments.all[0]
    *_, (last, _) = cleaned.records.batches(0, verify_crc=True)
    disk.rename(cleaned.path, f"{cleaned.path}.swap")
    disk.kill()
    disk.flip_bit(f"{cleaned.path}.swap", last.position + last.size_bytes - 1)
    with pytest.raises(CorruptRecordError, match="is damaged at position"):
        reopen(disk)
    assert disk.exists(f"{cleaned.path}.swap")


def test_recovery_is_what_a_log_is_opened_by() -> None:
    """A gap between two segments is a fault, however the topic is configured: compaction leaves none."""
    from barnabas.log.checkpoints.leader_epoch_cache import LeaderEpochCache

    disk = SimulatedDisk()
    _, end = written_log(disk)
    log = reopen(disk, MERGING)
    clean(log, disk)
    lost = log.segments.all[0]
    *_, (last, _) = lost.records.batches(0, verify_crc=True)
    assert len(log.segments.all) > 2
    disk.open_append(lost.path).truncate(lost.size_bytes - last.size_bytes)
    disk.kill()
    recovered = recover_log(disk, DIRECTORY, config=COMPACT, epochs=LeaderEpochCache(), recovery_point=0,
                            log_start_offset=0, was_stopped_cleanly=False)  # fmt: skip
    assert recovered.segments[-1].next_offset < end
