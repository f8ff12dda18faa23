from random import Random

import pytest
from simulation.checkers.logs import check_producers
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
from unit.log.records.record_world import decode_columns
from unit.log.refusing_files import RefusingFiles

from barnabas.log.disk.files import RealFiles
from barnabas.log.format.record_batch import iter_headers, read_header
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    StorageError,
    TooManyFilesError,
    UnsupportedCompressionError,
)
from barnabas.net.testing.simulation.disk import SimulatedDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


@pytest.fixture(params=["real", "simulated"])
def files_and_directory(request, tmp_path):
    if request.param == "real":
        return RealFiles(), str(tmp_path / "orders-0")
    return SimulatedDisk(), DIRECTORY


def test_leader_gives_offsets_and_epoch_in_place(files_and_directory):
    log = open_log(*files_and_directory)
    append(log, b"a", b"b")
    buffer = batch_of(b"c", b"d", b"e") + batch_of(b"f")
    info = log.append_as_leader(memoryview(buffer), leader_epoch=3, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset, log.log_end_offset) == (2, 5, 6)
    assert [(header.base_offset, header.leader_epoch) for header in iter_headers(buffer)] == [(2, 3), (5, 3)]
    assert read_all(log).endswith(buffer)
    assert log.latest_epoch == 3


def test_readonly_buffer_is_left_alone(files_and_directory):
    log = open_log(*files_and_directory)
    batch = bytes(batch_of(b"a"))
    before = bytes(bytearray(batch))
    append(log, b"x")
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    assert batch == before
    assert base_offsets(read_all(log)) == [0, 1]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda b: b.__setitem__(70, b[70] ^ 1), CorruptRecordError),
        (lambda b: b.__setitem__(16, 1), CorruptRecordError),
        (lambda b: b.__delitem__(slice(-1, None)), CorruptRecordError),
        (lambda b: b.extend(b"tail"), CorruptRecordError),
        (lambda b: b.clear(), InvalidRecordError),
    ],
)
def test_damaged_client_batches_are_refused_and_nothing_changes(files_and_directory, damage, error):
    log = open_log(*files_and_directory)
    buffer = batch_of(b"value")
    damage(buffer)
    with pytest.raises(error):
        log.append_as_leader(buffer, leader_epoch=0, now_ms=NOW_MS)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


def _with_attributes(attributes: int, count: int | None = None) -> bytearray:
    from barnabas.log.format import record_codec

    return bytearray(record_codec.seal_batch(b"x" * 10, count or 1, attributes, NOW_MS, NOW_MS, ProducerFields()))


def test_forged_control_batch_codec_and_counts_are_refused():
    log = open_log(SimulatedDisk())
    with pytest.raises(InvalidRecordError, match="control"):
        log.append_as_leader(_with_attributes(0x20), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
        log.append_as_leader(_with_attributes(0x08), leader_epoch=0, now_ms=NOW_MS)
    for codec in (5, 6, 7):
        with pytest.raises(UnsupportedCompressionError):
            log.append_as_leader(_with_attributes(codec), leader_epoch=0, now_ms=NOW_MS)
    log.append_as_leader(_with_attributes(4), leader_epoch=0, now_ms=NOW_MS)


def test_limits_of_size_and_time():
    log = open_log(SimulatedDisk(), config=LogConfig(max_message_bytes=200))
    with pytest.raises(RecordTooLargeError):
        append(log, b"x" * 200)
    with pytest.raises(InvalidTimestampError):
        log.append_as_leader(batch_of(b"x", timestamp_ms=NOW_MS + 3_600_001), leader_epoch=0, now_ms=NOW_MS)


def test_log_append_time():
    log = open_log(SimulatedDisk(), config=LogConfig(message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(batch_of(b"a", timestamp_ms=5), leader_epoch=0, now_ms=NOW_MS)
    assert info.log_append_time_ms == info.max_timestamp_ms == NOW_MS
    assert decode_columns(read_all(log)).timestamps_ms == [NOW_MS]
    assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS)
    assert log.offset_for_timestamp(NOW_MS + 1) is None


@pytest.mark.parametrize("seed", range(8))
def test_reads_at_all_offsets_against_a_model(seed, files_and_directory):
    files, directory = files_and_directory
    rng = Random(seed)
    log = open_log(files, directory, config=SMALL)
    model = []
    for _ in range(60):
        values = [rng.randbytes(rng.randint(0, 60)) for _ in range(rng.randint(1, 5))]
        first = append(log, *values)
        model.append((first, first + len(values), first))
    assert len(log.segments.all) > 5
    assert base_offsets(read_all(log)) == [base for base, _, _ in model]
    for offset in range(log.log_end_offset + 1):
        for up_to in {offset, offset + 1, rng.randint(0, log.log_end_offset), log.log_end_offset}:
            max_bytes = rng.choice([1, 150, 400, 10_000])
            read = log.read(offset, max_bytes=max_bytes, up_to_offset=up_to)
            data = read.read()
            assert len(data) == read.size_bytes
            bases = base_offsets(data)
            visible = [base for base, end, _ in model if end > offset and base < up_to]
            if offset >= up_to:
                assert bases == []
                continue
            assert bases == visible[: len(bases)]
            assert bool(bases) == bool(visible)
            assert len(data) <= max_bytes or len(bases) == 1
            following = visible[len(bases) : len(bases) + 1]
            if following and len(data) < max_bytes:
                whole = log.read(following[0], max_bytes=1, up_to_offset=log.log_end_offset).size_bytes
                is_next_segment = any(segment.base_offset == following[0] for segment in log.segments.all)
                assert is_next_segment or len(data) + whole > max_bytes
    assert log.read(0, max_bytes=1, up_to_offset=9, at_least_one_batch=False).size_bytes == 0


def test_reads_outside_of_the_log(files_and_directory):
    log = open_log(*files_and_directory)
    append(log, b"a")
    assert log.read(1, max_bytes=10, up_to_offset=1).size_bytes == 0
    for offset in (-1, 2, 2**63):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, max_bytes=10, up_to_offset=1)


def test_a_deleted_segment_stays_readable_while_it_is_held(tmp_path):
    log = open_log(RealFiles(), str(tmp_path / "orders-0"), config=SMALL)
    for _ in range(30):
        append(log, b"x" * 100)
    held = log.read(0, max_bytes=1 << 20, up_to_offset=30)
    expected = held.read()
    log.set_high_watermark(30)
    log.config = LogConfig(segment_bytes=1000, retention_bytes=1000)
    assert log.delete_old_segments(NOW_MS)
    log.segments.remove_due_files(NOW_MS + 10**9)
    assert held.read() == expected
    assert not (tmp_path / "orders-0" / f"{0:020d}.log").exists()
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, max_bytes=1, up_to_offset=30)


def test_segments_roll_by_size_time_and_full_index():
    log = open_log(SimulatedDisk(), config=LogConfig(segment_ms=1000))
    append(log, b"a", timestamp_ms=NOW_MS)
    append(log, b"b", timestamp_ms=NOW_MS + 1000)
    assert len(log.segments.all) == 1
    append(log, b"c", timestamp_ms=NOW_MS + 1001)
    assert len(log.segments.all) == 2
    log = open_log(SimulatedDisk(), config=LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    for _ in range(10):
        append(log, b"a")
    assert len(log.segments.all) > 2
    assert base_offsets(read_all(log)) == list(range(10))


def test_time_lookups():
    log = open_log(SimulatedDisk(), config=SMALL)
    stamps = [100, 300, 200, 400, 400, 350, 900, 800, *range(1000, 3000, 50)]
    for stamp in stamps:
        append(log, b"x" * 50, timestamp_ms=stamp)
    for wanted in range(0, 3100, 25):
        expected = next(((offset, stamp) for offset, stamp in enumerate(stamps) if stamp >= wanted), None)
        assert log.offset_for_timestamp(wanted) == expected, wanted
    assert log.max_timestamp() == (len(stamps) - 1, stamps[-1])
    log.set_high_watermark(log.log_end_offset)
    log.delete_records_before(2)
    assert log.offset_for_timestamp(0) == (2, 200)


def test_time_lookup_inside_of_a_compressed_batch():
    log = open_log(SimulatedDisk())
    batch = encode_batch([b"a", b"b", b"c"], timestamps_ms=[10, 30, 20], compression=4)
    log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    assert log.offset_for_timestamp(15) == (1, 30)


def test_follower_appends_what_the_leader_has_and_drops_a_cut_batch():
    leader, follower = open_log(SimulatedDisk()), open_log(SimulatedDisk(), config=SMALL)
    for epoch in (0, 0, 2, 5):
        for _ in range(8):
            append(leader, b"x" * 70, epoch=epoch)
    data = read_all(leader)
    info = follower.append_as_follower(data[:-1])
    assert info is not None
    assert (info.first_offset, info.last_offset) == (0, 30)
    info = follower.append_as_follower(memoryview(data)[-leader.read(31, max_bytes=1, up_to_offset=32).size_bytes :])
    assert read_all(follower) == data
    assert follower.append_as_follower(data[:40]) is None
    for epoch in range(7):
        assert follower.end_offset_for_epoch(epoch) == leader.end_offset_for_epoch(epoch)
    with pytest.raises(OffsetOutOfRangeError):
        follower.append_as_follower(data)
    broken = bytearray(data)
    broken[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        open_log(SimulatedDisk()).append_as_follower(broken)


def test_an_older_epoch_cannot_append():
    log = open_log(SimulatedDisk())
    append(log, b"a", epoch=4)
    with pytest.raises(FencedLeaderEpochError):
        append(log, b"b", epoch=3)


def test_truncation(files_and_directory):
    files, directory = files_and_directory
    log = open_log(files, directory, config=SMALL)
    for number in range(40):
        append(log, b"x" * 30, b"y" * 30, epoch=number // 10)
    log.set_high_watermark(80)
    log.flush()
    log.truncate_to(61)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (60, 60, 60)
    assert log.latest_epoch == 2
    assert append(log, b"new", epoch=9) == 60
    assert base_offsets(read_all(log)) == [*range(0, 60, 2), 60]
    log.truncate_to(0)
    assert (log.log_end_offset, log.size_bytes, log.latest_epoch) == (0, 0, -1)
    log.truncate_fully_and_start_at(500)
    assert append(log, b"z", epoch=10) == 500
    assert (log.log_start_offset, log.end_offset_for_epoch(10)) == (500, (10, 501))


def test_idempotent_producer_window_of_five():
    log = open_log(SimulatedDisk())

    def send(sequence, values=(b"a", b"b")):
        producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return log.append_as_leader(batch_of(*values, producer=producer), leader_epoch=0, now_ms=NOW_MS)

    infos = [send(sequence) for sequence in range(0, 14, 2)]
    for number in range(2, 7):
        again = send(number * 2)
        assert again.duplicate
        assert (again.first_offset, again.last_offset) == (infos[number].first_offset, infos[number].last_offset)
    with pytest.raises(DuplicateSequenceError):
        send(0)  # told that it is missing, librdkafka would write it again, under another sequence
    with pytest.raises(OutOfOrderSequenceError):
        send(2, [b"a"] * 13)  # its last record is new
    with pytest.raises(OutOfOrderSequenceError):
        send(16)
    assert log.log_end_offset == 14


def test_a_sequence_before_the_first_that_is_known_was_not_appended_as_far_as_is_known():
    """Told that it was, a producer drops the records."""
    log = open_log(SimulatedDisk())

    def send(sequence):
        producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return log.append_as_leader(batch_of(b"a", producer=producer), leader_epoch=0, now_ms=NOW_MS)

    for sequence in range(1, 5):
        send(sequence)
    with pytest.raises(OutOfOrderSequenceError, match="none of the batches that are known, from 1 on"):
        send(0)
    assert send(1).duplicate and log.log_end_offset == 4


def test_failed_write_changes_nothing_and_fails_the_log():
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log, b"a")
    disk.fail_next("append", "*.log")
    with pytest.raises(StorageError, match="Input/output"):
        append(log, b"b")
    assert log.failed
    assert (log.log_end_offset, log.size_bytes) == (1, disk.size_bytes(f"{DIRECTORY}/{0:020d}.log"))
    assert base_offsets(read_all(log)) == [0]
    with pytest.raises(StorageError):
        append(log, b"b")
    disk.kill()
    assert append(open_log(disk), b"b") == 1


def test_a_full_disk_changes_nothing_and_leaves_the_log_usable():
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log, b"a")
    capacity = disk.capacity_bytes
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageError, match="No space"):
        append(log, b"b")
    assert (log.failed, log.log_end_offset) == (False, 1)
    assert base_offsets(read_all(log)) == [0]
    disk.capacity_bytes = capacity
    assert append(log, b"c") == 1
    log.flush()
    disk.kill()
    assert base_offsets(read_all(open_log(disk))) == [0, 1]


def test_a_disk_that_fills_up_between_two_batches_keeps_epochs_and_offsets_in_step():
    """A follower's append of two batches, for which two segments are needed: the first is in, the second is not."""
    disk = SimulatedDisk()
    leader = open_log(SimulatedDisk())
    leader.append_as_leader(batch_of(b"a" * 600), leader_epoch=3, now_ms=NOW_MS)
    leader.append_as_leader(batch_of(b"b" * 600), leader_epoch=4, now_ms=NOW_MS)
    fetched = leader.read(0, max_bytes=10_000, up_to_offset=2).read()
    log = open_log(disk, config=LogConfig(segment_bytes=1_000))
    disk.capacity_bytes = disk.used_bytes + len(fetched) - 100
    with pytest.raises(StorageError, match="No space"):
        log.append_as_follower(fetched)
    assert (log.failed, log.log_end_offset, log.latest_epoch) == (False, 1, 3)
    disk.capacity_bytes += 10_000
    second = leader.read(1, max_bytes=10_000, up_to_offset=2).read()
    log.append_as_follower(second)
    assert (log.log_end_offset, log.latest_epoch, log.epoch_at(0)) == (2, 4, 3)


def test_failed_flush_is_final():
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log, b"a")
    disk.fail_next("flush", "*.log")
    with pytest.raises(StorageError):
        log.flush()
    assert log.recovery_point == 0
    with pytest.raises(StorageError):
        log.flush()
    with pytest.raises(StorageError):
        append(log, b"b")


@pytest.mark.parametrize("suffix", ["log", "index"])
def test_a_truncation_that_fails_leaves_a_log_that_knows_its_end_and_takes_no_more(suffix):
    """Simulation seed 500091: segments were gone, and the log end was still what it had been with them."""
    disk = SimulatedDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=1_000, index_interval_bytes=1))
    for value in (b"a" * 400, b"b" * 400, b"c" * 400, b"d" * 400):
        append(log, value)
    disk.fail_next("flush", f"*/{0:020d}.{suffix}")
    with pytest.raises(StorageError):
        log.truncate_to(1)
    assert log.failed and log.log_end_offset <= 2
    if suffix == "index":  # a file whose flush failed cannot be read either
        assert base_offsets(read_all(log)) == list(range(log.log_end_offset))
    with pytest.raises(StorageError, match="restart"):
        append(log, b"e")
    disk.kill()
    assert append(open_log(disk), b"e") <= 2


def test_flush_due():
    log = open_log(SimulatedDisk(), config=LogConfig(flush_messages=2, flush_ms=100))
    append(log, b"a")
    assert not log.flushes.is_due(NOW_MS)
    assert log.flushes.is_due(NOW_MS + 100)
    append(log, b"b")
    assert log.flushes.is_due(NOW_MS)
    log.flush(now_ms=NOW_MS)
    assert log.recovery_point == 2
    assert not log.flushes.is_due(NOW_MS + 1000)


def test_transactions_hold_back_the_last_stable_offset():
    log = open_log(SimulatedDisk())
    append(log, b"before")
    log.append_as_leader(transactional(9, 0, b"a", b"b"), leader_epoch=0, now_ms=NOW_MS)
    append(log, b"after")
    log.set_high_watermark(4)
    assert log.last_stable_offset == 1
    end_transaction(log, 9, commits=False)
    log.set_high_watermark(5)
    assert log.last_stable_offset == 5
    (aborted,) = log.aborted.between(0, 5)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (9, 1, 4)
    assert log.aborted.between(5, 9) == ()


def test_header_of_a_read_is_what_was_written():
    log = open_log(SimulatedDisk())
    append(log, b"a", epoch=6)
    assert read_header(read_all(log)).leader_epoch == 6


def test_truncation_at_the_end_drops_an_epoch_without_records():
    log = open_log(SimulatedDisk())
    append(log, b"a", epoch=1)
    log.assign_epoch_start(5, 1)
    log.truncate_to(1)
    assert (log.latest_epoch, log.log_end_offset) == (1, 1)


def test_a_failed_flush_of_a_sealed_segment_fails_the_log():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    append(log, b"a")
    log.tail.roll(NOW_MS, log.config)
    append(log, b"b")
    log.segments.all[0].release()
    disk.fail_next("flush", "*0000.log")
    with pytest.raises(StorageError):
        log.flush()
    assert log.failed
    with pytest.raises(StorageError):
        append(log, b"c")


def _of_producer(producer_id, sequence, size=250):
    producer = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return batch_of(bytes(size), producer=producer)


@pytest.mark.parametrize("is_cut", [False, True])
def test_an_answer_that_reaches_over_a_segments_end_leaves_a_snapshot_of_all_that_is_before_it(is_cut):
    """A follower whose segments end elsewhere than its leader's: the snapshot of a roll lacked the batches of the very answer
    that led to the roll, so after a restart a retry was written twice, and the producer's next batch was refused."""
    disk = SimulatedDisk()
    leader = open_log(disk, "/data/leader-0")
    for sequence in range(4):
        leader.append_as_leader(_of_producer(7, sequence), leader_epoch=0, now_ms=NOW_MS)
    follower = open_log(disk, "/data/follower-0", config=SMALL)
    follower.append_as_follower(leader.read(0, max_bytes=1 << 20, up_to_offset=2).read(), now_ms=NOW_MS)
    fetched = leader.read(2, max_bytes=1 << 20, up_to_offset=4).read()
    if is_cut:  # the disk has room for the first of both batches, and for the snapshot
        disk.fail_next("append", f"/data/follower-0/{3:020d}.log")
        with pytest.raises(StorageError):
            follower.append_as_follower(fetched, now_ms=NOW_MS)
    else:
        follower.append_as_follower(fetched, now_ms=NOW_MS)
    assert [segment.base_offset for segment in follower.segments.all] == [0, 3]
    check_producers(follower)
    disk.kill()
    again = open_log(disk, "/data/follower-0", config=SMALL)
    check_producers(again)
    end = again.log_end_offset
    assert again.append_as_leader(_of_producer(7, 2), leader_epoch=1, now_ms=NOW_MS).duplicate
    assert not again.append_as_leader(_of_producer(7, end), leader_epoch=1, now_ms=NOW_MS).duplicate


def test_a_full_disk_does_not_keep_anyone_from_reading_what_lost_its_indexes():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for _ in range(12):
        append(log, bytes(300))
    log.flush()
    disk.kill()
    for suffix in ("index", "timeindex"):
        disk.remove(f"{DIRECTORY}/{0:020d}.{suffix}")
    disk.capacity_bytes = disk.used_bytes
    for recovery_point in (12, 0):  # made again when they are read, and when the log is opened
        log = open_log(disk, config=SMALL, recovery_point=recovery_point)
        assert base_offsets(read_all(log)) == list(range(12))
        assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS)
        disk.kill()
    disk.capacity_bytes = 1 << 30
    log = open_log(disk, config=SMALL)
    assert base_offsets(read_all(log)) == list(range(12))
    assert disk.size_bytes(f"{DIRECTORY}/{0:020d}.timeindex")


def test_a_log_whose_index_of_aborted_transactions_is_refused_takes_no_more_writes():
    """The marker is in the log and not in the index: readers would be given what was aborted."""
    files = RefusingFiles(SimulatedDisk())
    log = open_log(files)
    log.append_as_leader(transactional(9, 0, b"a"), leader_epoch=0, now_ms=NOW_MS)
    files.arm(4, StorageError)  # the index is written after the segment
    with pytest.raises(StorageError, match="txnindex"):
        end_transaction(log, 9, commits=False)
    files.arm(0, StorageError)
    assert log.failed
    with pytest.raises(StorageError, match="index of aborted transactions was refused"):
        append(log, b"b")


@pytest.mark.parametrize(("action", "pattern"), [("sync_dir", "*"), ("open", "*.index")])
def test_a_flush_without_a_descriptor_is_tried_again(action, pattern):
    """It was taken for a failed disk: a crowd of idle clients ended the broker."""
    disk = SimulatedDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=200))
    for _ in range(6):
        append(log, b"x" * 50)
    for segment in log.segments.all[:-1]:
        segment.release()
    disk.fail_next(action, pattern, error=TooManyFilesError)
    with pytest.raises(TooManyFilesError):
        log.flush()
    assert not log.failed and log.recovery_point < log.log_end_offset
    append(log, b"y")
    log.flush()
    assert log.recovery_point == log.log_end_offset == 7
