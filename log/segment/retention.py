"""Chooses old segments for deletion: by age, by size, and by the log start offset. Pure: it uses properties of segments only."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..settings.config import LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What retention knows of one segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    newest_ms: int  # its largest timestamp, or when its file was written last if records have none


def expired_segments(
    segments: Iterable[SegmentAge],
    *,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    log_bytes: int,
) -> int:
    """How many segments go, counted from the oldest; it looks no further than the first that stays.

    What lies at or above the high watermark always stays. `log_bytes` is the size of all segments.
    """
    excess_bytes = _excess_bytes(log_bytes, config)
    count = 0
    for segment in segments:
        if segment.next_offset > high_watermark or segment.size_bytes == 0:
            break
        behind_start = segment.next_offset <= log_start_offset
        too_old = (
            config.is_deleted_by_retention
            and config.retention_ms >= 0
            and now_ms - segment.newest_ms > config.retention_ms
        )
        too_much = excess_bytes >= segment.size_bytes
        if not (behind_start or too_old or too_much):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count


def _excess_bytes(log_bytes: int, config: LogConfig) -> int:
    """A segment goes when the log is still as large as it may be without it (as in Kafka)."""
    if config.retention_bytes < 0 or not config.is_deleted_by_retention:
        return 0
    return log_bytes - config.retention_bytes
