"""The producers of one log: their last batches, their open transactions, and the snapshots of both.

It follows the log's batches and never decides what is appended; `append_check` does.
"""

from collections.abc import Iterable, Sequence

from ..checkpoints.producer_snapshots import ProducerSnapshots
from ..disk.files import Files
from ..format.record_batch import NO_PRODUCER_ID, BatchHeader, Buffer, read_header
from ..format.record_codec import is_abort_marker
from ..segment.append_check import PlacedBatch
from ..segment.producer_state import ProducerState
from ..segment.segment import LogSegment
from ..segment.transaction_index import AbortedTransaction


class LogProducers:
    def __init__(self, files: Files, directory: str) -> None:
        self._snapshots = ProducerSnapshots(files, directory)
        self._snapshot_offset = 0
        self.state = ProducerState()  # replaced by a restore
        self.first_unstable_offset: int | None = None  # where the oldest open transaction begins

    def restore(self, segments: Sequence[LogSegment], log_end_offset: int) -> None:
        """Rebuild the state from the batches before the log end, after the log was opened or truncated."""
        self.state, self._snapshot_offset = self._snapshots.restore(segments, log_end_offset)
        self.first_unstable_offset = self.state.first_unstable_offset

    def clear(self) -> None:
        """The log is empty."""
        self.state.clear()
        self._snapshots.clear()
        self.first_unstable_offset = None

    def take_snapshot(self, log_end_offset: int, segments: Sequence[LogSegment]) -> None:
        self._snapshots.take(self.state, log_end_offset, segments)
        self._snapshot_offset = log_end_offset

    def is_snapshot_due(self, recovery_point: int) -> bool:
        return recovery_point > self._snapshot_offset

    def note(self, buffer: Buffer, batches: Iterable[PlacedBatch], active: LogSegment) -> None:
        """These batches were appended; the last of them to `active`."""
        for batch in batches:
            if batch.producer_id != NO_PRODUCER_ID:
                header = read_header(buffer, batch.position)
                whole = memoryview(buffer)[batch.position : batch.position + batch.size_bytes]
                self._note_batch(header, whole, active)

    def _note_batch(self, header: BatchHeader, batch: memoryview, active: LogSegment) -> None:
        began = self.state.update(header, first_offset=header.base_offset)
        if not header.is_transactional:
            return
        self.first_unstable_offset = unstable = self.state.first_unstable_offset
        if began is not None and is_abort_marker(batch):
            active.transaction_index.append(
                AbortedTransaction(
                    producer_id=header.producer_id,
                    first_offset=began,
                    last_offset=header.last_offset,
                    last_stable_offset=header.next_offset if unstable is None else unstable,
                )
            )
