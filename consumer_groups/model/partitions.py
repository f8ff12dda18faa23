"""Sets of partitions: as frozensets to compute with, as sorted `TopicPartitions` in records and messages."""

from collections.abc import Iterable

from barnabas.kraft.group_state.group_slots import PartitionKey
from barnabas.log.vocabulary.group_assignors import NO_PARTITIONS, PartitionSet
from barnabas.log.vocabulary.group_messages import TopicPartitions

__all__ = ["NO_PARTITIONS", "PartitionSet", "from_set", "to_set"]


def to_set(items: Iterable[TopicPartitions]) -> PartitionSet:
    return frozenset([(item.topic, partition) for item in items for partition in item.partitions])


def from_set(keys: Iterable[PartitionKey]) -> tuple[TopicPartitions, ...]:
    """Sorted, one item per topic: equal sets give equal values."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(keys):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic=topic, partitions=tuple(partitions)) for topic, partitions in by_topic.items())
