"""`TopicScan`: fetched batches of many ranges, a few partitions at a time, ahead of the reader and within bounds.

For tables of a whole topic. The caller decodes in its own thread, while the next chunks are in flight: at most
MAX_PARTITIONS_AT_A_TIME + 1 chunks of MAX_CHUNK_BYTES are in memory.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from barnabas.log.records.columns import Columns
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import READ_COMMITTED

from ..connection.client import Client
from ..connection.errors import OffsetOutOfRangeError
from ..positions.offset_lookup import EARLIEST, list_offsets
from .range_reader import Chunk, RangeReader, columns_of
from .table_range import RecordRange, TableQuery

MAX_CHUNK_BYTES = 8 << 20  # Larger ones leave the caches of the CPU between fetching and decoding.
MAX_PARTITIONS_AT_A_TIME = 4  # Several leaders work at the same time; more would only take memory.
MAX_DECODED_BYTES = 64 << 20  # Of one record batch. Compressed batches may be many times larger in memory.
MAX_UNEXPLAINED = 5  # Refusals of an offset that is within the log, as during a leader change.


class Part(NamedTuple):
    """Whole batches of one partition; the records before `end` are wanted."""

    partition: TopicPartition
    chunk: Chunk
    end: int

    def columns(self) -> Iterator[Columns]:
        """Decoded, in pieces. Raises UnreadableBatchError after the records before a damaged batch."""
        return columns_of(self.partition, self.chunk, end=self.end, max_bytes=MAX_DECODED_BYTES)


class TopicScan:
    """Used on one event loop."""

    def __init__(self, client: Client, query: TableQuery, ranges: Iterable[RecordRange]) -> None:
        """The timeout of the query bounds the time of one chunk, including retries."""
        self._client = client
        self._isolation_level = query.isolation_level
        self._timeout_ms = query.timeout_ms
        self._waiting = deque(item for item in ranges if item.start < item.end)
        self._open: deque[tuple[RangeReader, asyncio.Task[Chunk | None]]] = deque()

    @classmethod
    async def of(cls, client: Client, query: TableQuery) -> Self:
        """Of the ranges that the query has now."""
        return cls(client, query, await query.ranges(client))

    async def next_part(self) -> Part | None:
        """The next chunk, of the partitions in turn; None at the end of all ranges.

        Raises OffsetOutOfRangeError if records were deleted before they were read, and what `RangeReader` raises:
        TopicRecreatedError, for example.
        """
        while self._waiting and len(self._open) < MAX_PARTITIONS_AT_A_TIME:
            self._begin(self._reader(self._waiting.popleft()))
        while self._open:
            reader, task = self._open.popleft()
            chunk = await task
            if chunk is not None:
                self._begin(reader)
                return Part(reader.partition, chunk, reader.end)
            if self._waiting:
                self._begin(self._reader(self._waiting.popleft()))
        return None

    async def close(self) -> None:
        tasks = [task for _, task in self._open]
        self._open.clear()
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, reader: RangeReader) -> None:
        task = asyncio.create_task(self._chunk(reader), name=f"barnabas-scan-{reader.partition}")
        self._open.append((reader, task))

    def _reader(self, item: RecordRange) -> RangeReader:
        return RangeReader(
            self._client,
            item.partition,
            start=item.start,
            end=item.end,
            max_bytes=MAX_CHUNK_BYTES,
            is_committed_only=self._isolation_level == READ_COMMITTED,
            topic_id=item.topic_id,
            timeout_ms=self._timeout_ms,
        )

    async def _chunk(self, reader: RangeReader) -> Chunk | None:
        unexplained = 0
        while True:
            try:
                return await reader.next_chunk()
            except OffsetOutOfRangeError as error:
                found = await list_offsets(self._client, {reader.partition: EARLIEST}, timeout_ms=self._timeout_ms)
                log_start_offset, topic_id = found[reader.partition].offset, found[reader.partition].topic_id
                if log_start_offset > reader.position and topic_id == reader.topic_id:
                    raise OffsetOutOfRangeError(
                        f"offsets {reader.position} to {log_start_offset - 1} of {reader.partition} were deleted before they "
                        "were read: start again, or raise the retention of the topic"
                    ) from error
                unexplained += 1
                if unexplained > MAX_UNEXPLAINED:
                    raise
