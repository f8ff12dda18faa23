"""`BatchWriter` and `StreamWriter`: df.write and df.writeStream.

Spark pickles the writer into every task, so tasks and commit of a batch writer share its id. Spark creates a new stream writer
for each micro-batch and another one for its commit: there the query's id comes with the tasks' reports.
"""

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence

import pyarrow
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.prepared import PreparedTransaction

from .sink_columns import check_columns
from .sink_commit import Probe, SinkCommitter, no_probe
from .sink_connection import shared_producer
from .sink_task import TaskReport, write_rows
from .task_transaction import SinkBatch, streamed_batch
from .write_options import WriteOptions

logger = logging.getLogger("barnabas.spark")

_committers: dict[Producer, SinkCommitter] = {}  # They live as long as the process, like its producers.
_lock = threading.Lock()


class BatchWriter(DataSourceArrowWriter):
    """Mode append only: a topic cannot be overwritten."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfigError(
                'a topic cannot be overwritten: use .mode("append"), or delete and create the topic'
            )
        check_columns(schema, topic=options.topic)
        self._options = options
        self._job_id = options.sink_id or f"job-{uuid.uuid4().hex}"
        if options.is_effectively_once and options.sink_id is None:
            loop, committer = _committer(options)
            loop.call(committer.open_job(self._job_id))

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskReport:
        is_once = self._options.is_effectively_once
        is_job = self._options.sink_id is None
        batch = SinkBatch(sink_id=self._job_id, batch_id=self._options.batch_id, is_job=is_job) if is_once else None
        return write_rows(self._options, iterator, batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.is_effectively_once:
            is_last = self._options.sink_id is None
            _commit(self._options, self._job_id, self._options.batch_id, _reports(messages), is_last=is_last)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Spark raises the error of the task that failed, or of the commit."""
        is_job = self._options.sink_id is None
        _abort(self._options, self._job_id, messages, is_job=is_job)


class StreamWriter(DataSourceStreamArrowWriter):
    """Output modes append and complete (the whole result with every micro-batch). Spark 4.3 refuses the mode update for Python
    sinks; use foreachBatch with the options sinkId and batchId for it.

    `probe` is called after each step of a commit; it must be picklable.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, probe: Probe = no_probe) -> None:
        check_columns(schema, topic=options.topic)
        self._options = options
        self._probe = probe

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskReport:
        batch = streamed_batch(self._options.sink_id) if self._options.is_effectively_once else None
        return write_rows(self._options, iterator, batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if not self._options.is_effectively_once:
            return
        reports = _reports(messages)
        sink_id = self._sink_id(reports)
        if sink_id is not None:  # Else there was no task, hence no row.
            _commit(self._options, sink_id, batchId, reports, probe=self._probe)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Spark also calls this after a failed commit; its decision may be valid, and the next run completes it."""
        sink_id = self._sink_id(_reports(messages))
        _abort(self._options, sink_id, messages, is_job=False)

    def _sink_id(self, reports: list[TaskReport]) -> str | None:
        return self._options.sink_id or next((item.query_id for item in reports if item.query_id), None)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [item for item in messages if isinstance(item, TaskReport)]


def _prepared(reports: list[TaskReport]) -> list[PreparedTransaction]:
    return [report.prepared for report in reports if report.prepared is not None]


def _abort(
    options: WriteOptions, sink_id: str | None, messages: Sequence[WriterCommitMessage | None], *, is_job: bool
) -> None:
    """Abort what the tasks have prepared, unless a commit may have decided it: with all reports here, one has been tried.
    `is_job`: no later driver does it, so this one does, also for tasks that were lost before their report."""
    reports = _reports(messages)
    if options.is_effectively_once:
        prepared = _prepared(reports)
        if sink_id is not None and (is_job or (prepared and len(reports) < len(messages))):
            loop, committer = _committer(options)
            loop.call(committer.abort(sink_id, prepared, is_job=is_job))
        return
    rows = sum(report.row_count for report in reports)
    if rows:
        logger.warning(
            "aborted, but %d rows of %d tasks are in their topics, and will be duplicated when this runs again "
            "(delivery=effectively_once prevents that)",
            rows,
            len(reports),
        )


def _commit(
    options: WriteOptions,
    sink_id: str,
    batch_id: int,
    reports: list[TaskReport],
    *,
    is_last: bool = False,
    probe: Probe = no_probe,
) -> None:
    loop, committer = _committer(options)
    loop.call(committer.commit(sink_id, batch_id, _prepared(reports), is_last=is_last, probe=probe))


def _committer(options: WriteOptions) -> tuple[LoopThread, SinkCommitter]:
    loop, client, producer = shared_producer(options.client, options.producer)
    with _lock:
        committer = _committers.get(producer)
        if committer is None:
            committer = SinkCommitter(client, producer, timeout_ms=options.client.api_timeout_ms)
            _committers[producer] = committer
    return loop, committer
