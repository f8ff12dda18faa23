"""The partitions of a transaction: by topic id, because a topic that is deleted and created again is another one."""

from collections.abc import Iterable

from barnabas.log.vocabulary.transaction_messages import TransactionTopic


def merged(known: tuple[TransactionTopic, ...], more: Iterable[TransactionTopic]) -> tuple[TransactionTopic, ...]:
    """All partitions of both, sorted. `known` itself if there are no new ones."""
    partitions = {(item.topic, item.topic_id): set(item.partitions) for item in known}
    before = partition_count(known)
    for item in more:
        partitions.setdefault((item.topic, item.topic_id), set()).update(item.partitions)
    if sum(map(len, partitions.values())) == before:
        return known
    return tuple(
        TransactionTopic(topic=topic, topic_id=topic_id, partitions=tuple(sorted(numbers)))
        for (topic, topic_id), numbers in sorted(partitions.items())
        if numbers
    )


def missing(known: Iterable[TransactionTopic], asked: Iterable[TransactionTopic]) -> frozenset[tuple[str, int]]:
    """The partitions that were asked for and are not known."""
    present = {(item.topic_id, number) for item in known for number in item.partitions}
    return frozenset(
        (item.topic, number) for item in asked for number in item.partitions if (item.topic_id, number) not in present
    )


def partition_count(topics: Iterable[TransactionTopic]) -> int:
    return sum(len(item.partitions) for item in topics)
