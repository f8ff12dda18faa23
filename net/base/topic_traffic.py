"""Bytes and records that clients write to and read from each partition that this broker serves."""

from collections.abc import Collection, Iterator
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

OTHERS: Final = TopicPartition("", -1)  # no topic has an empty name


class Traffic:
    """Counters of one partition."""

    __slots__ = ("bytes_in", "bytes_out", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_in = 0


class TopicTraffic:
    """Pure. The first `limit` partitions with traffic have counters of their own, and keep them: a counter of the busiest ones
    would lose its past whenever another one takes its place. All others share one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._others = Traffic()
        self.known: dict[TopicPartition, Traffic] = {}  # a handler looks here first: usually it needs no call

    def of(self, place: TopicPartition) -> Traffic:
        """The counters of a partition that is not in `known`."""
        if len(self.known) >= self._limit:
            return self._others
        return self.known.setdefault(place, Traffic())

    def forget_all_but(self, topics: Collection[str]) -> None:
        """Deleted topics give their places to others."""
        for place in [place for place in self.known if place.topic not in topics]:
            del self.known[place]

    def counters(self) -> Iterator[tuple[TopicPartition, Traffic]]:
        yield from self.known.items()
        yield OTHERS, self._others
