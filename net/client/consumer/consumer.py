"""`Consumer`: reads records of partitions that the application or its group assigns.

Fetching (`fetcher`) and heartbeats (`group_session`) run in the background. Everything that changes what the application sees,
above all a rebalance, happens only when the application asks for records. So the consumer never commits a record that the
application is still processing, and never revokes a partition between two calls.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self, Unpack

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import READ_COMMITTED

from ..arrow.extra import batch_builder
from ..connection.arguments import explained
from ..connection.client import (
    API_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    Client,
    check_loop,
)
from ..connection.errors import ClientClosedError, InvalidConfigError, InvalidRequestError
from ..connection.habits import PartitionLike, asynchronous, keyworded, partition_of, topic_names, with_habits
from ..connection.records import ConsumerRecord, OffsetAndMetadata, OffsetAndTimestamp, ReadingOrigin, RecordColumns
from ..connection.security import SecurityOptions
from ..group.assignors import Assignor
from ..group.classic_session import matching
from ..group.commits import Commits, ToCommit
from ..group.group_offsets import fetch_committed, with_metadata
from ..group.group_positions import GroupPositions
from ..group.listener import Listener, Listeners
from ..group.ownership import Subscription
from ..group.rebalancing import Rebalancing
from ..group.session import LEAVE_TIMEOUT_MS
from ..positions.offset_lookup import EARLIEST, LATEST, list_offsets
from ..positions.offset_lookup import isolation_level as isolation_level_of
from ..positions.partition_state import PartitionState
from ..positions.reading import Reading
from ..serde.bad_records import Handler as BadRecordHandler
from ..serde.serdes import AnyDeserializer
from .consumer_config import (
    CLOSE_TIMEOUT_MS,
    FOREVER_MS,
    MAX_POLL_BYTES,
    MAX_POLL_RECORDS,
    ConsumerConfig,
    reset_time,
)
from .decoding import decoding_of
from .fetcher import FetchConfig, Fetcher
from .polling import Polling
from .positions import PositionFinder, no_offset
from .subscriber import Subscriber

if TYPE_CHECKING:  # of an extra
    import pyarrow

    from ..arrow.tables import BatchBuilder

RecordsByPartition = dict[TopicPartition, list[ConsumerRecord]]


@explained
@asynchronous
class Consumer:
    """Reads records of topics.

        async with Consumer("orders", bootstrap="localhost:9092", group="billing") as consumer:
            async for record in consumer:
                handle(record)

    With topics and a group, the group assigns the partitions; with topics and no group, this consumer reads all of them;
    without topics, `assign` selects the partitions. `auto_commit` (default: with a group) commits the records that the
    application has finished: all that were returned before the last call of `poll`, or the last step of `async for`.

    `group_protocol` "consumer" (default): the coordinator assigns (KIP-848) with `assignor`, a name that it knows. "classic": a
    leader among the members assigns; `assignor` is then a name, an object of the application (`assignors.Assignor`), or several
    of them. See `rebalancing` about listeners, and `session` about the time limit of handlers.

    `missing_topic_timeout_ms` (-1: no limit): a call for records raises UnknownTopicOrPartitionError once none of the topics,
    subscribed or assigned, has existed for so long. The consumer stays usable, and the next call waits again. While one of them
    exists, or with a pattern, a consumer waits for others without a limit. A partition that the application has assigned and that
    its topic lacks is the same error, after 5 s.

    With deserializers, keys and values are objects, as of Json(Order); `on_bad_record` is for records that they cannot read.
    """

    _is_started: bool = False
    _is_closed: bool = False
    _tables: "BatchBuilder | None" = None  # Since the first `poll_arrow`.

    @with_habits
    def __init__(
        self,
        *topics: str | Iterable[str],
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        group: str | None = None,
        pattern: str | None = None,
        instance_id: str | None = None,
        auto_offset_reset: str = "latest",
        auto_commit: bool | None = None,
        auto_commit_interval_ms: int = 5_000,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        group_protocol: str = "consumer",
        assignor: str | Assignor | Sequence[str | Assignor] | None = None,
        heartbeat_interval_ms: int = 3_000,
        session_timeout_ms: int = -1,
        rebalance_timeout_ms: int = -1,
        max_poll_interval_ms: int = 300_000,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        fetch_max_wait_ms: int = 500,
        partition_max_bytes: int = 1024 * 1024,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        isolation_level: str = "read_uncommitted",
        missing_topic_timeout_ms: int = API_TIMEOUT_MS,
        rack: str = "",
        key_deserializer: AnyDeserializer | None = None,
        value_deserializer: AnyDeserializer | None = None,
        on_bad_record: str | BadRecordHandler = "stop",
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-consumer",
        client: Client | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
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
            group_protocol=group_protocol,
            heartbeat_interval_ms=heartbeat_interval_ms,
            request_timeout_ms=request_timeout_ms,
            missing_topic_timeout_ms=missing_topic_timeout_ms,
        )
        self._fetch_config = FetchConfig(
            min_bytes=fetch_min_bytes,
            max_bytes=fetch_max_bytes,
            max_wait_ms=fetch_max_wait_ms,
            max_buffered_bytes=max_buffered_bytes,
            isolation_level=isolation_level_of(isolation_level),
            rack=rack,
        )
        self._decoding = decoding_of(key_deserializer, value_deserializer, on_bad_record)
        own = partial(Client, bootstrap, client_id=client_id, request_timeout_ms=request_timeout_ms)
        self._client = client or own(retry_backoff_ms=retry_backoff_ms, **security)
        self._reading = Reading(partition_max_bytes=partition_max_bytes)
        self._subscriber = Subscriber(self._client, self._config, self._reading, _subscription(topics, pattern))
        self._listeners = Listeners(assigned=on_assigned, revoked=on_revoked, lost=on_lost or on_revoked)

    @property
    def group(self) -> str | None:
        """The name of its group; None without one."""
        return self._config.group

    @property
    def client(self) -> Client:
        """The connections and the metadata, which producers, consumers and admin clients can share."""
        return self._client

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and join the group. Raises NoBrokersAvailableError, which lists each address with its error.

        A topic that does not exist is waited for, with a warning in the log after 1 s. Without a group, this raises
        UnknownTopicOrPartitionError after `missing_topic_timeout_ms`; see the class about groups.
        """
        if self._is_started:
            return
        for topic in self._subscriber.subscription.topics:
            self._client.want_topic(topic)
        await self._client.start()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        group = self._config.group
        self._commits = Commits(self._client, group or "", self._reading, lambda: self._subscriber.session)
        self._fetcher = Fetcher(
            self._client,
            self._fetch_config,
            self._reading.states,
            on_data=self._wake.set,
            on_out_of_range=lambda state: self._positions.out_of_range(state),
            on_made_anew=lambda state: self._positions.made_anew(state),
            on_error=lambda error: self._polling.fail(error),
        )
        self._positions = PositionFinder(
            self._client,
            self._reading,
            group=group,
            reset_time_ms=self._config.reset_time_ms,
            isolation_level=self._fetch_config.isolation_level,
            on_found=self._fetcher.pump_soon,
            on_error=lambda error: self._polling.fail(error),
        )
        self._rebalancing = Rebalancing(
            self._reading,
            self._commits,
            self._listeners,
            auto_commit=self._config.auto_commit,
            on_adopted=self._subscriber.adopted,
            find_positions=self._positions.find_soon,
        )
        self._polling = Polling(
            self._reading,
            self._rebalancing,
            self._client.clock,
            max_poll_interval_ms=self._config.max_poll_interval_ms,
            session=lambda: self._subscriber.session,
            pump=self._fetcher.pump_soon,
            wake=self._wake,
            decoding=self._decoding,
        )
        self._client.on_metadata(self._metadata_changed)
        self._is_started = True
        try:
            await self._subscriber.start(
                fetcher=self._fetcher, positions=self._positions, polling=self._polling, wake=self._wake
            )
        except BaseException:
            # For example cancelled while waiting for a topic: close what is open, because the caller cannot.
            await self.close()
            raise
        if self._config.auto_commit and self._config.group is not None:
            self._commits.start(self._config.auto_commit_interval_ms)

    async def close(self) -> None:
        """Commit (with auto_commit), revoke the partitions (`on_revoked`), leave the group, disconnect: within 13 s and the time
        of `on_revoked`. At least 3 s are for the leave, also if the commit fails.

        Auto-commit covers only the records returned before the last poll or the last step of `async for`, as at any other time:
        the handler of the last records may have failed. If they are finished too, call `commit()` before.
        Raises ConcurrentUseError on another event loop than that of the start."""
        if not self._is_started:
            await self._client.close()  # It may be connecting.
        if self._is_closed or not self._is_started or self._polling.is_closing:
            self._is_closed = True
            return
        check_loop(self._loop, "consumer")
        self._polling.close()
        until_ms, leave_ms = self._client.clock.now_ms() + CLOSE_TIMEOUT_MS, float(LEAVE_TIMEOUT_MS)
        try:
            has_last = self._config.auto_commit and self._config.group is not None
            await self._commits.finish(auto_commit=has_last, timeout_ms=CLOSE_TIMEOUT_MS - LEAVE_TIMEOUT_MS)
            if self._subscriber.session is not None:
                await self._rebalancing.give_up_all()
            leave_ms = max(leave_ms, until_ms - self._client.clock.now_ms())
        finally:
            self._is_closed = True
            # The last one ends first. Each does, also if the caller is cancelled in another one.
            async with AsyncExitStack() as parts:
                for close in (self._client.close, self._fetcher.close, self._positions.close):
                    parts.push_async_callback(close)
                parts.callback(self._reading.stop_cursor)
                if self._subscriber.session is not None:
                    parts.push_async_callback(self._subscriber.session.leave, timeout_ms=leave_ms)
                parts.push_async_callback(self._commits.close)

    # --- what to read ------------------------------------------------------------------------------------------------

    async def subscribe(self, *topics: str | Iterable[str], pattern: str | None = None) -> None:
        """Read these topics, or those that the whole pattern matches, from now on, instead of the previous ones."""
        self._check_usable()
        await self._subscriber.subscribe(_subscription(topics, pattern))

    async def unsubscribe(self) -> None:
        """Stop reading. Leaves the group, if there is one, as `close` does."""
        self._check_usable()
        await self._subscriber.unsubscribe(self._commits, self._rebalancing)

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read exactly these partitions. Partitions that stay keep their position; a group is then used only for commits."""
        self._check_usable()
        self._subscriber.assign([partition_of(partition) for partition in partitions])

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return list(self._reading.states)

    @property
    def subscription(self) -> Subscription:
        """The topics, or the pattern, that it has subscribed to."""
        return self._subscriber.subscription

    # --- reading -----------------------------------------------------------------------------------------------------

    @keyworded
    async def poll(
        self, *, max_records: int = MAX_POLL_RECORDS, timeout_ms: float = 1_000, within_ms: float = 0
    ) -> RecordsByPartition:
        """Return available records, at most `max_records`; wait up to `timeout_ms` for the first, and from then on up to
        `within_ms` for the others, unless the buffer of a partition is full before. May be empty."""
        self._check_usable()
        return await self._polling.poll(max_records=max_records, timeout_ms=timeout_ms, within_ms=within_ms)

    async def stream(
        self, *, batch_size: int = MAX_POLL_RECORDS, within_ms: float = 100
    ) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield lists of up to `batch_size` records, each at most `within_ms` after its first record has arrived: for sinks that
        write many records at once. A batch is done when the next one is asked for. Ends when the consumer is closed."""
        while not self._polling.is_closing:
            found = await self.poll(max_records=batch_size, timeout_ms=FOREVER_MS, within_ms=within_ms)
            if batch := [record for records in found.values() for record in records]:
                yield batch

    async def poll_batch(self, *, timeout_ms: float = 1_000) -> RecordColumns | None:
        """Return the next batch of one partition as columns, the cheapest form; None at the timeout."""
        self._check_usable()
        return await self._polling.poll_batch(timeout_ms=timeout_ms)

    async def poll_arrow(self, *, max_bytes: int = MAX_POLL_BYTES, timeout_ms: float = 1_000) -> "pyarrow.Table":
        """Return available records as an Arrow table of about `max_bytes`; wait up to `timeout_ms` for the first. May be empty.

        Columns: topic, partition, offset, timestamp, key, value, headers. The fastest way to read: no record becomes a Python
        object. Needs the extra: pip install 'barnabas[arrow]'.
        """
        self._check_usable()
        # Before records are taken: without pyarrow they would be lost.
        tables = self._tables = self._tables or batch_builder("poll_arrow")
        taken = await self._polling.poll_decoded(max_bytes=max_bytes, timeout_ms=timeout_ms)
        return tables.table(tables.batch_of(partition, records) for partition, records in taken)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records from each decoded batch; awaits only between batches. Ends when the consumer is closed."""
        self._check_usable()
        while not self._polling.is_closing:
            for record in await self._inside.walk_batch(timeout_ms=FOREVER_MS):
                yield record

    # --- positions ---------------------------------------------------------------------------------------------------

    def seek(self, partition: PartitionLike, offset: int, *, topic_id: str = "") -> None:
        """Continue with the record at this offset, or the first one after it. `topic_id`: the topic of the offset, if the caller
        knows it; if another topic has that name by now, reading starts at its beginning."""
        if not isinstance(offset, int):
            raise TypeError(f"the offset must be an int, not {type(offset).__name__}: {offset!r}")
        if offset < 0:
            raise InvalidRequestError(f"offset {offset} is negative; use seek_to_start or seek_to_end")
        state = self._state(partition)
        self._reading.stop_cursor(state)
        state.seek(offset, topic_id=topic_id or state.topic_id or self._client.metadata.topic_id(state.partition.topic))
        self._fetcher.pump_soon()

    async def seek_to_time(self, timestamp_ms: int, *partitions: PartitionLike) -> None:
        """Continue with the first record at or after this time, or at the end if there is none. No partitions: all."""
        states = [self._state(partition) for partition in partitions] or list(self._reading.states.values())
        await self._positions.seek_to_time(states, timestamp_ms)

    async def seek_to_start(self, *partitions: PartitionLike) -> None:
        """Continue with the first record that is still stored. No partitions: all."""
        await self.seek_to_time(EARLIEST, *partitions)

    async def seek_to_end(self, *partitions: PartitionLike) -> None:
        """Continue with the next record that is written. No partitions: all."""
        await self.seek_to_time(LATEST, *partitions)

    async def position(self, partition: PartitionLike) -> int:
        """Return the offset of the next record."""
        state = self._state(partition)
        while state.position < 0:
            if state.lacks_offset:
                raise no_offset([state])
            await self._positions.find([state])
            self._polling.raise_error()
            state = self._state(partition)  # The group may have revoked it, or the consumer was closed.
        return self._reading.position(state)

    async def committed(self, *partitions: PartitionLike) -> dict[TopicPartition, int]:
        """Return the committed offsets of these partitions (none given: the assigned ones); leaves out those without a commit."""
        return {partition: item.offset for partition, item in (await self.committed_offsets(*partitions)).items()}

    async def committed_offsets(self, *partitions: PartitionLike) -> dict[TopicPartition, OffsetAndMetadata]:
        """Like `committed`, with the metadata of each commit."""
        self._check_usable()
        wanted = [partition_of(partition) for partition in partitions] or self.assignment
        return with_metadata(await fetch_committed(self._client, self._group(), wanted))

    async def beginning_offsets(self, *partitions: PartitionLike) -> dict[TopicPartition, int]:
        """Return the log start offset of these partitions (none given: of the assigned ones)."""
        return await self._ends(EARLIEST, partitions)

    async def end_offsets(self, *partitions: PartitionLike) -> dict[TopicPartition, int]:
        """Return the end offset that this consumer may read up to."""
        return await self._ends(LATEST, partitions)

    async def _ends(self, timestamp_ms: int, partitions: tuple[PartitionLike, ...]) -> dict[TopicPartition, int]:
        self._check_usable()
        wanted = [partition_of(partition) for partition in partitions] or self.assignment
        found = await self.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
        return {partition: item.offset for partition, item in found.items()}

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Wait until the topic is known. Raises UnknownTopicOrPartitionError at the timeout."""
        self._check_usable()
        await self._client.wait_for_topic(topic, timeout_ms=API_TIMEOUT_MS)
        return self._client.metadata.partitions(topic)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first record at or after each time (milliseconds since 1970); offset -1 if there is none."""
        self._check_usable()
        return await list_offsets(self._client, times_ms, isolation_level=self._fetch_config.isolation_level)

    def pause(self, *partitions: PartitionLike) -> None:
        """Return and fetch no records of these partitions until `resume`."""
        for partition in partitions:
            state = self._state(partition)
            self._reading.stop_cursor(state)
            state.is_paused = True

    def resume(self, *partitions: PartitionLike) -> None:
        """Return records of these partitions again."""
        for partition in partitions:
            self._state(partition).is_paused = False
        self._wake.set()
        self._fetcher.pump_soon()

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions between `pause` and `resume`."""
        return [state.partition for state in self._reading.states.values() if state.is_paused]

    def lag(self, partition: PartitionLike) -> int | None:
        """Records after the position, as of the last fetch; None before the first fetch."""
        return self._reading.lag(self._state(partition))

    # --- commits -----------------------------------------------------------------------------------------------------

    @keyworded
    async def commit(self, offsets: ToCommit | None = None) -> None:
        """Commit these offsets (of the next records to read; as numbers, or with metadata: `OffsetAndMetadata`), or without
        arguments the positions: all records returned so far are finished.

        A consumer sends its commits one after the other, in the order of the calls. While one of them is being retried, a later
        one of the same partition replaces it, and both get the outcome of the later one.

        Raises FencedMemberEpochError, UnknownMemberIdError or IllegalGenerationError if the group has removed this member, and
        NotAssignedError if one of the partitions moves to another member meanwhile.
        """
        self._group()
        self._check_usable()
        await self._commits.commit(self._commits.wanted(offsets))

    def commit_nowait(self, offsets: ToCommit | None = None) -> asyncio.Future[None]:
        """Like `commit`, in the background; await the future, or add a callback, to get the outcome. Otherwise a failure is
        logged. Raises BufferExhaustedError if 1,000 commits are in flight."""
        self._group()
        self._check_usable()
        return self._commits.commit_nowait(self._commits.wanted(offsets))

    # --- the rest ----------------------------------------------------------------------------------------------------

    @cached_property
    def _inside(self) -> "ConsumerInside":
        return ConsumerInside(self)

    def _metadata_changed(self) -> None:
        if not self._is_closed:
            self._subscriber.metadata_changed()

    def _state(self, partition: PartitionLike) -> PartitionState:
        self._check_usable()
        return self._reading.state(partition_of(partition))

    def _group(self) -> str:
        if self._config.group is None:
            raise InvalidRequestError("this consumer has no group; set `group` to commit")
        return self._config.group

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the consumer is closed")
        if not self._is_started:
            raise ClientClosedError("the consumer is not started: use `async with Consumer(...)`, or await start()")
        check_loop(self._loop, "consumer")


class ConsumerInside:
    """A consumer, as the other modules of the SDK use it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    @property
    def commits_by_itself(self) -> bool:
        return self._consumer._config.auto_commit

    @property
    def patience_ms(self) -> int:
        """How long the group waits for this member: for a call of `poll`, and for partitions that it must give up."""
        config = self._consumer._config
        return min(config.max_poll_interval_ms, config.rebalance_timeout_ms)

    async def poll_with_origins(
        self, *, max_records: int = MAX_POLL_RECORDS, timeout_ms: float = 1_000
    ) -> tuple[RecordsByPartition, dict[TopicPartition, ReadingOrigin]]:
        """Like `poll`, with the origin of each assigned partition at the moment when the records were taken."""
        found = await self._consumer.poll(max_records=max_records, timeout_ms=timeout_ms)
        return found, {partition: self.origin(partition) for partition in self._consumer.assignment}

    async def walk_batch(self, *, timeout_ms: float) -> Iterator[ConsumerRecord]:
        """Return an iterator over the rest of the current batch, or over the next batch; empty at the timeout.

        The position moves with each step. The iterator may be used in a thread other than the loop's.
        """
        self._consumer._check_usable()
        return await self._consumer._polling.walk_batch(timeout_ms=timeout_ms)

    def origin(self, partition: PartitionLike) -> ReadingOrigin:
        """Return where the reading of this partition last jumped to. Thread-safe."""
        state = self._consumer._reading.state(partition_of(partition))
        return ReadingOrigin(state.origin_offset, state.topic_id, state.version)

    def group_positions(self, offsets: ToCommit | None = None) -> GroupPositions:
        """What `commit` would commit, for a transaction of a producer (`Transaction.commit_offsets`). Raises InvalidConfigError
        if this consumer commits by itself."""
        consumer = self._consumer
        consumer._group()
        consumer._check_usable()
        if consumer._config.auto_commit:
            raise InvalidConfigError("this consumer commits by itself, without the transaction: set auto_commit=False")
        reads_committed = consumer._fetch_config.isolation_level == READ_COMMITTED
        return consumer._commits.for_transaction(offsets, reads_committed=reads_committed)

    def add_listeners(self, listeners: Listeners) -> Callable[[], None]:
        """Tell these, too, of assigned, revoked and lost partitions, before `on_assigned` and the others; returns a function that
        stops it. For what processes records on behalf of the application (`process_each`)."""
        self._consumer._check_usable()
        return self._consumer._rebalancing.add_listeners(listeners)


def _subscription(topics: tuple[str | Iterable[str], ...], pattern: str | None) -> Subscription:
    """A list of topics is taken as well as several of them. Raises TypeError, InvalidConfigError."""
    names = topic_names(topics)
    if names and pattern is not None:
        raise InvalidConfigError(f"topics and a pattern are given: {names[0]!r} and {pattern!r}; give one of them")
    if pattern is not None:
        matching(pattern, [])  # Raises InvalidRegularExpressionError.
    return Subscription(topics=tuple(dict.fromkeys(names)), pattern=pattern)
