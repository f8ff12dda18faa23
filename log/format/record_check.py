"""Checks that the records in a batch can be read, before the batch is appended. Pure.

A batch with a correct header and CRC but invalid records stops every consumer at its offset, so it is refused, as Kafka's
LogValidator does. The decompressed bytes are checked one piece at a time, and no objects are made of them. The check is Python
and keeps the interpreter's lock: `pause` is called after every PAUSE_AFTER steps, so that a thread can yield to the event loop,
and the event loop can stop a check that turns out to be long.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..vocabulary.errors import CorruptRecordError, InvalidRecordError, RecordTooLargeError
from .compression import MAX_DECOMPRESSED_BYTES, compression_of, decompressed_pieces
from .record_batch import HEADER_SIZE, BatchHeader, Buffer, check_crc, read_header
from .varint import decode_varint

PAUSE_AFTER: Final = 1024  # records, or headers of one record: about 1 ms
# The limit of the decompressed size of a batch, as a multiple of max.message.bytes: text shrinks tenfold, rarely thirtyfold. A
# higher limit would only cost the broker's processor and the memory of every consumer.
UNPACKED_RATIO: Final = 32
_USUAL_MESSAGE_BYTES: Final = 1024 * 1024  # A topic with a smaller limit has small batches, which may shrink better.
_CONTINUES: Final = 0x80
_MAX_VARINT_BYTES: Final = 10
_MAX_INT64: Final = 2**63 - 1
_NEAR_LIMIT_MS: Final = _MAX_INT64 - 64  # from here on, a delta of one byte may lead beyond 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRules:
    """The requirements of a topic for the batches of its clients."""

    needs_keys: bool  # The topic is compacted.
    max_message_bytes: int

    @property
    def max_unpacked_bytes(self) -> int:
        """The maximum decompressed size of the records of one batch."""
        return min(MAX_DECOMPRESSED_BYTES, UNPACKED_RATIO * max(self.max_message_bytes, _USUAL_MESSAGE_BYTES))


def no_pause() -> None:
    """For a caller without an event loop."""


def check_batches(batches: Buffer, rules: RecordRules, *, pause: Callable[[], None] = no_pause) -> None:
    """Check the records of whole batches. Raises CorruptRecordError if bytes were damaged in transit, InvalidRecordError if the
    client sent invalid records, RecordTooLargeError, UnsupportedCompressionError."""
    for header in whole_batches(batches, rules):
        for _ in checked_records(batches, header, rules, pause=pause):
            pass


def whole_batches(batches: Buffer, rules: RecordRules) -> Iterator[BatchHeader]:
    """The headers of batches that are whole, undamaged and not too large. Raises what `check_batches` raises."""
    position = 0
    while position < len(batches):
        header = read_header(batches, position)
        if header.size_bytes > rules.max_message_bytes:
            raise RecordTooLargeError(
                f"a record batch has {header.size_bytes} bytes, max.message.bytes of the topic is {rules.max_message_bytes}"
            )
        check_crc(batches, header)
        yield header
        position += header.size_bytes


def checked_records(
    batches: Buffer, header: BatchHeader, rules: RecordRules, *, pause: Callable[[], None] = no_pause
) -> Iterator[bytes]:
    """The unpacked records of a batch in pieces, each checked before it is passed on."""
    packed = memoryview(batches)[header.position + HEADER_SIZE : header.position + header.size_bytes]
    walk = RecordWalk(
        header.record_count, needs_keys=rules.needs_keys, base_timestamp_ms=header.base_timestamp_ms, pause=pause
    )
    pieces = decompressed_pieces(packed, compression_of(header.compression), max_bytes=rules.max_unpacked_bytes)
    try:
        for number, piece in enumerate(pieces):
            if number:
                pause()
            walk.feed(piece)
            yield piece
    except CorruptRecordError as error:  # The CRC is right, so a retry would not help.
        raise InvalidRecordError(error.message) from error
    walk.finish()


class RecordWalk:
    """Call `feed` with all pieces of a batch's records in order, then `finish`. Raises InvalidRecordError."""

    def __init__(
        self, count: int, *, needs_keys: bool, base_timestamp_ms: int = 0, pause: Callable[[], None] = no_pause
    ) -> None:
        self._base_timestamp_ms = base_timestamp_ms
        self._count = count  # 0 <= _number <= _count
        self._needs_keys = needs_keys
        self._pause = pause
        self._number = 0  # of the next record
        self._rest: list[bytes] = []  # the beginning of an incomplete record
        self._rest_bytes = 0
        self._wanted_bytes = 0  # with fewer bytes, the record is still incomplete

    def feed(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes < self._wanted_bytes:
            return
        data = piece if len(self._rest) == 1 else b"".join(self._rest)
        end = self._walk(data)
        self._rest = [data[end:]] if end < len(data) else []
        self._rest_bytes = len(data) - end
        if self._number == self._count and self._rest_bytes:
            self.finish()

    def finish(self) -> None:
        if self._number < self._count:
            raise InvalidRecordError(
                f"a record batch announces {self._count} records, but only {self._number} can be read; the client that made"
                " it is at fault"
            )
        if self._rest_bytes:
            raise InvalidRecordError(f"a record batch has {self._rest_bytes} bytes after its last record")

    def _walk(self, data: bytes) -> int:
        """Check the whole records at the front of `data`; return the position of their end.

        Inlined: numbers of one byte (most of them) are read without a call.
        """
        self._wanted_bytes = 0
        number, count, needs_keys = self._number, self._count, self._needs_keys
        near = _CONTINUES if abs(self._base_timestamp_ms) < _NEAR_LIMIT_MS else 0
        position = 0
        try:
            while number < count and (bounds := self._record_at(data, position)) is not None:
                at, end = bounds
                at = at + 2 if data[at + 1] < near else self._behind_timestamp(data, at + 1)  # attributes, timestamp
                byte = data[at]
                delta, at = ((byte >> 1) ^ -(byte & 1), at + 1) if byte < _CONTINUES else decode_varint(data, at)
                byte = data[at]
                key, at = ((byte >> 1) ^ -(byte & 1), at + 1) if byte < _CONTINUES else decode_varint(data, at)
                if delta != number or (key < 0 and needs_keys):
                    raise self._refused(delta)
                if key > 0:
                    at += key
                byte = data[at]
                value, at = ((byte >> 1) ^ -(byte & 1), at + 1) if byte < _CONTINUES else decode_varint(data, at)
                if value > 0:
                    at += value
                if at + 1 != end or data[at]:
                    self._check_headers(data, at, end)
                position = end
                number = self._number = number + 1
                if number % PAUSE_AFTER == 0:
                    self._pause()
        except (IndexError, CorruptRecordError) as error:
            raise InvalidRecordError(f"record {number} of a batch cannot be read: {error}") from error
        return position

    def _record_at(self, data: bytes, position: int) -> tuple[int, int] | None:
        """The position of the record after its length field, and its end; None if it is incomplete."""
        size = len(data)
        if position == size:
            return None
        byte = data[position]
        if byte < _CONTINUES:
            length, begin = (byte >> 1) ^ -(byte & 1), position + 1
        elif size - position < _MAX_VARINT_BYTES and all(byte >= _CONTINUES for byte in data[position:]):
            return None  # The length field itself is incomplete.
        else:
            length, begin = decode_varint(data, position)
        if length <= 0:
            raise InvalidRecordError(f"a record has the invalid length {length}")
        end = begin + length
        if end > size:
            self._wanted_bytes = end - position
            return None
        return begin, end

    def _behind_timestamp(self, data: bytes, position: int) -> int:
        delta_ms, position = decode_varint(data, position)
        if not -_MAX_INT64 - 1 <= self._base_timestamp_ms + delta_ms <= _MAX_INT64:
            raise InvalidRecordError(f"the timestamp of record {self._number} of a batch has more than 64 bits")
        return position

    def _refused(self, delta: int) -> InvalidRecordError:
        if delta != self._number:
            return InvalidRecordError(f"record {self._number} of a batch has the offset delta {delta}")
        return InvalidRecordError("a record has no key, and the topic is compacted (cleanup.policy): give it one")

    def _check_headers(self, data: bytes, position: int, end: int) -> None:
        """They must fill the record to its end exactly."""
        count, position = decode_varint(data, position)
        if not 0 <= count <= end - position:
            raise InvalidRecordError(f"record {self._number} of a batch has an invalid number of headers ({count})")
        for step in range(1, count + 1):
            length, position = decode_varint(data, position)
            if length < 0:
                raise InvalidRecordError(f"a header of record {self._number} of a batch has no name")
            length, position = decode_varint(data, position + length)
            position += max(length, 0)
            if position > end:
                break
            if step % PAUSE_AFTER == 0:
                self._pause()
        if position != end:
            raise InvalidRecordError(f"the fields of record {self._number} of a batch do not fill its length")
