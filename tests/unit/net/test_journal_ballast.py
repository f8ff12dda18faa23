"""Room kept for the quorum's journal: given up when the disk is full, so that the journal goes on for a while."""

import pytest

from barnabas.log.vocabulary.errors import DiskFailedError, DiskFullError
from barnabas.net.metadata.journal_ballast import APPENDS_BETWEEN_LOOKS, BallastedStorage
from barnabas.net.testing.simulation.disk import SimulatedDisk

FOLDER, SIZE = "/q", 10_000


def storage(disk: SimulatedDisk) -> BallastedStorage:
    made = BallastedStorage(disk, FOLDER, size_bytes=SIZE)
    made.make_dirs(FOLDER)
    return made


def test_a_full_disk_takes_the_ballast_and_the_journal_goes_on() -> None:
    disk = SimulatedDisk(capacity_bytes=100_000)
    ballasted = storage(disk)
    assert disk.size_bytes("/q/ballast") == SIZE and not ballasted.is_given_up
    journal = ballasted.open_append("/q/journal")
    journal.append(b"x" * 1_000)
    disk.write_atomically("/records", bytes(disk.capacity_bytes - disk.used_bytes))
    journal.append(b"y" * 1_000)
    assert ballasted.is_given_up and not disk.exists("/q/ballast")
    assert journal.read_at(0, 9_999) == b"x" * 1_000 + b"y" * 1_000
    ballasted.write_atomically("/q/meta", b"z" * 1_000)
    with pytest.raises(DiskFullError):
        for _ in range(20):
            journal.append(b"y" * 1_000)
    assert journal.size_bytes == 1_000 + SIZE - 1_000 and disk.used_bytes == disk.capacity_bytes  # meta took the rest


def test_it_is_made_again_when_there_is_plenty_of_room() -> None:
    disk = SimulatedDisk(capacity_bytes=100_000)
    ballasted = storage(disk)
    journal = ballasted.open_append("/q/journal")
    disk.write_atomically("/records", bytes(disk.capacity_bytes - disk.used_bytes))
    journal.append(b"y")
    disk.remove("/records")
    for _ in range(APPENDS_BETWEEN_LOOKS):
        journal.append(b"y")
    assert disk.exists("/q/ballast") and not ballasted.is_given_up


def test_none_is_made_where_there_is_little_room_and_none_is_asked_for() -> None:
    assert not storage(disk := SimulatedDisk(capacity_bytes=3 * SIZE)).is_given_up and not disk.exists("/q/ballast")
    disk = SimulatedDisk()
    BallastedStorage(disk, FOLDER, size_bytes=0).make_dirs(FOLDER)
    assert not disk.exists("/q/ballast")


def test_a_failing_disk_is_another_matter() -> None:
    disk = SimulatedDisk()
    ballasted = storage(disk)
    journal = ballasted.open_append("/q/journal")
    disk.fail_next("append", "/q/journal")
    with pytest.raises(DiskFailedError):
        journal.append(b"x")
    assert disk.exists("/q/ballast")
