"""`send_table`: the rows of an Arrow table as records, encoded from its columns: no record becomes a Python object.

A thread takes the next rows from the table, hashes keys and makes JSON, since that may take longer than the event loop can
wait; and a stream of `read_table` waits for the loop itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from barnabas.log.records.codec import Accumulator

from ..arrow.extra import require
from ..connection.errors import RecordTooLargeError
from .handles import BatchExtent, BatchHandles, extents
from .record_accumulator import RECORD_OVERHEAD, Batch
from .record_buffer import RecordBuffer, TopicQueues

if TYPE_CHECKING:  # needs pyarrow, of an extra
    from ..arrow.outgoing import Rows, TableColumns

ROW_NUMBER_BYTES = 8  # of an int64


class TableHandle:
    """Await it until all rows are acknowledged; it returns the batches that they went into. Raises the first error."""

    def __init__(self, handles: BatchHandles) -> None:
        self._handles = handles

    def __len__(self) -> int:
        """The number of records."""
        return len(self._handles)

    def __await__(self) -> Generator[Any, None, list[BatchExtent]]:
        return extents([self._handles]).__await__()


async def send_table(buffer: RecordBuffer, topic: str, table: Any, columns: Mapping[str, Any]) -> TableHandle:
    """`columns`: the arguments of `Producer.send_table`. Raises MissingExtraError, and what `send_rows` raises."""
    require("pyarrow", extra="arrow", feature="send_table")
    from ..arrow.outgoing import TableColumns

    state = buffer.topics.get(topic) or await buffer.learn(topic)
    return await send_rows(buffer, state, TableColumns(**columns), table)


async def send_rows(buffer: RecordBuffer, state: TopicQueues, columns: "TableColumns", table: Any) -> TableHandle:
    """Raises InvalidRequestError, RecordTooLargeError, BufferExhaustedError; rows before the error may be sent."""
    runs: list[tuple[Batch, int, int]] = []
    async with aclosing(_converted(state, columns, table)) as pieces:
        async for rows in pieces:
            if rows.largest_bytes + RECORD_OVERHEAD > buffer.max_record_bytes:
                raise RecordTooLargeError(
                    f"a row of about {rows.largest_bytes} bytes; at most {buffer.max_record_bytes} are taken"
                )
            for partition, numbers in rows.groups:
                runs += await _send_group(buffer, state, rows, partition, numbers)
    return TableHandle(BatchHandles(runs))


async def _converted(state: TopicQueues, columns: "TableColumns", table: Any) -> "AsyncGenerator[Rows, None]":
    pieces = await asyncio.to_thread(columns.pieces, table)

    def convert() -> "Rows | None":
        piece = next(pieces, None)
        return None if piece is None else columns.rows(piece, len(state.queues))

    while (rows := await asyncio.to_thread(convert)) is not None:
        yield rows


async def _send_group(
    buffer: RecordBuffer, state: TopicQueues, rows: "Rows", partition: int | None, numbers: memoryview | None
) -> list[tuple[Batch, int, int]]:
    runs: list[tuple[Batch, int, int]] = []
    start, count = 0, rows.count if numbers is None else numbers.nbytes // ROW_NUMBER_BYTES
    while start < count:
        stamp_ms = buffer.wall_ms
        queue = buffer.queue_for(state, None, partition)
        batch = Accumulator(queue.growth.whole_bytes(buffer.table_batch_bytes))
        taken = batch.extend_columns(
            rows.count,
            rows.values,
            rows.keys,
            rows.headers,
            stamp_ms if rows.timestamps_ms is None else rows.timestamps_ms,
            numbers,
            start,
        )
        sealed = batch.seal(buffer.compression)
        sent = buffer.put_encoded(queue, sealed, taken, stamp_ms)
        if sent is None:
            deadline_ms = buffer.block_deadline_ms
            while (sent := buffer.put_encoded(queue, sealed, taken, stamp_ms)) is None:
                await buffer.wait_for_room(deadline_ms)
        runs.append((sent, 0, taken))
        start += taken
        await buffer.ease(queue)
    return runs
