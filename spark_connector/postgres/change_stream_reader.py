"""`ChangeStreamReader`: readStream of the format "postgres-changes".

The query's own process captures changes into a spool, with the source connector of `barnabas connect`; a micro-batch is a range
of its segments, which tasks read. Spark repeats a micro-batch after a crash by its numbers, and the segments are still there:
they are released, and the server may discard its log before them, only after Spark has committed the micro-batch.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import psycopg
import pyarrow
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from barnabas.net.client.connection.loop_thread import loop_thread
from barnabas.net.programs.connect.postgres.catalog import log_end
from barnabas.net.programs.connect.postgres.changes.faults import ConnectorError
from barnabas.net.programs.connect.postgres.segment import RESET, SpoolError, read_segment
from barnabas.net.programs.connect.postgres.server import close, connect, first_line
from barnabas.net.programs.connect.postgres.source import run_source
from barnabas.net.programs.connect.postgres.spool import Spool

from ..common.query_process import stop_on_sigterm
from .change_columns import batches_of
from .change_options import ChangeOptions

FORMAT_VERSION = 1
LONG_POLL_S = 0.25  # Spark asks the sources of a query one after another
NO_LIMIT = 1 << 62
TASK_CHANGES = 20_000  # of a task, unless a single segment has more
# A server that lost the machine of the last driver frees the slot after wal_sender_timeout, 60 s by default.
SLOT_PATIENCE_S = 120.0


class SegmentPartition(InputPartition):
    """Segments for one task, in their order."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOffset:
    """Everything up to this segment; as Spark keeps it in the checkpoint."""

    spool: str
    segment: int

    def to_json(self) -> dict[str, Any]:
        return {"version": FORMAT_VERSION, "spool": self.spool, "segment": self.segment}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "SpoolOffset":
        if found.get("version") != FORMAT_VERSION:
            raise SpoolError(
                f"the checkpoint has an offset {str(found)[:200]} that this version of the format does not know: use the"
                " checkpoint of the same source, or a new checkpointLocation and a new spoolLocation"
            )
        return cls(spool=str(found["spool"]), segment=int(found["segment"]))


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._capture: _Capture | None = None  # only where the query is planned

    # --- in the query's own process ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._capturing().first_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_changes
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._capturing().stop_at_log_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = self._options.max_changes
        is_limited = most is not None and not isinstance(limit, ReadAllAvailable)
        found = self._capturing().next_offset(SpoolOffset.from_json(start), most if is_limited and most else NO_LIMIT)
        return found.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = SpoolOffset.from_json(start), SpoolOffset.from_json(end)
        return [SegmentPartition(numbers) for numbers in self._capturing().tasks(begin, until)]

    def commit(self, end: dict[str, Any]) -> None:
        self._capturing().release(SpoolOffset.from_json(end))

    def stop(self) -> None:
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    def _capturing(self) -> "_Capture":
        if self._capture is None:
            self._capture = _Capture(self._options)
        return self._capture

    # --- in tasks ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """For a query with nothing to read, Spark passes a partition of its own type."""
        if isinstance(partition, SegmentPartition):
            segments = (read_segment(self._options.spool, number) for number in partition.numbers)
            yield from batches_of(chain.from_iterable(segments), self._schema)


class _Capture:
    """The source connector that runs beside the query, and the spool between them."""

    def __init__(self, options: ChangeOptions) -> None:
        """Raises ConnectorError."""
        stop_on_sigterm()
        self._options = options
        self._loop = loop_thread()
        self._spool = self._loop.call(self._opened())
        self._source: asyncio.Task[None] | None = None
        self._target_lsn: int | None = None  # Trigger.AvailableNow ends there
        self._last: int | None = None  # the segment that has it

    async def _opened(self) -> Spool:
        spool = Spool(self._options.spool, max_bytes=self._options.max_spool_bytes)
        await spool.open()
        return spool

    def _begin(self) -> None:
        """Capture, after the check that the folder is that of the checkpoint. In a wrong folder, a source would move the slot
        that the right folder needs, and write segments with the numbers that the checkpoint waits for."""
        if self._source is None:
            self._source = self._loop.call(self._begun())

    async def _begun(self) -> "asyncio.Task[None]":
        source = run_source(
            self._options.settings,
            lambda: self._spool,
            slot_patience_s=SLOT_PATIENCE_S,
            required=self._options.required_columns,
        )
        return asyncio.create_task(source)

    def close(self) -> None:
        self._loop.call(self._ended())

    async def _ended(self) -> None:
        if self._source is not None:
            self._source.cancel()
            await asyncio.wait([self._source])
        await self._spool.shut()

    def first_offset(self) -> SpoolOffset:
        """Raises SpoolError if the folder has served a query that has gone further than its first micro-batch."""
        if self._spool.released:
            raise SpoolError(
                f"{self._options.spool} was read by a query with another checkpoint, up to segment {self._spool.released}: use"
                " that checkpointLocation, or give this query a spoolLocation and a slot of its own"
            )
        self._begin()
        return self._offset(0)

    def stop_at_log_end(self) -> None:
        self._target_lsn = self._loop.call(self._log_end())

    async def _log_end(self) -> int:
        try:
            connection = await connect(self._options.settings.dsn)
            try:
                return await log_end(connection)
            finally:
                await close(connection)
        except psycopg.Error as error:
            raise ConnectorError(f"the server of the dsn does not answer: {first_line(error)}") from error

    def next_offset(self, start: SpoolOffset, max_changes: int) -> SpoolOffset:
        """Spark asks for what comes after `start` when it has committed everything up to `start`."""
        self.release(start)
        self._begin()
        deadline_s = time.monotonic() + LONG_POLL_S
        while True:
            self._raise_error()
            if self._target_lsn is not None and self._last is None and self._spool.reached_lsn >= self._target_lsn:
                self._last = self._spool.newest
            found = self._spool.newest_within(start.segment, max_changes)
            if self._last is not None:
                return self._offset(max(start.segment, min(found, self._last)))
            if found > start.segment or (self._target_lsn is None and time.monotonic() >= deadline_s):
                return self._offset(found)
            self._loop.call(self._spool.wait(LONG_POLL_S))

    def _raise_error(self) -> None:
        """What has ended the connector ends the query."""
        if self._source is None or not self._source.done():
            return
        try:
            self._source.result()
        except ConnectorError as error:
            more = ""
            if RESET in error.message:
                more = (
                    f' (with format "postgres-changes", instead of `{RESET}`: stop the query, drop the slot, and start it with a'
                    " new spoolLocation and a new checkpointLocation)"
                )
            raise type(error)(error.message + more) from error

    def tasks(self, begin: SpoolOffset, until: SpoolOffset) -> list[list[int]]:
        """The segments of a micro-batch, by task: a busy database makes many small ones, and a task costs more than its reading.

        Raises SpoolError if segments of a micro-batch that is repeated are not there.
        """
        for place in (begin, until):  # a query that was killed in its first micro-batch has asked for a new `begin`
            self._spool.check(place.spool, place.segment)
        found: list[list[int]] = []
        records = TASK_CHANGES
        for segment in self._spool.segments(begin.segment, until.segment):
            if records + segment.records > TASK_CHANGES:
                found.append([])
                records = 0
            found[-1].append(segment.number)
            records += segment.records
        return found

    def release(self, done: SpoolOffset) -> None:
        """Raises SpoolError if this is not the folder of that place."""
        self._spool.check(done.spool, done.segment)
        self._loop.call(self._spool.release(done.segment))

    def _offset(self, segment: int) -> SpoolOffset:
        return SpoolOffset(spool=self._spool.id, segment=segment)
