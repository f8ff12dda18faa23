"""The files of producer states: one that is written again, and one that a newer file replaces."""

from pathlib import Path

from barnabas.log.checkpoints.producer_snapshots import ProducerSnapshots
from barnabas.log.disk.files import RealFiles
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.segment.producer_state import ProducerState


def state_of(*producer_ids: int) -> ProducerState:
    state = ProducerState()
    for producer_id in producer_ids:
        fields = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=False)
        state.update(read_header(encode_batch([b"x"], timestamps_ms=5, producer=fields)), first_offset=producer_id)
    return state


def test_a_snapshot_that_is_taken_again_at_its_offset_replaces_the_former_one(tmp_path: Path) -> None:
    """Also a shorter one: bytes of the former one behind it, or before it, would make it damaged."""
    snapshots = ProducerSnapshots(RealFiles(), str(tmp_path))
    for producer_ids in ((1, 2, 3), (4,), (5, 6), ()):
        snapshots.take(state_of(*producer_ids), 10, [])
        found = snapshots.newest(10)
        assert found is not None, "it is damaged"
        assert (found[0].to_snapshot(), found[1]) == (state_of(*producer_ids).to_snapshot(), 10)
    assert snapshots.newest(9) is None
    assert snapshots.offsets() == [10]
