"""Which partitions have counters of bytes and records of their own in the metrics, and what the others have together."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

OTHERS: Final = TopicPartition("", -1)  # no topic has an empty name


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one partition, since this broker has it."""

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0

    def since(self, before: "Traffic") -> "Traffic":
        """A replica that has left and come back counts from zero."""
        if self.bytes_in < before.bytes_in or self.bytes_out < before.bytes_out:
            return self
        return Traffic(
            self.bytes_in - before.bytes_in, self.records_in - before.records_in, self.bytes_out - before.bytes_out
        )

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.bytes_in + other.bytes_in, self.records_in + other.records_in, self.bytes_out + other.bytes_out
        )


class TopicTraffic:
    """Pure. The first `limit` partitions with traffic have series of their own, and keep them: a counter of the busiest would
    lose its past whenever another one takes its place. The sum of all others never falls."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._named: set[TopicPartition] = set()
        self._seen: dict[TopicPartition, Traffic] = {}  # of the others, at the last look
        self._others = Traffic()

    def look(self, found: Iterable[tuple[TopicPartition, Traffic]]) -> Iterator[tuple[TopicPartition, Traffic]]:
        """`found`: all partitions here with traffic. Those that are gone give their places to others."""
        now = dict(found)
        self._named.intersection_update(now)
        seen: dict[TopicPartition, Traffic] = {}
        for place, traffic in now.items():
            if place not in self._named and place not in self._seen and len(self._named) < self._limit:
                self._named.add(place)
            if place in self._named:
                yield place, traffic
            else:
                seen[place] = traffic
                self._others = self._others.plus(traffic.since(self._seen.get(place, Traffic())))
        self._seen = seen
        yield OTHERS, self._others
