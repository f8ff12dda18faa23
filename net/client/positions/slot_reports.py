"""`SlotReport`: what a program that captures changes of PostgreSQL says of its slot, as a record of SLOTS_TOPIC. Pure.

The program writes one again and again; `barnabas doctor` judges the newest of each, also when the program has died. The topic is
compacted, and forgets a program that has been silent for a week.
"""

from typing import Annotated, Final

import msgspec

SLOTS_TOPIC: Final = "barnabas-postgres-slots"
SLOTS_TOPIC_CONFIGS: Final = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}
SILENT_REPORTS: Final = 4  # without which a program counts as dead
# Every program that may write to the topic may write any number. A time beyond the year 9999 cannot be shown.
_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
_Interval = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
_Name = Annotated[str, msgspec.Meta(max_length=1_000)]


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    program: _Name  # the name of the connector or the pipeline; the key of the record
    slot: _Name
    server: _Name  # host, port and database; no user, no password
    at_ms: _Time  # wall clock of the program
    interval_ms: _Interval  # until the next report
    exists: bool
    is_active: bool = False
    wal_status: _Name = ""  # reserved, extended, unreserved, lost
    lag_bytes: int = 0
    retained_bytes: int = 0
    safe_bytes: int | None = None  # of log that can be written before the slot may be lost; None: no limit
    warn_bytes: int = 1 << 30

    @property
    def is_lost(self) -> bool:
        return not self.exists or self.wal_status == "lost"

    def is_silent(self, now_ms: int) -> bool:
        return now_ms - self.at_ms > SILENT_REPORTS * self.interval_ms

    @property
    def name(self) -> str:
        return f"slot {self.slot} of {self.program} (PostgreSQL, {self.server})"


def encoded_report(report: SlotReport) -> bytes:
    return msgspec.json.encode(report)


def read_report(value: bytes | None) -> SlotReport | None:
    """None for a value that is none: other programs may write to the topic."""
    try:
        return msgspec.json.decode(value or b"", type=SlotReport)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
