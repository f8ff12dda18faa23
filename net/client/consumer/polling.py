"""`Polling`: hands out records when the application asks for them, and carries a rebalance out then, never behind its back.

The rule that commits rest on stands in `reading`: what was handed out is done when the application asks for more. So one task at
a time may ask: of two, one would declare done what the other has in its hands.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ...base.clock import Clock
from ..connection.errors import BarnabasError, ConcurrentUseError, CorruptRecordError, InvalidRequestError
from ..connection.records import ConsumerRecord, RecordColumns
from ..group.rebalancing import Rebalancing
from ..group.session import Session
from ..positions.partition_state import Cursor, PartitionState
from ..positions.reading import Reading
from .consumer_config import MAX_POLL_RECORDS


class Polling:
    def __init__(
        self,
        reading: Reading,
        rebalancing: Rebalancing,
        clock: Clock,
        *,
        max_poll_interval_ms: int,
        session: Callable[[], Session | None],
        pump: Callable[[], None],
        wake: asyncio.Event,
    ) -> None:
        """`pump` has the fetcher look for room; `wake` is set when there is something to hand out or to carry out."""
        self._reading = reading
        self._rebalancing = rebalancing
        self._clock = clock
        self._max_poll_interval_ms = max_poll_interval_ms
        self._session = session
        self._pump = pump
        self._wake = wake
        self._is_asked = False  # A task waits in a call for records.
        self._is_closing = False  # No more records; what a listener does on the way out still works.
        self._error: BarnabasError | None = None  # For the application, at its next call.
        self._last_poll_ms = clock.now_ms()
        self._last_progress = -1

    async def poll(self, *, max_records: int, timeout_ms: float) -> dict[TopicPartition, list[ConsumerRecord]]:
        if max_records < 1:
            raise InvalidRequestError(f"max_records is {max_records}; a poll needs room for at least 1 record")
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        with self._asked():
            deadline_ms = self._begin(timeout_ms)
            while not found and (state := await self._next_state(deadline_ms)) is not None:
                left = max_records
                while state is not None and left > 0:
                    try:
                        records = state.take(left)
                    except CorruptRecordError:
                        if not found:
                            raise
                        break  # For the next call: what was taken already must not be lost to it.
                    if records:
                        found.setdefault(state.partition, []).extend(records)
                        left -= len(records)
                        self._reading.handed_out.append(state)
                    state = self._reading.next_ready()
        self._pump()
        return found

    async def poll_batch(self, *, timeout_ms: float) -> RecordColumns | None:
        with self._asked():
            deadline_ms = self._begin(timeout_ms)
            while (state := await self._next_state(deadline_ms)) is not None:
                columns = state.take_columns()
                self._pump()
                if len(columns):
                    self._reading.handed_out.append(state)
                    return columns
        return None

    async def walk_batch(self, *, timeout_ms: float) -> Iterator[ConsumerRecord]:
        cursor = self._reading.cursor
        if cursor is not None:
            if cursor.is_open:
                return cursor.iterator
            self._reading.cursor = None
            cursor.state.processed = cursor.state.position
        with self._asked():
            state = await self._next_state(self._begin(timeout_ms))
        if state is None:
            return iter(())
        cursor = self._reading.cursor = Cursor(state, state.take(MAX_POLL_RECORDS))
        self._pump()
        return cursor.iterator

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Nothing more is handed out; who waits for records gets none."""
        self._is_closing = True
        self._wake.set()

    def fail(self, error: BarnabasError) -> None:
        """The application learns it at its next call."""
        self._error = error
        self._wake.set()

    def raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def idle_ms(self) -> int:
        """Since the application last asked for records; a step of `async for` counts."""
        cursor = self._reading.cursor
        progress = -1 if cursor is None else cursor.position
        now_ms = self._clock.now_ms()
        if progress != self._last_progress:
            self._last_progress = progress
            self._last_poll_ms = now_ms
        return now_ms - self._last_poll_ms

    @contextmanager
    def _asked(self) -> Iterator[None]:
        if self._is_asked:
            raise ConcurrentUseError(
                "another call waits for records of this consumer: one task at a time may ask; make a consumer for each task"
            )
        self._is_asked = True
        try:
            yield
        finally:
            self._is_asked = False

    def _begin(self, timeout_ms: float) -> int:
        """What was handed out before is done with. Returns the deadline."""
        self._reading.finish_handed_out()
        if (session := self._session()) is not None:
            session.resume()
        return self._clock.now_ms() + int(timeout_ms)

    async def _next_state(self, deadline_ms: int) -> PartitionState | None:
        """Wait for a partition with records. None when the time is over or the consumer is closed."""
        while not self._is_closing:
            now_ms = self._last_poll_ms = self._clock.now_ms()
            self.raise_error()
            session = self._session()
            if session is not None and not await self._rebalancing.reconcile(
                session, patience_ms=min(deadline_ms - now_ms, self._max_poll_interval_ms // 3)
            ):
                if self._clock.now_ms() >= deadline_ms:
                    return None
                continue
            state = self._reading.next_ready()
            if state is not None:
                return state
            self._pump()
            if now_ms >= deadline_ms:
                await asyncio.sleep(0)  # Who polls in a loop without a timeout must let the answers in.
                return self._reading.next_ready()
            self._wake.clear()
            # An application that waits here is alive, so it looks up well before it would be thought dead.
            wait_ms = min(deadline_ms - now_ms, self._max_poll_interval_ms // 3)
            try:
                async with asyncio.timeout(max(wait_ms, 1) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
        return None
