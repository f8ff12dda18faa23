"""/v3/.../barnabas/pipelines: the pipelines on Spark that tell this cluster how they are. Confluent's API has no equivalent.

`barnabas pipeline run` writes a report every few seconds into a topic of the cluster, so any broker can be asked.
"""

import time
from typing import Final

from msgspec import structs

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.admin.cluster_health import newest_reports
from barnabas.net.client.positions.pipeline_reports import (
    MAX_PIPELINES,
    PIPELINES_TOPIC,
    PipelineReport,
    read_report,
)

from ..frame import shapes
from ..frame.call import Call, Json, Reply, Route
from ..routes.clusters import CLUSTER

_PATH: Final = ("barnabas", "pipelines")


async def _list(call: Call) -> Reply:
    found: tuple[PipelineReport, ...] = ()
    if PIPELINES_TOPIC in call.image.topics:

        async def read(admin: Admin) -> tuple[PipelineReport, ...]:
            return await newest_reports(admin, PIPELINES_TOPIC, read_report)

        async with call.reads:
            found = await call.ask(read)
    now_ms = int(time.time() * 1_000)
    shown = sorted(found, key=lambda report: report.pipeline)[:MAX_PIPELINES]
    return call.listed("BarnabasPipelineList", _PATH, [_row(call, report, now_ms) for report in shown])


def _row(call: Call, report: PipelineReport, now_ms: int) -> Json:
    fields = {name: value for name, value in structs.asdict(report).items() if name != "interval_ms"}
    return call.item(
        "BarnabasPipeline",
        _PATH,
        {
            **fields,
            "silent": report.is_silent(now_ms),
            "watermark": report.watermark or None,
            "last_batch_ms": report.last_batch_ms or None,
            "last_error": report.last_error or None,
        },
    )


_PIPELINE: Final = shapes.item(
    "BarnabasPipeline",
    shapes.text("pipeline", "Its name."),
    shapes.text("state", "running, restarting, stopped, finished or failed, as it has told at `at_ms`."),
    shapes.flag(
        "silent", "It should have reported since: its process or machine has died, or does not reach the brokers."
    ),
    shapes.whole("at_ms", "When it reported, milliseconds since 1970, by its own clock."),
    shapes.whole("since_ms", "Since when it is in this state."),
    shapes.text("machine", "Where `barnabas pipeline run` is."),
    shapes.whole("restarts", "Starts of the driver after a failure, since `run`."),
    shapes.whole("batches", "Micro-batches that are written, since the last reset."),
    shapes.whole("records", "Records that were read, since the last reset."),
    shapes.whole("bad_records", "Records that did not fit their format, since the last reset."),
    shapes.whole("rows", "Rows that were given to the sink, since the last reset."),
    shapes.number("records_per_s", "Records, between the last two reports. null: there was one.", null=True),
    shapes.number("rows_per_s", "Rows, between the last two reports. null: there was one.", null=True),
    shapes.whole("lag", "Records of the topics that are not read yet. null: the source does not say.", null=True),
    shapes.text("watermark", "How far windows are complete. null: none.", null=True),
    shapes.whole("state_rows", "Rows in the state of windows, joins and aggregations."),
    shapes.whole("state_bytes", "Memory that this state takes, as Spark estimates it."),
    shapes.whole("last_batch_ms", "When the last micro-batch was written. null: none.", null=True),
    shapes.text("last_error", "Why its driver failed last; may quote a record. null: it did not.", null=True),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{CLUSTER}/barnabas/pipelines",
        handler=_list,
        summary="Pipelines on Spark, as each has reported last",
        answer=shapes.listed("BarnabasPipelineList", _PIPELINE),
    ),
)
