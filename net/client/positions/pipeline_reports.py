"""`PipelineReport`: what `barnabas pipeline run` says of its pipeline, as a record of PIPELINES_TOPIC. Pure.

The program writes one again and again, and a last one at its end; consoles and `barnabas pipeline list` show the newest of each.
The topic is compacted, and forgets a pipeline that has been silent for a week.
"""

from typing import Annotated, Final, Literal

import msgspec

from .reports import REPORTS_CONFIGS, ReportInterval, ReportTime, decoded_report, is_overdue

PIPELINES_TOPIC: Final = "barnabas-pipelines"
PIPELINES_TOPIC_CONFIGS: Final = {
    **REPORTS_CONFIGS,
    "segment.bytes": str(1 << 18),  # what is superseded is removed soon, so that the topic is read quickly
    "min.cleanable.dirty.ratio": "0.1",
}
MAX_PIPELINES: Final = 1_000  # that are shown
MAX_ERROR_CHARS: Final = 500  # in a report; `barnabas pipeline status` has more
_RUNNING: Final = ("running", "restarting")
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]  # JavaScript has no larger ones
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_ERROR_CHARS)]


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: _Name  # the key of the record
    state: Literal["running", "restarting", "stopped", "finished", "failed"]
    at_ms: ReportTime  # wall clock of the program
    interval_ms: ReportInterval  # until the next report
    since_ms: ReportTime = 0  # in this state
    machine: Annotated[str, msgspec.Meta(max_length=255)] = ""
    restarts: _Count = 0  # since `run`
    batches: _Count = 0  # counts are since the last reset
    records: _Count = 0
    bad_records: _Count = 0
    rows: _Count = 0
    records_per_s: _Rate | None = None  # between this report and the one before; None: there was none
    rows_per_s: _Rate | None = None
    lag: _Count | None = None
    watermark: _Name = ""
    state_rows: _Count = 0
    state_bytes: _Count = 0
    last_batch_ms: ReportTime = 0
    last_error: _Text = ""  # may quote a record

    def is_silent(self, now_ms: int) -> bool:
        """It should have reported since, and has not: the process or its machine has died, or does not reach the brokers."""
        return self.state in _RUNNING and is_overdue(self.at_ms, self.interval_ms, now_ms)


def read_report(value: bytes | None) -> PipelineReport | None:
    return decoded_report(value, PipelineReport)
