"""Bytes from strangers against a log: whatever comes, it is an error of ours or it is appended whole, and never a crash."""

from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.log_building import NOW_MS, append, open_log, read_all

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.testing.simulation.disk import SimulatedDisk


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_hostile_batches(data):
    log = open_log(SimulatedDisk())
    append(log, b"before")
    batch = bytearray(encode_batch([b"a", b"b"], timestamps_ms=NOW_MS))
    for _ in range(data.draw(st.integers(0, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    buffer = batch[: data.draw(st.integers(0, len(batch)))] + data.draw(st.binary(max_size=80))
    end, size = log.log_end_offset, log.size_bytes
    for append_bytes in (
        lambda: log.append_as_leader(bytearray(buffer), leader_epoch=0, now_ms=NOW_MS),
        lambda: log.append_as_follower(buffer),
    ):
        try:
            append_bytes()
        except BarnabasError:
            assert (log.log_end_offset, log.size_bytes) == (end, size)
        end, size = log.log_end_offset, log.size_bytes
    assert len(read_all(log)) == size
