"""`verify`: read a whole backup, and compare it with its checksums and with itself. Blocks on the disk, and needs no cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from barnabas.log.vocabulary.topic_partition import TopicPartition

from .contents import (
    BackupError,
    Contents,
    PartitionContents,
    Segment,
    check_segment,
    needed_contents,
    partition_folder,
)
from .segments import read_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    contents: Contents
    records: int  # of what is sound
    size_bytes: int
    damage: tuple[str, ...]  # each names a file


def verify(folder: Path) -> Verdict:
    """Raises BackupError if there is no backup that could be read at all."""
    contents = needed_contents(folder)
    records = size_bytes = 0
    damage: list[str] = []
    for place, inside, partition in _partitions(folder, contents):
        at = max(0, partition.start_offset)
        for segment in partition.segments:
            size_bytes += segment.size_bytes
            try:
                records += _records_of(inside, segment, at, partition.next_offset)
            except BackupError as error:
                damage.append(f"{place}: {error.message}")
            at = segment.next_offset
    return Verdict(contents=contents, records=records, size_bytes=size_bytes, damage=tuple(damage))


def _partitions(folder: Path, contents: Contents) -> Iterator[tuple[TopicPartition, Path, PartitionContents]]:
    for topic in contents.topics:
        for number, partition in enumerate(topic.partitions):
            inside = partition_folder(folder, topic.topic_id, number)
            yield TopicPartition(topic.name, number), inside, partition


def _records_of(folder: Path, segment: Segment, at: int, end: int) -> int:
    """Count them. Raises BackupError for a file that is damaged, or whose records are not where they belong."""
    check_segment(folder, segment)
    count = 0
    for records in read_batches(folder, segment, at):
        if records and not (at <= records[0].offset and records[-1].offset < min(segment.next_offset, end)):
            raise BackupError(f"{folder / segment.name} has records at offsets that belong to another file")
        at = records[-1].offset + 1 if records else at
        count += len(records)
    return count
