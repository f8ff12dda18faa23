"""What a leader checks of batches with a producer before it appends them: repetitions, gaps, transactions, and markers. Pure.

A request of the protocol of Barnabas may have several batches of one partition. They must be of one producer and continue each
other: each batch is checked as if those before it were in the log already.
"""

from collections.abc import Sequence
from itertools import pairwise

from ..format.record_batch import NO_PRODUCER_ID, BatchHeader, Buffer, read_header
from ..format.record_codec import read_marker
from ..segment.append_check import PlacedBatch
from ..segment.producer_state import SEQUENCES, AppendedBatch, ProducerState
from ..vocabulary.errors import InvalidRecordError, OutOfOrderSequenceError


def repeated_batches(
    buffer: Buffer, batches: Sequence[PlacedBatch], producers: ProducerState
) -> tuple[AppendedBatch, ...]:
    """The batches at the start of the request that are in the log already; mostly none.

    Raises what `ProducerState.check` raises, and InvalidRecordError for batches that do not belong together.
    """
    headers = [read_header(buffer, batch.position) for batch in batches]
    repeated: list[AppendedBatch] = []
    for header in headers:
        found = producers.check(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count,
                                is_transactional=header.is_transactional)  # fmt: skip
        if found is None:
            break
        repeated.append(found)
    for before, header in pairwise(headers):
        _check_continues(before, header)
    return tuple(repeated)


def _check_continues(before: BatchHeader, header: BatchHeader) -> None:
    writers = [(found.producer_id, found.producer_epoch, found.is_transactional) for found in (before, header)]
    if writers[0] != writers[1]:
        raise InvalidRecordError(
            f"batches of one partition in one request are of (producer id, epoch, transactional) {writers[0]} and {writers[1]}:"
            " send those of different producers in different requests"
        )
    expected = (before.base_sequence + before.record_count) % SEQUENCES
    if header.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} follows in the same request"
        )


def check_markers(
    buffer: Buffer, batches: Sequence[PlacedBatch], producers: ProducerState, *, transaction_version: int
) -> None:
    """Of a transaction coordinator. Raises what `ProducerState.check_marker` raises, InvalidRecordError for other batches."""
    for batch in batches:
        header = read_header(buffer, batch.position)
        whole = memoryview(buffer)[batch.position : batch.position + batch.size_bytes]
        marker = read_marker(whole) if header.is_control and header.producer_id != NO_PRODUCER_ID else None
        if marker is None:
            raise InvalidRecordError("a transaction coordinator may append markers of producers only")
        producers.check_marker(header.producer_id, header.producer_epoch,
                               coordinator_epoch=marker.coordinator_epoch,
                               transaction_version=transaction_version)  # fmt: skip
