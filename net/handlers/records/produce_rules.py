"""What a produce request may not bring beyond what a log checks: rules of Kafka's versions, and transactions. Pure."""

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_MASK,
    Buffer,
)
from barnabas.log.vocabulary.errors import InvalidRecordError, UnsupportedCompressionError

_MAGIC_POSITION = 16
_ZSTD_SINCE = 7  # Produce v7 (KIP-110)


def check_produced(records: Buffer, *, kafka_version: int) -> None:
    """Raises InvalidRecordError, UnsupportedCompressionError.

    What is cut, too long or damaged is left to the log. `kafka_version` is -1 for our protocol, where a request may have
    several batches of a partition.
    """
    if kafka_version >= 0:
        _check_kafka(records, kafka_version)
        return  # It is one batch.
    position = 0
    while position + HEADER_SIZE <= len(records):
        if position and (records[position + ATTRIBUTES_POSITION] ^ records[ATTRIBUTES_POSITION]) & TRANSACTIONAL_MASK:
            raise InvalidRecordError("a partition has transactional batches and others in one request")
        position += max(HEADER_SIZE, LENGTH.unpack_from(records, position + LENGTH_POSITION)[0] + LOG_OVERHEAD)


def _check_kafka(records: Buffer, version: int) -> None:
    """As ProduceRequest.validateRecords of Kafka does."""
    if not records:
        raise InvalidRecordError(f"Produce v{version} has no record batch for a partition")
    if len(records) <= _MAGIC_POSITION:
        return
    magic = records[_MAGIC_POSITION]
    if magic != MAGIC:
        raise InvalidRecordError(f"Produce v{version} takes record batches of magic {MAGIC} only, not {magic}")
    if 0 <= LENGTH.unpack_from(records, LENGTH_POSITION)[0] < len(records) - LOG_OVERHEAD:
        raise InvalidRecordError(f"Produce v{version} takes one record batch for a partition, and nothing behind it")
    if len(records) <= ATTRIBUTES_POSITION:
        return  # incomplete: the log's check raises the error
    if version < _ZSTD_SINCE and records[ATTRIBUTES_POSITION] & COMPRESSION_MASK == Compression.ZSTD:
        raise UnsupportedCompressionError(f"zstd is taken from Produce v{_ZSTD_SINCE} on, and this is v{version}")
