"""`Producer`: sends records, in batches that the application does not see.

What happens per record is an append to the columns of the partition's open batch and a tuple for its handle; all else
is done per batch. So the two fast paths below are written out, and everything unusual about a record leaves them early.
"""

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Self

from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.vocabulary.topic_partition import TopicPartition, check_topic_name

from ...base.clock import Clock
from ...wire.network import Network
from ..connection.client import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, Client, check_loop
from ..connection.errors import (
    BufferExhaustedError,
    ClientClosedError,
    InvalidRequestError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from ..connection.record_checks import as_bytes, checked_headers, checked_stamp
from ..connection.records import Headers
from .bulk import headers_size, max_record_bytes, send_columns
from .handles import BatchHandles, Handle, finished
from .idempotence import IdempotentQueue
from .partitioner import next_sticky, partition_of_key
from .producer_config import MAX_REQUEST_BYTES, ProducerConfig, acks_of, compression_named, idempotence_of
from .record_accumulator import RECORD_OVERHEAD, Batch, PartitionQueue
from .sender import ErrorCallback, Sender, SenderConfig

MAX_CACHED_KEYS = 65_536  # Keys per topic whose partition is remembered: murmur2 costs a microsecond, a look-up 40 ns.
SOFT_LIMIT_BATCHES = (
    8  # Sealed batches of a healthy partition before `send` waits for it a moment: more would only go cold.
)
# How long that moment is at most, as there is room in the buffer. A partition that moves nothing for so long (its leader is
# frozen, say) is not waited for again before it has moved; then the buffer is the only limit.
MAX_EASE_MS = 100
SEALS_PER_TURN = 4  # A `send` that never has to wait must not starve the loop: answers, heartbeats, other tasks.
MIN_SWEEP_MS = 20  # How often batches are looked through for expired ones, at most.


class _Topic:
    """What `send` needs of a topic: its queues, the sticky partition, and the partitions of keys seen lately."""

    __slots__ = ("by_key", "name", "queues", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky = 0
        self.by_key: dict[bytes, PartitionQueue] = {}


class Producer:
    """Sends records to topics.

        async with Producer("localhost:9092") as producer:
            handle = await producer.send("orders", b"value", key=b"key")  # Waits while the buffer is full.
            metadata = await handle  # Acknowledged: topic, partition, offset.

    With `linger_ms` 0 (the default) lingering is adaptive: a record goes out at once while nothing is in flight to its
    broker, and joins a batch while something is. Records of one partition stay in the order of `send`, retries
    included, and a retry writes none of them twice: `enable_idempotence` is on unless `acks` or `max_in_flight` forbid it
    (asked for with those, it is refused). None is lost silently: every handle resolves, and a batch that fails goes to
    `on_error(error, partition, count)`, or to the log.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        acks: str | int = "all",
        linger_ms: float = 0,
        batch_size: int = 65_536,
        compression: str = "none",
        buffer_memory: int = 64 * 1024 * 1024,
        max_in_flight: int = 5,
        enable_idempotence: bool | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        delivery_timeout_ms: int = 120_000,
        max_block_ms: int = 60_000,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-producer",
        on_error: ErrorCallback | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        client: Client | None = None,
    ) -> None:
        self._config = ProducerConfig(
            acks=acks_of(acks),
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression=compression_named(compression),
            buffer_memory=buffer_memory,
            max_in_flight=max_in_flight,
            max_request_bytes=max_request_bytes,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            max_block_ms=max_block_ms,
            enable_idempotence=idempotence_of(enable_idempotence, acks=acks_of(acks), max_in_flight=max_in_flight),
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
        self._queue_type = IdempotentQueue if self._config.enable_idempotence else PartitionQueue
        self._on_error = on_error
        self._topics: dict[str, _Topic] = {}
        self._plain: dict[str, Batch] = {}  # Open batches of sticky partitions without keys or headers: the fast path.
        self._open: dict[PartitionQueue, None] = {}  # Queues with an open batch, oldest first.
        self._reserved_bytes = 0  # Of buffer_memory: open batches with their full size, others with their real one.
        self._now_ms = 0  # Wall time of this turn of the loop; 0 before it is first read.
        self._seals = 0  # Batches sealed since `ease` let the loop turn.
        self._stuck: set[PartitionQueue] = set()  # Waited for in vain; until one of their batches is done.
        self._sweep: asyncio.TimerHandle | None = None
        self._tick: asyncio.Handle | None = None
        self._is_started = False
        self._is_closed = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Raises NoBrokersAvailableError, which names each address and its reason."""
        if self._is_started:
            return
        await self._client.start()
        config = self._config
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()  # Set whenever a batch is done.
        self._sender = Sender(
            self._client,
            SenderConfig(
                acks=config.acks,
                compression=config.compression,
                max_in_flight=config.max_in_flight,
                max_request_bytes=config.max_request_bytes,
                request_timeout_ms=config.request_timeout_ms,
                delivery_timeout_ms=config.delivery_timeout_ms,
            ),
            on_idle=self._send_open_of,
            on_done=self._batch_done,
            on_error=self._on_error,
        )
        if config.enable_idempotence:
            self._sender.identity.start()
        self._client.on_metadata(self._metadata_changed)
        self._is_started = True

    async def flush(self) -> None:
        """Send all that is waiting, and return when everything sent before this call is acknowledged or has failed."""
        self._check_usable()
        self._seal_open()
        for batch in [batch for queue in self._queues() for batch in queue.batches()]:
            if not batch.is_done:
                await finished(batch)
        await self._sender.settle()

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush for at most `timeout_ms` (None: as long as delivery takes), fail what is left, and disconnect."""
        if self._is_closed or not self._is_started:
            self._is_closed = True
            return
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            self._is_closed = True
            self._plain.clear()
            for queue in self._queues():
                self._sender.abandon(queue, ClientClosedError("the producer was closed before this was acknowledged"))
            for timer in (self._sweep, self._tick):
                if timer is not None:
                    timer.cancel()
            await self._sender.close()
            await self._client.close()

    @property
    def client(self) -> Client:
        """The connections and the metadata, which producers, consumers and admins share."""
        return self._client

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """Hand a record over and return its handle; waits up to `max_block_ms` while the buffer is full or the topic not known.

        Raises TypeError, RecordTooLargeError, BufferExhaustedError, and what keeps an unknown topic from being learnt.
        """
        if partition is None and headers is None and timestamp_ms is None and value.__class__ is bytes:
            if key is None:
                batch = self._plain.get(topic)
                if batch is not None:
                    room = batch.room - len(value) - RECORD_OVERHEAD
                    if room >= 0:
                        batch.room = room
                        if batch.stamp_ms != (self._now_ms or self._read_clock()):
                            batch.restamp(self._now_ms)
                        values = batch.values
                        position = len(values)
                        values.append(value)
                        return Handle((batch, position))
            elif (
                (state := self._topics.get(topic)) is not None
                and key.__class__ is bytes
                and (queue := state.by_key.get(key)) is not None
                and (batch := queue.open) is not None
            ):
                room = batch.room - len(value) - len(key) - RECORD_OVERHEAD
                if room >= 0 and batch.keys is not None and batch.headers is None:
                    batch.room = room
                    if batch.stamp_ms != (self._now_ms or self._read_clock()):
                        batch.restamp(self._now_ms)
                    values = batch.values
                    position = len(values)
                    values.append(value)
                    batch.keys.append(key)
                    return Handle((batch, position))
        return await self._send_slowly(topic, value, key, headers, partition, timestamp_ms)

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """As `send`, without waiting: raises BufferExhaustedError when the buffer is full.

        The topic must be known: `await producer.prepare(topic)` first, else UnknownTopicOrPartitionError.
        """
        batch = self._plain.get(topic)
        if batch is not None and key is None and partition is None and headers is None and timestamp_ms is None:
            room = batch.room - len(value) - RECORD_OVERHEAD if value.__class__ is bytes else -1
            if room >= 0:
                batch.room = room
                if batch.stamp_ms != (self._now_ms or self._read_clock()):
                    batch.restamp(self._now_ms)
                values = batch.values
                position = len(values)
                values.append(value)
                return Handle((batch, position))
        self._check_usable()
        state = self._topics.get(topic)
        if state is None:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} is not known yet: call `await producer.prepare({topic!r})` first"
            )
        handle = self._append(state, value, key, headers, partition, timestamp_ms)
        if handle is None:
            raise self._exhausted()
        return handle

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> BatchHandles:
        """Hand many records over at once: the fastest way in. Values without keys stay in order in few partitions.

        Columns are of equal length; `partition` is for all of the records.
        """
        self._check_usable()
        state = self._topics.get(topic) or await self._learn(topic)
        checked = None if headers is None else [checked_headers(pairs) for pairs in headers]
        return await send_columns(self, state, values, keys, headers=checked, partition=partition)

    async def prepare(self, topic: str) -> int:
        """Learn a topic before the first record, as `send_nowait` needs it; returns its number of partitions."""
        self._check_usable()
        return len((await self._learn(topic)).queues)

    async def partitions_for(self, topic: str) -> list[int]:
        return list(range(await self.prepare(topic)))

    # --- the slow path: once per batch, or for unusual records -------------------------------------------------------

    async def _send_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Handle:
        self._check_usable()
        deadline_ms = self.block_deadline_ms
        state = self._topics.get(topic) or await self._learn(topic)
        while (handle := self._append(state, value, key, headers, partition, timestamp_ms)) is None:
            await self.wait_for_room(deadline_ms)
        queue = state.queues[handle.batch.partition.partition]
        if len(queue.sealed) >= SOFT_LIMIT_BATCHES or self._seals >= SEALS_PER_TURN:
            await self.ease(queue)
        return handle

    @property
    def block_deadline_ms(self) -> int:
        """Until when a call that begins now may wait."""
        return self._client.clock.now_ms() + self._config.max_block_ms

    async def wait_for_room(self, deadline_ms: int) -> None:
        """Wait until some batch is done. Raises BufferExhaustedError at the deadline, which is that of the whole call: others may
        take the room each time that there is some."""
        self._seal_open()
        self._progress.clear()
        try:
            async with asyncio.timeout((deadline_ms - self._client.clock.now_ms()) / 1000):
                await self._progress.wait()
        except TimeoutError:
            raise self._exhausted() from None
        self._check_usable()

    async def ease(self, queue: PartitionQueue) -> None:
        """After records went to this partition: let the loop turn now and then, and wait a moment where the partition is healthy
        and has more than enough to send; a sick one is left to the hard limit. Records of other partitions do not wait for it."""
        if self._seals >= SEALS_PER_TURN:
            self._seals = 0
            await asyncio.sleep(0)
        if queue in self._stuck:
            return
        try:
            async with asyncio.timeout(min(MAX_EASE_MS, self._config.max_block_ms) / 1000):
                while len(queue.sealed) >= SOFT_LIMIT_BATCHES and queue.is_healthy:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            self._stuck.add(queue)

    def _append(
        self,
        state: _Topic,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Handle | None:
        """Add a record to the open batch of its partition, sealing it and opening a new one if necessary. None: no room in the
        buffer."""
        value = as_bytes(value, "value")
        key = as_bytes(key, "key")
        header_list = checked_headers(headers)
        size_bytes = RECORD_OVERHEAD + len(value or b"") + len(key or b"") + headers_size(header_list)
        if size_bytes > self.max_record_bytes:
            raise RecordTooLargeError(f"a record of {size_bytes} bytes; at most {self.max_record_bytes} are taken")
        queue = self.queue_for(state, key, partition)
        while queue.open is not None and queue.open.room < size_bytes:
            self.seal(state, queue)  # Which turns the sticky partition to another.
            queue = self.queue_for(state, key, partition)
        batch = queue.open or self.open_batch(queue, size_bytes)
        if batch is None:
            return None
        stamp_ms = self.wall_ms if timestamp_ms is None else checked_stamp(timestamp_ms)
        position = batch.append(value, key, header_list, stamp_ms, size_bytes)
        self.filled(state, queue, batch)
        return Handle((batch, position))

    def filled(self, state: _Topic, queue: PartitionQueue, batch: Batch) -> None:
        """Records came into the queue's open batch: the fast path takes only batches without keys and headers."""
        if queue is not state.queues[state.sticky]:
            return
        if batch.is_plain:
            self._plain[state.name] = batch
        else:
            self._plain.pop(state.name, None)

    def open_batch(self, queue: PartitionQueue, size_bytes: int = 0) -> Batch | None:
        """Open a batch in a queue that has none; None if the buffer has no room for it."""
        assert queue.open is None
        size = max(self._config.batch_size - HEADER_SIZE, size_bytes)
        if self._reserved_bytes and self._reserved_bytes + size > self._config.buffer_memory:
            return None
        batch = Batch(queue.partition, room=size, created_ms=self._client.clock.now_ms(), stamp_ms=self.wall_ms)
        self._reserved_bytes += size
        queue.open = batch
        self._open[queue] = None
        self._schedule(batch)
        return batch

    def seal(self, state: _Topic, queue: PartitionQueue) -> None:
        """Close the queue's open batch, send it if possible, and turn to another sticky partition."""
        batch = queue.seal()
        if batch is None:
            return
        self._open.pop(queue, None)
        self._reserved_bytes -= max(batch.room, 0)
        batch.reserved_bytes -= max(batch.room, 0)
        if queue is state.queues[state.sticky]:
            self._plain.pop(state.name, None)
            self._turn_sticky(state)
        self._sender.route(queue)
        self._seals += 1

    def _turn_sticky(self, state: _Topic) -> None:
        count = len(state.queues)
        if count > 1:
            leader = self._client.metadata.leader
            led = [queue for queue in state.queues if leader(queue.partition).node_id >= 0]
            fluent = [queue for queue in led if len(queue.sealed) < SOFT_LIMIT_BATCHES]
            moving = [queue for queue in led if queue not in self._stuck]
            available = [queue.partition.partition for queue in fluent or moving or led]
            state.sticky = next_sticky(state.sticky, available, count, self._client.rng.random)

    def queue_for(self, state: _Topic, key: bytes | None, partition: int | None) -> PartitionQueue:
        if partition is not None:
            if not 0 <= partition < len(state.queues):
                raise InvalidRequestError(
                    f"topic {state.name!r} has partitions 0 to {len(state.queues) - 1}, not {partition}"
                )
            return state.queues[partition]
        if key is None:
            return state.queues[state.sticky]
        queue = state.by_key.get(key)
        if queue is None:
            key = as_bytes(key, "key") or b""
            queue = state.queues[partition_of_key(key, len(state.queues))]
            if len(state.by_key) >= MAX_CACHED_KEYS:
                state.by_key.clear()
            state.by_key[key] = queue
        return queue

    # --- time --------------------------------------------------------------------------------------------------------

    def _read_clock(self) -> int:
        """One look at the clock serves all records of this turn of the loop."""
        self._now_ms = self._client.clock.wall_ms()
        self._loop.call_soon(self._forget_now)
        return self._now_ms

    @property
    def max_record_bytes(self) -> int:
        return max_record_bytes(self._config.max_request_bytes)

    @property
    def wall_ms(self) -> int:
        return self._now_ms or self._read_clock()

    def _forget_now(self) -> None:
        self._now_ms = 0

    def _schedule(self, batch: Batch) -> None:
        """A batch was opened: see that it leaves, at the end of this turn or after the linger, and that it expires."""
        if self._tick is None:
            if self._config.linger_ms:
                self._tick = self._loop.call_later(self._config.linger_ms / 1000, self._linger_over)
            else:
                self._tick = self._loop.call_soon(self._turn_over)
        if self._sweep is None:
            self._arm_sweep(batch.created_ms)

    def _arm_sweep(self, oldest_ms: int) -> None:
        """Not too often: what is in flight may be older than its delivery timeout until its request ends."""
        delay_ms = oldest_ms + self._config.delivery_timeout_ms - self._client.clock.now_ms()
        self._sweep = self._loop.call_later(max(delay_ms, MIN_SWEEP_MS) / 1000, self._sweep_expired)

    def _turn_over(self) -> None:
        """Adaptive linger: what goes to an idle broker goes now, the rest when its answers are back."""
        self._tick = None
        self._send_to_idle()

    def _send_to_idle(self) -> None:
        for queue in list(self._open):
            if self._sender.is_idle(queue.partition):
                self.seal(self._topics[queue.partition.topic], queue)

    def _linger_over(self) -> None:
        self._tick = None
        opened_before_ms = (
            self._client.clock.now_ms() - self._config.linger_ms + 1
        )  # Timers are precise to a millisecond.
        for queue in list(self._open):
            batch = queue.open
            if batch is not None and batch.created_ms <= opened_before_ms:
                self.seal(self._topics[queue.partition.topic], queue)
        oldest = next((queue.open for queue in self._open if queue.open is not None), None)
        if oldest is not None:
            self._schedule(oldest)

    def _send_open_of(self, node_id: int) -> None:
        """A broker has nothing in flight any more: what lingered for it goes."""
        if self._config.linger_ms:
            return
        leader = self._client.metadata.leader
        for queue in list(self._open):
            if leader(queue.partition).node_id == node_id:
                self.seal(self._topics[queue.partition.topic], queue)

    def _sweep_expired(self) -> None:
        """Runs when the oldest batch reaches its delivery timeout, and again for the oldest that is then left."""
        self._sweep = None
        now_ms = self._client.clock.now_ms()
        self._seal_open()
        for queue in self._queues():
            self._sender.expire(queue, now_ms)
        waiting = [batches[0] for queue in self._queues() if (batches := queue.batches())]
        if waiting:
            self._arm_sweep(min(batch.created_ms for batch in waiting))

    # --- state -------------------------------------------------------------------------------------------------------

    def _queues(self) -> list[PartitionQueue]:
        return [queue for state in self._topics.values() for queue in state.queues]

    def _seal_open(self) -> None:
        for queue in list(self._open):
            self.seal(self._topics[queue.partition.topic], queue)

    def _batch_done(self, batch: Batch) -> None:
        self._reserved_bytes -= batch.reserved_bytes
        if self._stuck:
            topic, partition = batch.partition
            self._stuck.discard(self._topics[topic].queues[partition])
        self._progress.set()

    async def _learn(self, topic: str) -> _Topic:
        check_topic_name(topic)
        await self._client.wait_for_topic(topic, timeout_ms=self._config.max_block_ms, create=True)
        state = self._topics.get(topic)
        if state is None:
            state = self._topics[topic] = _Topic(topic)
            self._grow(state)
            self._turn_sticky(state)
        return state

    def _grow(self, state: _Topic) -> None:
        """Partitions were added: keys move, as they do with every client of Kafka."""
        count = self._client.metadata.partition_count(state.name)
        if count > len(state.queues):
            state.by_key.clear()
            for number in range(len(state.queues), count):
                state.queues.append(self._queue_type(TopicPartition(state.name, number)))

    def _metadata_changed(self) -> None:
        if self._is_closed:
            return
        for state in self._topics.values():
            self._grow(state)
        self._sender.reroute(self._queues())
        if not self._config.linger_ms:
            self._send_to_idle()  # What lingered for a busy broker would wait for ever if an idle one leads now.

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the producer is closed")
        if not self._is_started:
            raise ClientClosedError("the producer is not started: use `async with Producer(...)`, or await start()")
        check_loop(self._loop, "producer")

    def _exhausted(self) -> BufferExhaustedError:
        return BufferExhaustedError(
            f"the buffer of {self._config.buffer_memory} bytes is full: send more slowly, await send, or raise buffer_memory"
        )
