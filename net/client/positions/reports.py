"""What programs report of themselves, as records of a compacted topic: what all kinds of reports have in common. Pure.

A program writes one again and again; the newest of each counts, also when the program has died. A topic forgets a program that
has been silent for a week.
"""

from typing import Annotated, Final, TypeVar

import msgspec

REPORTS_CONFIGS: Final = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}
SILENT_REPORTS: Final = 4  # without which a program counts as dead
# Every program that may write to the topic may write any number. A time beyond the year 9999 cannot be shown.
ReportTime = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
ReportInterval = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
R = TypeVar("R", bound=msgspec.Struct)


def is_overdue(at_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Whether the next report should have come long ago."""
    return now_ms - at_ms > SILENT_REPORTS * interval_ms


def encoded_report(report: msgspec.Struct) -> bytes:
    return msgspec.json.encode(report)


def decoded_report(value: bytes | None, kind: type[R]) -> R | None:
    """None for a value that is none: other programs may write to the topic."""
    try:
        return msgspec.json.decode(value or b"", type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
