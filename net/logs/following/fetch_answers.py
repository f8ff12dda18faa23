"""What the answers of a leader say to a follower."""

import logging
import struct
from collections.abc import Iterable
from typing import Final

from barnabas.log.format.record_batch import HEADER_SIZE, LOG_OVERHEAD, Buffer
from barnabas.log.replication.follower import FetchAnswer, FetchPosition
from barnabas.log.vocabulary.errors import CorruptRecordError, ErrorCode
from barnabas.net.wire.protocol.responses import FetchPartitionResponse

_LENGTH_AND_EPOCH: Final = struct.Struct(">ii")
_LENGTH_POSITION: Final = 8

logger = logging.getLogger("barnabas.replication")


def is_quiet(answered: FetchPartitionResponse, position: FetchPosition) -> bool:
    """Return whether the answer says that the follower has all records, and that all are committed."""
    return (
        answered.high_watermark == position.offset
        and answered.error == ErrorCode.NONE
        and answered.diverging_epoch < 0
        and not _has_records(answered)
    )


def _has_records(answered: FetchPartitionResponse) -> bool:
    records = answered.records
    return (len(records) if isinstance(records, bytes | bytearray | memoryview) else records.size_bytes) > 0


def checked_answer(answered: FetchPartitionResponse, position: FetchPosition) -> FetchAnswer:
    """Raises CorruptRecordError if a batch is of a newer epoch than the leader's."""
    records = answered.records
    buffer: Buffer = records if isinstance(records, bytes | bytearray | memoryview) else records.read()
    _check_epochs(buffer, position.leader_epoch)
    return FetchAnswer(
        error=answered.error,
        records=buffer,
        high_watermark=answered.high_watermark,
        log_start_offset=answered.log_start_offset,
        diverging_epoch=answered.diverging_epoch,
        diverging_end_offset=answered.diverging_end_offset,
    )


def _check_epochs(buffer: Buffer, leader_epoch: int) -> None:
    """A leader of this epoch has no records of a newer epoch. If it sends some, it has lost its leadership, and its log was
    rewritten while the answer was read from the file; these records must be fetched from the new leader (KAFKA-18723)."""
    position, end = 0, len(buffer)
    while end - position >= HEADER_SIZE:
        length, epoch = _LENGTH_AND_EPOCH.unpack_from(buffer, position + _LENGTH_POSITION)
        if epoch > leader_epoch:
            raise CorruptRecordError(f"a leader of epoch {leader_epoch} sent a batch of epoch {epoch}")
        position += max(HEADER_SIZE, length + LOG_OVERHEAD)


def log_refusals(leader: int, answers: Iterable[FetchPartitionResponse]) -> None:
    """One line for each kind of error: a leader that opens a thousand new partitions refuses all of them until then."""
    refused: dict[int, list[FetchPartitionResponse]] = {}
    for answered in answers:
        if answered.error not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            refused.setdefault(answered.error, []).append(answered)
    for error, partitions in refused.items():
        first = partitions[0]
        others = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        logger.info("fetch_refused leader=%d partition=%s-%d%s error=%d %s",
                    leader, first.topic, first.partition, others, error, first.message)  # fmt: skip
