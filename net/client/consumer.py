"""`Consumer`: reads records, of partitions that it is given or that its group shares out.

Fetching goes on ahead in the background (`fetcher`), heartbeats too (`group_session`). Everything that changes what the
application sees, a rebalance above all, happens only when the application asks for records: so a record in its hands is
never committed, and a partition never taken, behind its back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from random import Random
from typing import Self

from barnabas.log.topic_partition import TopicPartition

from ..clock import Clock
from ..network import Network
from .client import API_TIMEOUT_MS, DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, Client
from .consumer_config import (
    CLOSE_COMMIT_TIMEOUT_MS,
    FOREVER_MS,
    MAX_POLL_RECORDS,
    ConsumerConfig,
    isolation_level,
    reset_time,
)
from .errors import BarnabasError, ClientClosedError, CorruptRecordError, InvalidRequestError, NotAssignedError
from .fetcher import FetchConfig, Fetcher
from .group_membership import Change, Subscription
from .group_session import GroupSession, Offsets, commit_offsets, fetch_committed
from .listener import Listener, tell
from .offset_lookup import EARLIEST, LATEST, list_offsets
from .partition_state import Cursor, PartitionState
from .positions import PositionFinder
from .records import ConsumerRecord, OffsetAndTimestamp, RecordColumns

logger = logging.getLogger("barnabas.consumer")
RecordsByPartition = dict[TopicPartition, list[ConsumerRecord]]


class Consumer:
    """Reads records of topics.

        async with Consumer("orders", bootstrap="localhost:9092", group="billing") as consumer:
            async for record in consumer:
                handle(record)

    With topics and a group, the group shares out the partitions; with topics and no group, this consumer reads all of
    them; without topics, `assign` says what to read. `auto_commit` (default: with a group) commits what the application
    is done with: all that was handed out before the last call of `poll`, or the last step of `async for`.
    """

    _cursor: Cursor | None = None
    _session: GroupSession | None = None
    _auto_commit: asyncio.Task[None] | None = None
    _error: BarnabasError | None = None  # For the application, at its next call.
    _last_poll_ms: int = 0
    _last_progress: int = 0
    _is_started: bool = False
    _is_closed: bool = False

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        group: str | None = None,
        pattern: str | None = None,
        instance_id: str | None = None,
        auto_offset_reset: str = "latest",
        auto_commit: bool | None = None,
        auto_commit_interval_ms: int = 5_000,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        assignor: str | None = None,
        session_timeout_ms: int = -1,
        rebalance_timeout_ms: int = -1,
        max_poll_interval_ms: int = 300_000,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        fetch_max_wait_ms: int = 500,
        partition_max_bytes: int = 1024 * 1024,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        isolation: str = "read_uncommitted",
        rack: str = "",
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-consumer",
        network: Network | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        client: Client | None = None,
    ) -> None:
        self.group = group
        self._config = ConsumerConfig(
            group=group,
            reset_time_ms=reset_time(auto_offset_reset),
            auto_commit=group is not None if auto_commit is None else auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            partition_max_bytes=partition_max_bytes,
            instance_id=instance_id,
            assignor=assignor,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=max_poll_interval_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
            rack=rack,
        )
        if pattern is not None and group is None:
            raise InvalidRequestError("a pattern needs a group: the coordinator matches it against the topics")
        self._fetch_config = FetchConfig(
            min_bytes=fetch_min_bytes,
            max_bytes=fetch_max_bytes,
            max_wait_ms=fetch_max_wait_ms,
            max_buffered_bytes=max_buffered_bytes,
            isolation_level=isolation_level(isolation),
            rack=rack,
        )
        self._client = client or Client(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            network=network,
            clock=clock,
            rng=rng,
        )
        self._subscription = Subscription(topics=tuple(dict.fromkeys(topics)), pattern=pattern)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._states: dict[TopicPartition, PartitionState] = {}  # In the order in which they are served.
        self._handed_out: list[PartitionState] = []  # By the last poll: done when the next one comes.

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        # After an error in the application, the record in its hands is not done.
        await self.close(is_clean=kind is None)

    async def start(self) -> None:
        """Connect, and join the group. Raises NoBrokersAvailableError, which names each address and its reason."""
        if self._is_started:
            return
        for topic in self._subscription.topics:
            self._client.want_topic(topic)
        await self._client.start()
        self._last_poll_ms = self._client.clock.now_ms()
        self._wake = asyncio.Event()
        self._fetcher = Fetcher(
            self._client,
            self._fetch_config,
            self._states,
            on_data=self._wake.set,
            on_out_of_range=self._out_of_range,
            on_error=self._set_error,
        )
        self._positions = PositionFinder(
            self._client,
            self._states,
            group=self._config.group,
            reset_time_ms=self._config.reset_time_ms,
            on_found=self._fetcher.pump_soon,
            on_error=self._set_error,
        )
        self._client.on_metadata(self._metadata_changed)
        self._is_started = True
        if self._subscription.topics or self._subscription.pattern is not None:
            await self._begin(self._subscription)
        if self._config.auto_commit and self._config.group is not None:
            self._auto_commit = asyncio.create_task(self._commit_regularly(), name="barnabas-auto-commit")

    async def close(self, *, is_clean: bool = True) -> None:
        """Commit (with auto_commit), leave the group, disconnect. Not `is_clean`: the record in hand is not
        committed."""
        if self._is_closed or not self._is_started:
            self._is_closed = True
            return
        self._is_closed = True
        self._wake.set()
        if self._auto_commit is not None:
            self._auto_commit.cancel()
            await asyncio.gather(self._auto_commit, return_exceptions=True)
        try:
            if self._config.auto_commit and self._config.group is not None:
                await self._commit_quietly(self._done_offsets(is_clean=is_clean), timeout_ms=CLOSE_COMMIT_TIMEOUT_MS)
            if self._session is not None:
                await self._session.leave()
        finally:
            self._stop_cursor()
            await self._positions.close()
            await self._fetcher.close()
            await self._client.close()

    # --- what to read ------------------------------------------------------------------------------------------------

    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Read these topics from now on, instead of those before."""
        self._check_usable()
        await self._begin(Subscription(topics=tuple(dict.fromkeys(topics)), pattern=pattern))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions. Those that stay keep their position; a group is then used for commits only."""
        self._check_usable()
        if self._session is not None:
            raise InvalidRequestError("this consumer's partitions are given out by its group; leave out the topics")
        wanted = [TopicPartition(*partition) for partition in partitions]
        self._drop([partition for partition in self._states if partition not in set(wanted)])
        self._add(wanted)
        self._client.request_refresh()
        self._positions.find_soon()

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self._states)

    async def _begin(self, subscription: Subscription) -> None:
        self._subscription = subscription
        for topic in subscription.topics:
            self._client.want_topic(topic)
        if self._config.group is None:
            await self._assign_whole_topics(subscription.topics)
        elif self._session is not None:
            self._session.membership.subscribe(subscription)
            self._session.wake()
        else:
            self._session = self._join(subscription)

    async def _assign_whole_topics(self, topics: tuple[str, ...]) -> None:
        for topic in topics:
            await self._client.wait_for_topic(topic, timeout_ms=API_TIMEOUT_MS)
        self._drop([partition for partition in self._states if partition.topic not in topics])
        self._add(partition for topic in topics for partition in self._client.metadata.partitions(topic))
        self._positions.find_soon()

    def _join(self, subscription: Subscription) -> GroupSession:
        return GroupSession(
            self._client,
            self._config.membership(self._client.rng, self._client.client_id, subscription),
            on_change=self._group_changed,
            on_error=self._set_error,
            idle_ms=self._idle_ms,
            max_poll_interval_ms=self._config.max_poll_interval_ms,
        )

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._client.want_topic(partition.topic)
            if partition not in self._states:
                self._states[partition] = PartitionState(partition, max_bytes=self._config.partition_max_bytes)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if (state := self._states.pop(partition, None)) is not None:
                self._stop_cursor(state)
                state.seek_to_time(LATEST)  # A new version: what is on its way is thrown away.

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(self, *, max_records: int = MAX_POLL_RECORDS, timeout_ms: float = 1_000) -> RecordsByPartition:
        """Return what is there, at most `max_records`; waits up to `timeout_ms` for the first. May be empty."""
        found: RecordsByPartition = {}
        deadline_ms = await self._poll_begins(timeout_ms)
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
                    self._handed_out.append(state)
                state = self._ready_state()
        self._fetcher.pump_soon()
        return found

    async def poll_batch(self, *, timeout_ms: float = 1_000) -> RecordColumns | None:
        """Return the next batch of one partition as columns, the cheapest form; None when nothing came in time."""
        deadline_ms = await self._poll_begins(timeout_ms)
        while (state := await self._next_state(deadline_ms)) is not None:
            columns = state.take_columns()
            self._fetcher.pump_soon()
            if len(columns):
                self._handed_out.append(state)
                return columns
        return None

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._walk()

    async def _walk(self) -> AsyncIterator[ConsumerRecord]:
        """A plain generator over each decoded batch; awaits only between batches. Ends when the consumer is closed."""
        while not self._is_closed:
            for record in await self.walk_batch(timeout_ms=FOREVER_MS):
                yield record

    async def walk_batch(self, *, timeout_ms: float) -> Iterator[ConsumerRecord]:
        """Return an iterator over the rest of the batch in work, else over the next one; empty when none came.

        The position moves with each step. The iterator may be walked in another thread than the loop's.
        """
        cursor = self._cursor
        if cursor is not None:
            if cursor.is_open:
                return cursor.iterator
            self._cursor = None
            cursor.state.processed = cursor.state.position
        state = await self._next_state(await self._poll_begins(timeout_ms))
        if state is None:
            return iter(())
        self._cursor = Cursor(state, state.take(MAX_POLL_RECORDS))
        self._fetcher.pump_soon()
        return self._cursor.iterator

    async def _poll_begins(self, timeout_ms: float) -> int:
        """What was handed out before is done with. Returns the deadline."""
        self._check_usable()
        self._stop_cursor()
        for state in self._handed_out:
            state.processed = state.position
        self._handed_out.clear()
        if self._session is not None:
            self._session.resume()
        return self._client.clock.now_ms() + int(timeout_ms)

    async def _next_state(self, deadline_ms: int) -> PartitionState | None:
        """Wait for a partition with records. None when the time is over or the consumer is closed."""
        while not self._is_closed:
            now_ms = self._last_poll_ms = self._client.clock.now_ms()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            await self._reconcile()
            state = self._ready_state()
            if state is not None:
                return state
            self._fetcher.pump_soon()
            if now_ms >= deadline_ms:
                await asyncio.sleep(0)  # Who polls in a loop without a timeout must let the answers in.
                return self._ready_state()
            self._wake.clear()
            # An application that waits here is alive, so it looks up well before it would be thought dead.
            wait_ms = min(deadline_ms - now_ms, self._config.max_poll_interval_ms // 3)
            try:
                async with asyncio.timeout(max(wait_ms, 1) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
        return None

    def _ready_state(self) -> PartitionState | None:
        """The next partition with records; it goes to the end of the line, so that all are served in turn."""
        for partition, state in self._states.items():
            if state.has_records:
                self._states[partition] = self._states.pop(partition)
                return state
        return None

    def _stop_cursor(self, state: PartitionState | None = None) -> None:
        """End the walk of `async for` behind the record in hand (of one partition); the rest comes next again."""
        cursor = self._cursor
        if cursor is None or (state is not None and cursor.state is not state):
            return
        self._cursor = None
        processed = cursor.processed
        cursor.state.put_back(cursor.stop())
        cursor.state.processed = processed
        self._handed_out.append(cursor.state)

    def _idle_ms(self) -> int:
        """Since the application last asked for records; a step of `async for` counts."""
        progress = -1 if self._cursor is None else self._cursor.position
        now_ms = self._client.clock.now_ms()
        if progress != self._last_progress:
            self._last_progress = progress
            self._last_poll_ms = now_ms
        return now_ms - self._last_poll_ms

    # --- positions ---------------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """The next record is the one with this offset, or the first behind it."""
        if offset < 0:
            raise InvalidRequestError(f"offset {offset} is negative; seek_to_start and seek_to_end go to the ends")
        state = self._state(partition)
        self._stop_cursor(state)
        state.seek(offset)
        self._fetcher.pump_soon()

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition | tuple[str, int]) -> None:
        """The next record is the first that is at least as young, or the end where none is. No partitions: all."""
        await self._seek_by_time(timestamp_ms, partitions)

    async def seek_to_start(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        await self._seek_by_time(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        await self._seek_by_time(LATEST, partitions)

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record."""
        state = self._state(partition)
        while state.position < 0:
            await self._positions.find()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            state = self._state(partition)  # The group may have taken it away, or somebody closed the consumer.
        return self._position(state)

    async def committed(self, *partitions: TopicPartition | tuple[str, int]) -> dict[TopicPartition, int]:
        """What the group has committed for these (no partitions: for the assigned ones); those without are left out."""
        self._check_usable()
        wanted = [TopicPartition(*partition) for partition in partitions] or self.assignment
        found = await fetch_committed(self._client, self._group(), wanted)
        return {partition: item.offset for partition, item in found.items()}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_usable()
        return await list_offsets(self._client, times_ms)

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out nothing of these, and fetch nothing more, until `resume`."""
        for partition in partitions:
            state = self._state(partition)
            self._stop_cursor(state)
            state.is_paused = True

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        for partition in partitions:
            self._state(partition).is_paused = False
        self._wake.set()
        self._fetcher.pump_soon()

    @property
    def paused(self) -> list[TopicPartition]:
        return [state.partition for state in self._states.values() if state.is_paused]

    def lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Records behind the position, as of the last fetch; None before the first."""
        state = self._state(partition)
        if state.high_watermark < 0 or state.position < 0:
            return None
        return max(0, state.high_watermark - self._position(state))

    def _position(self, state: PartitionState) -> int:
        cursor = self._cursor
        return cursor.position if cursor is not None and cursor.state is state else state.position

    async def _seek_by_time(self, timestamp_ms: int, partitions: tuple[TopicPartition | tuple[str, int], ...]) -> None:
        states = [self._state(partition) for partition in partitions] or list(self._states.values())
        for state in states:
            self._stop_cursor(state)
            state.seek_to_time(timestamp_ms)
        await self._positions.find()

    def _out_of_range(self, state: PartitionState) -> None:
        self._stop_cursor(state)
        self._positions.out_of_range(state)

    # --- commits -----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets (of the next records to read), or the positions: all that was handed out so far is done.

        Raises FencedMemberEpochError or UnknownMemberIdError when the group goes on without us.
        """
        self._check_usable()
        await self._commit(self._offsets_of(offsets))

    def commit_nowait(self, offsets: Mapping[TopicPartition, int] | None = None) -> asyncio.Task[None]:
        """As `commit`, in the background; await the task, or give it a callback, to learn how it ended."""
        self._check_usable()
        return asyncio.create_task(self._commit(self._offsets_of(offsets)))

    def _offsets_of(self, offsets: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, tuple[int, int]]:
        if offsets is not None:
            return {TopicPartition(*partition): (offset, -1) for partition, offset in offsets.items()}
        return self._done_offsets(is_clean=True)

    def _done_offsets(self, *, is_clean: bool) -> dict[TopicPartition, tuple[int, int]]:
        """What there is to commit: positions (`is_clean`), or only what the application is certainly done with."""
        found = {}
        for partition, state in self._states.items():
            offset = self._position(state) if is_clean else self._processed(state)
            if offset >= 0 and offset != state.committed:
                found[partition] = (offset, state.position_epoch)
        return found

    def _processed(self, state: PartitionState) -> int:
        cursor = self._cursor
        return cursor.processed if cursor is not None and cursor.state is state else state.processed

    async def _commit(self, offsets: Offsets) -> None:
        if not offsets:
            return
        if self._session is not None:
            await self._session.commit(offsets)
        else:
            await commit_offsets(self._client, self._group(), offsets)
        for partition, (offset, _) in offsets.items():
            if partition in self._states:
                self._states[partition].committed = offset

    async def _commit_quietly(self, offsets: Offsets, *, timeout_ms: int = API_TIMEOUT_MS) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._commit(offsets)
        except (BarnabasError, TimeoutError) as error:
            logger.warning("auto-commit failed group=%s reason=%s", self._config.group, error or "no answer in time")

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.auto_commit_interval_ms / 1000)
            await self._commit_quietly(self._done_offsets(is_clean=False))

    # --- the group ---------------------------------------------------------------------------------------------------

    def _group_changed(self) -> None:
        """Partitions come or go: have the application ask soon, and deal with it then."""
        cursor = self._cursor
        if cursor is not None:
            cursor.state.put_back(cursor.stop())  # The walk ends behind the record in hand.
        self._wake.set()

    async def _reconcile(self) -> None:
        session = self._session
        if session is None or not session.membership.has_change:
            return
        membership = session.membership
        lost = sorted(membership.take_lost())
        if lost:
            self._drop(lost)
            await tell(self._on_revoked, lost)
        change: Change = membership.change()
        if change.revoke:
            await self._revoke(session, sorted(change.revoke))
        adopt = sorted(change.adopt & membership.change().adopt)  # It may have changed while we waited.
        if adopt:
            self._add(adopt)
            membership.adopted(adopt)
            session.wake()
            self._client.request_refresh()
            await tell(self._on_assigned, adopt)
            self._positions.find_soon()

    async def _revoke(self, session: GroupSession, partitions: list[TopicPartition]) -> None:
        """Commit what is done, tell the application, then let go: only then may another member begin."""
        if self._config.auto_commit:
            done = self._done_offsets(is_clean=False)
            await self._commit_quietly({partition: done[partition] for partition in partitions if partition in done})
        await tell(self._on_revoked, partitions)
        self._drop(partitions)
        session.membership.revoked(partitions)
        session.wake()

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _metadata_changed(self) -> None:
        """New leaders; and for a consumer of whole topics, partitions that were added: read from their start."""
        if self._is_closed:
            return
        if self._config.group is None and self._states:
            for topic in self._subscription.topics:
                added = [item for item in self._client.metadata.partitions(topic) if item not in self._states]
                self._add(added)
                for partition in added:
                    self._states[partition].seek_to_time(EARLIEST)
                if added:
                    self._positions.find_soon()
        self._fetcher.pump_soon()

    def _set_error(self, error: BarnabasError) -> None:
        self._error = error
        self._wake.set()

    def _state(self, partition: TopicPartition | tuple[str, int]) -> PartitionState:
        self._check_usable()
        state = self._states.get(TopicPartition(*partition))
        if state is None:
            raise NotAssignedError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return state

    def _group(self) -> str:
        if self._config.group is None:
            raise InvalidRequestError("this consumer has no group: give it one to commit")
        return self._config.group

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the consumer is closed")
        if not self._is_started:
            raise ClientClosedError("the consumer is not started: use `async with Consumer(...)`, or await start()")
