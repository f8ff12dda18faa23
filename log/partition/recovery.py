"""Opens the files of a stopped broker: which segments exist, where the log ends, and what must be cut off.

After a clean stop, only the last stretch after the last index entry is scanned. Otherwise everything from the recovery point on
is read and checked, and the log is cut at the first batch that is torn or damaged; data before the recovery point was flushed and
is trusted.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ..checkpoints.leader_epoch_cache import LeaderEpochCache
from ..disk.files import Files
from ..format.record_batch import LENGTH, LENGTH_POSITION, LOG_OVERHEAD
from ..segment.segment import DELETED_SUFFIX, LOG_SUFFIX, LogSegment
from ..settings.config import LogConfig
from .segment_swap import CLEANED_SUFFIX, finish_swaps

_log = logging.getLogger("barnabas.log")
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX)
_OFFSET_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    segments: list[LogSegment]  # by base offset; the last one is active
    has_lost_batches: bool  # whole batches: the disk lost or damaged them; killing a process alone does not


def new_segment(
    files: Files, directory: str, base_offset: int, config: LogConfig, *, state_suffix: str = ""
) -> LogSegment:
    return LogSegment(
        files,
        directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        max_index_bytes=config.segment_index_bytes,
        state_suffix=state_suffix,
    )


def recover_log(
    files: Files,
    directory: str,
    *,
    config: LogConfig,
    epochs: LeaderEpochCache,
    recovery_point: int,
    log_start_offset: int,
    was_stopped_cleanly: bool,
    before_loss: Callable[[], None] = lambda: None,
) -> RecoveredLog:
    """Open the segments of a folder. `epochs` is updated from the scanned batches.

    `before_loss` is called before whole batches are cut off: if the disk refuses afterwards, the next try finds a shorter log and
    no trace of these batches.
    """
    segments = _found_segments(files, directory, config)
    if not segments:
        first = new_segment(files, directory, log_start_offset, config)
        first.start_empty()
        return RecoveredLog(segments=[first], has_lost_batches=False)
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    if was_stopped_cleanly:
        recovery_point = segments[-1].base_offset
    else:
        # Later epochs are in the batches that are scanned now, unless they were truncated since.
        epochs.truncate_from_end(recovery_point + 1)
    truncated, has_lost_batches = _recover_segments(
        segments, recovery_point, epochs, is_clean=was_stopped_cleanly, before_loss=before_loss
    )
    cut = (directory, truncated, segments[-1].next_offset)
    if has_lost_batches:
        _log.error("event=lost_batches folder=%s bytes=%d end_offset=%d", *cut)
    elif truncated:
        _log.warning("event=torn_tail folder=%s bytes=%d end_offset=%d", *cut)
    epochs.truncate_from_end(segments[-1].next_offset + 1)
    _learn_earliest_epochs(segments, epochs, log_start_offset)
    return RecoveredLog(segments=segments, has_lost_batches=has_lost_batches)


def _learn_earliest_epochs(segments: list[LogSegment], epochs: LeaderEpochCache, log_start_offset: int) -> None:
    """The saved epochs may begin after the log's start, or after its end: a raised log start that was not yet on the disk was
    lost in the crash. Every batch carries its own epoch; without the epochs of its batches, a log could not determine where it
    diverges (KIP-101)."""
    saved = epochs.entries
    known_from = saved[0].start_offset if saved else segments[-1].next_offset
    if known_from <= max(log_start_offset, segments[0].base_offset):
        return
    epochs.clear()
    for segment in segments:
        if segment.base_offset >= known_from:
            break
        for header, _ in segment.records.batches(0, verify_crc=False):
            if header.base_offset >= known_from:
                break
            epochs.assign(header.leader_epoch, header.base_offset)
    for entry in saved:
        epochs.assign(entry.epoch, entry.start_offset)


def _recover_segments(
    segments: list[LogSegment],
    recovery_point: int,
    epochs: LeaderEpochCache,
    *,
    is_clean: bool,
    before_loss: Callable[[], None],
) -> tuple[int, bool]:
    """Scan the segments that reach beyond the recovery point; drop everything after the first fault. Return the number of bytes
    cut off, and whether whole batches were among them or are missing."""
    number = len(segments) - 1
    while number > 0 and segments[number].base_offset > recovery_point:
        number -= 1
    truncated, has_lost_batches = 0, False
    while number < len(segments):
        segment = segments[number]
        is_last = number == len(segments) - 1
        expected_end = segment.next_offset
        end = _sound_end(segment, recovery_point, epochs, verify_crc=not is_clean)
        cut = segment.size_bytes - end
        number += 1
        # A power loss may remove the end of a segment at the border of a batch, and leave the following segment whole. A
        # compacted segment has gaps inside, but still ends where the next one begins (see batch_cleaning).
        has_gap = not is_last and segment.next_offset != expected_end
        if cut or has_gap:
            # An append that was interrupted by a kill is at the very end, and was never acknowledged. After a clean stop, there
            # is none.
            has_lost_batches = is_clean or not is_last or not _is_torn(segment, end)
            if has_lost_batches:
                before_loss()
            _cut(segment, end)
            truncated += cut + _drop(segments, number)
        elif not is_last:
            segment.next_offset = expected_end
            segment.seal()
            segment.release()
    return truncated, has_lost_batches


def _sound_end(segment: LogSegment, recovery_point: int, epochs: LeaderEpochCache, *, verify_crc: bool) -> int:
    """Scan the segment. Return the position up to which it has whole, sound batches."""
    position = segment.open_active(trusted_up_to=recovery_point if verify_crc else None)
    for header, _ in segment.records.batches(position, verify_crc=verify_crc):
        if header.base_offset < segment.next_offset:
            break
        epochs.assign(header.leader_epoch, header.base_offset)
        segment.note_batch(position, header.size_bytes, header.base_offset, header.last_offset, header.newest_record_ms)
        position += header.size_bytes
    return position


def _cut(segment: LogSegment, position: int) -> None:
    if position < segment.size_bytes:
        segment.records.cut_at(position)


def _is_torn(segment: LogSegment, position: int) -> bool:
    """Whether the file ends before the batch at `position` does."""
    left = segment.size_bytes - position
    if left < LOG_OVERHEAD:
        return True
    (length,) = LENGTH.unpack(segment.records.file.read_at(position + LENGTH_POSITION, LENGTH.size))
    return bool(length > left - LOG_OVERHEAD)


def _drop(segments: list[LogSegment], number: int) -> int:
    """Remove the segments from `number` on: they do not continue the rest of the log."""
    dropped_bytes = 0
    for segment in segments[number:]:
        dropped_bytes += segment.size_bytes
        segment.rename_as_deleted()
    del segments[number:]
    return dropped_bytes


def _found_segments(files: Files, directory: str, config: LogConfig) -> list[LogSegment]:
    finish_swaps(files, directory)
    names = files.list_dir(directory)
    for name in names:
        if name.endswith(_LEFTOVER_SUFFIXES):
            files.remove(f"{directory}/{name}")
    stems = [name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)]
    return [
        new_segment(files, directory, int(stem), config)
        for stem in sorted(stems)
        if len(stem) == _OFFSET_DIGITS and stem.isdigit()
    ]
