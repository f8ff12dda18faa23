"""`RecordBuffer`: the records of a producer that wait to be sent, in the open and sealed batches of all partitions.

It decides into which batch a record goes, and makes calls wait while `buffer_memory` is used up. When an open batch leaves is
decided by `departures`; who sends it, by `sender`.

Everything runs on the producer's loop, except `append_from_thread`. `lock` guards what that one touches: open batches, and the
maps that lead to them. A batch that was taken from the maps under the lock gets no more records from threads.
"""

import asyncio
import threading
from collections.abc import Callable

from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.records.codec import PassTime
from barnabas.log.vocabulary.topic_partition import TopicPartition, check_topic_name

from ..connection.client import Client
from ..connection.errors import (
    BarnabasError,
    BufferExhaustedError,
    ClientClosedError,
    InvalidRequestError,
    RecordTooLargeError,
)
from ..connection.record_checks import as_bytes, checked_headers, checked_stamp
from ..connection.records import Headers
from .batch_growth import BUSY_REQUESTS, BatchGrowth
from .bulk import headers_size, max_record_bytes
from .departures import Departures
from .handles import Handle, finished
from .partitioner import next_sticky, partition_of_key
from .producer_config import LARGEST_BATCH_BYTES, ProducerConfig
from .record_accumulator import RECORD_OVERHEAD, Batch, PartitionQueue
from .sender import Sender

MAX_CACHED_KEYS = 65_536  # Keys per topic whose partition is remembered: murmur2 costs a microsecond, a look-up 40 ns.
# Sealed batches of a healthy partition before `send` waits briefly: more would only leave the CPU's cache.
SOFT_LIMIT_BATCHES = 8
SOFT_LIMIT_BYTES = 2 * LARGEST_BATCH_BYTES
# The longest such wait; the buffer still has free memory. After a wait without progress (a frozen leader, for example), `send`
# does not wait for this partition again before it makes progress; until then, the buffer is the only limit.
MAX_EASE_MS = 100
TABLE_BATCH_BYTES = LARGEST_BATCH_BYTES  # All rows are at hand, so a batch need not be small to leave soon.
FILLS_PER_TURN = 4  # A `send` that never has to wait must not starve the loop: answers, heartbeats, other tasks.


def has_enough(queue: PartitionQueue) -> bool:
    """Whether so much waits to be sent that more would gain nothing."""
    sealed = queue.sealed
    return len(sealed) >= SOFT_LIMIT_BATCHES or (
        len(sealed) > 1 and sum(batch.reserved_bytes for batch in sealed) >= SOFT_LIMIT_BYTES
    )


class TopicQueues:
    """What `send` needs of a topic: its queues, the sticky partition, and the partitions of keys seen lately."""

    __slots__ = ("by_key", "name", "queues", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky = 0
        self.by_key: dict[bytes, PartitionQueue] = {}


class RecordBuffer:
    """Of one producer. `start` it on the loop."""

    def __init__(
        self, client: Client, config: ProducerConfig, new_queue: Callable[[TopicPartition, BatchGrowth], PartitionQueue]
    ) -> None:
        # Re-entrant: to seal a batch may finish others, which may seal more.
        self.lock = threading.RLock()
        self.topics: dict[str, TopicQueues] = {}
        self.sticky: dict[str, Batch] = {}  # Open batches of sticky partitions, by topic: the fast path.
        self.open: dict[PartitionQueue, None] = {}  # Queues with an open batch, oldest first.
        self.grown: dict[PartitionQueue, None] = {}  # Of those, with one that leaves as soon as its broker has room.
        self.reserved_bytes = 0  # Of buffer_memory: open batches with their full size, others with their real one.
        self.time = PassTime()
        self.is_closed = False
        self.max_record_bytes = max_record_bytes(config.max_request_bytes)
        self.table_batch_bytes = min(max(config.batch_size, TABLE_BATCH_BYTES), config.max_request_bytes)
        self.compression = config.compression
        # Each partition of a transaction costs its brokers a question and a marker.
        self._keeps_sticky = config.transactional_id is not None
        self._client = client
        self._config = config
        self._new_queue = new_queue
        self._fills = 0  # Batches sealed or grown since `ease` yielded to the event loop.
        self._stuck: set[PartitionQueue] = set()  # Waited for in vain; until one of their batches is done.
        self._progress = asyncio.Event()  # Set whenever a batch is done.

    def start(self, sender: Sender, departures: Departures) -> None:
        self._loop = asyncio.get_running_loop()
        self._sender = sender
        self._departures = departures

    def close(self) -> None:
        """Fail all that is left."""
        with self.lock:
            self.is_closed = True
            self.sticky.clear()
            for queue in self.queues():
                self._sender.abandon(queue, ClientClosedError("the producer was closed before this was acknowledged"))
        self._departures.close()

    def discard(self, error: BarnabasError) -> None:
        """Of an aborted transaction."""
        with self.lock:
            self.sticky.clear()
            self.open.clear()
            self.grown.clear()
            for queue in self.queues():
                self._sender.discard(queue, error)

    async def delivered(self) -> None:
        """Send all that is waiting, and return when everything that is here now is acknowledged or has failed."""
        self.seal_open()
        for batch in [batch for queue in self.queues() for batch in queue.batches()]:
            await finished(batch)

    # --- into a batch ------------------------------------------------------------------------------------------------

    def append(
        self,
        state: TopicQueues,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Handle | None:
        """Add a record to the open batch of its partition, sealing it and opening a new one if necessary. None: the buffer is
        full."""
        value = as_bytes(value, "value")
        key = as_bytes(key, "key")
        header_list = checked_headers(headers)
        size_bytes = RECORD_OVERHEAD + len(value or b"") + len(key or b"") + headers_size(header_list)
        if size_bytes > self.max_record_bytes:
            raise RecordTooLargeError(f"a record of {size_bytes} bytes; at most {self.max_record_bytes} are taken")
        stamp_ms = self.wall_ms if timestamp_ms is None else checked_stamp(timestamp_ms)
        with self.lock:
            while True:
                queue = self.queue_for(state, key, partition)
                batch = queue.open or self.open_batch(queue, size_bytes)
                if batch is None:
                    return None
                position = batch.add(value, key, header_list, stamp_ms)
                if position >= 0:
                    self.filled(state, queue, batch)
                    return Handle(batch, position)
                self.make_room(state, queue, size_bytes)

    def filled(self, state: TopicQueues, queue: PartitionQueue, batch: Batch) -> None:
        """Records came into the queue's open batch: it is the one of the fast path if the queue is the sticky one."""
        if queue is state.queues[state.sticky]:
            self.sticky[state.name] = batch

    def open_batch(self, queue: PartitionQueue, size_bytes: int = 0) -> Batch | None:
        """Open a batch in a queue that has none; None if the buffer is full. Raises ClientClosedError: a call that had to wait
        may go on when the buffer is closed, and no later close would end its record."""
        assert queue.open is None
        _check_open(self)
        size = max(queue.growth.first_bytes, size_bytes)
        if self.reserved_bytes and self.reserved_bytes + size > self._config.buffer_memory:
            return None
        batch = Batch(queue.partition, room=size, created_ms=self._client.clock.now_ms(), stamp_ms=self.wall_ms)
        batch.take_for(Handle, self.time)
        self.reserved_bytes += size
        queue.open = batch
        self.open[queue] = None
        self._departures.opened(batch)
        return batch

    def make_room(self, state: TopicQueues, queue: PartitionQueue, size_bytes: int = 0) -> None:
        """For records that the open batch of the queue has none for: it grows, or a new one may be opened.

        Records without a partition go to another one now.
        """
        batch = queue.open
        assert batch is not None
        if not _grow_open(self, queue, batch, size_bytes):
            self.seal(state, queue)
            return
        self._departures.opened(batch)  # It may wait for nothing: then it leaves at the end of this turn.
        if queue is state.queues[state.sticky]:
            self.sticky.pop(state.name, None)
            self._turn_sticky(state)

    def put_encoded(self, queue: PartitionQueue, data: bytes, record_count: int, stamp_ms: int) -> Batch | None:
        """Add a whole batch, behind the open one of the queue, and send it if possible; None if the buffer is full. Raises
        ClientClosedError, as `open_batch`."""
        with self.lock:
            _check_open(self)
            self.seal_of(queue)
            if self.reserved_bytes and self.reserved_bytes + len(data) > self._config.buffer_memory:
                return None
            batch = Batch(queue.partition, room=0, created_ms=self._client.clock.now_ms(), stamp_ms=stamp_ms)
            batch.take_encoded(data, record_count)
            self.reserved_bytes += len(data)
            queue.open = batch
            self._departures.opened(batch)
            self.seal_of(queue)
        return batch

    def seal(self, state: TopicQueues, queue: PartitionQueue) -> None:
        """Close the queue's open batch, send it if possible, and choose another sticky partition; in a transaction only after a
        batch that is not small."""
        with self.lock:
            batch = queue.seal()
            if batch is None:
                return
            self.open.pop(queue, None)
            self.grown.pop(queue, None)
            unused_bytes = max(batch.reserved_bytes - batch.used_bytes, 0)
            self.reserved_bytes -= unused_bytes
            batch.reserved_bytes -= unused_bytes
            if queue is state.queues[state.sticky]:
                self.sticky.pop(state.name, None)
                if not self._keeps_sticky or 2 * batch.used_bytes >= queue.growth.first_bytes:
                    self._turn_sticky(state)
        self._sender.route(queue)
        self._fills += 1

    def seal_of(self, queue: PartitionQueue) -> None:
        self.seal(self.topics[queue.partition.topic], queue)

    def seal_open(self) -> None:
        for queue in list(self.open):
            self.seal_of(queue)

    def turn_sticky(self) -> None:
        """The next transaction begins: it prefers other partitions than the last one."""
        for state in self.topics.values():
            self._turn_sticky(state)

    def _turn_sticky(self, state: TopicQueues) -> None:
        count = len(state.queues)
        if count > 1:
            leader = self._client.metadata.leader
            led = [queue for queue in state.queues if leader(queue.partition).node_id >= 0]
            fluent = [queue for queue in led if not has_enough(queue)]
            moving = [queue for queue in led if queue not in self._stuck]
            available = [queue.partition.partition for queue in fluent or moving or led]
            state.sticky = next_sticky(state.sticky, available, count, self._client.rng.random)

    def queue_for(self, state: TopicQueues, key: bytes | None, partition: int | None) -> PartitionQueue:
        if partition is not None:
            if not isinstance(partition, int):
                raise TypeError(f"the partition must be an int, not {type(partition).__name__}: {partition!r}")
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

    def partition_count(self, state: TopicQueues) -> int:
        return len(state.queues)

    # --- room --------------------------------------------------------------------------------------------------------

    @property
    def block_deadline_ms(self) -> int:
        """Until when a call that begins now may wait."""
        return self._client.clock.now_ms() + self._config.max_block_ms

    async def wait_for_room(self, deadline_ms: int) -> None:
        """Wait until some batch is done. Raises BufferExhaustedError at the deadline of the whole call: other callers
        may take the free memory each time."""
        self.seal_open()
        self._progress.clear()
        try:
            async with asyncio.timeout((deadline_ms - self._client.clock.now_ms()) / 1000):
                await self._progress.wait()
        except TimeoutError:
            raise self.exhausted() from None
        _check_open(self)

    def has_much(self, handle: Handle) -> bool:
        """As `has_much_of`, after this record."""
        return self.has_much_of(_queue_of(self, handle.batch))

    def has_much_of(self, queue: PartitionQueue) -> bool:
        """Whether the caller is to `ease`, after a record went to this partition."""
        return has_enough(queue) or self._fills >= FILLS_PER_TURN

    async def ease(self, queue: PartitionQueue) -> None:
        """Called after records were added to this partition: yield to the event loop regularly, and wait briefly if the partition
        is healthy and has enough batches to send. Only the memory limit holds back records for an unhealthy one. Records of other
        partitions do not wait for it."""
        if self._fills >= FILLS_PER_TURN:
            self._fills = 0
            await asyncio.sleep(0)
        if queue in self._stuck:
            return
        try:
            async with asyncio.timeout(min(MAX_EASE_MS, self._config.max_block_ms) / 1000):
                while has_enough(queue) and queue.is_healthy:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            self._stuck.add(queue)

    def batch_done(self, batch: Batch) -> None:
        with self.lock:
            self.reserved_bytes -= batch.reserved_bytes
        if self._stuck:
            topic, partition = batch.partition
            self._stuck.discard(self.topics[topic].queues[partition])
        self._progress.set()

    def exhausted(self) -> BufferExhaustedError:
        return BufferExhaustedError(
            f"the buffer of {self._config.buffer_memory} bytes is full: send more slowly, await send, or raise buffer_memory"
        )

    # --- topics ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[PartitionQueue]:
        return [queue for state in self.topics.values() for queue in state.queues]

    async def learn(self, topic: str) -> TopicQueues:
        """Return the queues of a topic; wait up to `max_block_ms` until it is known."""
        check_topic_name(topic)
        await self._client.wait_for_topic(topic, timeout_ms=self._config.max_block_ms, create=True)
        state = self.topics.get(topic)
        if state is None:
            state = TopicQueues(topic)
            self._grow(state)
            self._turn_sticky(state)
            self.topics[topic] = state  # now: other threads (`barnabas.sync`) take what they find here
        return state

    def metadata_changed(self) -> None:
        if self.is_closed:
            return
        for state in self.topics.values():
            self._grow(state)
        self._sender.reroute(self.queues())
        self._departures.leaders_changed()

    def _grow(self, state: TopicQueues) -> None:
        """Partitions were added: keys move, as they do with every client of Kafka."""
        count = self._client.metadata.partition_count(state.name)
        if count > len(state.queues):
            state.by_key.clear()
            for number in range(len(state.queues), count):
                growth = BatchGrowth(
                    step_bytes=self._config.batch_size - HEADER_SIZE,
                    max_bytes=min(self._config.max_batch_size, self._config.max_request_bytes) - HEADER_SIZE,
                )
                state.queues.append(self._new_queue(TopicPartition(state.name, number), growth))

    # --- the clock ---------------------------------------------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """The clock is read once for all records of this iteration of the event loop."""
        time = self.time
        if not time.now_ms:
            time.now_ms = self._client.clock.wall_ms()
            self._loop.call_soon(self._forget_time)
        return time.now_ms

    def _forget_time(self) -> None:
        self.time.now_ms = 0


def _check_open(buffer: RecordBuffer) -> None:
    if buffer.is_closed:
        raise ClientClosedError("the producer is closed")


def append_now(
    buffer: RecordBuffer,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    partition: int | None,
    timestamp_ms: int | None,
) -> Handle | None:
    """Add a record; None if the caller has to wait, because the buffer is full or the topic not known."""
    if key is None and partition is None and headers is None and timestamp_ms is None:
        batch = buffer.sticky.get(topic)
        handle: Handle | None = None if batch is None else batch.take(value)
        if handle is not None:
            return handle
    state = buffer.topics.get(topic)
    return None if state is None else buffer.append(state, value, key, headers, partition, timestamp_ms)


async def send_one(
    buffer: RecordBuffer,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers | None,
    partition: int | None,
    timestamp_ms: int | None,
) -> Handle:
    """Add a record; wait up to `max_block_ms` while the buffer is full or the topic not known."""
    deadline_ms = buffer.block_deadline_ms
    state = buffer.topics.get(topic) or await buffer.learn(topic)
    while (handle := buffer.append(state, value, key, headers, partition, timestamp_ms)) is None:
        await buffer.wait_for_room(deadline_ms)
    if buffer.has_much(handle):
        await ease_after(buffer, handle)
    return handle


async def ease_after(buffer: RecordBuffer, handle: Handle) -> None:
    """As `RecordBuffer.ease`, after this record."""
    await buffer.ease(_queue_of(buffer, handle.batch))


def _grow_open(
    buffer: RecordBuffer, queue: PartitionQueue, batch: Batch, size_bytes: int = 0, *, is_on_loop: bool = True
) -> bool:
    """Whether the open batch, which is full, has room for a record of this size now. From a thread it grows only while it is
    certain to leave: when its broker has answered, or after a time."""
    requests = buffer._sender.requests_to(queue.partition)
    if not is_on_loop:
        if not requests and not buffer._departures.lingers:
            return False
        requests = max(requests, BUSY_REQUESTS)
    room = queue.growth.room_of_full(batch.room, requests=requests, sealed=len(queue.sealed))
    more_bytes = room - batch.room
    if more_bytes < size_bytes or not more_bytes or buffer.reserved_bytes + more_bytes > buffer._config.buffer_memory:
        return False
    batch.grow(room)
    buffer.reserved_bytes += more_bytes
    buffer.grown[queue] = None
    buffer._fills += 1
    return True


def append_from_thread(
    buffer: RecordBuffer, topic: str, value: bytes | None, key: bytes | None, partition: int | None, stamp_ms: int
) -> Handle | None:
    """Add a record to an open batch from any thread. None: only the loop can, because there is no open batch or it cannot grow
    from here, or because the record is unusual.

    Nothing has to wake the loop: only the loop opens a batch, and it leaves one open only for a broker whose answer it awaits,
    or until its linger time is over.
    """
    if value.__class__ is not bytes or (key is not None and key.__class__ is not bytes):
        return None
    with buffer.lock:
        batch = _open_batch(buffer, topic, key, partition)
        if batch is None:
            return None
        if batch.stamp_ms != stamp_ms:
            batch.restamp(stamp_ms)
        handle = batch.append_for(Handle, batch, value, key, (), stamp_ms)
        if handle is None and _grow_open(buffer, _queue_of(buffer, batch), batch, is_on_loop=False):
            handle = batch.append_for(Handle, batch, value, key, (), stamp_ms)
        return handle


def _open_batch(buffer: RecordBuffer, topic: str, key: bytes | None, partition: int | None) -> Batch | None:
    if key is None and partition is None:
        return buffer.sticky.get(topic)
    state = buffer.topics.get(topic)
    return None if state is None else buffer.queue_for(state, key, partition).open


def _queue_of(buffer: RecordBuffer, batch: Batch) -> PartitionQueue:
    topic, partition = batch.partition
    return buffer.topics[topic].queues[partition]
