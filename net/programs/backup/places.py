"""`Places`: how far a backup is restored, as records of a topic (`KeptPositions`). Pure.

NAME/intent/TOPIC               the topic is about to be made
NAME/topic/TOPIC                its id
NAME/at/TOPIC/PARTITION         all records before this offset of the backup are restored
NAME/to/TOPIC/PARTITION/OFFSET  where the first record from this offset on is now: a group had committed the offset
NAME/done                       all is restored
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

from .contents import Contents

_SEPARATOR: Final = "/"  # no name of a topic has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    key: bytes
    value: bytes


class Places:
    def __init__(self, name: str, contents: Contents, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """`records`: all of the topic, also of other names."""
        self._name = name
        self.intended: set[str] = set()
        self.topic_ids: dict[str, str] = {}
        self.restored: dict[TopicPartition, int] = {}
        self.translation: dict[tuple[TopicPartition, int], int] = {}
        self.is_done = False
        self._wanted: dict[TopicPartition, list[int]] = {}  # offsets of groups, rising
        for place, offset in sorted({
            (TopicPartition(item.topic, item.partition), item.offset) for group in contents.groups for item in group.offsets
        }):  # fmt: skip
            self._wanted.setdefault(place, []).append(offset)
        for key, value in records:
            if key is not None and value is not None:
                self.take(Place(key=key, value=value))

    def wanted_from(self, partition: TopicPartition, reached: int | None) -> deque[int]:
        """The offsets of groups in a partition that have no translation yet, rising. `reached`: by the open transaction."""
        at = self.restored.get(partition, -1) if reached is None else reached
        return deque(
            offset
            for offset in self._wanted.get(partition, ())
            if (partition, offset) not in self.translation and (reached is None or offset >= at)
        )

    # --- records ------------------------------------------------------------------------------------------------------

    def intent(self, topic: str) -> Place:
        return self._place("", "intent", topic)

    def made(self, topic: str, topic_id: str) -> Place:
        found = self._place(topic_id, "topic", topic)
        self.take(found)
        return found

    def at(self, partition: TopicPartition, offset: int) -> Place:
        return self._place(str(offset), "at", partition.topic, str(partition.partition))

    def translated(self, partition: TopicPartition, offset: int, target: int) -> Place:
        return self._place(str(target), "to", partition.topic, str(partition.partition), str(offset))

    def done(self) -> Place:
        return self._place("", "done")

    def _place(self, value: str, *words: str) -> Place:
        return Place(key=_SEPARATOR.join((self._name, *words)).encode(), value=value.encode())

    def take(self, place: Place) -> None:
        """Of another name, or of the owner, is passed over."""
        match place.key.decode().split(_SEPARATOR):
            case [self._name, "intent", topic]:
                self.intended.add(topic)
            case [self._name, "topic", topic]:
                self.topic_ids[topic] = place.value.decode()
            case [self._name, "at", topic, partition]:
                self.restored[TopicPartition(topic, int(partition))] = int(place.value)
            case [self._name, "to", topic, partition, offset]:
                self.translation[TopicPartition(topic, int(partition)), int(offset)] = int(place.value)
            case [self._name, "done"]:
                self.is_done = True
            case _:
                pass
