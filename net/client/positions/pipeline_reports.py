"""`PipelineReport`: what `barnabas pipeline run` says of its pipeline, as a record of PIPELINES_TOPIC. Pure.

The program writes one again and again, and a last one at its end; consoles and `barnabas pipeline list` show the newest of each.
The topic is compacted, and forgets a pipeline that has been silent for a week.
"""

from typing import Annotated, Final, Literal

import msgspec

PIPELINES_TOPIC: Final = "barnabas-pipelines"
PIPELINES_TOPIC_CONFIGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(7 * 86_400_000),
    "segment.bytes": str(1 << 18),  # what is superseded is removed soon, so that the topic is read quickly
    "min.cleanable.dirty.ratio": "0.1",
}
MAX_PIPELINES: Final = 1_000  # that are shown
MAX_ERROR_CHARS: Final = 500  # in a report; `barnabas pipeline status` has more
SILENT_REPORTS: Final = 4  # without which a pipeline counts as dead
_RUNNING: Final = ("running", "restarting")
# Every program that may write to the topic may write any number. A time beyond the year 9999 cannot be shown.
_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
_Interval = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]  # JavaScript has no larger ones
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_ERROR_CHARS)]


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: _Name  # the key of the record
    state: Literal["running", "restarting", "stopped", "finished", "failed"]
    at_ms: _Time  # wall clock of the program
    interval_ms: _Interval  # until the next report
    since_ms: _Time = 0  # in this state
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
    last_batch_ms: _Time = 0
    last_error: _Text = ""  # may quote a record

    def is_silent(self, now_ms: int) -> bool:
        """It should have reported since, and has not: the process or its machine has died, or does not reach the brokers."""
        return self.state in _RUNNING and now_ms - self.at_ms > SILENT_REPORTS * self.interval_ms


def encoded_report(report: PipelineReport) -> bytes:
    return msgspec.json.encode(report)


def read_report(value: bytes | None) -> PipelineReport | None:
    """None for a value that is none: other programs may write to the topic."""
    try:
        return msgspec.json.decode(value or b"", type=PipelineReport)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
