"""`Polling`: returns records when the application asks for them, and carries out a rebalance only then.

Commits rely on the rule in `reading`: returned records are finished when the application asks for more. So only one task at a
time may ask: with two, one call would mark the other's unfinished records as finished.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from barnabas.log.records.columns import Columns
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ...base.clock import Clock
from ..connection.errors import BarnabasError, ConcurrentUseError, CorruptRecordError, InvalidRequestError
from ..connection.records import ConsumerRecord, RecordColumns
from ..group.rebalancing import Rebalancing
from ..group.session import Session
from ..positions.partition_state import Cursor, PartitionState
from ..positions.reading import Reading
from .consumer_config import FOREVER_MS, MAX_POLL_RECORDS
from .decoding import Decoding, DecodingWaits

MIN_LOAD_MS: Final = 100  # given to a schema by a call whose time is over, so that polls without a timeout load it too


def _row_count(taken: Columns | list[ConsumerRecord]) -> int:
    return taken.count if isinstance(taken, Columns) else len(taken)


def _decoded_bytes(taken: Columns | list[ConsumerRecord]) -> int:
    """Of keys and values, about."""
    if isinstance(taken, Columns):
        return len(taken.keys.data) + len(taken.values.data)
    return sum(len(record.key or b"") + len(record.value or b"") for record in taken)


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
        decoding: Decoding | None = None,
    ) -> None:
        """`pump` lets the fetcher use free room; `wake` is set when there are records to return or a change to carry out.
        `decoding`: of a consumer with deserializers."""
        self._reading = reading
        self._rebalancing = rebalancing
        self._clock = clock
        self._max_poll_interval_ms = max_poll_interval_ms
        self._session = session
        self._pump = pump
        self._wake = wake
        self._decoding = decoding
        self._is_asked = False  # A task waits in a call for records.
        self._is_closing = False  # No more records; calls of a listener still work during the close.
        self._error: BarnabasError | None = None  # For the application, at its next call.
        self._last_poll_ms = clock.now_ms()
        self._last_progress = -1

    async def poll(
        self, *, max_records: int, timeout_ms: float, within_ms: float = 0
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        _check(max_records, within_ms)
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        due_ms: int | None = None  # of the batch: kept while its first records need a schema or a handler
        with self._asked():
            deadline_ms = self._begin(timeout_ms)
            while not found and (state := await self._next_state(deadline_ms)) is not None:
                if within_ms > 0:
                    due_ms = self._clock.now_ms() + int(within_ms) if due_ms is None else due_ms
                    state = await self._gathered(state, max_records, due_ms)
                left = max_records
                while state is not None and left > 0:
                    try:
                        records = self._take(state, left)
                    except DecodingWaits:
                        if found or await self._is_settled(state, deadline_ms):
                            break
                        return found
                    except BarnabasError:
                        if not found:
                            raise
                        break  # Raise it in the next call: the records taken so far must not be lost.
                    if records:
                        found.setdefault(state.partition, []).extend(records)
                        left -= len(records)
                        self._reading.handed_out.append(state)
                    state = self._reading.next_ready()
                else:
                    due_ms = None
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

    async def poll_decoded(
        self, *, max_bytes: int, timeout_ms: float
    ) -> list[tuple[TopicPartition, Columns | list[ConsumerRecord]]]:
        """All that is buffered, in Arrow's layout, up to about `max_bytes` of records."""
        found: list[tuple[TopicPartition, Columns | list[ConsumerRecord]]] = []
        with self._asked():
            deadline_ms = self._begin(timeout_ms)
            while not found and (state := await self._next_state(deadline_ms)) is not None:
                left = max_bytes
                while state is not None and left > 0:
                    before = state.buffered_bytes
                    try:
                        taken = state.take_decoded(left)
                    except CorruptRecordError:
                        if not found:
                            raise
                        break  # Raise it in the next call: the records taken so far must not be lost.
                    if _row_count(taken):
                        found.append((state.partition, taken))
                        self._reading.handed_out.append(state)
                    left -= _decoded_bytes(taken) or before - state.buffered_bytes
                    state = self._reading.next_ready()
        self._pump()
        return found

    async def walk_batch(self, *, timeout_ms: float) -> Iterator[ConsumerRecord]:
        cursor = self._reading.cursor
        if cursor is not None:
            if cursor.is_open:
                return cursor.iterator
            self._reading.cursor = None
            cursor.state.processed = cursor.state.position
        with self._asked():
            deadline_ms = self._begin(timeout_ms)
            while (state := await self._next_state(deadline_ms)) is not None:
                try:
                    cursor = self._reading.cursor = Cursor(state, self._take(state, MAX_POLL_RECORDS))
                except DecodingWaits:
                    if await self._is_settled(state, deadline_ms):
                        continue
                    break
                self._pump()
                return cursor.iterator
        return iter(())

    def _take(self, state: PartitionState, max_records: int) -> list[ConsumerRecord]:
        return state.take(max_records) if self._decoding is None else self._decoding.take(state, max_records)

    async def _gathered(self, state: PartitionState | None, count: int, due_ms: int) -> PartitionState | None:
        """Wait until so many records are ready, or it is that late. Nothing is taken meanwhile, so that neither a rebalance nor
        a cancelled call loses a record. None: there is none any more."""
        while state is not None and not self._reading.has_gathered(count):
            wait_ms = due_ms - self._clock.now_ms()
            if wait_ms <= 0:
                break
            self._pump()
            await self._woken(wait_ms)
            state = await self._next_state(self._clock.now_ms())
        return state

    async def _is_settled(self, state: PartitionState, deadline_ms: int) -> bool:
        """Wait for what the next record of a partition waits for: a schema, or a handler. False at the timeout."""
        assert self._decoding is not None
        timeout_ms = max(deadline_ms - self._clock.now_ms(), MIN_LOAD_MS)
        is_settled = await self._decoding.is_settled(state, timeout_ms=timeout_ms)
        if state not in self._reading.handed_out:
            self._reading.handed_out.append(state)  # A record that the handler took is done at the next call.
        return is_settled

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Return no more records; waiting calls return empty."""
        self._is_closing = True
        self._wake.set()

    def fail(self, error: BarnabasError) -> None:
        """The application gets the error in its next call."""
        self._error = error
        self._wake.set()

    def withdraw(self, error: BarnabasError) -> None:
        """It has passed before the application has asked."""
        if self._error is error:
            self._error = None

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
                "another task is waiting for records of this consumer; create one consumer per task"
            )
        self._is_asked = True
        try:
            yield
        finally:
            self._is_asked = False

    def _begin(self, timeout_ms: float) -> int:
        """Mark the records returned before as finished. Returns the deadline."""
        self._reading.finish_handed_out()
        if (session := self._session()) is not None:
            session.resume()
        return self._clock.now_ms() + int(timeout_ms)

    async def _next_state(self, deadline_ms: int) -> PartitionState | None:
        """Wait for a partition with records. None at the timeout or when the consumer is closed."""
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
                await asyncio.sleep(0)  # A loop of polls without a timeout must still let answers be processed.
                return self._reading.next_ready()
            await self._woken(deadline_ms - now_ms)
        return None

    async def _woken(self, wait_ms: float) -> None:
        """Wait for a change, for so long at most."""
        self._wake.clear()
        # A waiting application is alive: wake up well before the poll interval expires.
        wait_ms = min(wait_ms, self._max_poll_interval_ms // 3)
        try:
            async with asyncio.timeout(max(wait_ms, 1) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass


def _check(max_records: int, within_ms: float) -> None:
    if max_records < 1:
        raise InvalidRequestError(f"max_records is {max_records}; it must be at least 1")
    if not 0 <= within_ms <= FOREVER_MS:  # NaN is refused, too
        raise InvalidRequestError(f"within_ms is {within_ms}; it must be from 0 to {FOREVER_MS}")
