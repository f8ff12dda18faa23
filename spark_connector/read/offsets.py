"""`StreamOffset`: a query's position, as Spark stores it in the checkpoint; offset ranges, their limits and their split. Pure.

Spark compares offsets as JSON text, so equal offsets must give equal text: keys are sorted here. If batch 0 was not committed,
Spark asks for a stream's first offset again, and "latest" would then differ; so the offset that ends a batch contains the start
of the whole stream (`initial`), and batch 0 takes its start from there.
"""

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition

FORMAT_VERSION = 1
NEW_PARTITION_START = 0  # A partition added after the stream began is read from its first record.
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records from `start` (inclusive) to `end` (exclusive)."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The next offset to read of each partition. `initial` is None only in the first offset of the stream."""

    offsets: Offsets
    topic_ids: Mapping[str, str]  # A topic that was deleted and recreated has another id.
    initial: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"version": FORMAT_VERSION, "offsets": by_topic(self.offsets)}
        found["topicIds"] = {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)}
        if self.initial is not None:
            found["initial"] = by_topic(self.initial)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "StreamOffset":
        """Raises ValueError if another source, or a later version, has written the checkpoint."""
        if found.get("version") != FORMAT_VERSION:
            raise ValueError(
                f"the checkpoint has an offset {json.dumps(found)[:200]} in a format unknown to this version of barnabas: "
                "use the checkpoint of the same source, or a new checkpointLocation"
            )
        return cls(
            offsets=_by_partition(found["offsets"]),
            topic_ids=dict(found["topicIds"]),
            initial=_by_partition(found["initial"]) if "initial" in found else None,
        )

    def start_of(self, partition: TopicPartition, end: "StreamOffset") -> int:
        """Where a batch from here to `end` begins in a partition."""
        if self.topic_ids.get(partition.topic) != end.topic_ids.get(partition.topic):
            return NEW_PARTITION_START
        start = end.initial if self.initial is None else self.offsets
        return NEW_PARTITION_START if start is None else start.get(partition, NEW_PARTITION_START)


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Kafka's JSON of offsets, sorted: {"topic": {"0": 23}}."""
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def _by_partition(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in found.items()
        for partition, offset in partitions.items()
    }


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """The ranges of a batch from `start` to `end`, ordered by partition; they depend on these two arguments only."""
    found = [
        OffsetRange(partition=partition, start=start.start_of(partition, end), end=end.offsets[partition])
        for partition in sorted(end.offsets)
    ]
    return [item for item in found if item.size > 0]


def limited(ranges: Sequence[OffsetRange], max_records: int) -> dict[TopicPartition, int]:
    """The ends that divide about `max_records` among the partitions in proportion to their available records.

    As in Spark's Kafka source, a share below one record is rounded up, so that small partitions do not starve beside large
    ones; hence the sum may exceed the limit by less than one record per partition.
    """
    total = sum(item.size for item in ranges)
    ends = {}
    for item in ranges:
        share = item.size if total <= max_records else max_records * item.size // total
        ends[item.partition] = min(item.end, item.start + max(share, min(1, item.size)))
    return ends


def split(ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Split ranges so that none has more than `max_records` and there are at least `min_partitions`, if there are enough records.

    The largest pieces are split first, and pieces of one range differ by at most one record.
    """
    ranges = [item for item in ranges if item.size]
    pieces = [-(-item.size // max_records) if max_records else 1 for item in ranges]
    wanted = min(min_partitions or 0, sum(item.size for item in ranges))
    heap = [(-item.size / count, number) for number, (item, count) in enumerate(zip(ranges, pieces, strict=True))]
    heapq.heapify(heap)
    for _ in range(wanted - sum(pieces)):
        _, number = heap[0]
        pieces[number] += 1
        heapq.heapreplace(heap, (-ranges[number].size / pieces[number], number))
    return [piece for item, count in zip(ranges, pieces, strict=True) for piece in _cut(item, count)]


def _cut(item: OffsetRange, count: int) -> list[OffsetRange]:
    borders = [item.start + item.size * number // count for number in range(count + 1)]
    return [
        OffsetRange(partition=item.partition, start=start, end=end) for start, end in pairwise(borders) if end > start
    ]


def records_behind(end_offset: str | None, latest_offset: str | None) -> dict[TopicPartition, int]:
    """The number of records that a query has not read yet, by partition, from the JSON of its progress.

    Arguments: `progress.sources[i].endOffset` and `.latestOffset`; empty if Spark has not reported them yet.
    """
    if not end_offset or not latest_offset or "null" in (end_offset, latest_offset):
        return {}
    end = StreamOffset.from_json(json.loads(end_offset)).offsets
    latest = StreamOffset.from_json(json.loads(latest_offset)).offsets
    return {partition: max(0, latest[partition] - end.get(partition, 0)) for partition in sorted(latest)}
