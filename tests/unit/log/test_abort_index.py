"""The index of aborted transactions after crashes, and what a reader gets from it."""

from random import Random

import pytest
from simulation.checkers.logs import check_transactions
from simulation.log_building import DIRECTORY, NOW_MS, append, end_transaction, open_log, transactional

from barnabas.log.segment.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import MissingFileError, StorageError
from barnabas.net.testing.simulation.disk import SimulatedDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)
INDEX = f"{DIRECTORY}/{0:020d}.txnindex"


def fill(log, transactions, *, producer_id=9, first=0):
    """Of every three transactions, the third is committed."""
    for number in range(first, first + transactions):
        log.append_as_leader(transactional(producer_id, number, b"x" * 50), leader_epoch=0, now_ms=NOW_MS)
        end_transaction(log, producer_id, commits=number % 3 == 2)


def markers(log):
    return [entry.last_offset for entry in log.aborted.between(0, log.log_end_offset)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_flushed", [True, False])
def test_what_was_aborted_is_known_after_a_power_loss(seed, is_flushed):
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    fill(log, 12)
    if is_flushed:
        log.flush()
    flushed = log.recovery_point
    disk.power_loss(Random(seed))
    log = open_log(disk, config=SMALL, recovery_point=flushed)
    check_transactions(log)
    assert [offset for offset in markers(log) if offset < flushed] == (
        [1, 3, 7, 9, 13, 15, 19, 21] if is_flushed else []
    )
    fill(log, 6, producer_id=8)
    check_transactions(log)


def test_a_transaction_across_the_flushed_end_is_known_from_its_begin():
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append_as_leader(transactional(9, 0, b"a"), leader_epoch=0, now_ms=NOW_MS)
    append(log, b"other")
    log.flush()
    log.tail.save(log.recovery_point)
    end_transaction(log, 9, commits=False)
    log.tail.save(log.recovery_point)
    disk.kill()
    disk.remove(INDEX)
    log = open_log(disk, recovery_point=2)
    assert log.aborted.between(0, 3) == (
        AbortedTransaction(producer_id=9, first_offset=0, last_offset=2, last_stable_offset=3),
    )


@pytest.mark.parametrize("damage", ["zeros", "garbage", "torn"])
def test_a_start_rebuilds_an_index_that_is_damaged(damage):
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 6)
    expected = log.aborted.between(0, 12)
    log.close()
    disk.kill()
    file = disk.open_append(INDEX)
    match damage:
        case "zeros":
            file.truncate(34)
            file.append(bytes(34))
        case "garbage":
            file.truncate(0)
            file.append(Random(1).randbytes(68))
        case "torn":
            file.truncate(34 + 7)
    file.close()
    log = open_log(disk, was_stopped_cleanly=damage != "torn", recovery_point=2)
    assert log.aborted.between(0, 12) == expected
    assert TransactionIndex(disk, INDEX).entries == list(expected)


@pytest.mark.parametrize("size_bytes", [1, 33, 35, 67, 69, 103, 135])
def test_a_start_rebuilds_an_index_that_is_cut_within_an_entry_before_the_recovery_point(size_bytes):
    """All entries are durable by the recovery point, so the log behind it does not say what is missing."""
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 6)
    log.flush()
    expected, flushed = log.aborted.between(0, 12), log.recovery_point
    assert len(expected) == 4 and flushed == log.log_end_offset
    disk.kill()
    file = disk.open_append(INDEX)
    file.truncate(size_bytes)
    file.close()
    for _ in range(2):  # the second start finds what the first one has written
        log = open_log(disk, recovery_point=flushed)
        assert log.aborted.between(0, 12) == expected
        check_transactions(log)
        disk.kill()
    assert TransactionIndex(disk, INDEX).entries == list(expected)


def test_a_start_cuts_what_is_torn_in_an_index_behind_the_recovery_point():
    """Entries that are appended behind torn bytes would be read from the wrong place at the next start."""
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    fill(log, 12)
    base_offset = log.segments.active.base_offset
    index = f"{DIRECTORY}/{base_offset:020d}.txnindex"
    expected = log.aborted.between(0, log.log_end_offset)
    log.close()
    disk.kill()
    file = disk.open_append(index)
    file.truncate(7)
    file.close()
    log = open_log(disk, config=SMALL, was_stopped_cleanly=False, recovery_point=base_offset)
    assert log.aborted.between(0, log.log_end_offset) == expected
    in_last = [entry for entry in expected if entry.last_offset >= base_offset]
    assert in_last and TransactionIndex(disk, index).entries == in_last


def test_an_index_that_is_damaged_while_the_log_is_open_is_not_believed():
    disk = SimulatedDisk()
    disk.make_dirs("/d")
    file = disk.open_append("/d/0.txnindex")
    file.append(bytes(34))
    with pytest.raises(StorageError, match="restart the broker"):
        _ = TransactionIndex(disk, "/d/0.txnindex").entries


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_that_was_cut_off_does_not_come_back(seed):
    """It would hide what a producer commits at the same offsets later."""
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 4)
    log.flush()
    log.truncate_to(2)
    for number in range(5):
        append(log, b"%d" % number)
    log.flush()
    disk.power_loss(Random(seed))
    log = open_log(disk, recovery_point=log.recovery_point)
    assert markers(log) == [1]


def test_a_transaction_that_ends_in_a_later_segment_is_found_from_where_it_began():
    log = open_log(SimulatedDisk(), config=SMALL)
    log.append_as_leader(transactional(9, 0, b"x" * 50), leader_epoch=0, now_ms=NOW_MS)
    for _ in range(30):
        append(log, b"x" * 50)
    end_transaction(log, 9, commits=False)
    fill(log, 20, producer_id=10)
    assert len(log.segments.all) > 3
    assert [entry.producer_id for entry in log.aborted.between(0, 2)] == [9]
    assert [entry.producer_id for entry in log.aborted.between(5, 31)] == [9]
    assert [entry.producer_id for entry in log.aborted.between(31, 33)] == [9, 10]


def test_a_search_ends_with_the_segment_after_which_nothing_earlier_is_open():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    fill(log, 40)
    log.close()
    disk.kill()
    log = open_log(disk, config=SMALL, was_stopped_cleanly=True)
    for segment in log.segments.all:
        segment.transaction_index.release()
    assert [entry.first_offset for entry in log.aborted.between(0, 2)] == [0]
    unread = [segment for segment in log.segments.all if segment.transaction_index._entries is None]
    assert len(unread) == len([segment for segment in log.segments.all if segment.transaction_index.entries]) - 1


def test_an_index_that_somebody_removes_is_written_again_whole() -> None:
    """From memory, with the next entry or the next flush, and not begun in the middle."""
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 4)
    disk.remove(INDEX)
    log.flush()
    assert TransactionIndex(disk, INDEX).entries == list(log.aborted.between(0, 8)) and markers(log) == [1, 3, 7]
    disk.remove(INDEX)
    fill(log, 1, producer_id=8)
    assert [entry.last_offset for entry in TransactionIndex(disk, INDEX).entries] == [1, 3, 7, 9]


def test_an_index_that_is_missing_is_not_taken_for_an_empty_one() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    fill(log, 12)
    log.flush()
    log.segments.all[0].transaction_index.release()
    disk.remove(INDEX)
    for _ in range(2):
        with pytest.raises(MissingFileError, match="has 0 of its .* entries"):
            log.aborted.between(0, 2)
    assert not disk.exists(INDEX)


def test_only_entries_that_are_not_durable_are_flushed():
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 1)
    index = log.segments.active.transaction_index
    (last,) = markers(log)
    assert index.file_to_flush(last) is not None
    assert index.file_to_flush(last + 1) is None
