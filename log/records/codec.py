"""Reading and writing many records at once, with the compiled module if it was built, else with its twin in Python.

`BARNABAS_PURE=1` in the environment asks for the twin. Everything above this package imports from here alone.
"""

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..format.compression import MAX_DECOMPRESSED_BYTES, Compression
from ..format.record_batch import BatchHeader, Buffer, check_crc
from ..format.record_codec import MAX_RECORDS_PER_BATCH, NOT_IDEMPOTENT, Headers, ProducerFields
from ..vocabulary.errors import CorruptRecordError, InvalidRecordError
from . import pure
from .aborted import AbortedFilter
from .columns import Columns
from .section import Span
from .walk import MAX_OFFSET, BatchWalk, section_of

# One call decodes no further batch beyond this size: so columns stay below 2 GiB, whatever is asked for, and compressed batches
# cannot fill the memory together.
MAX_DECODED_BYTES: Final = MAX_DECOMPRESSED_BYTES
View = TypeVar("View", bound="RecordView")


class Codec:
    """What is the same for both implementations: everything that happens once per batch rather than once per record."""

    def __init__(self, implementation: Any) -> None:
        """`implementation` is the module `pure` or `_native`."""
        self._implementation = implementation

    def decode(
        self,
        buffers: Sequence[Buffer],
        start_offset: int = 0,
        end_offset: int | None = None,
        *,
        aborted: AbortedFilter | None = None,
        check: bool = True,
        max_bytes: int = MAX_DECODED_BYTES,
    ) -> Columns:
        """The records from `start_offset` on and before `end_offset`, in buffers of whole batches of one partition, in order.

        Control batches are left out. `aborted` leaves out aborted transactions; it then knows the batches before `next_offset`.
        Stops after `max_bytes` of decompressed records, and before a damaged batch: `next_offset` tells where to go on. Raises
        CorruptRecordError if there is nothing before the damage. `check=False` skips the CRC, for bytes that were checked
        already.
        """
        assert 0 <= start_offset <= MAX_OFFSET
        end = MAX_OFFSET if end_offset is None else end_offset
        aborted = AbortedFilter(()) if aborted is None else aborted
        aborted_before = aborted.copy()
        walk = BatchWalk(start_offset, end, aborted, check=check, max_bytes=min(max_bytes, MAX_DECODED_BYTES))
        steps = walk.steps(buffers)
        damage = walk.damage
        sections = [step.section for step in steps if step.section is not None]
        builder = self._implementation.ColumnBuilder(
            sum(section.record_count for section in sections), sum(len(section.body) for section in sections)
        )
        next_offset, consumed_bytes, leader_epoch = start_offset, 0, -1
        runs: list[tuple[bool, int]] = []
        for number, step in enumerate(steps):
            if step.section is not None:
                try:
                    added = builder.add(step.section)
                except CorruptRecordError as error:
                    damage = error
                    again = BatchWalk(start_offset, end, aborted_before, check=False, max_bytes=MAX_DECODED_BYTES)
                    deque(islice(again.walk(buffers), number), maxlen=0)
                    aborted.take(aborted_before)
                    break
                if added:
                    runs.append((step.section.append_time_ms is not None, added))
            next_offset = max(next_offset, step.next_offset)
            consumed_bytes += step.size_bytes
            leader_epoch = step.leader_epoch
        if damage is not None and not runs:
            raise damage
        offsets, timestamps_ms, keys, values, headers = builder.finish()
        return Columns(
            count=sum(rows for _, rows in runs),
            offsets=offsets,
            timestamps_ms=timestamps_ms,
            keys=keys,
            values=values,
            headers=headers,
            append_time_runs=tuple(runs),
            next_offset=next_offset,
            consumed_bytes=consumed_bytes,
            leader_epoch=leader_epoch,
        )

    def records_of(
        self,
        buffer: Buffer,
        header: BatchHeader,
        record_type: "type[View]",
        start_offset: int = 0,
        end_offset: int = MAX_OFFSET,
        *,
        check: bool = True,
    ) -> "list[View]":
        """The records of the batch that has this header in the buffer, from `start_offset` on and before `end_offset`.

        A view keeps the records of its batch in memory, and nothing else of the buffer. Raises CorruptRecordError.
        """
        if check:
            check_crc(buffer, header)
        section = section_of(buffer, header, start_offset, end_offset)
        found: list[View] = self._implementation.read_records(section._replace(body=bytes(section.body)), record_type)
        return found

    def lists_of(
        self,
        buffer: Buffer,
        header: BatchHeader,
        start_offset: int = 0,
        end_offset: int = MAX_OFFSET,
        *,
        check: bool = True,
    ) -> tuple[list[int], list[int], list[bytes | None], list[bytes | None]]:
        """As `records_of`: offsets, timestamps, keys and values as lists."""
        if check:
            check_crc(buffer, header)
        section = section_of(buffer, header, start_offset, end_offset)
        found: tuple[list[int], list[int], list[bytes | None], list[bytes | None]]
        found = self._implementation.read_lists(section)
        return found

    def spans_of(self, buffer: Buffer, header: BatchHeader) -> tuple[Buffer, list[Span]]:
        """All records of the batch that has this header in the buffer, decompressed, and the span of each in them. The CRC is not
        checked. Raises CorruptRecordError, UnsupportedCompressionError."""
        section = section_of(buffer, header, 0, MAX_OFFSET)
        return section.body, self._implementation.read_spans(section)

    def encode(
        self,
        values: Sequence[bytes | None],
        *,
        timestamps_ms: int | Sequence[int],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        compression: Compression = Compression.NONE,
        producer: ProducerFields = NOT_IDEMPOTENT,
    ) -> bytes:
        """As `record_codec.encode_batch`: one batch with base offset 0, byte for byte the same. Raises InvalidRecordError."""
        count = len(values)
        if not 0 < count <= MAX_RECORDS_PER_BATCH:
            raise InvalidRecordError(f"a batch must have 1 to {MAX_RECORDS_PER_BATCH} records, not {count}")
        for column in (keys, headers, None if isinstance(timestamps_ms, int) else timestamps_ms):
            if column is not None and len(column) != count:
                raise InvalidRecordError(f"a column has {len(column)} entries for {count} values")
        base_ms = timestamps_ms if isinstance(timestamps_ms, int) else min(timestamps_ms)
        batch = self._implementation.Accumulator(pure.MAX_BATCH_BYTES, base_ms)
        if batch.extend(values, keys, headers, timestamps_ms) < count:
            raise InvalidRecordError(
                f"{count} records do not fit into one batch of {pure.MAX_BATCH_BYTES} bytes: send several"
            )
        sealed: bytes = batch.seal(compression, producer)
        return sealed


def compiled() -> Any:
    """The compiled module; None if it was not built, or from the source of another version (after an update without a build)."""
    try:
        from barnabas.log.records import _native
    except ImportError:
        return None
    return _native if getattr(_native, "INTERFACE", 0) == pure.INTERFACE else None


def _implementation() -> Any:
    if os.environ.get("BARNABAS_PURE", "0") not in ("", "0"):
        return pure
    return compiled() or pure


if TYPE_CHECKING:
    from .pure import (
        Accumulator,
        Intake,
        PassTime,
        Receipt,
        RecordView,
        largest,
        murmur2_column,
        rows_by_partition,
    )
else:
    Accumulator = _implementation().Accumulator
    Intake = _implementation().Intake
    PassTime = _implementation().PassTime
    Receipt = _implementation().Receipt
    RecordView = _implementation().RecordView
    largest = _implementation().largest
    murmur2_column = _implementation().murmur2_column
    rows_by_partition = _implementation().rows_by_partition

IS_COMPILED: Final = _implementation() is not pure
_codec = Codec(_implementation())
decode = _codec.decode
records_of = _codec.records_of
lists_of = _codec.lists_of
spans_of = _codec.spans_of
encode = _codec.encode

__all__ = [
    "IS_COMPILED",
    "MAX_DECODED_BYTES",
    "Accumulator",
    "Codec",
    "Intake",
    "PassTime",
    "Receipt",
    "RecordView",
    "compiled",
    "decode",
    "encode",
    "largest",
    "lists_of",
    "murmur2_column",
    "records_of",
    "rows_by_partition",
    "spans_of",
]
