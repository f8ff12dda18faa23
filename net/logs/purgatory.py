"""Requests that wait for a partition: produces, and fetches that found too little data. Pure: no clock, no sockets.

acks=all waits for the high watermark; acks=1 waits only on a topic with flush.messages=1, for the leader's disk.

The name is Kafka's. An operation is parked under every partition that it waits for. `check` is called for a partition after a
change (HighWatermarkAdvanced, LogEndAdvanced, LogFlushed, LeadershipLost) and returns the operations that are complete now;
`expire` returns those that have timed out. The owner answers them; for a completed fetch, it reads again.

On the acks=all path there is one DelayedProduce per request, so the costs must be small: produces wait in a deque per
partition in the order of their offsets, and `check` visits only those that complete and one more.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Final, Protocol

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition

# A parked operation with its request takes about 1 KiB. Kafka has no such limit; at the limit, operations are answered at once.
MAX_PARKED_OPERATIONS: Final = 100_000
UNKNOWN_LEADER_EPOCH: Final = -1
# A deque is swept of operations that ended elsewhere when they are more than half of it, but not for a handful.
_SWEEP_FROM: Final = 32


class PartitionProgress(Protocol):
    """The part of log.replication.partition.Partition that the purgatory uses."""

    @property
    def leadership(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def has_enough_replicas(self) -> bool: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def durable_end_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    def readable_bytes(self, offset: int, *, end_offset: int, max_bytes: int) -> int: ...


PartitionLookup = Callable[
    [TopicPartition], PartitionProgress
]  # raises a BarnabasError for a partition that this broker does not serve


class ReadUpTo(Enum):
    """How far a fetch may read, and therefore what completes it."""

    HIGH_WATERMARK = "high watermark"
    LAST_STABLE_OFFSET = "last stable offset"
    LOG_END = "log end"


class _Operation:
    __slots__ = ("client", "deadline_ms", "is_done", "timeout_ms", "token")

    def __init__(self, *, token: object, client: Hashable, timeout_ms: int) -> None:
        self.token = token  # belongs to the owner: the recipient of the answer
        self.client = client  # its connection
        self.timeout_ms = max(0, timeout_ms)
        self.deadline_ms = -1  # set when it is parked
        self.is_done = False


class DelayedProduce(_Operation):
    """Waits until the high watermark of each partition (with `is_for_leader_only`, the end of the leader's flushed log) has
    reached its required offset. `errors` has the outcome by partition; partitions without an outcome are pending."""

    __slots__ = ("errors", "is_for_leader_only", "pending")

    def __init__(self, *, token: object, client: Hashable, timeout_ms: int, is_for_leader_only: bool = False) -> None:
        super().__init__(token=token, client=client, timeout_ms=timeout_ms)
        self.is_for_leader_only = is_for_leader_only  # acks=1
        self.pending: dict[TopicPartition, tuple[int, int]] = {}  # required offset, leadership
        self.errors: dict[TopicPartition, ErrorCode] = {}

    def wait_for(self, topic_partition: TopicPartition, *, required_offset: int, leadership: int) -> None:
        """`leadership` is the partition's when it appended: under a later leadership, the batch may have been truncated."""
        assert topic_partition not in self.pending
        self.pending[topic_partition] = (required_offset, leadership)

    def settle(self, topic_partition: TopicPartition, error: ErrorCode) -> None:
        del self.pending[topic_partition]
        self.errors[topic_partition] = error


class StandingWatch:
    """The partitions of one reader, which stay watched from one fetch to the next, so that a parked fetch of a thousand
    partitions costs no more than that of one. All of them are in the purgatory (`watch`)."""

    __slots__ = ("changed", "parked", "places")

    def __init__(self) -> None:
        self.places: dict[TopicPartition, tuple[int, int]] = {}  # as `DelayedFetch.offsets`
        self.changed: dict[TopicPartition, None] = {}  # a subset; the owner removes what it has looked at
        self.parked: DelayedFetch | None = None


class DelayedFetch(_Operation):
    """Waits until `min_bytes` can be read, or until one of its partitions no longer matches the request."""

    __slots__ = ("available", "min_bytes", "offsets", "read_up_to", "standing", "told_high_watermarks")

    def __init__(
        self,
        *,
        token: object,
        client: Hashable,
        timeout_ms: int,
        min_bytes: int,
        read_up_to: ReadUpTo,
        offsets: dict[TopicPartition, tuple[int, int]],
        told_high_watermarks: dict[TopicPartition, int] | None = None,
        standing: StandingWatch | None = None,
    ) -> None:
        """`standing`: whose partitions are watched already; `offsets` are its places then. `told_high_watermarks`: of partitions
        where a newer one completes the fetch too, because consumers read from this follower."""
        super().__init__(token=token, client=client, timeout_ms=timeout_ms)
        self.standing = standing
        self.min_bytes = min_bytes
        self.read_up_to = read_up_to
        self.told_high_watermarks = told_high_watermarks or {}
        self.offsets = offsets  # fetch offset, and the leader epoch of the partition when it was read
        self.available: dict[TopicPartition, int] = {}  # bytes found so far, only for partitions that were checked

    def is_satisfied_by(self, topic_partition: TopicPartition, partition: PartitionProgress) -> bool:
        offset, leader_epoch = self.offsets[topic_partition]
        if partition.leader_epoch != leader_epoch:
            return True
        told = self.told_high_watermarks
        if told and partition.high_watermark > told.get(topic_partition, partition.high_watermark):
            return True
        end_offset = partition.log_end_offset if self.read_up_to is ReadUpTo.LOG_END else self._committed_end(partition)
        if end_offset <= offset:
            return partition.log_end_offset < offset  # truncated meanwhile: the reader will find out
        if self.min_bytes <= 1:
            return True
        self.available[topic_partition] = partition.readable_bytes(
            offset, end_offset=end_offset, max_bytes=self.min_bytes
        )
        return sum(self.available.values()) >= self.min_bytes

    def _committed_end(self, partition: PartitionProgress) -> int:
        if self.read_up_to is ReadUpTo.HIGH_WATERMARK:
            return partition.high_watermark
        return partition.last_stable_offset


Operation = DelayedProduce | DelayedFetch


def _reached(partition: PartitionProgress) -> ErrorCode:
    """The high watermark has passed the batch. As in Kafka, min.insync.replicas is checked again, so that a producer learns
    if its batch is less safe by now than it had asked for."""
    return ErrorCode.NONE if partition.has_enough_replicas else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def _has_reached(partition: PartitionProgress, required_offset: int, operation: DelayedProduce) -> ErrorCode | None:
    """None: not yet."""
    if operation.is_for_leader_only:
        return ErrorCode.NONE if partition.durable_end_offset >= required_offset else None
    return _reached(partition) if partition.high_watermark >= required_offset else None


def _satisfies(
    operation: DelayedFetch, topic_partition: TopicPartition, partition: PartitionProgress | BarnabasError
) -> bool:
    """An error ends the wait: the reader will get the same error and return it."""
    if isinstance(partition, BarnabasError):
        return True
    try:
        return operation.is_satisfied_by(topic_partition, partition)
    except BarnabasError:
        return True


class _ProduceQueue:
    """Produces that wait for one partition, in the order of their offsets."""

    __slots__ = ("_done", "entries")

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int, DelayedProduce]] = deque()  # required offset (rising), leadership
        self._done = 0  # entries that ended otherwise (timeout, disconnection)

    def add(self, required_offset: int, leadership: int, operation: DelayedProduce) -> None:
        """The position is usually the end; a retried batch waits for the offset of its first attempt."""
        produces = self.entries
        position = len(produces)
        while position and produces[position - 1][0] > required_offset:
            position -= 1
        if position == len(produces):
            produces.append((required_offset, leadership, operation))
        else:
            produces.insert(position, (required_offset, leadership, operation))

    def one_ended_elsewhere(self) -> None:
        """The entry is removed at once if it is the first, since the oldest expires first; otherwise by the next sweep."""
        self._done += 1
        produces = self.entries
        while produces and produces[0][2].is_done:
            produces.popleft()
            self._done -= 1
        if self._done > max(_SWEEP_FROM, len(produces) // 2):
            self.entries = deque(entry for entry in produces if not entry[2].is_done)
            self._done = 0

    def pop(self) -> None:
        """Remove the first entry."""
        if self.entries.popleft()[2].is_done:
            self._done -= 1


class _Watch:
    """The operations that wait for one partition."""

    __slots__ = ("commits", "fetches", "flushes", "standing")

    def __init__(self) -> None:
        self.standing: dict[StandingWatch, None] = {}
        self.commits = _ProduceQueue()  # acks=all
        self.flushes = _ProduceQueue()  # acks=1, where the leader flushes first
        self.fetches: dict[DelayedFetch, None] = {}  # a dict, because it is ordered and removal is cheap

    def queue_of(self, operation: DelayedProduce) -> _ProduceQueue:
        return self.flushes if operation.is_for_leader_only else self.commits

    @property
    def is_empty(self) -> bool:
        return not (self.commits.entries or self.fetches or self.flushes.entries or self.standing)


class Purgatory:
    """All parked operations of a broker. All times come from one monotonic clock."""

    def __init__(self, partition: PartitionLookup, *, max_operations: int = MAX_PARKED_OPERATIONS) -> None:
        self._partition = partition
        self._max_operations = max_operations
        self._watches: dict[TopicPartition, _Watch] = {}
        # Operations with the same timeout expire in the order of their arrival: no heap is needed, and removal is O(1).
        self._by_timeout: dict[int, OrderedDict[Operation, None]] = {}
        self._by_client: dict[Hashable, dict[Operation, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def park(self, operation: Operation, now_ms: int) -> bool:
        """Keep the operation until it completes. False: it is not kept, and the caller must answer it now: it is complete
        already (the caller need not check that before), or the purgatory is full, or its timeout is 0."""
        assert operation.deadline_ms < 0 and not operation.is_done
        if self._is_complete(operation):
            operation.is_done = True
            return False
        if self._size >= self._max_operations or operation.timeout_ms == 0:
            self._time_out(operation)
            return False
        operation.deadline_ms = now_ms + operation.timeout_ms
        self._by_timeout.setdefault(operation.timeout_ms, OrderedDict())[operation] = None
        self._by_client.setdefault(operation.client, {})[operation] = None
        self._size += 1
        self._watch(operation)
        return True

    def _watch(self, operation: Operation) -> None:
        watches = self._watches
        if isinstance(operation, DelayedProduce):
            for topic_partition, (required_offset, leadership) in operation.pending.items():
                watch = watches.get(topic_partition) or watches.setdefault(topic_partition, _Watch())
                watch.queue_of(operation).add(required_offset, leadership, operation)
        elif operation.standing is not None:
            operation.standing.parked = operation
        else:
            for topic_partition in operation.offsets:
                watch = watches.get(topic_partition) or watches.setdefault(topic_partition, _Watch())
                watch.fetches[operation] = None

    def _is_complete(self, operation: Operation) -> bool:
        if isinstance(operation, DelayedFetch):
            looked_at = operation.offsets if operation.standing is None else operation.standing.changed
            return any(_satisfies(operation, place, self._found(place)) for place in looked_at)
        for topic_partition, (required_offset, leadership) in list(operation.pending.items()):
            error = self._outcome(topic_partition, required_offset, leadership, operation)
            if error is not None:
                operation.settle(topic_partition, error)
        return not operation.pending

    def _found(self, topic_partition: TopicPartition) -> PartitionProgress | BarnabasError:
        try:
            return self._partition(topic_partition)
        except BarnabasError as error:
            return error

    def _outcome(
        self, topic_partition: TopicPartition, required_offset: int, leadership: int, operation: DelayedProduce
    ) -> ErrorCode | None:
        try:
            partition = self._partition(topic_partition)
        except BarnabasError as error:
            return error.code
        if partition.leadership != leadership:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return _has_reached(partition, required_offset, operation)

    # --- standing watches ---------------------------------------------------------------------------------------------

    def watch(self, standing: StandingWatch, topic_partition: TopicPartition, fetch_offset: int) -> None:
        """The reader reads on from this offset. What is new counts as changed."""
        if topic_partition not in standing.places:
            watch = self._watches.get(topic_partition) or self._watches.setdefault(topic_partition, _Watch())
            watch.standing[standing] = None
        standing.places[topic_partition] = (fetch_offset, UNKNOWN_LEADER_EPOCH)
        standing.changed.pop(topic_partition, None)  # to the end: those behind it get their turn first
        standing.changed[topic_partition] = None

    def unwatch(self, standing: StandingWatch, topic_partition: TopicPartition) -> None:
        if standing.places.pop(topic_partition, None) is not None:
            standing.changed.pop(topic_partition, None)
            watch = self._watches[topic_partition]
            del watch.standing[standing]
            if watch.is_empty:
                del self._watches[topic_partition]

    # --- waking ------------------------------------------------------------------------------------------------------

    def check(self, topic_partition: TopicPartition) -> list[Operation]:
        """Called after a change of the partition: return the operations that are complete now."""
        watch = self._watches.get(topic_partition)
        if watch is None:
            return []
        completed: list[Operation] = []
        partition = self._found(topic_partition)
        for queue in (watch.commits, watch.flushes):
            if queue.entries:
                self._check_produces(topic_partition, partition, queue, completed)
        for fetch in list(watch.fetches):
            if _satisfies(fetch, topic_partition, partition):
                self._finish(fetch, except_for=None)
                completed.append(fetch)
        for standing in watch.standing:
            standing.changed[topic_partition] = None
            parked = standing.parked
            if parked is not None and _satisfies(parked, topic_partition, partition):
                self._finish(parked, except_for=None)
                completed.append(parked)
        if watch.is_empty:
            self._watches.pop(topic_partition, None)
        return completed

    def _check_produces(
        self,
        topic_partition: TopicPartition,
        partition: PartitionProgress | BarnabasError,
        queue: _ProduceQueue,
        completed: list[Operation],
    ) -> None:
        leadership = -1 if isinstance(partition, BarnabasError) else partition.leadership
        # A change of leadership ends all of them. They belong to one leadership, because every change is checked at once, but
        # this code does not rely on it.
        while queue.entries:
            required_offset, since, operation = queue.entries[0]
            if operation.is_done:
                queue.pop()
                continue
            outcome: ErrorCode | None
            if isinstance(partition, BarnabasError):
                outcome = partition.code
            elif since != leadership:
                outcome = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                outcome = _has_reached(partition, required_offset, operation)
            if outcome is None:
                return
            queue.pop()
            operation.settle(topic_partition, outcome)
            if not operation.pending:
                self._finish(operation, except_for=topic_partition)
                completed.append(operation)

    # --- ending ------------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> list[Operation]:
        """Return the operations that have timed out: produces with REQUEST_TIMED_OUT, fetches with the data that is there."""
        expired: list[Operation] = []
        for operations in list(self._by_timeout.values()):
            while operations:
                operation = next(iter(operations))
                if operation.deadline_ms > now_ms:
                    break
                self._finish(operation, except_for=None)
                self._time_out(operation)
                expired.append(operation)
        return expired

    def _time_out(self, operation: Operation) -> None:
        operation.is_done = True
        if isinstance(operation, DelayedProduce):
            for topic_partition in list(operation.pending):
                operation.settle(topic_partition, ErrorCode.REQUEST_TIMED_OUT)

    def next_deadline_ms(self) -> int | None:
        return min((next(iter(operations)).deadline_ms for operations in self._by_timeout.values()), default=None)

    def forget_client(self, client: Hashable) -> int:
        """Drop the operations of a closed connection, and return their number."""
        operations = self._by_client.get(client)
        if operations is None:
            return 0
        dropped = list(operations)
        for operation in dropped:
            self._finish(operation, except_for=None)
        return len(dropped)

    def _finish(self, operation: Operation, *, except_for: TopicPartition | None) -> None:
        """Remove the operation everywhere but in `except_for`: the caller is iterating over the produces of that partition."""
        assert not operation.is_done
        operation.is_done = True
        self._size -= 1
        operations = self._by_timeout[operation.timeout_ms]
        del operations[operation]
        if not operations:
            del self._by_timeout[operation.timeout_ms]
        of_client = self._by_client[operation.client]
        of_client.pop(operation, None)
        if not of_client:
            del self._by_client[operation.client]
        if isinstance(operation, DelayedFetch) and operation.standing is not None:
            operation.standing.parked = None
            return
        partitions: Iterable[TopicPartition] = (
            operation.pending if isinstance(operation, DelayedProduce) else operation.offsets
        )
        for topic_partition in partitions:
            if topic_partition != except_for:
                self._unwatch(topic_partition, operation)

    def _unwatch(self, topic_partition: TopicPartition, operation: Operation) -> None:
        watch = self._watches[topic_partition]
        if isinstance(operation, DelayedProduce):
            watch.queue_of(operation).one_ended_elsewhere()
        else:
            watch.fetches.pop(operation, None)
        if watch.is_empty:
            del self._watches[topic_partition]
