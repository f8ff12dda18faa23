"""A scripted member of a group and the log that it reads, for `process_once`."""

from typing import Any

from barnabas.log.topic_partition import TopicPartition
from barnabas.net.client.errors import NotAssignedError
from barnabas.net.client.records import ConsumerRecord, record_class

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Log:
    """What the cluster has: records, and what the group has committed."""

    def __init__(self) -> None:
        self.values: dict[TopicPartition, list[int]] = {P0: [], P1: []}
        self.committed: dict[TopicPartition, int] = {}

    def add(self, place: TopicPartition, count: int) -> "Log":
        start = len(self.values[place])
        self.values[place] += range(start, start + count)
        return self


class FakeConsumer:
    """A member as the blocking SDK has it: a poll takes from each partition, and commits what came with the last one."""

    group = "g"

    def __init__(self, log: Log, *places: TopicPartition) -> None:
        self.log = log
        self.positions: dict[TopicPartition, int] = {}
        self.give(*places)

    def give(self, *places: TopicPartition) -> None:
        """The coordinator assigns exactly these."""
        self.positions = {place: self.positions.get(place, self.log.committed.get(place, 0)) for place in places}

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self.positions)

    def poll(self, *, max_records: int, timeout_ms: float) -> dict[TopicPartition, list[ConsumerRecord]]:
        self.log.committed |= self.positions
        found = {}
        for place, position in self.positions.items():
            offsets = range(position, len(self.log.values[place]))[:max_records]
            if offsets:
                make = record_class(*place)
                found[place] = [make((offset, 0, None, b"%d" % offset, ())) for offset in offsets]
                self.positions[place] = offsets[-1] + 1
        if not found:
            raise EndOfLogError
        return found

    def position(self, place: TopicPartition) -> int:
        return self.positions[place]

    def seek(self, place: TopicPartition, offset: int) -> None:
        if place not in self.positions:
            raise NotAssignedError(f"{place} is not assigned")
        self.positions[place] = offset


class EndOfLogError(Exception):
    """A real consumer would wait for ever."""


def store(cursor: Any, record: ConsumerRecord, placeholder: str = "?") -> None:
    cursor.execute(
        f"INSERT INTO effects VALUES ({placeholder}, {placeholder})",
        (f"{record.topic}-{record.partition}", record.offset),
    )
