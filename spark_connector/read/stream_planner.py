"""`StreamPlanner`: the end offsets of the next micro-batch. Pure: the ends of logs and the time are arguments.

In this order: Trigger.AvailableNow never reads beyond the log ends at the start of the query; with fewer records than
`minOffsetsPerTrigger` there is no batch until `maxTriggerDelay` has passed; `maxOffsetsPerTrigger` is divided among the
partitions in proportion to their available records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .offsets import OffsetRange, Offsets, StreamOffset, limited, ranges_between
from .read_options import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """The log end offset of every partition that is subscribed now."""

    ends: Offsets
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`lost` describes records that the query cannot read any more; `end` continues without them."""

    end: StreamOffset
    lost: tuple[str, ...] = ()


class StreamPlanner:
    def __init__(self, options: ReadOptions) -> None:
        self._min_offsets = options.min_offsets_per_trigger
        self._max_offsets = options.max_offsets_per_trigger
        self._max_delay_ms = options.max_trigger_delay_ms
        self._target: LogEnds | None = None  # Of Trigger.AvailableNow.
        self._last_trigger_ms: float | None = None

    def stop_at(self, target: LogEnds) -> None:
        """Trigger.AvailableNow: never read beyond these ends."""
        self._target = target

    @property
    def target(self) -> LogEnds | None:
        return self._target

    def next_end(self, start: StreamOffset, found: LogEnds, now_ms: float, *, is_limited: bool) -> Plan:
        """The end of the next batch; equal to `start` if there is no batch now.

        The first result differs from its start even without records: so Spark writes batch 0 to the checkpoint immediately, and
        with it the start of the stream. `is_limited` False: the trigger reads everything (Trigger.Once).
        """
        end = StreamOffset(
            offsets=dict(found.ends),
            topic_ids=dict(found.topic_ids),
            initial=start.offsets if start.initial is None else start.initial,
        )
        lost = _lost(start, end)
        ranges = ranges_between(start, end)
        if is_limited:
            if self._waits(ranges, start, now_ms):
                return Plan(end=start)
            end = self._capped(ranges, end)
        if end != start:
            self._last_trigger_ms = now_ms
        return Plan(end=end, lost=lost)

    def _waits(self, ranges: list[OffsetRange], start: StreamOffset, now_ms: float) -> bool:
        """As in Spark's Kafka source, the first batch never waits."""
        if self._min_offsets is None or self._target is not None or start.initial is None:
            return False
        if self._last_trigger_ms is None or now_ms - self._last_trigger_ms >= self._max_delay_ms:
            return False
        return sum(item.size for item in ranges) < self._min_offsets

    def _capped(self, ranges: list[OffsetRange], end: StreamOffset) -> StreamOffset:
        if self._max_offsets is None:
            return end
        return replace(end, offsets={**end.offsets, **limited(ranges, self._max_offsets)})


def _lost(start: StreamOffset, end: StreamOffset) -> tuple[str, ...]:
    """Topics and partitions that were deleted, recreated or truncated while the query read them."""
    gone = sorted({partition.topic for partition in start.offsets} - {partition.topic for partition in end.offsets})
    lost = [f"topic {topic} does not exist any more" for topic in gone]
    known = start.topic_ids.items()
    remade = [topic for topic, topic_id in sorted(known) if end.topic_ids.get(topic, topic_id) != topic_id]
    lost += [f"topic {topic} was deleted and recreated: its earlier records are gone" for topic in remade]
    for partition in sorted(start.offsets):
        position, log_end = start.offsets[partition], end.offsets.get(partition)
        if log_end is None:
            if partition.topic not in gone:
                lost.append(f"{partition} does not exist any more")
        elif log_end < position and partition.topic not in remade:
            lost.append(f"{partition} ends at offset {log_end}, before the query's {position}")
    return tuple(lost)
