"""What a pipeline tells the cluster: the report of its state, and when it counts as silent."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.vocabulary.errors import TopicAuthorizationError
from barnabas.net.cli.pipeline.reporting import StatusReporter, report_of
from barnabas.net.client.positions.pipeline_reports import (
    MAX_ERROR_CHARS,
    PipelineReport,
    read_report,
)
from barnabas.net.client.positions.reports import encoded_report
from barnabas.net.programs.pipeline.state import RunProgress, RunState, StateFolder

RUNNING = RunState(state="running", restarts=1, since_ms=5, last_error="e" * 2_000)


def report(**fields: Any) -> PipelineReport:
    return PipelineReport(**{"pipeline": "p", "state": "running", "at_ms": 100_000, "interval_ms": 10_000, **fields})


@pytest.mark.parametrize(
    ("state", "now_ms", "is_silent"),
    [
        ("running", 140_000, False),
        ("running", 140_001, True),
        ("restarting", 140_001, True),
        ("stopped", 10_000_000, False),
        ("failed", 10_000_000, False),
    ],
)
def test_only_a_pipeline_that_should_report_is_silent(state: str, now_ms: int, is_silent: bool) -> None:
    assert report(state=state).is_silent(now_ms) is is_silent


def test_a_report_is_what_status_shows_and_its_error_is_cut() -> None:
    found = report_of("p", RUNNING, RunProgress(batches=3, records=10, rows=4, lag=None, state_rows=2), None, 10_000)
    assert (found.pipeline, found.state, found.restarts, found.rows, found.lag) == ("p", "running", 1, 4, None)
    assert found.rows_per_s is None and len(found.last_error) == MAX_ERROR_CHARS
    assert read_report(encoded_report(found)) == found


def test_rates_are_those_between_two_reports_and_begin_again_after_a_reset() -> None:
    before = report(at_ms=1, batches=3, records=10, rows=4)
    found = report_of("p", RUNNING, RunProgress(batches=5, records=10**15, rows=10**14), before, 10_000)
    assert found.records_per_s and found.rows_per_s and found.records_per_s > found.rows_per_s > 0
    again = report_of("p", RUNNING, RunProgress(batches=1, records=5), before, 10_000)
    assert again.records_per_s is None


@pytest.mark.parametrize(
    "value",
    [None, b"", b"no report", b'{"pipeline": "p"}', encoded_report(report(at_ms=10**15)), b'{"lag": -1}'],
)
def test_what_is_no_report_is_left_out(value: bytes | None) -> None:
    """Other programs may write to the topic."""
    assert read_report(value) is None


class Refused(StatusReporter):
    """By a cluster in which the pipeline may not write to the topic."""

    count = 0
    is_third: asyncio.Event

    async def _send(self, report: PipelineReport) -> None:
        self.count += 1
        if self.count == 3:
            self.is_third.set()
        raise TopicAuthorizationError("WRITE on topic barnabas-pipelines is not permitted")


async def test_a_refused_report_disturbs_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = StateFolder(tmp_path)
    folder.write_run(RUNNING)
    reporter = Refused(pipeline="p", folder=folder, bootstrap="x", security={}, interval_s=0)
    reporter.is_third = asyncio.Event()
    with caplog.at_level(logging.INFO, "barnabas.pipeline"):
        async with reporter.running():
            await reporter.is_third.wait()
    assert reporter.count > 3, "one at the end, too"
    assert len(caplog.records) == 1 and "WRITE on topic barnabas-pipelines" in caplog.text


class Counting(StatusReporter):
    """What it would send; `awaited` is set as soon as there are as many as the test waits for."""

    sent: list[PipelineReport]
    awaited: asyncio.Event
    wanted: int

    async def _send(self, report: PipelineReport) -> None:
        self.sent.append(report)
        if len(self.sent) >= self.wanted:
            self.awaited.set()


def counting(folder: StateFolder, *, wanted: int, interval_s: float) -> Counting:
    reporter = Counting(pipeline="p", folder=folder, bootstrap="x", security={}, interval_s=interval_s)
    reporter.sent, reporter.awaited, reporter.wanted = [], asyncio.Event(), wanted
    return reporter


async def test_a_new_state_is_told_before_the_next_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(tmp_path)
    folder.write_run(RUNNING)
    monkeypatch.setattr("barnabas.net.cli.pipeline.reporting.LOOK_S", 0.0)
    reporter = counting(folder, wanted=1, interval_s=3_600)
    async with reporter.running():
        await reporter.awaited.wait()
        reporter.awaited.clear()
        reporter.wanted = 2
        folder.write_run(RunState(state="restarting", restarts=2))
        async with asyncio.timeout(30):
            await reporter.awaited.wait()
    assert [report.state for report in reporter.sent] == ["running", "restarting", "restarting"]


async def test_rates_are_since_the_report_before(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.write_run(RUNNING)
    reporter = counting(folder, wanted=3, interval_s=0.005)  # a clock of milliseconds moves between two
    async with reporter.running():
        await reporter.awaited.wait()
        folder.write_progress(RunProgress(batches=1, records=10**12, rows=10**12))
        reporter.awaited.clear()
        reporter.wanted = len(reporter.sent) + 6
        await reporter.awaited.wait()
    rates = [report.rows_per_s for report in reporter.sent]
    assert rates[0] is None and sum(bool(rate) for rate in rates) == 1, "the rows came between two of the reports"
