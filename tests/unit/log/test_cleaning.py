"""A cleaned log against a model; then what lies at the edges: producers, epochs, transactions, tombstones, full maps."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from simulation import log_building
from simulation.compaction import append_keyed, clean, latest, records_in, start_cleaning
from simulation.log_building import DIRECTORY, NOW_MS, append, base_offsets, batch_of, open_log, read_all
from unit.log.records.record_world import decode_columns

from barnabas.log.compaction.cleaner import dirty_part_of
from barnabas.log.compaction.cleaner_offset_map import ENTRY_BYTES
from barnabas.log.compaction.cleaning import CleaningAborted
from barnabas.log.disk.files import RealFiles
from barnabas.log.format import record_codec
from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import HEADER_SIZE, iter_headers
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.format.varint import encode_varint
from barnabas.log.records.codec import decode
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    StorageError,
)
from barnabas.net.testing.simulation.disk import SimulatedDisk

COMPACT = LogConfig(cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=100)
DAY_MS = 86_400_000
KEYS = st.sampled_from([b"a", b"b", b"c", b"", b"k" * 15, b"k" * 16, b"k" * 17, b"long" * 10])
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=40)), min_size=1, max_size=6),
        st.sampled_from([0, 1, 2, 3, 4]),
        st.booleans(),
    ),
    max_size=40,
)


def sealed_end(log):
    return log.segments.all[-1].base_offset


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(batches=BATCHES, map_entries=st.integers(1, 12), first_half=st.integers(0, 40))
def test_what_stays_is_the_last_record_of_each_key_where_it_was(batches, map_entries, first_half):
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    written = []
    dirty = epoch = 0
    for number, (records, codec, next_epoch) in enumerate(batches):
        epoch += next_epoch
        append_keyed(log, *records, epoch=epoch, compression=codec, timestamp_ms=NOW_MS + number)
        written += [(len(written) + place, key, value) for place, (key, value) in enumerate(records)]
        if number == first_half:
            dirty = clean(log, disk)
    end = sealed_end(log)
    ends = [log.end_offset_for_epoch(number) for number in range(epoch + 1)]
    expected = latest(written, end_offset=end)
    while dirty < end:  # a map that holds few keys takes several runs, each of which gets on
        before, dirty = dirty, clean(log, disk, from_offset=dirty, map_size_bytes=map_entries * ENTRY_BYTES)
        assert before < dirty <= end
        found = records_in(log)
        assert set(expected) <= set(found) <= set(written), "no last record of a key is lost"
        assert found == sorted(found)
    check(log, expected, len(written), ends)
    while (before := read_all(log)) and (clean(log, disk), read_all(log))[1] != before:
        # Segments that have shrunk are merged, and the header that ended one of them goes.
        assert len(read_all(log)) < len(before), "cleaning again comes to an end"
    check(log, expected, len(written), ends)
    disk.kill()
    # Nothing is checkpointed, so every batch is scanned; and the topic's configuration is not known yet.
    check(open_log(disk, config=LogConfig(segment_bytes=600)), expected, len(written), ends)


def check(log, expected, end_offset, ends):
    assert records_in(log) == expected
    assert log.log_end_offset == end_offset
    assert [log.end_offset_for_epoch(epoch) for epoch in range(len(ends))] == ends
    for offset in range(0, end_offset, 7):
        assert base_offsets(log.read(offset, max_bytes=1, up_to_offset=end_offset).read())


# --- producers, epochs, transactions, tombstones ----------------------------------------------------------------------


def produce(log, producer_id, sequence, *records, epoch=0, is_transactional=False):
    producer = ProducerFields(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional
    )
    return append_keyed(log, *records, producer=producer)


def end_transaction(log, producer_id, *, commits, epoch=0):
    log_building.end_transaction(log, producer_id, commits=commits, epoch=epoch)
    log.set_high_watermark(log.log_end_offset)


def headers(log):
    return list(iter_headers(read_all(log), verify_crc=True))


def fill(log, count=20):
    """Seal what is there, and supersede nothing."""
    for number in range(count):
        append_keyed(log, (b"filler%d" % number, b"x" * 100))


def test_the_last_batch_of_a_producer_stays_as_a_header_and_its_sequence_goes_on():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    for sequence in range(6):
        produce(log, 7, sequence, (b"k", b"v%d" % sequence))
    append_keyed(log, (b"k", b"of another producer"))
    fill(log)
    clean(log, disk)
    (kept,) = [header for header in headers(log) if header.producer_id == 7]
    assert (kept.base_offset, kept.last_offset, kept.base_sequence, kept.record_count) == (5, 5, 5, 0)
    for name in disk.list_dir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.remove(f"{DIRECTORY}/{name}")
    disk.kill()
    disk_log = open_log(disk, config=LogConfig(cleanup_policy=("compact",), segment_bytes=100_000))
    follower = open_log(SimulatedDisk(), config=LogConfig(cleanup_policy=("compact",)))
    follower.append_as_follower(read_all(disk_log))
    with pytest.raises(OutOfOrderSequenceError):
        produce(follower, 7, 8, (b"k", b"a gap"))
    assert produce(follower, 7, 5, (b"k", b"v5")) == 5, "repeated, not appended"
    assert produce(follower, 7, 6, (b"k", b"v6")) == log.log_end_offset


@pytest.mark.parametrize("codec", list(Compression))
def test_readers_and_cleaners_of_a_copy_read_on_behind_the_header_of_a_compressed_batch(codec):
    disk, copy = SimulatedDisk(), SimulatedDisk()
    log, follower = open_log(disk, config=COMPACT), open_log(copy, config=COMPACT)
    append_keyed(
        log, (b"k", b"v"), compression=codec, producer=ProducerFields(producer_id=7, base_sequence=0, producer_epoch=0)
    )
    append_keyed(log, (b"k", b"of another producer"))
    fill(log)
    clean(log, disk)
    (kept,) = [header for header in headers(log) if header.producer_id == 7]
    assert (kept.record_count, kept.compression) == (0, 0)
    follower.append_as_follower(read_all(log))
    follower.set_high_watermark(follower.log_end_offset)
    assert clean(follower, copy) == sealed_end(follower)
    assert decode([read_all(follower)]).next_offset == log.log_end_offset


def test_where_an_epoch_began_stays_known_to_whoever_learns_it_from_the_batches():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    for epoch in (1, 4, 4, 6, 6, 6):
        append_keyed(log, (b"k", b"v" * 50), epoch=epoch)
    for _ in range(20):
        append_keyed(log, (b"k", b"x" * 50), epoch=9)
    clean(log, disk)
    assert len(records_in(log)) < 12
    follower = open_log(SimulatedDisk())
    follower.append_as_follower(read_all(log))
    for epoch in range(11):
        assert follower.end_offset_for_epoch(epoch) == log.end_offset_for_epoch(epoch)


def test_a_tombstone_goes_with_the_first_cleaning_behind_its_delete_horizon():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    append_keyed(log, (b"k", b"v"))
    append_keyed(log, (b"other", b"stays"), (b"k", None), timestamp_ms=NOW_MS + 5)
    fill(log)
    cleaning = start_cleaning(log, disk, now_ms=NOW_MS + 100)
    for work in cleaning.steps():
        work()
    end = cleaning.cleaned_up_to
    assert cleaning.next_horizon_ms == NOW_MS + 100 + DAY_MS
    assert (2, b"k", None) in records_in(log)
    batch = next(header for header in headers(log) if header.base_offset == 1)
    assert batch.delete_horizon_ms == NOW_MS + 100 + DAY_MS
    columns = decode_columns(log.read(1, max_bytes=1, up_to_offset=3).read())
    assert columns.timestamps_ms == [NOW_MS + 5, NOW_MS + 5], "what is relative to the horizon is still the same time"
    assert log.offset_for_timestamp(NOW_MS + 5) == (1, NOW_MS + 5)
    again = start_cleaning(log, disk, from_offset=0, now_ms=NOW_MS + 99 + DAY_MS)
    for work in again.steps():
        work()
    assert (2, b"k", None) in records_in(log)
    assert again.next_horizon_ms == NOW_MS + 100 + DAY_MS, "a cleaning before it forgets no horizon"
    assert not dirty_part_of(log, end, now_ms=NOW_MS).is_due
    assert dirty_part_of(log, end, now_ms=NOW_MS + 100 + DAY_MS, horizon_ms=cleaning.next_horizon_ms).is_due
    clean(log, disk, from_offset=end, now_ms=NOW_MS + 100 + DAY_MS)
    assert [found for found in records_in(log) if found[0] < 3] == [(1, b"other", b"stays")]


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 0, NOW_MS, 2**63 - 1])
@pytest.mark.parametrize("retention_ms", [0, DAY_MS, 2**63 - 1])
def test_tombstones_of_any_time_can_be_read_whatever_their_horizon(timestamp_ms, retention_ms):
    disk = SimulatedDisk()
    log = open_log(disk, config=replace(COMPACT, delete_retention_ms=retention_ms))
    delta = encode_varint(timestamp_ms)
    record = b"\x00" + delta + b"\x00\x02k\x01\x00"
    body = encode_varint(len(record)) + record
    batch = record_codec.seal_batch(body, 1, 0, 0, NOW_MS, ProducerFields())
    log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW_MS)
    fill(log)
    clean(log, disk)
    assert headers(log)[0].delete_horizon_ms == min(NOW_MS + retention_ms, 2**63 - 1)
    columns = decode([read_all(log)])
    assert columns.count == 21
    found = memoryview(columns.timestamps_ms).cast("B").cast("q")[0]
    assert found == max(timestamp_ms, headers(log)[0].base_timestamp_ms - 2**63)


@pytest.mark.parametrize("last_value", [b"v", None])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_what_is_left_of_a_batch_keeps_its_times_and_its_header_has_the_newest_of_them(timestamp_type, last_value):
    disk = SimulatedDisk()
    log = open_log(disk, config=replace(COMPACT, message_timestamp_type=timestamp_type))
    stamps = [NOW_MS + 3, NOW_MS + 9, NOW_MS + 5]
    body = bytearray(
        record_codec.encode_batch([b"v", b"v", last_value], keys=[b"a", b"k", b"b"], timestamps_ms=stamps)[HEADER_SIZE:]
    )
    body[1] = 7  # the attributes of the first record, which readers do not use
    batch = record_codec.seal_batch(bytes(body), 3, 0, min(stamps), max(stamps), ProducerFields())
    log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW_MS + 50)
    append_keyed(log, (b"k", b"newer"))
    fill(log)
    clean(log, disk, now_ms=NOW_MS + 100)
    expected = [NOW_MS + 50] * 2 if timestamp_type == "LogAppendTime" else [NOW_MS + 3, NOW_MS + 5]
    header = headers(log)[0]
    assert (header.record_count, header.max_timestamp_ms) == (2, max(expected))
    assert (header.delete_horizon_ms is None) is (last_value is not None)
    data = read_all(log)[: header.size_bytes]
    assert [record.timestamp_ms for record in record_codec.iter_records(data)] == expected
    assert data[HEADER_SIZE + 1] == 7


def test_aborted_records_go_and_their_markers_follow_when_nobody_needs_them():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    append_keyed(log, (b"k", b"committed before"))
    produce(log, 7, 0, (b"k", b"aborted"), is_transactional=True)
    produce(log, 8, 0, (b"c", b"committed"), is_transactional=True)
    end_transaction(log, 7, commits=False)
    end_transaction(log, 8, commits=True)
    produce(log, 7, 1, (b"d", b"later"))  # so that the aborted batch is not the last one of its producer
    fill(log)
    end = clean(log, disk)
    assert records_in(log)[:3] == [(0, b"k", b"committed before"), (2, b"c", b"committed"), (5, b"d", b"later")]
    assert [header.base_offset for header in headers(log) if header.is_control] == [3, 4]
    (aborted,) = log.aborted.between(0, 5)
    assert (aborted.first_offset, aborted.last_offset) == (1, 3)
    clean(log, disk, from_offset=end, now_ms=NOW_MS + 1)
    marker = next(header for header in headers(log) if header.base_offset == 3)
    assert marker.delete_horizon_ms == NOW_MS + 1 + DAY_MS
    assert log.aborted.between(0, 5) == ()
    clean(log, disk, from_offset=end, now_ms=NOW_MS + 1 + DAY_MS)
    assert [header.base_offset for header in headers(log) if header.is_control] == [4]
    disk.kill()
    assert open_log(disk, config=COMPACT).last_stable_offset == 0  # no transaction is open
    log = open_log(disk, config=COMPACT)
    log.set_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset


def test_the_marker_that_fences_a_producer_stays_as_long_as_nothing_else_carries_its_epoch():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    produce(log, 7, 0, (b"k", b"aborted"), is_transactional=True)
    end_transaction(log, 7, commits=False, epoch=1)
    fill(log)
    end = clean(log, disk)
    for now_ms in (NOW_MS + 1, NOW_MS + 2 + DAY_MS, NOW_MS + 3 + 2 * DAY_MS):
        clean(log, disk, from_offset=end, now_ms=now_ms)
    assert [header.base_offset for header in headers(log) if header.is_control] == [1]
    disk.kill()
    log = open_log(disk, config=COMPACT)
    with pytest.raises(InvalidProducerEpochError):
        produce(log, 7, 1, (b"k", b"of the former process"))


def test_nothing_of_an_open_transaction_or_above_the_high_watermark_is_cleaned():
    log = open_log(SimulatedDisk(), config=COMPACT)
    append_keyed(log, (b"k", b"v" * 600))
    produce(log, 7, 0, (b"k", b"open" * 150), is_transactional=True)
    fill(log)
    assert dirty_part_of(log, 0, now_ms=NOW_MS).end_offset == 1
    log = open_log(SimulatedDisk(), config=COMPACT)
    fill(log)
    log.high_watermark = 0
    assert dirty_part_of(log, 0, now_ms=NOW_MS) is None


def test_a_transaction_whose_end_is_not_replicated_is_not_cleaned():
    """Another leader may decide otherwise on it."""
    log = open_log(SimulatedDisk(), config=COMPACT)
    append_keyed(log, (b"k", b"v" * 600))
    produce(log, 7, 0, (b"k", b"aborted" * 90), is_transactional=True)
    fill(log)
    replicated_end = log.log_end_offset
    log_building.end_transaction(log, 7, commits=False)
    log.tail.roll(NOW_MS, COMPACT)
    log.set_high_watermark(replicated_end)
    assert dirty_part_of(log, 0, now_ms=NOW_MS).end_offset == 1
    log.set_high_watermark(replicated_end + 1)
    assert dirty_part_of(log, 0, now_ms=NOW_MS).end_offset == replicated_end + 1


def test_the_lags():
    lags = LogConfig(
        cleanup_policy=("compact",), segment_bytes=600, min_compaction_lag_ms=1_000, max_compaction_lag_ms=5_000,
        min_cleanable_dirty_ratio=1.0,
    )  # fmt: skip
    log = open_log(SimulatedDisk(), config=lags)
    for number in range(40):
        append_keyed(log, (b"k", b"v" * 100), timestamp_ms=NOW_MS + number * 100)
    part = dirty_part_of(log, 0, now_ms=NOW_MS + 4_000)
    assert part.segments[-1].age.newest_ms <= NOW_MS + 3_000 < log.segments.all[len(part.segments)].age.newest_ms
    assert not part.is_due, "all of it is dirty, which is not more than all"
    assert dirty_part_of(log, 0, now_ms=NOW_MS + 5_001).is_due
    assert lags.max_segment_ms == 5_000
    newest_ms = log.segments.all[0].age.newest_ms
    assert dirty_part_of(log, 0, now_ms=newest_ms + 999) is None
    assert dirty_part_of(log, 0, now_ms=newest_ms + 1_000).segments == log.segments.all[:1]


def test_a_cleaning_counts_what_it_reads_writes_and_frees():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    for number in range(40):
        append_keyed(log, (b"%d" % (number % 7), b"x" * 100))
    sizes = [segment.size_bytes for segment in log.segments.all[:-1]]
    cleaning = start_cleaning(log, disk)
    for work in cleaning.steps():
        work()
    stats, left = cleaning.stats, sum(segment.size_bytes for segment in log.segments.all[:-1])
    assert stats.bytes_written == left
    assert stats.bytes_before - stats.bytes_after == sum(sizes) - left, (
        "segments that stay as they are count in neither"
    )
    assert stats.bytes_read == 2 * sum(sizes), "once for the keys, once for the records"
    assert 0 < left < sum(sizes)


def test_segments_in_which_nothing_is_obsolete_stay_as_they_are():
    disk = SimulatedDisk()
    log = open_log(disk, config=LogConfig(cleanup_policy=("compact",), segment_bytes=600))
    for number in range(12):
        append_keyed(log, (b"%d" % number, b"x" * 350))  # two segments are larger than one may be

    def contents():
        return {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list_dir(DIRECTORY)}

    before, segments = contents(), list(log.segments.all)
    assert len(segments) == 12
    cleaning = start_cleaning(log, disk)
    for work in cleaning.steps():
        work()
    assert log.segments.all == segments and contents() == before
    assert (cleaning.stats.bytes_before, cleaning.stats.bytes_after) == (0, 0)


@pytest.mark.parametrize(("left_bytes", "segments"), [(0, 2), (-1, 3)])
def test_segments_are_joined_as_far_as_their_index_may_be_large(left_bytes, segments):
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    for number in range(20):
        append_keyed(log, (b"%d" % number, b"x" * 200))
    sealed = log.segments.all[:-1]
    size_bytes = sum(segment.size_bytes for segment in sealed)
    entries = size_bytes // COMPACT.index_interval_bytes
    log.config = replace(COMPACT, segment_bytes=10_000, segment_index_bytes=12 * entries + left_bytes)
    clean(log, disk)
    assert len(log.segments.all) == segments


def test_records_without_a_key_go():
    disk = SimulatedDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=600))
    append(log, b"without a key" * 40)
    log.config = COMPACT
    fill(log)
    clean(log, disk)
    assert b"" not in [key for _, key, _ in records_in(log)]


def test_a_client_may_not_claim_a_delete_horizon():
    log = open_log(SimulatedDisk(), config=COMPACT)
    batch = bytearray(record_codec.seal_batch(b"x" * 10, 1, 0x40, NOW_MS, NOW_MS, ProducerFields()))
    with pytest.raises(InvalidRecordError, match="delete horizon"):
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)


# --- beside a log that goes on ----------------------------------------------------------------------------------------


def test_readers_of_replaced_segments_read_on(tmp_path):
    files = RealFiles()
    log = open_log(files, str(tmp_path / "orders-0"), config=COMPACT)
    for _ in range(30):
        append_keyed(log, (b"k", b"v" * 100))
    held = log.read(0, max_bytes=1 << 20, up_to_offset=30)
    before = held.read()
    clean(log, files)
    log.segments.remove_due_files(NOW_MS + 10**9)
    assert held.read() == before
    assert len(records_in(log)) < 10
    assert not [name for name in files.list_dir(log.directory) if name.endswith((".deleted", ".cleaned", ".swap"))]
    log.close()
    assert len(records_in(open_log(files, log.directory, config=COMPACT, was_stopped_cleanly=True))) < 10


STEPS_OF_ONE_GROUP = 4  # fill the map; clean; flush the offer; flush the swap
OFFERED_AFTER = 3


def truncate(log):
    log.truncate_to(7)
    assert log.log_end_offset <= 7


def start_over(log):
    log.truncate_fully_and_start_at(500)


def retain(log):
    log.config = LogConfig(cleanup_policy=("delete",), retention_ms=0)
    assert log.delete_old_segments(NOW_MS + 10)


CHANGES = [truncate, start_over, retain, lambda log: log.release()]


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (change, steps)
        for change in CHANGES
        for steps in range(STEPS_OF_ONE_GROUP + 1)
        if change is not retain or steps != OFFERED_AFTER
    ],
)
@pytest.mark.parametrize("loses_power", [True, False])
def test_a_log_that_changes_ends_its_cleaning_and_nothing_comes_back(change, steps, loses_power):
    disk = SimulatedDisk()
    config = LogConfig(cleanup_policy=("compact", "delete"), segment_bytes=600, file_delete_delay_ms=0)
    log = open_log(disk, config=config)
    for number in range(30):
        append_keyed(log, (b"k", b"%d" % number * 50))
    log.flush()
    cleaning = start_cleaning(log, disk)
    walk = cleaning.steps()
    for _ in range(steps):
        next(walk)()
    change(log)
    expected = records_in(log)
    if steps < STEPS_OF_ONE_GROUP:
        with pytest.raises(CleaningAborted):
            for work in walk:
                work()
    cleaning.abandon()
    log.segments.remove_due_files(NOW_MS)
    assert records_in(log) == expected
    start, end = log.log_start_offset, log.log_end_offset
    if loses_power:
        disk.power_loss(Random(steps))
    else:
        disk.kill()
    found = open_log(disk, config=config, log_start_offset=start)
    assert found.log_end_offset == end
    if not loses_power or change is not retain:  # what retention has done need not be on the disk yet
        assert records_in(found) == expected


def offered(disk):
    """A log whose cleaned segment is offered, and what ends or goes on with its cleaning."""
    log = open_log(disk, config=LogConfig(cleanup_policy=("compact", "delete"), segment_bytes=600))
    for number in range(30):
        append_keyed(log, (b"k%d" % (number % 3), b"%d" % number * 50))
    cleaning = start_cleaning(log, disk)
    walk = cleaning.steps()
    for _ in range(OFFERED_AFTER):
        next(walk)()
    assert log.segments.swaps.is_outstanding
    return log, cleaning, walk


@pytest.mark.parametrize("change", [truncate, start_over])
@pytest.mark.parametrize("loses_power", [True, False])
def test_a_crash_right_after_a_truncation_finds_no_offer_of_what_was_cut_off(change, loses_power):
    disk = SimulatedDisk()
    log, _, _ = offered(disk)
    log.flush()
    change(log)
    expected, end = records_in(log), log.log_end_offset
    if loses_power:
        disk.power_loss(Random(1))
    else:
        disk.kill()
    found = open_log(disk, config=log.config, log_start_offset=log.log_start_offset)
    assert (records_in(found), found.log_end_offset) == (expected, end)


def test_retention_lets_nothing_go_while_a_segment_is_offered():
    disk = SimulatedDisk()
    log, _, walk = offered(disk)
    log.config = LogConfig(cleanup_policy=("delete",), retention_ms=0)
    assert log.delete_old_segments(NOW_MS + 10) == []
    for work in walk:
        work()
    assert log.delete_old_segments(NOW_MS + 10)


@pytest.mark.parametrize("refused", ["rename", "sync_dir", "remove"])
def test_an_offer_that_the_disk_keeps_is_withdrawn_later_and_meets_no_other_cleaning(refused):
    disk = SimulatedDisk()
    log, cleaning, _ = offered(disk)
    before = records_in(log)
    cleaning.abandon()
    disk.fail_next(refused, error=StorageError)
    with pytest.raises(StorageError):
        log.segments.remove_due_files(NOW_MS)
    with pytest.raises(CleaningAborted):
        clean(log, disk)
    assert records_in(log) == before, "the files of the two were not mixed"
    log.segments.remove_due_files(NOW_MS)
    assert not [name for name in disk.list_dir(log.directory) if name.endswith((".cleaned", ".swap"))]
    clean(log, disk)
    assert 3 <= len(records_in(log)) < 12


def test_a_cleaned_segment_that_is_missing_takes_no_place():
    disk = SimulatedDisk()
    log, cleaning, _ = offered(disk)
    cleaning.abandon()
    log.segments.remove_due_files(NOW_MS)
    before = records_in(log)
    with pytest.raises(StorageError):
        for work in start_cleaning(log, disk).steps():
            work()
            for name in disk.list_dir(log.directory):
                if name.endswith(".log.cleaned"):
                    disk.remove(f"{log.directory}/{name}")
    assert records_in(log) == before


def test_damage_is_not_copied_but_told():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    fill(log)
    disk.flip_bit(log.segments.all[1].path, 100)
    before = [disk.read_bytes(segment.path) for segment in log.segments.all]
    with pytest.raises(CorruptRecordError, match="is damaged at position"):
        clean(log, disk)
    assert before == [disk.read_bytes(segment.path) for segment in log.segments.all]


def test_a_follower_takes_a_log_with_gaps_whatever_its_topic_is_called_now():
    disk = SimulatedDisk()
    log = open_log(disk, config=COMPACT)
    for number in range(60):
        append_keyed(log, (b"k%d" % (number % 3), b"v" * 60))
    clean(log, disk)
    follower = open_log(SimulatedDisk(), config=LogConfig(segment_bytes=600))
    while follower.log_end_offset < log.log_end_offset:
        data = log.read(follower.log_end_offset, max_bytes=500, up_to_offset=log.log_end_offset).read()
        follower.append_as_follower(data)
    assert records_in(follower) == records_in(log)
    gap = next(header.next_offset for header in headers(log)) + 1
    follower.truncate_to(gap)
    assert follower.log_end_offset <= gap
    follower.set_high_watermark(gap)
    assert base_offsets(follower.read(0, max_bytes=1000, up_to_offset=gap).read()) == [0]
    assert batch_of(b"x")
