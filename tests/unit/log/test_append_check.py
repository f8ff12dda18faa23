"""Timestamps of a batch against the clock, at their borders (KIP-937)."""

import pytest
from simulation.disk import SimulatedDisk
from simulation.log_building import NOW_MS, batch_of, open_log

from barnabas.log.config import LogConfig
from barnabas.log.errors import InvalidTimestampError
from barnabas.log.record_batch import NO_TIMESTAMP

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
