"""`Boundaries`: the subscribed partitions and the offsets at which a query begins and ends, from the cluster's current state."""

import logging
from collections.abc import Collection, Mapping

from barnabas.log.vocabulary.errors import InvalidConfigError, UnknownTopicOrPartitionError
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS, TopicPartition
from barnabas.net.client.connection.client import Client
from barnabas.net.client.positions.offset_lookup import EARLIEST, ISOLATION_LEVELS, LATEST, list_offsets

from ..common.sink_ledger import SINKS_PREFIX
from .data_loss import DataLossError
from .offsets import OffsetRange, StreamOffset
from .read_options import Assigned, AtOffsets, AtTime, AtTimes, Boundary, Everywhere, ReadOptions, TopicPattern, Topics

logger = logging.getLogger("barnabas.spark")

TOPIC_WAIT_MS = 5_000  # Within this time every broker knows a newly created topic.
_SHOWN_PARTITIONS = 5


class Boundaries:
    """Use it only on the event loop of its client."""

    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._isolation_level = ISOLATION_LEVELS[
            "read_committed" if options.fetch.is_committed_only else "read_uncommitted"
        ]

    # --- which partitions --------------------------------------------------------------------------------------------

    async def partitions(self, *, needs_all: bool = True) -> list[TopicPartition]:
        """All existing subscribed partitions; without `needs_all`, named topics that do not exist are left out.

        With `needs_all`, raises UnknownTopicOrPartitionError for them.
        """
        match self._options.subscription:
            case Topics(names):
                for name in names:
                    await self._wait_for(name, is_needed=needs_all)
            case TopicPattern():
                self._client.want_all_topics()
                await self._client.refresh()
            case Assigned(partitions):
                for name in {partition.topic for partition in partitions}:
                    await self._wait_for(name, is_needed=needs_all)
                for partition in partitions if needs_all else ():
                    self._check_exists(partition)
        return self.known_partitions()

    def known_partitions(self) -> list[TopicPartition]:
        """As `partitions`, from the cached metadata: deleted partitions are left out."""
        metadata = self._client.metadata
        match self._options.subscription:
            case Topics(names):
                topics = list(names)
            case TopicPattern(regex):
                matches = name_pattern(regex).matches
                topics = sorted(name for name in metadata.topics() if not _is_internal(name) and matches(name))
            case Assigned(assigned):
                return [item for item in assigned if item.partition < metadata.partition_count(item.topic)]
        return [partition for name in topics for partition in metadata.partitions(name)]

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, str]:
        return {topic: self._client.metadata.topic_id(topic) for topic in {partition.topic for partition in partitions}}

    async def _wait_for(self, topic: str, *, is_needed: bool) -> None:
        try:
            await self._client.wait_for_topic(topic, timeout_ms=TOPIC_WAIT_MS)
        except UnknownTopicOrPartitionError:
            if not is_needed:
                logger.warning("topic %s does not exist any more", topic)
                return
            raise

    def _check_exists(self, partition: TopicPartition) -> None:
        count = self._client.metadata.partition_count(partition.topic)
        if partition.partition >= count:
            raise UnknownTopicOrPartitionError(
                f"assign names {partition}, but the topic has the partitions 0 to {count - 1}"
            )

    # --- where they begin and end ------------------------------------------------------------------------------------

    async def start(self) -> StreamOffset:
        """Where a query begins: the first offset to read of each partition, and the ids of the topics.

        Raises as `partitions` and `starts`.
        """
        partitions = await self.partitions()
        # Before the offsets: offsets of an older topic under the id of a newer one would pass for its own.
        topic_ids = self._topic_ids(partitions)
        return StreamOffset(offsets=await self.starts(partitions), topic_ids=topic_ids)

    async def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset to read of each partition. Raises InvalidConfigError, or DataLossError if the log does not have it."""
        found = await self._resolve(self._options.start, partitions, name="startingOffsets")
        late = [partition for partition, offset in found.items() if offset < 0]
        if late and not self._options.is_late_start_latest:
            raise InvalidConfigError(
                f"{_shown(late)} has no record at or after the starting timestamp; choose an earlier one, or set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end"
            )
        found |= await self._list(late, LATEST)
        if isinstance(self._options.start, AtOffsets):
            return await self._within_logs(found)
        return found

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset (exclusive) of each partition; the end of the log if no record is at or after the timestamp."""
        found = await self._resolve(self._options.end, partitions, name="endingOffsets")
        return found | await self._list([partition for partition, offset in found.items() if offset < 0], LATEST)

    async def batch_ranges(self) -> tuple[list[OffsetRange], Mapping[str, str]]:
        """The ranges that a batch reads, and the ids of their topics.

        Raises as `start`, and DataLossError if an end is not in the log.
        """
        begin = await self.start()
        ends = await self.ends(begin.offsets.keys())
        if isinstance(self._options.end, AtOffsets):
            ends = await self._within_logs(ends)
        starts = sorted(begin.offsets.items())
        return [OffsetRange(partition=item, start=start, end=ends[item]) for item, start in starts], begin.topic_ids

    async def _resolve(
        self, boundary: Boundary, partitions: Collection[TopicPartition], *, name: str
    ) -> dict[TopicPartition, int]:
        """An offset for each partition; -1 if no record is at or after the requested time."""
        match boundary:
            case Everywhere(offset):
                return await self._list(partitions, offset)
            case AtTime(timestamp_ms):
                return await self._list(partitions, timestamp_ms)
            case AtTimes(timestamps_ms):
                _check_complete(timestamps_ms, partitions, f"{name}ByTimestamp")
                return await self._list_each({item: timestamps_ms[item] for item in partitions})
            case AtOffsets(offsets):
                _check_complete(offsets, partitions, name)
                named = {item: offsets[item] for item in partitions if offsets[item] < 0}
                return {item: offsets[item] for item in partitions} | await self._list_each(named)

    async def _within_logs(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets given by the user may be outside of the log: raise DataLossError, or move them to the nearest valid offset."""
        starts, ends = await self._list(offsets, EARLIEST), await self._list(offsets, LATEST)
        outside = {item: offset for item, offset in offsets.items() if not starts[item] <= offset <= ends[item]}
        if outside:
            told = ", ".join(
                f"{item} has the offsets {starts[item]} to {ends[item]}, not {offset}"
                for item, offset in list(outside.items())[:_SHOWN_PARTITIONS]
            )
            if self._options.fails_on_data_loss:
                raise DataLossError(told)
            logger.warning("%s", told)
        return {item: min(max(offset, starts[item]), ends[item]) for item, offset in offsets.items()}

    async def _list(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        return await self._list_each(dict.fromkeys(partitions, time_ms))

    async def _list_each(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not times_ms:
            return {}
        found = await list_offsets(
            self._client,
            times_ms,
            timeout_ms=self._options.client.api_timeout_ms,
            isolation_level=self._isolation_level,
        )
        return {partition: item.offset for partition, item in found.items()}


def _is_internal(topic: str) -> bool:
    """Patterns never match internal topics; they can only be subscribed by name."""
    return topic in INTERNAL_TOPICS or topic.startswith(SINKS_PREFIX)


def _check_complete(given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition], name: str) -> None:
    """As in Spark's Kafka source, the JSON must name all partitions: the start of a missing one would be undefined."""
    if forgotten := sorted(set(partitions) - given.keys()):
        raise InvalidConfigError(f"{name} must name every subscribed partition; it lacks {_shown(forgotten)}")
    if strange := sorted(given.keys() - set(partitions)):
        raise InvalidConfigError(f"{name} names {_shown(strange)}, which is not subscribed or does not exist")


def _shown(partitions: Collection[TopicPartition]) -> str:
    names = [str(item) for item in sorted(partitions)]
    more = f" and {len(names) - _SHOWN_PARTITIONS} more" if len(names) > _SHOWN_PARTITIONS else ""
    return ", ".join(names[:_SHOWN_PARTITIONS]) + more
