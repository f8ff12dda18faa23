"""`StatusReporter`: tells the cluster how a pipeline is, for consoles and `barnabas pipeline list`.

It does not disturb the pipeline. It reads what `status` reads, so it tells of a driver that hangs, too.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.programs.copying.reporting import ReportSender, reporting
from barnabas.net.programs.pipeline.state import RunProgress, RunState, StateFolder

from ...client.positions.pipeline_reports import (
    MAX_ERROR_CHARS,
    PIPELINES_TOPIC,
    PIPELINES_TOPIC_CONFIGS,
    PipelineReport,
)

logger = logging.getLogger("barnabas.pipeline")

INTERVAL_S: Final = 10.0
LOOK_S: Final = 1.0  # at the state
LIMIT_S: Final = 30.0  # for one report


class StatusReporter:
    def __init__(
        self,
        *,
        pipeline: str,
        folder: StateFolder,
        bootstrap: str,
        security: Mapping[str, Any],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._pipeline = pipeline
        self._folder = folder
        self._sender = ReportSender(
            topic=PIPELINES_TOPIC,
            configs=PIPELINES_TOPIC_CONFIGS,
            client_id="barnabas-pipeline",
            bootstrap=bootstrap,
            security=security,
        )
        self._interval_s = interval_s
        self._before: PipelineReport | None = None
        self._last_reason = ""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Report while the context is open, and once more at its end."""
        return reporting(self._run(), self._report)

    async def _run(self) -> None:
        """A new state is told at once: the file may be that of the run before while this one begins."""
        told, due_s = None, 0.0
        while True:
            state = self._folder.read_run()
            if state != told or time.monotonic() >= due_s:
                told, due_s = state, time.monotonic() + self._interval_s
                await self._report()
            await asyncio.sleep(min(LOOK_S, self._interval_s))

    async def _report(self) -> None:
        """A cluster that does not take it, for want of permissions too, is told once in the log."""
        state, reason = self._folder.read_run(), ""
        if state is None:
            return  # the first driver is about to start
        report = report_of(
            self._pipeline, state, self._folder.read_progress(), self._before, int(self._interval_s * 1_000)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._send(report)
            self._before = report
        except (BarnabasError, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
        if reason and reason != self._last_reason:
            logger.info("status not reported topic=%s reason=%s", PIPELINES_TOPIC, reason)
        self._last_reason = reason

    async def _send(self, report: PipelineReport) -> None:
        await self._sender.send(report.pipeline, report)


def report_of(
    pipeline: str, state: RunState, progress: RunProgress, before: PipelineReport | None, interval_ms: int
) -> PipelineReport:
    now_ms = int(time.time() * 1_000)
    rates: dict[str, float] = {}
    if before is not None and now_ms > before.at_ms and progress.batches >= before.batches:
        seconds = (now_ms - before.at_ms) / 1_000
        rates["records_per_s"] = round(max(0, progress.records - before.records) / seconds, 1)
        rates["rows_per_s"] = round(max(0, progress.rows - before.rows) / seconds, 1)
    return PipelineReport(
        pipeline=pipeline,
        state=state.state,
        at_ms=now_ms,
        interval_ms=interval_ms,
        since_ms=state.since_ms,
        machine=socket.gethostname(),
        restarts=state.restarts,
        batches=progress.batches,
        records=progress.records,
        bad_records=progress.bad_records,
        rows=progress.rows,
        lag=progress.lag,
        watermark=progress.watermark,
        state_rows=progress.state_rows,
        state_bytes=progress.state_bytes,
        last_batch_ms=progress.last_batch_ms,
        last_error=state.last_error[:MAX_ERROR_CHARS],
        **rates,
    )
