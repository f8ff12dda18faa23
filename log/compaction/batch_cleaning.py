"""The result of compaction for one batch: the same bytes, fewer records, only its header, or nothing. Pure.

Offsets, leader epoch, codec and the fields of the producer stay unchanged; a rewritten batch gets a new CRC. A header is kept
without records where it is still needed:

- the last batch of an active producer (its sequence numbers, as in Kafka), with the producer's fields;
- the first batch of a leader epoch: readers and recovery must learn where the epoch began (KIP-101);
- the last batch of a cleaned segment: so each segment begins where the one before ended, and a gap between two is a fault.

Tombstones and unneeded markers get a delete horizon when they are cleaned for the first time, and are removed by the first
cleaning after it (KIP-534). The horizon uses the clock of the cleaning, so only a reader that is slower than delete.retention.ms
misses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from crc32c import crc32c
from msgspec.structs import replace

from ..format.compression import compress, compression_of
from ..format.record_batch import (
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
)
from ..format.record_codec import is_abort_marker
from ..format.varint import decode_varint, encode_varint
from ..records.codec import spans_of
from ..records.section import Span
from ..segment.producer_state import LastBatch
from ..settings.kinds import MAX_INT64
from .cleaner_offset_map import OffsetMap
from .cleaner_transactions import CleanedTransactions

_NO_EPOCH = -1
_MIN_INT64 = -MAX_INT64 - 1
_EMPTIED_MASK = DELETE_HORIZON_MASK | COMPRESSION_MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedBatch:
    data: Buffer
    header: BatchHeader
    is_changed: bool


def spans_in(batch: memoryview, header: BatchHeader) -> tuple[Buffer, list[Span]]:
    """The decompressed records of a batch that a walk through a file has found, and their spans. Raises CorruptRecordError,
    UnsupportedCompressionError."""
    return spans_of(batch, replace(header, position=0))


class BatchCleaner:
    """Processes all batches of a log in the order of their offsets, from the first one on."""

    def __init__(
        self,
        *,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        last_batches: Mapping[int, LastBatch],
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._last_batches = last_batches
        self._now_ms = now_ms
        # The largest retention keeps tombstones forever.
        self._new_horizon_ms = min(now_ms + delete_retention_ms, MAX_INT64)
        self._epoch = _NO_EPOCH
        self.next_horizon_ms: int | None = (
            None  # the earliest horizon among the batches that stayed: the next cleaning is due then
        )

    def clean(self, header: BatchHeader, batch: memoryview, *, is_last_of_segment: bool) -> CleanedBatch | None:
        """Return what remains of the batch at the start of `batch`. Raises CorruptRecordError."""
        begins_epoch = header.leader_epoch != self._epoch
        self._epoch = header.leader_epoch
        cleaned = self._clean_marker(header, batch) if header.is_control else self._clean_records(header, batch)
        if cleaned is not None:
            self._note_horizon(header.delete_horizon_ms, cleaned.header.delete_horizon_ms)
            return cleaned
        if self._is_last_of_producer(header):
            return _emptied(header, keeps_producer=True)
        return _emptied(header, keeps_producer=False) if begins_epoch or is_last_of_segment else None

    def _clean_marker(self, header: BatchHeader, batch: memoryview) -> CleanedBatch | None:
        if not header.record_count:
            return None
        if not self._transactions.is_needless(header, is_abort=is_abort_marker(batch)):
            return CleanedBatch(data=batch, header=header, is_changed=False)
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None:
            return self._with_horizon(header, *spans_in(batch, header))
        return CleanedBatch(data=batch, header=header, is_changed=False) if horizon_ms > self._now_ms else None

    def _clean_records(self, header: BatchHeader, batch: memoryview) -> CleanedBatch | None:
        is_aborted = self._transactions.is_aborted(header)
        if header.base_offset >= self._offsets.end_offset:
            return CleanedBatch(data=batch, header=header, is_changed=False)
        if is_aborted or not header.record_count:
            return None
        records, spans = spans_in(batch, header)
        horizon_ms = header.delete_horizon_ms
        drops_tombstones = horizon_ms is not None and horizon_ms <= self._now_ms
        kept = [span for span in spans if self._stays(span, header.base_offset, drops_tombstones)]
        if not kept:
            return None
        if horizon_ms is None and any(is_tombstone for *_, is_tombstone in kept):
            return self._with_horizon(header, records, kept)
        if len(kept) == len(spans):
            return CleanedBatch(data=batch, header=header, is_changed=False)
        body = b"".join([records[start:end] for start, _, end, *_ in kept])
        return _rewritten(header, body, kept)

    def _stays(self, span: Span, base_offset: int, drops_tombstones: bool) -> bool:
        _, _, _, offset_delta, _, key, is_tombstone = span
        offset = base_offset + offset_delta
        if offset >= self._offsets.end_offset:
            return True
        if key is None or (is_tombstone and drops_tombstones):
            return False
        return not self._offsets.is_superseded(key, offset)

    def _with_horizon(self, header: BatchHeader, records: Buffer, kept: list[Span]) -> CleanedBatch:
        """The horizon replaces the base timestamp, so the timestamp of each record is encoded again.

        A timestamp that is too far before the horizon for 64 bits becomes the earliest that is not: readers stop at others.
        """
        shift_ms = header.base_timestamp_ms - self._new_horizon_ms
        parts: list[bytes] = []
        for _, content, end, *_ in kept:
            delta_ms, behind = decode_varint(records, content + 1)
            fields = (
                records[content : content + 1],
                encode_varint(max(delta_ms + shift_ms, _MIN_INT64)),
                records[behind:end],
            )
            record = b"".join(fields)
            parts += (encode_varint(len(record)), record)
        return _rewritten(header, b"".join(parts), kept, horizon_ms=self._new_horizon_ms)

    def _note_horizon(self, before_ms: int | None, horizon_ms: int | None) -> None:
        """A horizon that had passed before is not noted: what is left of its batch stays."""
        if horizon_ms is None or (before_ms is not None and before_ms <= self._now_ms):
            return
        self.next_horizon_ms = horizon_ms if self.next_horizon_ms is None else min(self.next_horizon_ms, horizon_ms)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id == NO_PRODUCER_ID:
            return False
        last = self._last_batches.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset is None:
            # Only a marker of the producer is known: it carries the epoch that fences earlier instances of the producer.
            return header.is_control and header.producer_epoch == last.epoch
        return header.last_offset == last.last_offset


def _rewritten(header: BatchHeader, body: bytes, kept: list[Span], *, horizon_ms: int | None = None) -> CleanedBatch:
    return _sealed(
        header,
        compress(body, compression_of(header.compression)),
        attributes=header.attributes if horizon_ms is None else header.attributes | DELETE_HORIZON_MASK,
        base_timestamp_ms=header.base_timestamp_ms if horizon_ms is None else horizon_ms,
        max_timestamp_ms=max(timestamp_ms for *_, timestamp_ms, _, _ in kept),
        record_count=len(kept),
    )


def _emptied(header: BatchHeader, *, keeps_producer: bool) -> CleanedBatch:
    """Without a producer, a replay of the log does not take the header of a transactional batch for an open transaction.

    It names no codec, as in Kafka: most codecs cannot read an empty body.
    """
    return _sealed(
        header,
        b"",
        attributes=header.attributes & ~_EMPTIED_MASK if keeps_producer else 0,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=header.max_timestamp_ms,
        record_count=0,
        keeps_producer=keeps_producer,
    )


def _sealed(
    header: BatchHeader,
    body: bytes,
    *,
    attributes: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    record_count: int,
    keeps_producer: bool = True,
) -> CleanedBatch:
    producer = (header.producer_id, header.producer_epoch, header.base_sequence) if keeps_producer else (-1, -1, -1)
    size_bytes = HEADER_SIZE + len(body)
    values = (attributes, header.last_offset_delta, base_timestamp_ms, max_timestamp_ms, *producer, record_count)
    front = (header.base_offset, size_bytes - LOG_OVERHEAD, header.leader_epoch, MAGIC)
    crc = crc32c(body, crc32c(HEADER.pack(*front, 0, *values)[CRC_COVERS_FROM:]))
    data = HEADER.pack(*front, crc, *values) + body
    found = BatchHeader(
        position=0,
        base_offset=header.base_offset,
        size_bytes=size_bytes,
        leader_epoch=header.leader_epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        record_count=record_count,
    )
    return CleanedBatch(data=data, header=found, is_changed=(header.crc, header.size_bytes) != (crc, size_bytes))
