"""Records that wait to be sent, encoded, per partition. Pure.

`Batch` takes records as long as it is open, and encodes them at once. `PartitionQueue` keeps
the batches of one partition in order, through failures too:

    open --seal--> sealed[0..n] --take--> in_flight --acknowledge--> done
                        ^                     |--retry (back to the front, in order)
                                              |--refuse--> done, with an error

One request of a partition is in flight at a time, with all the batches that fit into it. So a batch can never
overtake one that failed before it, which no number of requests in flight could promise without the idempotent
producer (whose queue is in `idempotence`); and because a request grows with what has piled up meanwhile, it costs no
throughput.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import HEADER_SIZE, read_header
from barnabas.log.format.record_codec import NOT_IDEMPOTENT, ProducerFields, number_batch
from barnabas.log.records.codec import Accumulator, PassTime, Receipt, RecordView, records_of
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import BarnabasError, ErrorCode
from ..connection.records import Headers, RecordMetadata
from .batch_growth import BatchGrowth

# Length, attributes, timestamp and offset deltas, lengths of key and value, header count, as they usually are in a
# batch of 64 KiB. An estimate for the limit of a record; batches count the real bytes.
RECORD_OVERHEAD = 12
NO_LIMIT = 2**30  # For a half of a batch that exists already.


class Batch:
    """Records of one partition that travel, succeed and fail together. They are encoded as they come."""

    __slots__ = (
        "append_for",
        "attempts",
        "base_offset",
        "callbacks",
        "count",
        "created_ms",
        "encoded",
        "error",
        "is_done",
        "log_append_time_ms",
        "partition",
        "parts",
        "producer",
        "records",
        "reserved_bytes",
        "room",
        "stamp_changes",
        "stamp_ms",
        "take",
    )

    def __init__(self, partition: TopicPartition, *, room: int, created_ms: int, stamp_ms: int) -> None:
        """`room`: for so many bytes of records; a first record is taken whatever its size."""
        self.partition = partition
        self.records: Accumulator | None = Accumulator(room + HEADER_SIZE)  # Until they are encoded as a batch.
        # For the producer itself, and gone with the records. The timestamp for `append_for` must be `stamp_ms`; `take` takes the
        # time of the pass, once `take_for` was called.
        self.append_for = self.records.append_for
        self.take = self.records.take
        self.room = room
        self.reserved_bytes = room  # Of the producer's buffer; returned when the batch is done.
        self.created_ms = created_ms
        self.count = 0  # Records, once the batch is encoded; before, `records` tells.
        self.stamp_changes: list[tuple[int, int]] = []  # (first index, the timestamp before it), ascending.
        self.stamp_ms = stamp_ms  # Of the records that follow.
        self.attempts = 0
        self.encoded: bytes | None = None
        self.is_done = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: BarnabasError | None = None
        self.callbacks: list[Callable[[], None]] = []  # Called once, when done.
        self.producer: ProducerFields | None = None  # Once it has a sequence (see `idempotence`).
        self.parts: tuple[Batch, ...] = ()  # What it was split into; then it has no outcome of its own.

    def take_for(self, handle_type: type[Receipt], time: PassTime) -> None:
        """Let `take` return handles of this type, for records at this time."""
        assert self.records is not None
        self.records.belong_to(self, handle_type, time, self.stamp_ms)

    def add(self, value: bytes | None, key: bytes | None, headers: Headers, timestamp_ms: int) -> int:
        """Returns the index of the record; -1 if there is no room for it."""
        assert self.records is not None
        if timestamp_ms != self.stamp_ms:
            self.restamp(timestamp_ms)
        return self.records.append(value, key, headers, timestamp_ms)

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers] | None,
        timestamp_ms: int,
        *,
        start: int,
        rows: Sequence[int] | None,
    ) -> int:
        """Add records from `start` on as far as there is room; returns their number."""
        assert self.records is not None
        if timestamp_ms != self.stamp_ms:
            self.restamp(timestamp_ms)
        return self.records.extend(values, keys, headers, timestamp_ms, start, rows)

    def grow(self, room: int) -> None:
        """Take more records than before; the caller has reserved the difference."""
        assert self.records is not None and room > self.room
        self.reserved_bytes += room - self.room
        self.room = room
        self.records.raise_limit(room + HEADER_SIZE)

    def restamp(self, stamp_ms: int) -> None:
        """The records that follow have another timestamp."""
        assert self.records is not None
        self.stamp_changes.append((self.record_count, self.stamp_ms))
        self.stamp_ms = self.records.stamp_ms = stamp_ms

    def timestamp_of(self, index: int) -> int:
        change = bisect_right(self.stamp_changes, index, key=itemgetter(0))
        return self.stamp_changes[change][1] if change < len(self.stamp_changes) else self.stamp_ms

    @property
    def record_count(self) -> int:
        return self.records.count if self.records is not None else self.count

    @property
    def used_bytes(self) -> int:
        """Of the room; more than there was for one record that is larger than a batch."""
        if self.records is not None:
            return self.records.size_bytes - HEADER_SIZE
        return 0 if self.encoded is None else len(self.encoded)

    def take_encoded(self, data: bytes, record_count: int) -> None:
        """Be a batch that is encoded already, instead of adding records."""
        self.encoded = data
        self._let_go()
        self.count = record_count
        self.reserved_bytes = len(data)

    def encode(self, compression: Compression) -> bytes:
        """Complete the batch once; then the records as they were are let go."""
        if self.encoded is None:
            assert self.records is not None
            self.encoded = self.records.seal(compression, self.producer or NOT_IDEMPOTENT)
            self._let_go()
        return self.encoded

    def _let_go(self) -> None:
        if self.records is not None:
            self.count = self.records.count
            self.records = None
            del self.append_for, self.take

    def number_as(self, producer: ProducerFields | None) -> None:
        """Give the batch a sequence, or take it away; nothing else of its bytes changes."""
        self.producer = producer
        if self.encoded is not None and producer is not None:
            self.encoded = number_batch(self.encoded, producer)

    def split(self) -> "tuple[Batch, ...]":
        """Two batches of half the records, for a broker that finds this one too large (KIP-126); none if there is but one
        record. Only once it is encoded. This one is done when they are."""
        if self.record_count < 2:
            return ()
        assert self.encoded is not None
        views = records_of(self.encoded, read_header(self.encoded), RecordView, check=False)
        middle = self.record_count // 2
        parts = []
        for half in (views[:middle], views[middle:]):
            part = Batch(self.partition, room=NO_LIMIT, created_ms=self.created_ms, stamp_ms=half[0].timestamp_ms)
            for view in half:
                part.add(view.value, view.key, view.headers, view.timestamp_ms)
            part.reserved_bytes = self.reserved_bytes // 2
            part.callbacks.append(self._part_done)
            parts.append(part)
        parts[0].reserved_bytes = self.reserved_bytes - parts[1].reserved_bytes
        self.parts = tuple(parts)
        return self.parts

    def _part_done(self) -> None:
        if all(part.is_done for part in self.parts):
            self.finish()

    def finish(
        self, *, base_offset: int = -1, log_append_time_ms: int = -1, error: BarnabasError | None = None
    ) -> None:
        assert not self.is_done
        self.is_done = True
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self._let_go()
        self.encoded = None
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def metadata_of(self, index: int) -> RecordMetadata:
        """Only when done. Raises the batch's error, a new exception for each record."""
        assert self.is_done
        for part in self.parts:
            if index < part.record_count:
                return part.metadata_of(index)
            index -= part.record_count
        if self.error is not None:
            raise type(self.error)(*self.error.args) from self.error
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        stamp = self.timestamp_of(index) if self.log_append_time_ms < 0 else self.log_append_time_ms
        return RecordMetadata(self.partition.topic, self.partition.partition, offset, stamp)


class PartitionQueue:
    """The batches of one partition, oldest first: in flight, then sealed, then the open one."""

    __slots__ = (
        "failures",
        "growth",
        "in_flight",
        "is_backing_off",
        "last_error",
        "open",
        "partition",
        "sealed",
        "sends_singly",
    )

    def __init__(self, partition: TopicPartition, growth: BatchGrowth | None = None) -> None:
        """`growth` hears which sizes the topic takes."""
        self.partition = partition
        self.growth = growth or BatchGrowth(step_bytes=NO_LIMIT, max_bytes=NO_LIMIT)
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.failures = 0  # Requests in a row that failed.
        self.last_error: BarnabasError | None = None  # Of the last request, while `failures`.
        self.is_backing_off = False
        self.sends_singly = (
            False  # A request with several batches failed: send them one by one to find the one that causes it.
        )

    @property
    def is_ready(self) -> bool:
        """Something may be sent now."""
        return bool(self.sealed) and not self.in_flight and not self.is_backing_off

    @property
    def is_awaiting(self) -> bool:
        """An answer is still to come."""
        return bool(self.in_flight)

    @property
    def is_healthy(self) -> bool:
        """Its request is under way and nothing went wrong: an answer will come soon."""
        return bool(self.in_flight) and not self.failures

    def batches(self) -> list[Batch]:
        found = [*self.in_flight, *self.sealed]
        return found if self.open is None else [*found, self.open]

    def seal(self) -> Batch | None:
        """Close the open batch, if there is one; it takes no more records."""
        batch, self.open = self.open, None
        if batch is not None:
            self.sealed.append(batch)
        return batch

    def take(self, max_bytes: int, compression: Compression) -> tuple[list[Batch], bytes]:
        """Move sealed batches into flight, at least one; returns them with their bytes, one behind the other."""
        assert self.is_ready
        self.split_front(compression)
        taken: list[Batch] = []
        pieces: list[bytes] = []
        size_bytes = 0
        while self.sealed:
            data = self.sealed[0].encode(compression)
            if taken and (size_bytes + len(data) > max_bytes or self.sends_singly):
                break
            batch = self.sealed.popleft()
            batch.attempts += 1
            taken.append(batch)
            pieces.append(data)
            size_bytes += len(data)
        self.in_flight = taken
        return taken, pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def acknowledge(self, sent: list[Batch], *, base_offset: int, log_append_time_ms: int = -1) -> list[Batch]:
        """What was sent together is written; offsets go on from batch to batch."""
        assert sent is self.in_flight
        done, self.in_flight = self.in_flight, []
        self.failures = 0
        self.last_error = None
        if self.sends_singly and not self.sealed:
            self.sends_singly = False
        for batch in done:
            batch.finish(base_offset=base_offset, log_append_time_ms=log_append_time_ms)
            base_offset += batch.record_count if base_offset >= 0 else 0
        return done

    def fail(self, sent: list[Batch], error: BarnabasError) -> list[Batch]:
        """Send it again if that may help; return what has failed for good. `failures` says whether to wait first."""
        assert sent is self.in_flight
        if not error.retriable:
            return self._refuse_all(error)
        self.last_error = error
        self._retry()
        return []

    def _retry(self) -> None:
        """What was in flight goes back to the front, in order."""
        self.sealed.extendleft(reversed(self.in_flight))
        self.in_flight = []
        self.failures += 1

    def _refuse_all(self, error: BarnabasError) -> list[Batch]:
        """The broker will never take what was in flight. Of several batches, one is to blame: they are sent again
        singly."""
        if len(self.in_flight) > 1:
            self.sends_singly = True
            self._retry()
            self.failures = 0
            return []
        self.failures = 0
        done, self.in_flight = self.in_flight, []
        parts = self.split(done[0]) if error.code == ErrorCode.MESSAGE_TOO_LARGE else ()
        if parts:
            self.sealed.extendleft(reversed(parts))
            return []
        for batch in done:
            batch.finish(error=error)
        return done

    def split(self, batch: Batch) -> tuple[Batch, ...]:
        """What the topic has refused for its size, in halves; the next batches are smaller from the start."""
        self.growth.refused(batch.reserved_bytes)
        return batch.split()

    def split_front(self, compression: Compression) -> None:
        """Of a batch that was sealed before a smaller one was refused; unless it has a sequence, which halves could not share."""
        while self.growth.exceeds(self.sealed[0].reserved_bytes) and self.sealed[0].producer is None:
            self.sealed[0].encode(compression)
            parts = self.sealed[0].split()
            if not parts:
                return
            self.sealed.popleft()
            self.sealed.extendleft(reversed(parts))

    def expire(self, created_before_ms: int, error: Callable[[Batch], BarnabasError]) -> list[Batch]:
        """Fail what has waited too long; what is in flight is left to its request's own deadline."""
        expired = []
        while self.sealed and self.sealed[0].created_ms <= created_before_ms:
            expired.append(self.sealed.popleft())
        for batch in expired:
            batch.finish(error=error(batch))
        return expired

    def fail_sealed(self, error: BarnabasError) -> list[Batch]:
        """Fail what waits to be sent."""
        failed, self.sealed = list(self.sealed), deque()
        for batch in failed:
            batch.finish(error=error)
        return failed

    def abandon(self, error: BarnabasError) -> list[Batch]:
        """Fail all that is left, at close."""
        left = self.batches()
        self.open = None
        self.sealed.clear()
        self.in_flight = []
        for batch in left:
            batch.finish(error=error)
        return left
