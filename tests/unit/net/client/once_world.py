"""A scripted member of a group and the log that it reads, for `process_once`."""

from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import NotAssignedError
from barnabas.net.client.connection.records import ConsumerRecord, ReadingOrigin, record_class

MOST_IDLE_POLLS = 2
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Log:
    """What the cluster has: records, and what the group has committed."""

    def __init__(self) -> None:
        self.values: dict[TopicPartition, list[int]] = {P0: [], P1: []}
        self.removed: set[int] = set()  # by compaction, in every partition
        self.starts: dict[TopicPartition, int] = {P0: 0, P1: 0}
        self.topic_id = "id-1"
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
        self.origins: dict[TopicPartition, ReadingOrigin] = {}
        self.jumps = 0
        self.idle_polls = 0
        self.give(*places)

    def give(self, *places: TopicPartition) -> None:
        """The coordinator assigns exactly these."""
        self.origins = {place: origin for place, origin in self.origins.items() if place in places}
        self.positions = {place: offset for place, offset in self.positions.items() if place in places}
        for place in places:
            if place not in self.positions:
                self.jump(place, self.log.committed.get(place, 0))

    def jump(self, place: TopicPartition, offset: int) -> None:
        """By whatever: the group's commit, a reset, `group seek`, the application."""
        self.jumps += 1
        self.positions[place] = offset
        self.origins[place] = ReadingOrigin(offset, self.log.topic_id, self.jumps)

    @property
    def _inside(self) -> "FakeConsumer":
        return self

    @property
    def assignment(self) -> list[TopicPartition]:
        return list(self.positions)

    def poll(self, *, max_records: int, timeout_ms: float) -> dict[TopicPartition, list[ConsumerRecord]]:
        self.log.committed |= self.positions
        found = {}
        for place, position in self.positions.items():
            every = range(position, len(self.log.values[place]))
            offsets = [offset for offset in every if offset not in self.log.removed][:max_records]
            if offsets:
                make = record_class(*place)
                found[place] = [make((offset, 0, None, b"%d" % offset, ())) for offset in offsets]
                self.positions[place] = offsets[-1] + 1
        self.idle_polls = 0 if found else self.idle_polls + 1
        if self.idle_polls > MOST_IDLE_POLLS:
            raise EndOfLogError
        return found

    def poll_with_origins(
        self, *, max_records: int, timeout_ms: float
    ) -> tuple[dict[TopicPartition, list[ConsumerRecord]], dict[TopicPartition, ReadingOrigin]]:
        return self.poll(max_records=max_records, timeout_ms=timeout_ms), dict(self.origins)

    def position(self, place: TopicPartition) -> int:
        return self.positions[place]

    def seek(self, place: TopicPartition, offset: int, *, topic_id: str = "") -> None:
        if place not in self.positions:
            raise NotAssignedError(f"{place} is not assigned")
        is_former = topic_id not in ("", self.origins[place].topic_id)
        self.jump(place, self.log.starts[place] if is_former else offset)

    def origin(self, place: TopicPartition) -> ReadingOrigin:
        if place not in self.positions:
            raise NotAssignedError(f"{place} is not assigned")
        return self.origins[place]

    def beginning_offsets(self, place: TopicPartition) -> dict[TopicPartition, int]:
        return {place: self.log.starts[place]}


class EndOfLogError(Exception):
    """A real consumer would wait for ever."""


def store(cursor: Any, record: ConsumerRecord, placeholder: str = "?") -> None:
    cursor.execute(
        f"INSERT INTO effects VALUES ({placeholder}, {placeholder})",
        (f"{record.topic}-{record.partition}", record.offset),
    )
