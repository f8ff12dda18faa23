"""A walk over all partitions in pieces, which finds those that a decision must change. See `ReplicationControl`."""

from collections.abc import Callable

from ...metadata.controller_settings import MAX_SCANNED_PER_STEP
from ...metadata.delta import MetadataDelta
from ...metadata.image import PartitionImage, TopicImage

Found = list[tuple[TopicImage, int, PartitionImage]]


def is_unsettled(partition: PartitionImage, active: frozenset[int]) -> bool:
    """An inactive broker is in the ISR, or the partition has no active leader (there may be no replica that can lead)."""
    return partition.leader not in active or not active.issuperset(partition.isr)


class Sweep:
    """The topics of the moment when it began; later ones are created in a valid state."""

    def __init__(self, limit: int) -> None:
        self._limit = limit  # partitions that are found in one piece
        self._topics: list[str] = []  # the last one is the next one
        self._next_partition = 0  # of that topic

    def __bool__(self) -> bool:
        """Is there more to do?"""
        return bool(self._topics)

    def begin(self, view: MetadataDelta) -> None:
        self._topics = [topic.name for topic in view.topics()]
        self._next_partition = 0

    def restart(self) -> None:
        """Forget everything: another controller was active meanwhile."""
        self._topics = []

    def next_piece(self, view: MetadataDelta, is_due: Callable[[PartitionImage], bool]) -> Found:
        """The next partitions that are due, a limited number among at most MAX_SCANNED_PER_STEP partitions."""
        found: Found = []
        left = MAX_SCANNED_PER_STEP
        while self._topics and left > 0 and len(found) < self._limit:
            topic = view.topic(self._topics[-1])
            left -= 1
            if topic is not None:
                left -= self._scan(topic, left, is_due, found)
            if topic is None or self._next_partition >= len(topic.partitions):
                self._topics.pop()
                self._next_partition = 0
        return found

    def _scan(self, topic: TopicImage, limit: int, is_due: Callable[[PartitionImage], bool], found: Found) -> int:
        """How many partitions were looked at."""
        first = self._next_partition
        for number in range(first, min(first + limit, len(topic.partitions))):
            self._next_partition = number + 1
            if is_due(topic.partitions[number]):
                found.append((topic, number, topic.partitions[number]))
                if len(found) == self._limit:
                    break
        return self._next_partition - first
