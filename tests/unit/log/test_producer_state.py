import struct

import pytest
from crc32c import crc32c

from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.segment import producer_state
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.vocabulary.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)


def note(state, sequence, *, count=1, epoch=0, offset=0, producer_id=1, transactional=False, timestamp_ms=5):
    fields = ProducerFields(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
    )
    header = read_header(encode_batch([b"x"] * count, timestamps_ms=timestamp_ms, producer=fields))
    state.update(header, first_offset=offset)


def test_sequences_wrap():
    state = ProducerState()
    note(state, 2**31 - 2, count=4, offset=10)
    assert state.check(1, 0, 2**31 - 2, 4).first_offset == 10
    assert state.check(1, 0, 2, 1) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 0, 3, 1)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_lies_before_the_first_batch_of_a_forgotten_producer_is_not_called_written(is_restarted):
    """Batch 4 was refused, for want of replicas; those behind it were taken, because nothing was known of the producer."""
    state = ProducerState()
    for sequence in range(5, 15):
        note(state, sequence, offset=sequence)
        if is_restarted:
            state = ProducerState.from_snapshot(state.to_snapshot())
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 0, 4, 1)
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 0, 4, 3)  # its first record is not there
    with pytest.raises(DuplicateSequenceError):
        state.check(1, 0, 5, 1)
    for sequence in range(5):
        note(state, sequence, epoch=1, offset=15 + sequence)
    note(state, 5, epoch=1, offset=20)
    with pytest.raises(DuplicateSequenceError):
        state.check(1, 1, 0, 1)


def test_a_producer_that_was_forgotten_long_ago_is_known_however_far_its_sequences_have_wrapped():
    state = ProducerState()
    far = 3 * 2**29
    for offset, sequence in enumerate([5, far // 3, 2 * far // 3, *range(far, far + 6)]):
        note(state, sequence, offset=offset)
    with pytest.raises(DuplicateSequenceError):
        state.check(1, 0, far - 9, 1)


def test_epochs_of_a_producer():
    state = ProducerState()
    note(state, 0, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        state.check(1, 2, 1, 1)
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 4, 1, 1)
    assert state.check(1, 4, 0, 1) is None


def test_snapshot():
    state = ProducerState()
    for sequence in range(8):
        note(state, sequence, offset=sequence, producer_id=3)
    note(state, 0, offset=8, producer_id=4, transactional=True)
    data = state.to_snapshot()
    again = ProducerState.from_snapshot(data)
    assert again.to_snapshot() == data
    assert again.check(3, 0, 3, 1).last_offset == 3
    assert again.transactions.first_undecided_offset == 8
    for damaged in (data[:-1], data[:5], b"", data[:-1] + b"?"):
        with pytest.raises(CorruptRecordError):
            ProducerState.from_snapshot(damaged)


def test_a_snapshot_that_a_power_loss_has_torn_is_no_snapshot():
    """Of a file that was never flushed, any part may be zeros, and it may be shorter than it was."""
    state = ProducerState()
    for producers in range(3):
        data = state.to_snapshot()
        assert ProducerState.from_snapshot(data).to_snapshot() == data
        for kept in range(len(data)):
            for size in range(kept, len(data) + 1):
                torn = data[:kept] + bytes(size - kept)
                if torn != data:
                    with pytest.raises(CorruptRecordError):
                        ProducerState.from_snapshot(torn)
        note(state, 0, offset=producers, producer_id=producers + 7)


def test_only_a_log_that_knows_a_producer_from_its_middle_is_replayed_after_a_downgrade():
    state = ProducerState()
    note(state, 0, offset=5, producer_id=7)
    assert struct.unpack_from(">h", state.to_snapshot()) == (4,)  # that earlier versions read
    note(state, 3, offset=6, producer_id=8)
    assert struct.unpack_from(">h", state.to_snapshot()) == (5,)
    assert [entry.known_from for _, entry in ProducerState.from_snapshot(state.to_snapshot()).entries()] == [None, 3]


def former_snapshot(version, *, is_count_checked):
    """Of one producer that sent a batch, with an open transaction; version 4 has what ended behind the producers."""
    state = ProducerState()
    note(state, 0, offset=5, producer_id=7, transactional=True)
    body = struct.pack(">qhqqB", 7, 0, 5, 5, 1) + struct.pack(">iqiq", 0, 5, 0, 5)
    crc = crc32c(body, crc32c(struct.pack(">I", 1)) if is_count_checked else 0)
    return struct.pack(">hII", version, crc, 1) + body, state


@pytest.mark.parametrize(("version", "is_count_checked"), [(2, False), (3, True)])
def test_a_snapshot_of_a_former_version_is_read(version, is_count_checked):
    data, state = former_snapshot(version, is_count_checked=is_count_checked)
    again = ProducerState.from_snapshot(data)
    assert again.to_snapshot() == state.to_snapshot()
    assert again.transactions.first_undecided_offset == 5
    for damaged in (data[:-1], data + b"?", data[:-1] + b"?"):
        with pytest.raises(CorruptRecordError):
            ProducerState.from_snapshot(damaged)


def test_an_empty_snapshot_of_version_2_may_be_torn():
    with pytest.raises(CorruptRecordError):
        ProducerState.from_snapshot(struct.pack(">hII", 2, 0, 0))


def test_producers_are_bounded_and_expire(monkeypatch):
    state = ProducerState()
    note(state, 0, producer_id=1, transactional=True)
    for producer_id in range(2, 20):
        note(state, 0, producer_id=producer_id, timestamp_ms=1000)
    state.expire(1_000_000)  # from here on they are silent, whatever their records say of the time
    note(state, 1, producer_id=3, timestamp_ms=1000)
    state.expire(999_999 + producer_state.EXPIRATION_MS)
    assert len(state) == 19
    state.expire(1_000_000 + producer_state.EXPIRATION_MS)
    assert sorted(state.last_batches()) == [1, 3]
    state.expire(2_000_000, expiration_ms=-(2**62))
    state.expire(2 * producer_state.EXPIRATION_MS + 1_000_000)
    assert len(state) == 1
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 5)
    for producer_id in range(2, 20):
        note(state, 0, producer_id=producer_id)
    assert len(state) == 5
    assert state.transactions.first_undecided_offset == 0


def test_a_transaction_is_open_from_its_first_batch_also_where_that_is_the_first_of_the_log():
    state = ProducerState()
    note(state, 0, offset=0, transactional=True)
    note(state, 1, offset=1, transactional=True)
    assert state.transactions.first_undecided_offset == 0


def test_only_what_lies_ahead_of_an_older_batch_is_missing():
    state = ProducerState()
    note(state, 4, count=2, offset=10)
    missing = {sequence: state.missing_sequence(1, 0, sequence, since_offset=12) for sequence in (3, 4, 5, 6, 7)}
    assert missing == {3: None, 4: None, 5: None, 6: None, 7: 6}
    assert state.missing_sequence(1, 0, 7, since_offset=11) is None  # appended at 11, in this term
    assert state.missing_sequence(1, 1, 2, since_offset=12) == 0
    assert state.missing_sequence(2, 0, 7, since_offset=12) is None


def test_a_producer_is_not_forgotten_while_its_transaction_is_open_however_many_there_are(monkeypatch):
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 3)
    state = ProducerState()
    for producer_id in range(5):
        note(state, 0, offset=producer_id, producer_id=producer_id, transactional=True)
    note(state, 1, offset=5, producer_id=4, transactional=True)
    assert [producer_id for producer_id, _ in state.entries()] == list(range(5))
    note(state, 0, offset=6, producer_id=9)
    assert not state.knows(9), "there is no other one to forget"
    assert state.transactions.first_undecided_offset == 0
