"""The `.snapshot` files of a partition: the producer state at an offset, so that a start replays little of the log.

A snapshot is written when a segment is sealed and when the log is closed. It carries a CRC, so it needs no flush: a torn one is
skipped, and the one before it is used. A snapshot at the start of a segment is kept as long as the segment (as in Kafka), so that
a truncation replays one segment instead of the log.
"""

import struct
from collections.abc import Sequence

from ..disk.files import Files
from ..segment.producer_state import ProducerState
from ..segment.segment import LogSegment
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

    def newest(self, at_most: int) -> tuple[ProducerState, int] | None:
        """The newest undamaged state that was taken at that offset or before, and its offset."""
        for offset in reversed(self.offsets()):
            if offset > at_most:
                continue
            try:
                return ProducerState.from_snapshot(self._files.read_bytes(self._path(offset))), offset
            except (CorruptRecordError, struct.error):
                self._files.remove(self._path(offset))
        return None

    def clear(self) -> None:
        self.forget_behind(-1)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:0{_OFFSET_DIGITS}d}{_SUFFIX}"
