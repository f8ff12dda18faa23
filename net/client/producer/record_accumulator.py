"""Records that wait to be sent, as columns per partition. Pure.

`Batch` takes records as long as it is open: an append to each column in use and nothing else. `PartitionQueue` keeps
the batches of one partition in order, through failures too:

    open --seal--> sealed[0..n] --take--> in_flight --acknowledge--> done
                        ^                     |--retry (back to the front, in order)
                                              |--refuse--> done, with an error

One request of a partition is in flight at a time, with all the batches that fit into it. So a batch can never
overtake one that failed before it, which no number of requests in flight could promise without the idempotent
producer (whose queue is in `idempotence`); and because a request grows with what has piled up meanwhile, it costs no
throughput.
"""

from collections import deque
from collections.abc import Callable
from itertools import repeat

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import NOT_IDEMPOTENT, ProducerFields, decode_columns, encode_batch, number_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import BarnabasError, ErrorCode
from ..connection.records import Headers, RecordMetadata

# Length, attributes, timestamp and offset deltas, lengths of key and value, header count, as they usually are in a
# batch of 64 KiB. An estimate: a batch may come out a little larger or smaller than `batch_size`.
RECORD_OVERHEAD = 12
HEADER_OVERHEAD = 4


class Batch:
    """Records of one partition that travel, succeed and fail together."""

    __slots__ = (
        "attempts",
        "base_offset",
        "callbacks",
        "count",
        "created_ms",
        "encoded",
        "error",
        "headers",
        "is_done",
        "keys",
        "log_append_time_ms",
        "partition",
        "parts",
        "producer",
        "reserved_bytes",
        "room",
        "stamp_ms",
        "timestamps",
        "values",
    )

    def __init__(self, partition: TopicPartition, *, room: int, created_ms: int, stamp_ms: int) -> None:
        self.partition = partition
        self.room = room  # Bytes that may still be added; below 0 only for one record that is larger than a batch.
        self.reserved_bytes = room  # Of the producer's buffer; returned when the batch is done.
        self.created_ms = created_ms
        self.values: list[bytes | None] = []
        self.count = 0  # Records of the encoded batch; before it is encoded, use the length of `values`.
        self.timestamps: list[int] = []  # Of the first records; those behind its end all have `stamp_ms`.
        self.stamp_ms = stamp_ms
        self.keys: list[bytes | None] | None = None  # None while no record has a key; else as long as values.
        self.headers: list[Headers] | None = None  # Likewise.
        self.attempts = 0
        self.encoded: bytes | None = None
        self.is_done = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: BarnabasError | None = None
        self.callbacks: list[Callable[[], None]] = []  # Called once, when done.
        self.producer: ProducerFields | None = None  # Once it has a sequence (see `idempotence`).
        self.parts: tuple[Batch, ...] = ()  # What it was split into; then it has no outcome of its own.

    def append(
        self, value: bytes | None, key: bytes | None, headers: Headers, timestamp_ms: int, size_bytes: int
    ) -> int:
        """The general way; records without key and headers are appended by the producer itself. Returns the index."""
        index = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if headers and self.headers is None:
            self.headers = [()] * index
        if timestamp_ms != self.stamp_ms:
            self.restamp(timestamp_ms)
        self.room -= size_bytes
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        return index

    def restamp(self, stamp_ms: int) -> None:
        """The records that follow have another timestamp."""
        self.timestamps.extend(repeat(self.stamp_ms, len(self.values) - len(self.timestamps)))
        self.stamp_ms = stamp_ms

    def timestamp_of(self, index: int) -> int:
        return self.timestamps[index] if index < len(self.timestamps) else self.stamp_ms

    @property
    def record_count(self) -> int:
        return self.count or len(self.values)

    @property
    def is_plain(self) -> bool:
        """No record has a key or headers: values and timestamps are the only columns."""
        return self.keys is None and self.headers is None

    def encode(self, compression: Compression) -> bytes:
        """Encode once; the columns of keys and headers, and the values, are let go."""
        if self.encoded is None:
            self.count = len(self.values)
            if self.timestamps:
                self.restamp(self.stamp_ms)
            self.encoded = encode_batch(
                self.values,
                timestamps_ms=self.timestamps or self.stamp_ms,
                keys=self.keys,
                headers=self.headers,
                compression=compression,
                producer=self.producer or NOT_IDEMPOTENT,
            )
            self.values = []
            self.keys = self.headers = None
        return self.encoded

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
        columns = decode_columns(self.encoded, check=False)
        middle = self.record_count // 2
        parts = []
        for start, end in ((0, middle), (middle, self.record_count)):
            part = Batch(self.partition, room=0, created_ms=self.created_ms, stamp_ms=columns.timestamps_ms[end - 1])
            part.values = columns.values[start:end]
            part.timestamps = columns.timestamps_ms[start : end - 1]
            if any(key is not None for key in columns.keys[start:end]):
                part.keys = columns.keys[start:end]
            if any(columns.headers[start:end]):
                part.headers = columns.headers[start:end]
            part.count = end - start
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
        self.count = self.record_count
        self.encoded = None
        self.values = []
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

    __slots__ = ("failures", "in_flight", "is_backing_off", "last_error", "open", "partition", "sealed", "sends_singly")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
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
        parts = done[0].split() if error.code == ErrorCode.MESSAGE_TOO_LARGE else ()
        if parts:
            self.sealed.extendleft(reversed(parts))
            return []
        for batch in done:
            batch.finish(error=error)
        return done

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
