"""The known damage in one log: the offsets that readers are refused, and the search for more. `damage` detects it."""

import logging
from collections.abc import Callable

from ..disk.files import Files
from ..segment.damage import DamagedRange, SegmentView, scan_all
from ..segment.segment import DAMAGED_SUFFIX, LogSegment, segment_holding

_log = logging.getLogger("barnabas.log")
MOST_KEPT_FILES = 2  # per partition: enough for an investigation, at most two segments of disk space


class LogDamage:
    """`segments` gives the log's segments, of which the last one is active."""

    def __init__(
        self, segments: Callable[[], list[LogSegment]], is_changing: Callable[[], bool] = lambda: False
    ) -> None:
        self._segments = segments
        self._is_changing = is_changing  # another thread truncates the log: it is checked later
        self.found = 0  # ranges, since the log was opened

    @property
    def ranges(self) -> tuple[DamagedRange, ...]:
        return tuple(damaged for segment in self._segments() for damaged in segment.damage)

    @property
    def is_known(self) -> bool:
        self._note_missing()
        return any(segment.damage for segment in self._segments())

    def sealed(self) -> list[int]:
        """The base offsets of the sealed segments."""
        return [segment.base_offset for segment in self._segments()[:-1]]

    def view(self, base_offset: int) -> SegmentView | None:
        """A view of a sealed segment, for a scan; None if it is gone."""
        if self._is_changing():
            return None
        segments = self._segments()
        segment = self._holding(base_offset)
        return None if segment.base_offset != base_offset or segment is segments[-1] else segment.view()

    def note(self, damaged: DamagedRange) -> bool:
        """Return False if it was known, or is gone."""
        if self._is_changing():
            return False
        segment = self._holding(damaged.first_offset)
        return segment.base_offset == damaged.segment_base_offset and self._note(segment, damaged)

    def _note(self, segment: LogSegment, damaged: DamagedRange) -> bool:
        if not segment.note_damage(damaged):
            return False
        self.found += 1
        _log.error("event=damaged %s; readers are refused there until it is repaired from another replica", damaged)
        return True

    def verify(self, offset: int, *, max_bytes: int) -> bool:
        """Check the bytes that a read of `offset` returns; False if some are damaged. The damage is noted. Raises
        StorageError."""
        segment = self._holding(offset)
        if segment.records.is_missing:
            return False
        position, next_offset = segment.trusted_start(offset)
        known = segment.damage
        for damaged in scan_all(
            segment.view(), position=position, next_offset=next_offset, end_position=position + max_bytes
        ):
            self._note(segment, damaged)
        return segment.damage == known

    def _note_missing(self) -> None:
        """A segment whose file somebody has removed is damaged as a whole: otherwise a leader would go on to lead, although it
        can neither serve these records nor, in the last segment, take others."""
        for segment in self._segments():
            if segment.records.is_missing and not segment.damage:
                whole = DamagedRange(path=segment.path, segment_base_offset=segment.base_offset,
                                     first_offset=segment.base_offset, end_offset=segment.next_offset,
                                     position=0, end_position=segment.size_bytes)  # fmt: skip
                self._note(segment, whole)

    def where_to_cut(self) -> int:
        """The offset before which the log is sound and where it can be cut: the start of the first segment with damage."""
        segment = next(segment for segment in self._segments() if segment.damage)
        _log.warning("event=damage_set_aside file=%s%s end_offset=%d: the rest is copied from the leader", segment.path,
                     DAMAGED_SUFFIX, segment.base_offset)  # fmt: skip
        return segment.base_offset

    def _holding(self, offset: int) -> LogSegment:
        segments = self._segments()
        return segments[max(segment_holding(segments, offset), 0)]


def remove_oldest_damaged(files: Files, directory: str) -> None:
    """Keep only the newest MOST_KEPT_FILES of the damaged files that are kept for an investigation."""
    kept = [f"{directory}/{name}" for name in files.list_dir(directory) if name.endswith(DAMAGED_SUFFIX)]
    kept.sort(key=files.modified_ms)
    for path in kept[:-MOST_KEPT_FILES]:
        files.remove(path)
