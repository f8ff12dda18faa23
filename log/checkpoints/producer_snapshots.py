"""The `.snapshot` files of a partition: the producer state at an offset, so that a start replays little of the log.

A snapshot is written when a segment is sealed and when the log is closed. It carries a CRC, so it needs no flush: a torn one is
skipped, and the one before it is used. A snapshot at the start of a segment is kept as long as the segment (as in Kafka), so that
a truncation replays one segment instead of the log.
"""

import struct
from collections.abc import Iterator, Sequence

from ..disk.files import Files
from ..format.record_batch import BatchHeader
from ..segment.producer_state import ProducerState
from ..segment.segment import LogSegment, segment_holding
from ..vocabulary.errors import CorruptRecordError

_SUFFIX = ".snapshot"
_OFFSET_DIGITS = 20
_KEPT = 2  # at any offset: the newest, and one more in case the newest is torn


class ProducerSnapshots:
    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def offsets(self) -> list[int]:
        """Rising."""
        stems = [name[: -len(_SUFFIX)] for name in self._files.list_dir(self._directory) if name.endswith(_SUFFIX)]
        return sorted(int(stem) for stem in stems if len(stem) == _OFFSET_DIGITS and stem.isdigit())

    def take(self, state: ProducerState, offset: int, segments: Sequence[LogSegment]) -> None:
        """Write the state as of `offset` (exclusive), and remove snapshots at which no segment begins."""
        file = self._files.open_append(self._path(offset))
        file.truncate(0)
        file.append(state.to_snapshot())
        file.close()
        begins = {segment.base_offset for segment in segments}
        for old in self.offsets()[:-_KEPT]:
            if old not in begins:
                self._files.remove(self._path(old))

    def forget_behind(self, end_offset: int) -> None:
        """Remove later snapshots, durably: the log was cut there, and may grow again to their offsets with other records."""
        gone = [offset for offset in self.offsets() if offset > end_offset]
        for offset in gone:
            self._files.remove(self._path(offset))
        if gone:
            self._files.sync_dir(self._directory)

    def newest(self) -> tuple[ProducerState, int] | None:
        """The newest undamaged state, and its offset."""
        for offset in reversed(self.offsets()):
            try:
                return ProducerState.from_snapshot(self._files.read_bytes(self._path(offset))), offset
            except (CorruptRecordError, struct.error):
                self._files.remove(self._path(offset))
        return None

    def restore(self, segments: Sequence[LogSegment], log_end_offset: int) -> tuple[ProducerState, int]:
        """The newest snapshot, updated by the batches after it, up to the log end; and its offset, 0 if there was none."""
        self.forget_behind(log_end_offset)
        found = self.newest()
        if found is not None:
            state, offset = found
        else:
            state, offset = ProducerState(), segments[0].base_offset
        if offset < log_end_offset:
            for header in _headers_from(segments, max(offset, segments[0].base_offset)):
                state.update(header, first_offset=header.base_offset)
        return state, 0 if found is None else offset

    def clear(self) -> None:
        self.forget_behind(-1)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:0{_OFFSET_DIGITS}d}{_SUFFIX}"


def _headers_from(segments: Sequence[LogSegment], offset: int) -> Iterator[BatchHeader]:
    for segment in segments[max(segment_holding(segments, offset), 0) :]:
        place = segment.batch_at(offset)
        if place is not None:
            for header, _ in segment.records.batches(place.position, verify_crc=False):
                yield header
        offset = max(offset, segment.next_offset)
