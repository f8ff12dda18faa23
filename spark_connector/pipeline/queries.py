"""`Job`: the queries of a pipeline: they are started, their progress is noted, and they are stopped between micro-batches."""

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.net.programs.pipeline.sink_parsing import Sink
from barnabas.net.programs.pipeline.spec import (
    IcebergSink,
    ParquetSink,
    PipelineSpec,
    TableSink,
    TopicSink,
    TopicSource,
)
from barnabas.net.programs.pipeline.state import RunProgress

from ..read.offsets import records_behind
from .faults import PipelineFault
from .sinks import WriteBatch, batch_writer, claim_stream_folder, exists, topic_writer
from .sources import Opened, World, check_topics, open_source
from .steps import run_steps

POLL_S: Final = 1  # between two looks at the queries
STOP_WAIT_S: Final = 60.0  # for a micro-batch to end; then it is interrupted, and repeated by the next run
METRICS_WAIT_S: Final = 5.0  # for the metrics of a batch that has ended
RESULT: Final = "result"  # the name of the metrics of the result
MAIN: Final = "main"  # the query to the sink; the others send dead letters


class Stopped(Exception):
    """A micro-batch was about to begin after a stop was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    name: str
    query: StreamingQuery


class Job:
    def __init__(self, world: World, spec: PipelineSpec, *, is_stopped: Callable[[], bool]) -> None:
        self._world = world
        self._spec = spec
        self._is_stopped = is_stopped
        self._sink_id = f"{spec.name}-{world.state.generation()}"
        self._opened = self._open()
        rows = {name: item.rows for name, item in self._opened.items()}
        self._result = run_steps(world.spark, rows, spec.steps, world.base, is_remote=world.is_remote)
        self._write = batch_writer(world, spec, self._result)

    def _open(self) -> dict[str, Opened]:
        found = {}
        for source in self._spec.sources:
            found[source.name] = open_source(self._world, source, self._spec.errors, self._spec.name)
        for topic in (self._spec.errors.topic, getattr(self._spec.sink, "topic", "")):
            if topic:
                check_topics(self._world, TopicSource(topics=(topic,)))
        return found

    # --- plan ---------------------------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Sources with their columns, the columns of the result, the sink, and Spark's plan, on stdout."""
        for name, opened in self._opened.items():
            print_line(f"source {name}")
            print_line(_columns(opened.rows))
        print_line(f"result ({self._spec.output_mode})")
        print_line(_columns(self._result))
        print_line(f"sink {without_secrets(self._spec.sink)}")
        print_line(f"errors {self._spec.errors.action} {self._spec.errors.topic}".rstrip())
        if self._result.isStreaming and self._world.is_remote:
            print_line("(a Spark Connect server does not show the plan of a stream)")
        elif self._result.isStreaming:  # Spark makes the physical plan of a stream with its first micro-batch
            print_line("== Analyzed Logical Plan ==")
            print_line(self._result._jdf.queryExecution().analyzed().treeString())
        else:
            self._result.explain()
        sys.stdout.flush()

    # --- run ----------------------------------------------------------------------------------------------------------

    def run(self, *, is_once: bool) -> None:
        if self._spec.is_batch:
            self._run_batch()
            return
        self._require_checkpoint()
        running = [self._start(MAIN, self._result, self._write, is_once=is_once)]
        for name, opened in self._opened.items():
            if opened.dead_letters is not None:
                write = self._dead_letter_writer(name)
                running.append(self._start(f"dead-letters-{name}", opened.dead_letters, write, is_once=is_once))
        self._follow(running)

    def _run_batch(self) -> None:
        """A batch has one number, so a driver that starts again after a crash writes nothing twice."""
        assert self._write is not None, "only Parquet as a stream is written by Spark itself"
        if self._world.state.read_progress().batches:
            return
        for name, opened in self._opened.items():
            if opened.dead_letters is not None:
                self._dead_letter_writer(name)(opened.dead_letters, 0)
        rows = Observation(RESULT)
        self._write(self._result.observe(rows, F.count(F.lit(1)).alias("rows")), 0)
        seen = {name: _observed(item.seen) for name, item in self._opened.items() if item.seen is not None}
        progress = RunProgress(
            batches=1,
            last_batch_id=0,
            records=sum(item.get("records", 0) for item in seen.values()),
            bad_records=sum(item.get("bad", 0) for item in seen.values()),
            rows=_observed(rows).get("rows", 0),
            last_batch_ms=_now_ms(),
        )
        self._world.state.write_progress(progress)

    def _dead_letter_writer(self, source: str) -> WriteBatch:
        sink = TopicSink(topic=self._spec.errors.topic, is_records=True)
        return topic_writer(self._world, sink, f"{self._sink_id}-dead-{source}", lambda records: records)

    def _start(self, name: str, rows: DataFrame, write: WriteBatch | None, *, is_once: bool) -> _Running:
        counted = rows.observe(RESULT, F.count(F.lit(1)).alias("rows")) if name == MAIN else rows
        mode = self._spec.output_mode if name == MAIN else "append"
        writer: Any = counted.writeStream.queryName(name).outputMode(mode)
        writer = writer.option("checkpointLocation", self._checkpoint(name))
        sink = self._spec.sink
        if write is not None:
            writer = writer.foreachBatch(write if self._world.is_remote else self._unless_stopped(write))
        else:
            assert isinstance(sink, ParquetSink)
            writer = writer.format("parquet").option("path", self._world.path(sink.folder))
            writer = writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
        if is_once:
            writer = writer.trigger(availableNow=True)
        elif self._spec.trigger:
            writer = writer.trigger(processingTime=self._spec.trigger)
        return _Running(name=name, query=writer.start())

    def _checkpoint(self, name: str) -> str:
        """Under the generation, so that a reset begins a new one, also where this process cannot remove the old one."""
        if not self._spec.checkpoint:
            return str(self._world.state.checkpoint / name)
        return f"{self._world.path(self._spec.checkpoint)}/{self._sink_id}/{name}"

    def _require_checkpoint(self) -> None:
        """Without it, Spark would count micro-batches from 0 again, and the sink would leave out new rows as written already. It
        may be removed, or the file has another mode or place of it. Raises PipelineFault."""
        checkpoint, progress = self._checkpoint(MAIN), self._world.state.read_progress()
        if progress.batches and not exists(self._world, f"{checkpoint}/offsets"):
            raise PipelineFault(
                f"there is no checkpoint {checkpoint}, but {progress.batches} micro-batches are written: restore it, or"
                " `barnabas pipeline reset` first, to write all rows again"
            )
        if isinstance(self._spec.sink, ParquetSink):
            claim_stream_folder(self._world, self._spec.sink, checkpoint)

    def _unless_stopped(self, write: WriteBatch) -> WriteBatch:
        """A micro-batch that was planned after the stop is not begun; the next run repeats its plan."""

        def checked(batch: DataFrame, batch_id: int) -> None:
            if self._is_stopped():
                raise Stopped
            write(batch, batch_id)

        return checked

    # --- while they run -----------------------------------------------------------------------------------------------

    def _follow(self, running: list[_Running]) -> None:
        """Until all queries have ended. Raises what a query has died of; the others are stopped first."""
        stop_at_s, batches_at_stop = 0.0, 0
        while not any(item.query.exception() for item in running):
            active = [item for item in running if item.query.isActive]
            if not active:
                break
            with suppress(StreamingQueryException):  # which `exception` has, too
                active[0].query.awaitTermination(POLL_S)
            self._note(running)
            if self._is_stopped():
                batches = self._world.state.read_progress().batches
                if not stop_at_s:
                    stop_at_s, batches_at_stop = time.monotonic() + STOP_WAIT_S, batches
                # A writer in a Spark Connect server cannot refuse the next micro-batch: it is interrupted, and repeated.
                is_next = self._world.is_remote and batches > batches_at_stop
                _stop_idle(active, is_late=is_next or time.monotonic() > stop_at_s)
        for item in running:
            item.query.stop()
        self._note(running)
        for item in running:
            error = item.query.exception()
            if error is not None and not self._is_stopped():
                raise error

    def _note(self, running: list[_Running]) -> None:
        """Add the micro-batches that have ended since the last look."""
        before = progress = self._world.state.read_progress()
        for item in running[0].query.recentProgress:
            progress = noted(progress, in_full(json.loads(item.json)))
        if progress != before:
            self._world.state.write_progress(progress)


def _stop_idle(active: list[_Running], *, is_late: bool) -> None:
    """A micro-batch that is running ends first; the writer refuses the one behind it. Parquet as a stream has no writer: there
    the one behind it may be interrupted, which leaves nothing that a reader sees."""
    for item in active:
        status = item.query.status
        if is_late or not (status["isTriggerActive"] and status["isDataAvailable"]):
            item.query.stop()


def in_full(report: dict[str, Any]) -> dict[str, Any]:
    """A report as Spark writes it. A Spark Connect server leaves out a sum, and has offsets as text, and metrics as rows."""
    for source in report["sources"]:
        for name in ("endOffset", "latestOffset"):
            if isinstance(text := source.get(name), str) and text.startswith("{"):
                source[name] = json.loads(text)
    report.setdefault("numInputRows", sum(source["numInputRows"] for source in report["sources"]))
    metrics = report.get("observedMetrics", {})
    for name, row in metrics.items():
        if "schema" in row:
            metrics[name] = {
                field["name"]: value for field, value in zip(row["schema"]["fields"], row["values"], strict=True)
            }
    return report


def noted(before: RunProgress, report: Mapping[str, Any]) -> RunProgress:
    """The progress with one of Spark's reports. Idle queries report, too, with the number of the micro-batch to come."""
    behind = [_behind(source) for source in report["sources"]]
    known = [item for item in behind if item is not None]
    after = msgspec.structs.replace(
        before,
        lag=sum(known) if known else before.lag,
        watermark=report.get("eventTime", {}).get("watermark", before.watermark),
    )
    if operators := report.get("stateOperators"):
        after = msgspec.structs.replace(
            after,
            state_rows=sum(item["numRowsTotal"] for item in operators),
            state_bytes=sum(item["memoryUsedBytes"] for item in operators),
        )
    if "addBatch" not in report["durationMs"] or report["batchId"] <= before.last_batch_id:
        return after
    metrics = report.get("observedMetrics", {})
    return msgspec.structs.replace(
        after,
        batches=before.batches + 1,
        last_batch_id=report["batchId"],
        records=before.records + report["numInputRows"],
        bad_records=before.bad_records + sum(item["bad"] for item in metrics.values() if "bad" in item),
        rows=before.rows + metrics.get(RESULT, {}).get("rows", 0),
        last_batch_ms=_now_ms(),
    )


def _behind(source: Mapping[str, Any]) -> int | None:
    """The lag of a topic; None for files, and before the first micro-batch. `records_behind` reads the offsets as text."""
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if not isinstance(end, dict) or not isinstance(latest, dict) or "offsets" not in end:
        return None
    return sum(records_behind(json.dumps(end), json.dumps(latest)).values())


def _observed(observation: Observation) -> Mapping[str, int]:
    """The metrics of a batch. Waiting for them has an end: a batch that is written already is not computed again."""
    found: dict[str, int] = {}
    reader = threading.Thread(target=lambda: found.update(observation.get), daemon=True)
    reader.start()
    reader.join(METRICS_WAIT_S)
    return found


def without_secrets(sink: Sink) -> Sink:
    """The connection of a database may contain a password."""
    if isinstance(sink, IcebergSink):
        return replace(sink, catalog="..." if sink.catalog else "")
    return replace(sink, database="...") if isinstance(sink, TableSink) else sink


def _columns(rows: DataFrame) -> str:
    return "\n".join(f"  {field.name}: {field.dataType.simpleString()}" for field in rows.schema)


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _now_ms() -> int:
    return int(time.time() * 1_000)
