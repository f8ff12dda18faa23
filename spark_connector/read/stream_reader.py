"""`StreamReader`: spark.readStream. One process per query plans all batches; the reader is pickled into the tasks, which read.

Spark calls `latestOffset` every few milliseconds. Without new records the result is delayed for up to `LONG_POLL_MS`, while one
fetch waits at each leader (`EndWatch`); with new records it returns immediately. The client does the retries: an exception from
this module ends the query.
"""

import logging
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pyarrow
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import BarnabasError, TopicRecreatedError
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.net.client.connection.records import OffsetAndMetadata
from barnabas.net.client.consumer.end_watch import EndWatch
from barnabas.net.client.group.group_offsets import commit_offsets

from ..common.connection import shared_client
from ..common.query_process import stop_on_sigterm
from .boundaries import Boundaries
from .data_loss import DataLossError
from .offsets import StreamOffset, ranges_between, split
from .read_options import ReadOptions
from .read_task import RangePartition, ReadTask, read_partition
from .stream_planner import LogEnds, StreamPlanner

logger = logging.getLogger("barnabas.spark")
T = TypeVar("T")

LONG_POLL_MS = 250  # Spark asks the sources of a query one after another: none may delay the others for long.
GATHER_MS = 50  # A query that waits for a number of records need not check after each of them.
ROUND_MS = 3_000  # For one request of log ends to all leaders; the next round leaves out topics deleted meanwhile.
PUBLISH_AGAIN_AFTER_MS = 10_000
PUBLISH_TIMEOUT_MS = (
    2_000  # The group's offsets only serve monitoring of the lag; the query does not wait longer for their commit.
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._task = ReadTask.of(options)
        self._driver: _Driver | None = None  # Only where the query is planned.

    # --- in the query's own process ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._planning().initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark passes this to `latestOffset`, unless the trigger reads everything; the limits are taken from the options."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planning().stop_at_ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._planning().latest_offset(StreamOffset.from_json(start), is_limited=is_limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planning().newest_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._planning().check_topics(until)
        pieces = split(
            ranges_between(begin, until),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [RangePartition(piece, until.topic_ids[piece.partition.topic]) for piece in pieces]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint has the offset. Lag is published earlier, when Spark asks for the next batch."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _planning(self) -> "_Driver":
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    # --- in tasks ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_partition(self._task, partition, self._schema)


class _Driver:
    """A running query's view of the cluster."""

    def __init__(self, options: ReadOptions) -> None:
        stop_on_sigterm()
        self._options = options
        self._loop: LoopThread
        self._client: Client
        self._loop, self._client = shared_client(options.client)
        self._boundaries = Boundaries(self._client, options)
        self._planner = StreamPlanner(options)
        self._watch = self._call(self._new_watch())
        self._initial: StreamOffset | None = None
        self._is_subscribed = False
        self._found: LogEnds | None = None
        self._published: StreamOffset | None = None
        self._publish_at_ms = 0.0

    async def _new_watch(self) -> EndWatch:
        return EndWatch(self._client, is_committed_only=self._options.fetch.is_committed_only)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.call(coroutine)

    def close(self) -> None:
        self._call(self._watch.close())

    # --- offsets -----------------------------------------------------------------------------------------------------

    def initial_offset(self) -> StreamOffset:
        """Spark calls this twice; "latest" must not change in between."""
        if self._initial is None:
            self._initial = self._call(self._boundaries.start())
            self._is_subscribed = True
        return self._initial

    def stop_at_ends(self) -> None:
        self._planner.stop_at(self._call(self._log_ends()))

    def latest_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        self._publish(start)
        deadline_ms = _now_ms() + LONG_POLL_MS
        while True:
            found = self._planner.target or self._call(self._log_ends())
            plan = self._planner.next_end(start, found, _now_ms(), is_limited=is_limited)
            for lost in plan.lost:
                self._tell(lost)
            remaining_ms = deadline_ms - _now_ms()
            if plan.end != start or self._planner.target is not None or remaining_ms <= 0:
                return plan.end
            has_news = self._call(self._watch.wait(found.ends, timeout_ms=remaining_ms))
            if has_news and self._options.min_offsets_per_trigger is not None:
                time.sleep(min(remaining_ms, GATHER_MS) / 1000)

    def newest_offset(self) -> dict[str, Any] | None:
        """For progress reports: the position of a query without lag."""
        if self._found is None:
            return None
        return StreamOffset(offsets=self._found.ends, topic_ids=self._found.topic_ids).to_json()

    async def _subscribe(self) -> None:
        """After a restart Spark does not ask for the start. A topic deleted meanwhile is data loss, not a wrong option."""
        if not self._is_subscribed:
            await self._boundaries.partitions(needs_all=self._options.fails_on_data_loss)
            self._is_subscribed = True

    async def _log_ends(self) -> LogEnds:
        """Raises the last error if the leaders could not be reached within default.api.timeout.ms."""
        await self._subscribe()
        deadline_ms = _now_ms() + self._options.client.api_timeout_ms
        while True:
            partitions = self._boundaries.known_partitions()
            try:
                ends, topic_ids = await self._watch.ends(partitions, timeout_ms=ROUND_MS)
            except BarnabasError as error:
                # After a topic was created again, the next answers are of one topic.
                may_pass = error.retriable or isinstance(error, TopicRecreatedError)
                if not may_pass or _now_ms() > deadline_ms:
                    raise
            else:
                self._found = LogEnds(ends=ends, topic_ids=topic_ids)
                return self._found

    # --- what is lost ------------------------------------------------------------------------------------------------

    def check_topics(self, end: StreamOffset) -> None:
        """A batch that is repeated after a restart must not read another topic with the same name."""
        self._call(self._subscribe())
        for topic, topic_id in sorted(end.topic_ids.items()):
            now = self._client.metadata.topic_id(topic)
            if now and now != topic_id:
                self._tell(f"topic {topic} was deleted and recreated since this batch was planned")

    def _tell(self, lost: str) -> None:
        if self._options.fails_on_data_loss:
            raise DataLossError(lost)
        logger.warning("%s", lost)

    # --- lag ---------------------------------------------------------------------------------------------------------

    def _publish(self, done: StreamOffset) -> None:
        """Spark asks for offsets after `done` when it has processed all before: commit `done` for monitoring of the group."""
        if self._options.group_id is None or done.initial is None or done == self._published:
            return
        if _now_ms() < self._publish_at_ms:
            return  # A recent attempt failed: the query has priority.
        offsets = {partition: OffsetAndMetadata(offset) for partition, offset in done.offsets.items()}
        try:
            self._call(commit_offsets(self._client, self._options.group_id, offsets, timeout_ms=PUBLISH_TIMEOUT_MS))
        except BarnabasError as error:
            logger.warning("lag not published group=%s reason=%s", self._options.group_id, error.message)
            self._publish_at_ms = _now_ms() + PUBLISH_AGAIN_AFTER_MS
        else:
            self._published = done


def _now_ms() -> float:
    return time.monotonic() * 1000
