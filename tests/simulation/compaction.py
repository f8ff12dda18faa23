"""Cleanings without threads and clocks, and what a compacted log must be."""

from collections.abc import Sequence

from barnabas.log.compaction.cleaner import dirty_part_of
from barnabas.log.compaction.cleaning import Cleaning
from barnabas.log.disk.files import Files
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import ProducerFields, encode_batch, iter_records
from barnabas.log.partition.partition_log import PartitionLog

from .log_building import NOW_MS, read_all

KeyedRecord = tuple[bytes, bytes | None]
Found = tuple[int, bytes, bytes | None]  # offset, key, value
MAP_SIZE_BYTES = 1 << 20


def append_keyed(
    log: PartitionLog,
    *records: KeyedRecord,
    epoch: int = 0,
    timestamp_ms: int = NOW_MS,
    compression: int = 0,
    producer: ProducerFields | None = None,
) -> int:
    """Append one batch; return its first offset."""
    batch = encode_batch(
        [value for _, value in records],
        keys=[key for key, _ in records],
        timestamps_ms=timestamp_ms,
        compression=compression,  # type: ignore[arg-type]
        producer=producer or ProducerFields(),
    )
    info = log.append_as_leader(bytearray(batch), leader_epoch=epoch, now_ms=timestamp_ms)
    log.set_high_watermark(log.log_end_offset)
    return info.first_offset


def start_cleaning(
    log: PartitionLog, files: Files, *, from_offset: int = 0, now_ms: int = NOW_MS, map_size_bytes: int = MAP_SIZE_BYTES
) -> Cleaning | None:
    part = dirty_part_of(log, from_offset, now_ms=now_ms)
    return None if part is None else Cleaning(part, files=files, map_size_bytes=map_size_bytes, now_ms=now_ms)


def clean(
    log: PartitionLog, files: Files, *, from_offset: int = 0, now_ms: int = NOW_MS, map_size_bytes: int = MAP_SIZE_BYTES
) -> int:
    """One cleaning, from beginning to end; return the first dirty offset behind it."""
    cleaning = start_cleaning(log, files, from_offset=from_offset, now_ms=now_ms, map_size_bytes=map_size_bytes)
    if cleaning is None:
        return from_offset
    for work in cleaning.steps():
        work()
    return cleaning.cleaned_up_to


def records_in(log: PartitionLog) -> list[Found]:
    """All records that are no markers, in the order in which they lie there."""
    data = read_all(log)
    return [
        (record.offset, record.key or b"", record.value)
        for header in iter_headers(data, verify_crc=True)
        if not header.is_control
        for record in iter_records(data[header.position : header.position + header.size_bytes])
    ]


def latest(records: Sequence[Found], *, end_offset: int) -> list[Found]:
    """What a cleaning of [0, end_offset) leaves: the last record of each key there, and all behind it."""
    last = {key: offset for offset, key, _ in records if offset < end_offset}
    return [found for found in records if found[0] >= end_offset or last[found[1]] == found[0]]
