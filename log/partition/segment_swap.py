"""Replaces segments by the cleaned segment that was made from them, so that a crash at any step loses nothing.

1. It is written and flushed with names that end in `.cleaned`. After a crash up to here, these files are removed.
2. They are renamed to `.swap`, the log first, and the folder is flushed. From here on, a start swaps the segment in.
3. The old segments are renamed to `.deleted`, the new files to their own names, the log last. The folder is flushed.

A `.swap` log is complete and on the disk, so a start that finds one removes the segments that begin inside it and repeats the
renames, whichever of them survived. The order of the renames determines the meaning of an index without its log: an index that
ends in `.swap` belongs to a log that has its final name already; an index that ends in `.cleaned` belongs to no log.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..disk.files import Files
from ..segment.segment import INDEX_SUFFIXES, LOG_SUFFIX, LogSegment
from ..vocabulary.errors import CorruptRecordError

_log = logging.getLogger("barnabas.cleaner")
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_OFFSET_DIGITS = 20
_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentSwap:
    """One cleaned segment, and the neighbouring segments that it replaces: it has the name of the first of them."""

    files: Files
    directory: str
    replaced: Sequence[LogSegment]
    stem: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stem", self.replaced[0].path.removesuffix(LOG_SUFFIX))

    def offer(self) -> None:
        """Step 2, without the flush of the folder."""
        self.files.rename(f"{self.stem}{LOG_SUFFIX}{CLEANED_SUFFIX}", f"{self.stem}{LOG_SUFFIX}{SWAP_SUFFIX}")
        for suffix in INDEX_SUFFIXES:
            self._rename(suffix, CLEANED_SUFFIX, SWAP_SUFFIX)

    def take(self) -> None:
        """The end of step 3, when the old files have other names."""
        for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
            self._rename(suffix, SWAP_SUFFIX, "")

    def withdraw(self) -> None:
        """Undo step 2, durably: nothing may bring back the records that are truncated next. At no time is there an index that
        ends in `.swap` without its log.
        """
        for suffix in INDEX_SUFFIXES:
            self._rename(suffix, SWAP_SUFFIX, CLEANED_SUFFIX)
        self.files.sync_dir(self.directory)
        self.files.remove(f"{self.stem}{LOG_SUFFIX}{SWAP_SUFFIX}")
        self.files.sync_dir(self.directory)
        self.discard()

    def discard(self) -> None:
        """Undo step 1."""
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self.files.remove(f"{self.stem}{suffix}{CLEANED_SUFFIX}")

    def _rename(self, suffix: str, before: str, after: str) -> None:
        if self.files.exists(f"{self.stem}{suffix}{before}"):
            self.files.rename(f"{self.stem}{suffix}{before}", f"{self.stem}{suffix}{after}")


def finish_swaps(files: Files, directory: str) -> None:
    """At a start, before the folder is used: complete the swaps that reached step 2. May be repeated.

    Raises CorruptRecordError for a cleaned segment that is damaged, StorageError.
    """
    names = files.list_dir(directory)
    offered = [name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for stem in offered:
        _finish(files, directory, stem)
    for name in names:
        # The log had its final name before the crash, but the rename of its index was lost.
        stem, dot, suffix = name.removesuffix(SWAP_SUFFIX).partition(".")
        if name.endswith(SWAP_SUFFIX) and dot + suffix in INDEX_SUFFIXES and stem not in offered:
            files.rename(f"{directory}/{name}", f"{directory}/{stem}.{suffix}")
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        files.sync_dir(directory)


def _finish(files: Files, directory: str, stem: str) -> None:
    base_offset = int(stem)
    # Only its batches are read: no index is created here.
    cleaned = LogSegment(
        files, directory, base_offset, index_interval_bytes=0, max_index_bytes=0, state_suffix=SWAP_SUFFIX
    )
    last_offset = _last_offset(cleaned)
    _log.info("event=swap_finished folder=%s segment=%s last_offset=%d", directory, stem, last_offset)
    for name in files.list_dir(directory):
        number, dot, suffix = name.partition(".")
        is_of_a_segment = len(number) == _OFFSET_DIGITS and number.isdigit()
        if is_of_a_segment and dot + suffix in _SUFFIXES and base_offset < int(number) <= last_offset:
            files.remove(f"{directory}/{name}")
    for suffix in INDEX_SUFFIXES:
        for state in (CLEANED_SUFFIX, SWAP_SUFFIX):
            if files.exists(f"{directory}/{stem}{suffix}{state}"):
                files.rename(f"{directory}/{stem}{suffix}{state}", f"{directory}/{stem}{suffix}")
    files.rename(cleaned.path, f"{directory}/{stem}{LOG_SUFFIX}")


def _last_offset(segment: LogSegment) -> int:
    last_offset, size_bytes = segment.base_offset, 0
    for header, _ in segment.records.batches(0, verify_crc=True):
        last_offset = header.last_offset
        size_bytes += header.size_bytes
    if size_bytes != segment.size_bytes:
        raise CorruptRecordError(
            f"{segment.path} is damaged at position {size_bytes}: stop the broker, remove the partition's folder and let"
            " it be copied from another replica"
        )
    segment.release()
    return last_offset
