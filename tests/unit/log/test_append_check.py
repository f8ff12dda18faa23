"""Timestamps of a batch against the clock (KIP-937), and the place of its first record, at their borders."""

import pytest
from simulation.log_building import NOW_MS, batch_of, open_log

from barnabas.log.format import record_codec
from barnabas.log.format.record_batch import NO_TIMESTAMP
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.format.varint import encode_varint
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import InvalidRecordError, InvalidTimestampError
from barnabas.net.testing.simulation.disk import SimulatedDisk

BOUNDED = LogConfig(message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=500)


@pytest.mark.parametrize(
    ("timestamp_ms", "is_taken"),
    [
        (NOW_MS - 1_001, False),
        (NOW_MS - 1_000, True),
        (NOW_MS + 500, True),
        (NOW_MS + 501, False),
        (0, False),
        (NO_TIMESTAMP, True),  # of a producer that sets none (KIP-32)
    ],
)
def test_a_timestamp_may_be_so_far_from_the_clock(timestamp_ms: int, is_taken: bool) -> None:
    log = open_log(SimulatedDisk(), config=BOUNDED)
    batch = batch_of(b"x", timestamp_ms=timestamp_ms)
    if is_taken:
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    else:
        with pytest.raises(InvalidTimestampError, match="after.max.ms"):
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == is_taken


@pytest.mark.parametrize(("delta", "is_taken"), [(0, True), (1, False), (-1, False)])
def test_the_first_record_of_a_batch_is_at_its_base_offset(delta: int, is_taken: bool) -> None:
    fields = (
        b"\x00"
        + encode_varint(0)
        + encode_varint(delta)
        + encode_varint(-1)
        + encode_varint(1)
        + b"x"
        + encode_varint(0)
    )
    body = encode_varint(len(fields)) + fields
    log = open_log(SimulatedDisk())
    forged = bytearray(record_codec.seal_batch(body, 1, 0, NOW_MS, NOW_MS, ProducerFields()))
    if is_taken:
        log.append_as_leader(forged, leader_epoch=0, now_ms=NOW_MS)
    else:
        with pytest.raises(InvalidRecordError, match=f"offset delta {delta}"):
            log.append_as_leader(forged, leader_epoch=0, now_ms=NOW_MS)
