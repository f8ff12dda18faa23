"""Transactions in a partition's log: what ends them, who may write meanwhile, and how far read_committed consumers read."""

from random import Random

import pytest
from simulation.log_building import (
    DIRECTORY,
    NOW_MS,
    append,
    base_offsets,
    batch_of,
    end_transaction,
    marker,
    open_log,
    read_all,
    transactional,
)

from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.segment import producer_state
from barnabas.log.segment.producer_state import EndedTransaction, OpenTransactions, ProducerState
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from barnabas.net.testing.simulation.disk import SimulatedDisk

PLAIN = ProducerFields(producer_id=9, producer_epoch=0, base_sequence=1)


def send(log, sequence, *values, producer_id=9, epoch=0):
    batch = transactional(producer_id, sequence, *(values or (b"x",)), epoch=epoch)
    return log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)


def send_plain(log, sequence, *, epoch=0, producer_id=9):
    producer = ProducerFields(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return log.append_as_leader(batch_of(b"x", producer=producer), leader_epoch=0, now_ms=NOW_MS)


# --- what ends a transaction -------------------------------------------------------------------------------------------


def test_records_of_a_newer_epoch_wait_for_the_end_of_the_open_transaction():
    log = open_log(SimulatedDisk())
    send(log, 0)
    with pytest.raises(InvalidTxnStateError, match="open since offset 0 in epoch 0, and sent a batch of epoch 1"):
        send(log, 0, epoch=1)
    assert send(log, 0).duplicate
    end_transaction(log, 9, commits=True, epoch=1)
    assert send(log, 0, epoch=1).first_offset == 2


def test_records_of_a_newer_epoch_do_not_end_the_open_transaction():
    """A leader of an earlier version has appended them."""
    log = open_log(SimulatedDisk())
    append(log, b"before")
    send(log, 0)
    append(log, b"between")
    newer = open_log(SimulatedDisk(), log_start_offset=3)
    send(newer, 0, epoch=1)
    log.append_as_follower(read_all(newer))
    log.set_high_watermark(4)
    assert log.last_stable_offset == 1
    end_transaction(log, 9, commits=False, epoch=1)
    log.set_high_watermark(5)
    assert log.last_stable_offset == 5
    (aborted,) = log.aborted.between(0, 5)
    assert (aborted.first_offset, aborted.last_offset) == (1, 4)


@pytest.mark.parametrize(("epoch", "sequence"), [(0, 1), (1, 0)])
def test_a_plain_batch_does_not_get_into_the_open_transaction_of_its_producer(epoch, sequence):
    log = open_log(SimulatedDisk())
    send(log, 0)
    with pytest.raises(InvalidTxnStateError, match="open since offset 0"):
        send_plain(log, sequence, epoch=epoch)
    assert log.log_end_offset == 1
    assert send_plain(log, 0, producer_id=8).first_offset == 1
    end_transaction(log, 9, commits=True)
    assert send_plain(log, sequence, epoch=epoch).first_offset == 3


def test_a_plain_batch_that_is_repeated_inside_of_a_transaction_is_known_as_repeated():
    log = open_log(SimulatedDisk())
    send_plain(log, 0)
    send(log, 1)
    assert send_plain(log, 0).duplicate


@pytest.mark.parametrize("was_restarted", [False, True])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_records_of_the_next_transaction_are_no_repetition_of_the_one_before(count, commits, was_restarted):
    """librdkafka gave up records of a transaction whose answer was lost, aborted it, and used their sequences again, in the same
    epoch. Told that they are there already, it committed a transaction without its records."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for sequence in range(10):
        send(log, sequence)
    send(log, 10, *[b"given up"] * 3)
    end_transaction(log, 9, commits=commits)
    if was_restarted:
        log.close()
        disk.kill()
        log = open_log(disk, was_stopped_cleanly=True)
    for sequence in (4, 9, 10, 11, 12):
        with pytest.raises(OutOfOrderSequenceError, match="where 13 follows"):
            send(log, sequence, *[b"another"] * count)
    assert not send(log, 13).duplicate
    assert send(log, 13).duplicate


def test_a_batch_that_overlaps_another_one_is_no_repetition():
    log = open_log(SimulatedDisk())
    for sequence in range(0, 50, 5):
        send(log, sequence, *[b"x"] * 5)
    for sequence, count in ((0, 5), (24, 1), (25, 4), (44, 1), (45, 3), (46, 4), (45, 6)):
        with pytest.raises(OutOfOrderSequenceError):
            send(log, sequence, *[b"x"] * count)
    assert all(send(log, sequence, *[b"x"] * 5).duplicate for sequence in range(25, 50, 5))


# --- coordinators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("was_restarted", [False, True])
def test_the_marker_of_a_coordinator_that_was_replaced_is_refused(was_restarted):
    disk = SimulatedDisk()
    log = open_log(disk)
    send(log, 0)
    end_transaction(log, 9, commits=True, coordinator_epoch=5)
    send(log, 1)
    if was_restarted:
        log.close()
        disk.kill()
        log = open_log(disk, was_stopped_cleanly=True)
    with pytest.raises(TransactionCoordinatorFencedError, match="epoch 4, and epoch 5 has taken over"):
        end_transaction(log, 9, commits=False, coordinator_epoch=4)
    assert log.log_end_offset == 3
    assert end_transaction(log, 9, commits=False, coordinator_epoch=5) == 3
    assert end_transaction(log, 9, commits=False, coordinator_epoch=6) == 4


def test_a_follower_knows_the_coordinator_too():
    leader, follower = open_log(SimulatedDisk()), open_log(SimulatedDisk())
    send(leader, 0)
    end_transaction(leader, 9, commits=True, coordinator_epoch=5)
    follower.append_as_follower(read_all(leader))
    with pytest.raises(TransactionCoordinatorFencedError):
        end_transaction(follower, 9, commits=True, coordinator_epoch=4)


def test_the_marker_of_an_older_epoch_is_refused():
    log = open_log(SimulatedDisk())
    send(log, 0, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        end_transaction(log, 9, commits=False, epoch=0)


def test_with_version_2_a_repeated_marker_does_not_end_the_next_transaction():
    log = open_log(SimulatedDisk())

    def end(epoch, version=2):
        batch = marker(9, commits=True, epoch=epoch)
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, from_coordinator=True, transaction_version=version)

    send(log, 0, epoch=0)
    end(1)
    end(1)  # nothing is open: it changes nothing
    send(log, 0, epoch=1)
    with pytest.raises(InvalidProducerEpochError, match="has ended"):
        end(1)
    end(2)
    send(log, 0, epoch=2)
    end(2, version=1)  # before version 2, records and marker have the same epoch


def test_a_coordinator_appends_nothing_but_markers():
    log = open_log(SimulatedDisk())
    for batch in (batch_of(b"x"), transactional(9, 0, b"x")):
        with pytest.raises(InvalidRecordError, match="markers"):
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS, from_coordinator=True)


# --- the last stable offset --------------------------------------------------------------------------------------------


def test_a_transaction_counts_as_open_until_its_end_is_replicated():
    log = open_log(SimulatedDisk())
    append(log, b"before")
    send(log, 0)
    append(log, b"after")
    log.set_high_watermark(3)
    end_transaction(log, 9, commits=True)
    assert log.last_stable_offset == 1
    log.set_high_watermark(4)
    assert log.last_stable_offset == 4


def test_ends_that_are_not_replicated_outlive_a_restart():
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log, b"before")
    send(log, 0)
    end_transaction(log, 9, commits=True)
    log.close()
    disk.kill()
    log = open_log(disk, was_stopped_cleanly=True)
    log.set_high_watermark(2)
    assert log.last_stable_offset == 1
    log.set_high_watermark(3)
    assert log.last_stable_offset == 3


def test_a_truncated_end_opens_the_transaction_again():
    log = open_log(SimulatedDisk())
    send(log, 0)
    end_transaction(log, 9, commits=True)
    log.truncate_to(1)
    append(log, b"other")
    log.set_high_watermark(2)
    assert log.last_stable_offset == 0


def test_a_transaction_whose_begin_was_deleted_holds_readers_at_the_log_start():
    log = open_log(SimulatedDisk())
    send(log, 0)
    append(log, b"other")
    append(log, b"other")
    log.set_high_watermark(3)
    log.delete_records_before(2)
    assert log.last_stable_offset == 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("damage", [b"\0" * 34, b"\0" * 102, b"garbage of a torn write, longer than an entry"])
def test_an_index_of_aborted_transactions_that_was_built_again_outlives_the_next_power_loss(damage, seed):
    """Its entries lie before the recovery point, so no later flush takes them along. Found by a fault campaign: the power failed
    twice within 20 seconds, and readers got all aborted records of a segment."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for sequence in range(5):
        send(log, sequence)
        end_transaction(log, 9, commits=False)
    log.flush()
    saved, wanted = log.recovery_point, log.aborted.between(0, log.log_end_offset)
    assert len(wanted) == 5
    disk.write_back()
    (name,) = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".txnindex")]
    file = disk.open_append(f"{DIRECTORY}/{name}")
    file.truncate(34)
    file.append(damage)
    file.flush()
    file.close()
    disk.kill()
    for _ in range(3):
        log = open_log(disk, recovery_point=saved)
        assert log.aborted.between(0, log.log_end_offset) == wanted
        disk.power_loss(Random(seed))


def test_all_damaged_indexes_of_aborted_transactions_are_built_again_and_go_on_growing():
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=400)
    log = open_log(disk, config=config)
    for sequence in range(9):
        send(log, sequence)
        end_transaction(log, 9, commits=False)
    log.flush()
    saved, wanted = log.recovery_point, log.aborted.between(0, log.log_end_offset)
    disk.write_back()
    names = [f"{DIRECTORY}/{name}" for name in disk.list_dir(DIRECTORY) if name.endswith(".txnindex")]
    assert len(names) > 2
    for name in names:
        file = disk.open_append(name)
        file.truncate(0)
        file.append(bytes(34))
        file.flush()
        file.close()
    disk.kill()
    log = open_log(disk, recovery_point=saved, config=config)
    assert log.aborted.between(0, log.log_end_offset) == wanted
    size_bytes = sum(len(disk.read_bytes(name)) for name in names)
    assert size_bytes == 34 * len(wanted)
    send(log, 9)
    end_transaction(log, 9, commits=False)
    names = [f"{DIRECTORY}/{name}" for name in disk.list_dir(DIRECTORY) if name.endswith(".txnindex")]
    assert sum(len(disk.read_bytes(name)) for name in names) == size_bytes + 34


def test_an_end_that_retention_has_deleted_is_not_missed_after_a_crash():
    """The flushed end that is saved is older than the first segment that is left; the transaction was open at that time."""
    small = LogConfig(segment_bytes=500, retention_bytes=600, file_delete_delay_ms=0)
    disk = SimulatedDisk()
    log = open_log(disk, config=small)
    send(log, 0, b"x" * 60)
    while len(log.segments.all) < 2:
        append(log, b"x" * 60)
    log.flush()
    saved = log.recovery_point
    end_transaction(log, 9, commits=False)
    while len(log.segments.all) < 3:
        append(log, b"x" * 60)
    log.set_high_watermark(log.log_end_offset)
    log.delete_records_before(log.segments.active.base_offset)
    assert log.delete_old_segments(NOW_MS)
    start = log.log_start_offset
    assert log.segments.all[0].base_offset > saved
    disk.kill()
    log = open_log(disk, config=small, recovery_point=saved, log_start_offset=start)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset


def test_an_end_that_retention_has_deleted_is_not_missed_where_the_snapshot_behind_it_is_torn():
    """A snapshot is not flushed. The one before it, of the deleted segment, has the transaction as open."""
    small = LogConfig(segment_bytes=500, retention_bytes=600, file_delete_delay_ms=0)
    disk = SimulatedDisk()
    log = open_log(disk, config=small)
    send(log, 0, b"x" * 60)
    while len(log.segments.all) < 2:
        append(log, b"x" * 60)
    end_transaction(log, 9, commits=False)
    while len(log.segments.all) < 3:
        append(log, b"x" * 60)
    log.set_high_watermark(log.log_end_offset)
    log.delete_records_before(log.segments.active.base_offset)
    assert log.delete_old_segments(NOW_MS) and len(log.segments.all) == 1
    start = log.log_start_offset
    log.flush()
    saved = log.recovery_point
    (torn,) = [name for name in disk.list_dir(DIRECTORY) if name == f"{start:020d}.snapshot"]
    file = disk.open_append(f"{DIRECTORY}/{torn}")
    file.truncate(5)
    file.close()
    disk.kill()
    log = open_log(disk, config=small, recovery_point=saved, log_start_offset=start)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset


def test_retention_over_an_open_transaction_leaves_what_is_left_of_it_open_and_then_aborted():
    small = LogConfig(segment_bytes=500, retention_bytes=600, file_delete_delay_ms=0)
    log = open_log(SimulatedDisk(), config=small)
    for sequence in range(3):
        send(log, sequence, b"x" * 60)
    end_transaction(log, 9, commits=False)  # an entry in a segment that goes
    for sequence in range(3, 12):
        send(log, sequence, b"x" * 60)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 4
    assert log.delete_old_segments(NOW_MS)
    start = log.log_start_offset
    assert start > 4 and log.last_stable_offset == start
    assert log.aborted.between(0, log.log_end_offset) == ()
    end_transaction(log, 9, commits=False)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset
    (aborted,) = log.aborted.between(start, start + 1)
    assert aborted.first_offset == 4 < start


def test_the_first_of_many_open_transactions_is_found_without_a_look_at_the_others():
    transactions = OpenTransactions()
    for producer_id in range(producer_state.MAX_PRODUCERS):
        transactions.begin(producer_id, producer_id)
    for producer_id in range(producer_state.MAX_PRODUCERS - 1):
        transactions.end(producer_id, 100_000 + producer_id)
        assert transactions.first_unstable_offset(200_000) == producer_id + 1
    assert len(list(transactions.unreplicated)) <= 1


def test_ended_transactions_by_the_offset_that_readers_must_not_pass():
    transactions = OpenTransactions([(1, 10), (2, 5), (3, 30)])
    assert transactions.first_undecided_offset == 5
    transactions.end(1, 40)
    assert list(transactions.unreplicated) == [EndedTransaction(10, 40)]
    transactions.end(2, 41)  # it began before the other one, and holds readers back for longer
    assert list(transactions.unreplicated) == [EndedTransaction(5, 41)]
    transactions.end(3, 42)
    looks = {high_watermark: transactions.first_unstable_offset(high_watermark) for high_watermark in (40, 41, 42, 43)}
    assert looks == {40: 5, 41: 5, 42: 30, 43: None}
    assert transactions.end(3, 50) is None


# --- several batches in one request ------------------------------------------------------------------------------------


def request(*batches):
    return bytearray(b"".join(batches))


def test_several_batches_of_a_transaction_are_appended_in_order():
    log = open_log(SimulatedDisk())
    batches = [transactional(9, 0, b"a", b"b"), transactional(9, 2, b"c"), transactional(9, 3, b"d")]
    info = log.append_as_leader(request(*batches), leader_epoch=0, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.duplicate) == (0, 3, False)
    again = log.append_as_leader(request(*batches), leader_epoch=0, now_ms=NOW_MS)
    assert (again.first_offset, again.last_offset, again.duplicate) == (0, 3, True)
    assert base_offsets(read_all(log)) == [0, 2, 3]


@pytest.mark.parametrize(("between", "first_offset"), [(False, 0), (True, -1)])
def test_only_the_rest_of_a_repeated_request_is_appended(between, first_offset):
    """The disk was full after some of its batches, or a new leader had only these."""
    log = open_log(SimulatedDisk())
    batches = [transactional(9, 0, b"a", b"b"), transactional(9, 2, b"c"), transactional(9, 3, b"d")]
    log.append_as_leader(batches[0], leader_epoch=0, now_ms=NOW_MS)
    if between:
        append(log, b"other")
    info = log.append_as_leader(request(*batches), leader_epoch=0, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, info.duplicate) == (first_offset, 3 + between, False)
    assert dict(log.producers.entries())[9].next_sequence == 4


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([transactional(9, 0, b"a"), transactional(9, 2, b"b")], OutOfOrderSequenceError),
        ([transactional(9, 0, b"a"), transactional(9, 0, b"a")], OutOfOrderSequenceError),
        ([transactional(9, 0, b"a"), transactional(8, 1, b"b")], InvalidRecordError),
        ([transactional(9, 0, b"a"), transactional(9, 1, b"b", epoch=1)], InvalidRecordError),
        ([transactional(9, 0, b"a"), batch_of(b"b")], InvalidRecordError),
        ([batch_of(b"a"), transactional(9, 0, b"b")], InvalidRecordError),
        ([transactional(9, 0, b"a"), batch_of(b"b", producer=PLAIN)], InvalidRecordError),
    ],
)  # fmt: skip
def test_batches_that_do_not_continue_each_other_are_refused_as_a_whole(batches, error):
    log = open_log(SimulatedDisk())
    with pytest.raises(error):
        log.append_as_leader(request(*batches), leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_a_snapshot_has_coordinators_and_ends():
    log = open_log(SimulatedDisk())
    send(log, 0)
    end_transaction(log, 9, commits=True, coordinator_epoch=7)
    send(log, 0, producer_id=8)
    again = ProducerState.from_snapshot(log.producers.to_snapshot())
    assert dict(again.entries())[9].coordinator_epoch == 7
    assert list(again.transactions.unreplicated) == [EndedTransaction(0, 1)]
    assert again.transactions.first_unstable_offset(1) == 0
    assert again.transactions.first_unstable_offset(2) == 2
