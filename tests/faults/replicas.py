"""The replicas of a stopped cluster, as they lie on the disks."""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .history import Partition, ReplicaLog

_BATCH_START: Final = struct.Struct(">qi")  # base offset, length of what follows
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23
_CHECKPOINT: Final = "replication-offset-checkpoint"


def read_replica(node_id: int, folder: Path, partition: Partition) -> ReplicaLog:
    """The batches of one partition in a data folder, in the order of their offsets."""
    topic, number = partition
    segments = sorted((folder / f"{topic}-{number}").glob("*.log"))
    batches = tuple(batch for segment in segments for batch in _batches(segment.read_bytes()))
    return ReplicaLog(
        node_id=node_id,
        partition=partition,
        high_watermark=_high_watermark(folder, partition),
        batches=batches,
    )


def _batches(data: bytes) -> Iterator[tuple[int, int, str]]:
    position = 0
    while position + _BATCH_START.size <= len(data):
        base_offset, length = _BATCH_START.unpack_from(data, position)
        end = position + _BATCH_START.size + length
        if length <= 0 or end > len(data):
            return  # a torn tail, or room that was set aside
        (last_delta,) = _LAST_DELTA.unpack_from(data, position + _LAST_DELTA_AT)
        digest = hashlib.blake2b(data[position:end], digest_size=8).hexdigest()
        yield base_offset, base_offset + last_delta + 1, digest
        position = end


def _high_watermark(folder: Path, partition: Partition) -> int:
    """As the broker checkpointed it; 0 where it has not."""
    try:
        lines = (folder / _CHECKPOINT).read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        words = line.split()
        if len(words) == 3 and (words[0], words[1]) == (partition[0], str(partition[1])):
            return int(words[2])
    return 0
