"""Makers of logs and batches for the tests of `log`."""

from barnabas.log.disk.files import Files
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.folders.log_upkeep import Refusals
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import ProducerFields, encode_batch, encode_marker
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition

PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/orders-0"


def batch_of(*values: bytes, timestamp_ms: int = NOW_MS, producer: ProducerFields | None = None) -> bytearray:
    return bytearray(encode_batch(values, timestamps_ms=timestamp_ms, producer=producer or ProducerFields()))


def open_log(files: Files, directory: str = DIRECTORY, **arguments: object) -> PartitionLog:
    files.make_dirs(directory)
    settings: dict[str, object] = {"config": LogConfig(), "now_ms": NOW_MS, "topic_id": "id", **arguments}
    return PartitionLog(files, directory, topic_partition=PARTITION, **settings)  # type: ignore[arg-type]


def append(log: PartitionLog, *values: bytes, epoch: int = 0, timestamp_ms: int = NOW_MS) -> int:
    """Append one batch; return its first offset."""
    info = log.append_as_leader(batch_of(*values, timestamp_ms=timestamp_ms), leader_epoch=epoch, now_ms=timestamp_ms)
    return info.first_offset


def transactional(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    """A batch of a transaction."""
    producer = ProducerFields(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )
    return batch_of(*values, producer=producer)


def marker(producer_id: int, *, commits: bool, epoch: int = 0, coordinator_epoch: int = 0) -> bytearray:
    return bytearray(
        encode_marker(producer_id=producer_id, producer_epoch=epoch, is_commit=commits,
                      coordinator_epoch=coordinator_epoch, timestamp_ms=NOW_MS)
    )  # fmt: skip


def end_transaction(
    log: PartitionLog,
    producer_id: int,
    *,
    commits: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> int:
    """Append the marker; return its offset."""
    batch = marker(producer_id, commits=commits, epoch=epoch, coordinator_epoch=coordinator_epoch)
    return log.append_as_leader(batch, leader_epoch=leader_epoch, now_ms=NOW_MS, from_coordinator=True).first_offset


def base_offsets(data: bytes) -> list[int]:
    return [header.base_offset for header in iter_headers(data, verify_crc=True)]


def read_all(log: PartitionLog) -> bytes:
    parts = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=1 << 30, up_to_offset=log.log_end_offset).read()
        assert data, offset
        parts.append(data)
        offset = list(iter_headers(data))[-1].next_offset
    return b"".join(parts)


def retain(manager: LogManager, now_ms: int) -> Refusals:
    """All of retention at once; what the disk refused."""
    refused: Refusals = {}
    for _ in manager.upkeep.run_retention(now_ms, refused):
        pass
    return refused
