"""`SlotReport`: what a program that captures changes of PostgreSQL says of its slot, as a record of SLOTS_TOPIC. Pure.

The program writes one again and again; `barnabas doctor` judges the newest of each, also when the program has died. The topic is
compacted, and forgets a program that has been silent for a week.
"""

from typing import Annotated, Final

import msgspec

from .reports import REPORTS_CONFIGS, ReportInterval, ReportTime, decoded_report, is_overdue

SLOTS_TOPIC: Final = "barnabas-postgres-slots"
SLOTS_TOPIC_CONFIGS: Final = REPORTS_CONFIGS
_Name = Annotated[str, msgspec.Meta(max_length=1_000)]


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    program: _Name  # the name of the connector or the pipeline; the key of the record
    slot: _Name
    server: _Name  # host, port and database; no user, no password
    at_ms: ReportTime  # wall clock of the program
    interval_ms: ReportInterval  # until the next report
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
        return is_overdue(self.at_ms, self.interval_ms, now_ms)

    @property
    def name(self) -> str:
        return f"slot {self.slot} of {self.program} (PostgreSQL, {self.server})"


def read_report(value: bytes | None) -> SlotReport | None:
    return decoded_report(value, SlotReport)
