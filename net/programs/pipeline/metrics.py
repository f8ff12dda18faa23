"""What a pipeline does, in Prometheus' text format. Pure.

The text of the last error is not in it: it may quote a record, and whoever may read metrics need not be allowed to read records.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal

from .state import RunProgress, RunState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_Kind = Literal["counter", "gauge"]
_HELP: Final[dict[str, tuple[_Kind, str]]] = {
    "running": ("gauge", "1 while a Spark driver runs; 0 while it waits to be started again."),
    "restarts_total": ("counter", "Starts of the Spark driver after a failure, since `run`."),
    "batches_total": ("counter", "Micro-batches that are written, since the last reset."),
    "records_total": ("counter", "Records that were read, since the last reset."),
    "bad_records_total": ("counter", "Records that did not fit their format, since the last reset."),
    "rows_total": ("counter", "Rows that were given to the sink, since the last reset."),
    "lag_records": ("gauge", "Records of the topics that are not read yet. Absent if the source does not say."),
    "last_batch_timestamp_seconds": ("gauge", "When the last micro-batch was written."),
    "watermark_timestamp_seconds": ("gauge", "How far windows are complete. Absent without a watermark."),
    "state_rows": ("gauge", "Rows in the state of windows, joins and aggregations."),
    "state_bytes": ("gauge", "Memory that this state takes, as Spark estimates it."),
}


def rendered(pipeline: str, state: RunState | None, progress: RunProgress) -> str:
    label = json.dumps(pipeline)  # letters, digits, '.', '_' and '-'
    lines = []
    for name, value in _values(state, progress):
        kind, words = _HELP[name]
        full = f"barnabas_pipeline_{name}"
        lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}", f"{full}{{pipeline={label}}} {value:.16g}"]
    return "".join(f"{line}\n" for line in lines)


def _values(state: RunState | None, progress: RunProgress) -> Iterator[tuple[str, float]]:
    yield "running", state is not None and state.state == "running"
    yield "restarts_total", state.restarts if state else 0
    yield "batches_total", progress.batches
    yield "records_total", progress.records
    yield "bad_records_total", progress.bad_records
    yield "rows_total", progress.rows
    if progress.lag is not None:
        yield "lag_records", progress.lag
    if progress.last_batch_ms:
        yield "last_batch_timestamp_seconds", progress.last_batch_ms / 1_000
    with suppress(ValueError):  # "" without a watermark
        yield "watermark_timestamp_seconds", datetime.fromisoformat(progress.watermark).timestamp()
    yield "state_rows", progress.state_rows
    yield "state_bytes", progress.state_bytes
