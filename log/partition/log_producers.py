"""The producers of one log: their last batches, their open transactions, and the snapshots of both.

It follows the log's batches and never decides what is appended; `append_check` does.
"""

from collections.abc import Iterable, Iterator, Sequence

from ..checkpoints.producer_snapshots import ProducerSnapshots
from ..disk.files import Files
from ..format.record_batch import NO_PRODUCER_ID, BatchHeader, Buffer, read_header
from ..format.record_codec import read_marker
from ..segment.append_check import PlacedBatch
from ..segment.producer_state import NO_COORDINATOR_EPOCH, AppendedBatch, ProducerState
from ..segment.segment import LogSegment, segment_holding
from ..segment.transaction_index import AbortedTransaction
from .producer_check import check_markers, repeated_batches


class LogProducers:
    def __init__(self, files: Files, directory: str) -> None:
        self._snapshots = ProducerSnapshots(files, directory)
        self._snapshot_offset = 0
        self.state = ProducerState()  # replaced by a restore

    def open(self, segments: Sequence[LogSegment], log_end_offset: int, *, flushed_end_offset: int) -> None:
        """Rebuild everything after a start: the state from the batches before the log end, and the indexes of aborted
        transactions from the batches behind the flushed end, or behind the begin of a segment whose index is damaged.

        A crash may have taken entries of such an index, and a reader would get the records of an aborted transaction.
        """
        # Retention may be ahead of the saved flushed end.
        index_from = flushed = max(flushed_end_offset, segments[0].base_offset)
        for segment in segments:
            if not segment.transaction_index.recover(segment.base_offset, flushed):
                index_from = min(index_from, segment.base_offset)
        rebuilt = [segment.transaction_index for segment in segments if index_from <= segment.base_offset < flushed]
        for index in rebuilt:
            index.begin_rebuild()
        self._restore(segments, log_end_offset, index_from=index_from)
        for index in rebuilt:
            index.end_rebuild()

    def restore(self, segments: Sequence[LogSegment], log_end_offset: int) -> None:
        """Rebuild the state from the batches before the log end, after the log was truncated, with its indexes."""
        self._restore(segments, log_end_offset, index_from=log_end_offset)

    def _restore(self, segments: Sequence[LogSegment], log_end_offset: int, *, index_from: int) -> None:
        self._snapshots.forget_behind(log_end_offset)
        found = self._snapshots.newest(index_from)
        # Where the snapshot at the first segment is torn, an older one may have transactions as open whose ends are deleted:
        # nothing would end them again. Nor does it know the last batches of producers.
        if found is None or found[1] < segments[0].base_offset:
            found = (ProducerState(), 0)
        self.state, self._snapshot_offset = found
        first = max(self._snapshot_offset, segments[0].base_offset)
        if first < log_end_offset:
            for segment, header, batch in _batches_from(segments, first):
                self._note_batch(header, batch, segment if header.base_offset >= index_from else None)

    def clear(self) -> None:
        """The log is empty."""
        self.state.clear()
        self._snapshots.clear()

    def check(
        self, buffer: Buffer, batches: Sequence[PlacedBatch], from_coordinator: bool, transaction_version: int
    ) -> tuple[AppendedBatch, ...]:
        """Before an append by the leader: the batches at the start that are in the log already; mostly none. Raises what
        `repeated_batches` raises, or, for a transaction coordinator, `check_markers`."""
        if from_coordinator:
            check_markers(buffer, batches, self.state, transaction_version=transaction_version)
            return ()
        for batch in batches:
            if batch.producer_id != NO_PRODUCER_ID:
                return repeated_batches(buffer, batches, self.state)
        return ()

    def take_snapshot(self, log_end_offset: int, segments: Sequence[LogSegment]) -> None:
        self._snapshots.take(self.state, log_end_offset, segments)
        self._snapshot_offset = log_end_offset

    def is_snapshot_due(self, recovery_point: int) -> bool:
        return recovery_point > self._snapshot_offset

    def note(self, buffer: Buffer, batches: Iterable[PlacedBatch], active: LogSegment) -> bool:
        """These batches were appended to `active`. Return whether its index of aborted transactions has grown."""
        has_grown = False
        for batch in batches:
            if batch.producer_id != NO_PRODUCER_ID:
                header = read_header(buffer, batch.position)
                whole = memoryview(buffer)[batch.position : batch.position + batch.size_bytes]
                has_grown |= self._note_batch(header, whole, active)
        return has_grown

    def _note_batch(self, header: BatchHeader, batch: memoryview, indexed_in: LogSegment | None) -> bool:
        """`indexed_in`: the segment of the batch, unless its index has the batch already."""
        marker = read_marker(batch) if header.is_control else None
        coordinator_epoch = NO_COORDINATOR_EPOCH if marker is None else marker.coordinator_epoch
        began = self.state.update(header, first_offset=header.base_offset, coordinator_epoch=coordinator_epoch)
        if began is None or indexed_in is None or marker is None or marker.is_commit:
            return False
        undecided = self.state.transactions.first_undecided_offset
        indexed_in.transaction_index.append(
            AbortedTransaction(
                producer_id=header.producer_id,
                first_offset=began,
                last_offset=header.last_offset,
                last_stable_offset=header.next_offset if undecided is None else undecided,
            )
        )
        return True


def _batches_from(segments: Sequence[LogSegment], offset: int) -> Iterator[tuple[LogSegment, BatchHeader, memoryview]]:
    for segment in segments[max(segment_holding(segments, offset), 0) :]:
        place = segment.batch_at(offset)
        if place is not None:
            for header, batch in segment.records.batches(place.position, verify_crc=False):
                yield segment, header, batch
        offset = max(offset, segment.next_offset)
