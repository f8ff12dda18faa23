"""`barnabas pipeline list`: the pipelines of a cluster, as each `run` has told it."""

import time
from datetime import UTC, datetime

from ...client.admin.cluster_health import newest_reports
from ...client.positions.pipeline_reports import MAX_PIPELINES, PIPELINES_TOPIC, PipelineReport, read_report
from ..frame.command import Context
from ..frame.exit_codes import ExitCode

COLUMNS = (
    "pipeline",
    "state",
    "machine",
    "rows_per_s",
    "lag",
    "watermark",
    "state_rows",
    "restarts",
    "reported",
    "error",
)


async def listed(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        found: tuple[PipelineReport, ...] = ()
        if PIPELINES_TOPIC in await admin.list_topics():
            found = await newest_reports(admin, PIPELINES_TOPIC, read_report)
    now_ms = int(time.time() * 1_000)
    reports = sorted(found, key=lambda report: report.pipeline)
    context.out.rows([_row(report, now_ms) for report in reports[:MAX_PIPELINES]], COLUMNS)
    if len(reports) > MAX_PIPELINES:
        context.out.note(f"{len(reports) - MAX_PIPELINES} more are not shown")
    is_bad = any(report.state == "failed" or report.is_silent(now_ms) for report in reports)
    return ExitCode.UNHEALTHY if is_bad else ExitCode.OK


def _row(report: PipelineReport, now_ms: int) -> dict[str, object]:
    return {
        "pipeline": report.pipeline,
        "state": "silent" if report.is_silent(now_ms) else report.state,
        "machine": report.machine or None,
        "rows_per_s": report.rows_per_s,
        "lag": report.lag,
        "watermark": report.watermark or None,
        "state_rows": report.state_rows,
        "restarts": report.restarts,
        "reported": datetime.fromtimestamp(report.at_ms / 1_000, UTC).isoformat(timespec="seconds"),
        "error": report.last_error or None,
    }
