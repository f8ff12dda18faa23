"""One cleaning of one log: superseded records are removed, all others keep their offsets (log compaction).

Two passes. The first one reads the dirty part and notes the last offset of each key; when the map is full, the part ends. The
second one reads all segments up to that point, from the first one on, and writes the remaining records of a group of neighbouring
segments as one segment, which then replaces them (see segment_swap). Groups are processed in the order of offsets, so that a
tombstone outlives the records that it deletes, whatever happens in between.

The work on files may run in another thread, while the log is read and written; the log itself changes only between two steps, and
only if it still has the segments that were read. Any other change of these segments ends the cleaning.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..disk.files import Files
from ..format.record_batch import HEADER_SIZE, BatchHeader
from ..format.record_codec import is_abort_marker
from ..partition.partition_log import PartitionLog
from ..partition.recovery import new_segment
from ..partition.segment_swap import CLEANED_SUFFIX, SegmentSwap
from ..segment.append_check import PlacedBatch
from ..segment.offset_index import MAX_RELATIVE_OFFSET
from ..segment.segment import LogSegment
from ..vocabulary.errors import BarnabasError, CorruptRecordError
from .batch_cleaning import BatchCleaner, CleanedBatch, spans_in
from .cleaner_offset_map import OffsetMap
from .cleaner_transactions import CleanedTransactions

MAX_GROUP_SEGMENTS = 64  # the swap costs some renames for each, and nothing else is served meanwhile
_WRITE_BYTES = 1024 * 1024
_TIME_INDEX_ENTRY_BYTES = 12  # the larger one of the two indexes


class CleaningAborted(Exception):
    """The log was truncated, deleted or closed, or the broker stops. This is not an error; segments that were swapped stay so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyPart:
    """The offsets [first_dirty_offset, end_offset) of a log were never cleaned, and may be cleaned."""

    log: PartitionLog
    segments: Sequence[LogSegment]  # all that end at or before `end_offset`, from the first one on
    first_dirty_offset: int
    end_offset: int
    is_due: bool = False

    @property
    def dirty_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments if segment.next_offset > self.first_dirty_offset)

    @property
    def ratio(self) -> float:
        """How much of what may be cleaned is dirty, from 0 to 1."""
        total = sum(segment.size_bytes for segment in self.segments)
        return self.dirty_bytes / total if total else 0.0


@dataclass(slots=True, kw_only=True)
class CleaningStats:
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_before: int = 0  # of the segments that were replaced
    bytes_after: int = 0  # of those that replaced them


class Cleaning:
    """The thread that owns the log makes it and iterates over its steps."""

    def __init__(
        self,
        part: DirtyPart,
        *,
        files: Files,
        map_size_bytes: int,
        now_ms: int,
        worked: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        """`worked(size_bytes)` is called after each portion of work, in the same thread, to throttle it."""
        log = part.log
        self.part = part
        self.log = log
        self.stats = CleaningStats()
        self._files = files
        self._config = log.config
        self._now_ms = now_ms
        self._worked = worked
        self._truncations = log.truncations
        self._is_stopped = False
        self._offsets = OffsetMap(max_size_bytes=map_size_bytes)
        self._aborted_in_part = log.aborted.between(part.first_dirty_offset, part.end_offset)
        first_offset = part.segments[0].base_offset
        self._transactions = CleanedTransactions(log.aborted.between(first_offset, part.end_offset))
        self._batches = BatchCleaner(
            offsets=self._offsets,
            transactions=self._transactions,
            last_batches=log.producers.last_batches(),
            now_ms=now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
        )
        self._swap: SegmentSwap | None = None

    @property
    def cleaned_up_to(self) -> int:
        """The first dirty offset from now on, when all steps are done."""
        return self._offsets.end_offset

    @property
    def next_horizon_ms(self) -> int | None:
        """When the remaining tombstones or markers may be removed; None if there are none."""
        return self._batches.next_horizon_ms

    def stop(self) -> None:
        """End soon, with CleaningAborted. May be called from any thread."""
        self._is_stopped = True

    def steps(self) -> Iterator[Callable[[], None]]:
        """Each step is done, in any thread, before the next one is asked for. Steps and the iteration raise
        CleaningAborted, CorruptRecordError and StorageError."""
        yield self._fill_map
        for group in self._groups():
            yield partial(self._clean, group)
            swap = self._swap
            if swap is None:
                continue
            if self._is_overtaken or not self.log.segments.swaps.offer(swap):
                swap.discard()
                raise CleaningAborted
            yield self._flush_folder
            if self._is_overtaken or not self.log.segments.take_swap(swap, self._now_ms, self.log.config):
                raise CleaningAborted
            yield self._flush_folder

    def abandon(self) -> None:
        """Called after a step that failed or was not done. The folder's thread then withdraws the offer."""
        self.log.segments.swaps.give_up()

    @property
    def _is_overtaken(self) -> bool:
        return self._is_stopped or self.log.truncations != self._truncations

    def _flush_folder(self) -> None:
        self._files.sync_dir(self.log.directory)

    # --- the first pass ---

    def _fill_map(self) -> None:
        transactions = CleanedTransactions(self._aborted_in_part)
        start = self.part.first_dirty_offset
        for segment in self.part.segments:
            if segment.next_offset <= start:
                continue
            for header, batch in self._read(segment):
                if header.last_offset < start:
                    continue
                if header.is_control:
                    transactions.is_needless(header, is_abort=is_abort_marker(batch))
                elif not transactions.is_aborted(header):
                    full_at = self._note_keys(header, batch)
                    if full_at is not None:
                        self._offsets.end_offset = full_at
                        return
        self._offsets.end_offset = self.part.end_offset

    def _note_keys(self, header: BatchHeader, batch: memoryview) -> int | None:
        """Return the offset of the first record for which there was no room; None when there was."""
        base_offset, put, start = header.base_offset, self._offsets.put, self.part.first_dirty_offset
        for _, _, _, offset_delta, _, key, _ in spans_in(batch, header)[1]:
            offset = base_offset + offset_delta
            if key is not None and offset >= start and not put(key, offset):
                return offset
        return None

    # --- the second pass ---

    def _groups(self) -> Iterator[list[LogSegment]]:
        """Neighbours that fit into one segment, by their present sizes."""
        group: list[LogSegment] = []
        for segment in self.part.segments:
            if segment.base_offset >= self._offsets.end_offset:
                break
            if group and not self._fits([*group, segment]):
                yield group
                group = []
            group.append(segment)
        if group:
            yield group

    def _fits(self, group: Sequence[LogSegment]) -> bool:
        config = self._config
        size_bytes = sum(segment.size_bytes for segment in group)
        index_entries = size_bytes // max(config.index_interval_bytes, HEADER_SIZE)
        return (
            len(group) <= MAX_GROUP_SEGMENTS
            and size_bytes <= config.segment_bytes
            and index_entries * _TIME_INDEX_ENTRY_BYTES <= config.segment_index_bytes
            and group[-1].next_offset - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET
        )

    def _clean(self, group: Sequence[LogSegment]) -> None:
        """Write what remains of the group; `_swap` is None afterwards if nothing changed."""
        self._swap = None
        swap = SegmentSwap(files=self._files, directory=self.log.directory, replaced=tuple(group))
        swap.discard()  # files of an earlier cleaning that failed
        base_offset = group[0].base_offset
        target = new_segment(self._files, self.log.directory, base_offset, self._config, state_suffix=CLEANED_SUFFIX)
        writer = _Writer(target)
        try:
            target.start_empty()
            is_changed = self._write(group, writer) or len(group) > 1
            if is_changed and target.size_bytes:
                for transaction in self._transactions.take_kept():
                    target.transaction_index.append(transaction)
                self._make_durable(target)
                self._swap = swap
                self.stats.bytes_before += sum(segment.size_bytes for segment in group)
                self.stats.bytes_after += target.size_bytes
        finally:
            target.release()
            if self._swap is None:
                self._transactions.take_kept()
                swap.discard()

    def _write(self, group: Sequence[LogSegment], writer: "_Writer") -> bool:
        """Return whether anything changed."""
        is_changed = False
        for segment in group:
            left = segment.size_bytes
            for header, batch in self._read(segment):
                left -= header.size_bytes
                is_last = not left and segment is group[-1]
                cleaned = self._batches.clean(header, batch, is_last_of_segment=is_last)
                is_changed |= cleaned is None or cleaned.is_changed
                if cleaned is not None:
                    self.stats.bytes_written += len(cleaned.data)
                    writer.add(cleaned)
        writer.write_out()
        return is_changed

    def _make_durable(self, target: LogSegment) -> None:
        target.seal()
        for file in target.files_to_flush():
            file.flush()

    # --- reading ---

    def _read(self, segment: LogSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """All batches, through a separate descriptor: the segment itself belongs to another thread."""
        own = new_segment(self._files, self.log.directory, segment.base_offset, self._config)
        left = segment.size_bytes
        try:
            if own.size_bytes == left:
                for header, batch in own.records.batches(0, verify_crc=True):
                    self._check(segment)
                    yield header, batch
                    left -= header.size_bytes
                    self.stats.bytes_read += header.size_bytes
                    self._worked(header.size_bytes)
        except BarnabasError:
            self._check(segment)  # a segment that is gone is not a disk fault
            raise
        finally:
            own.release()
        if left:
            self._check(segment)
            raise CorruptRecordError(
                f"{segment.path} is damaged at position {segment.size_bytes - left}: stop the broker, remove the"
                " partition's folder and let it be copied from another replica"
            )

    def _check(self, segment: LogSegment) -> None:
        if self._is_overtaken or segment.records.is_retired:
            raise CleaningAborted


class _Writer:
    """Appends batches to a segment, many at a time."""

    def __init__(self, target: LogSegment) -> None:
        self._target = target
        self._parts: list[bytes] = []
        self._placed: list[PlacedBatch] = []
        self._size_bytes = 0

    def add(self, batch: CleanedBatch) -> None:
        header = batch.header
        self._placed.append(
            PlacedBatch(self._size_bytes, header.size_bytes, header.base_offset, header.last_offset,
                        header.newest_record_ms, header.producer_id)
        )  # fmt: skip
        self._parts.append(bytes(batch.data))
        self._size_bytes += header.size_bytes
        if self._size_bytes >= _WRITE_BYTES:
            self.write_out()

    def write_out(self) -> None:
        if self._parts:
            self._target.append(b"".join(self._parts), self._placed)
            self._parts, self._placed, self._size_bytes = [], [], 0
