"""How far each partition was mirrored, as records of a compacted topic. Pure.

    NAME/TOPIC/PARTITION: OFFSET TOPIC_ID

The topic's id tells a topic that was deleted and made anew. It is left out if the source has none (Kafka before 2.8).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..copying.kept_positions import owner_key

POSITIONS_TOPIC: Final = "barnabas-mirror-positions"


class UnreadablePositionError(BarnabasError):
    """A record of the topic of positions is not one of this program."""


class Position(NamedTuple):
    offset: int  # the next one
    topic_id: str = ""  # "" if the source does not tell it


def key_of(name: str, partition: TopicPartition) -> bytes:
    return f"{name}/{partition.topic}/{partition.partition}".encode()


def source_key(name: str) -> bytes:
    """Of the record that says which cluster the positions are of."""
    return f"{name}/source".encode()


def source_of(name: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> str | None:
    source = None
    for key, value in records:
        if key == source_key(name):
            source = value
    return None if source is None else source.decode("utf-8", "replace")


def value_of(position: Position) -> bytes:
    return f"{position.offset} {position.topic_id}".rstrip().encode()


def positions_of(name: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[TopicPartition, Position]:
    """The position in each partition of the source; `records` are (key, value) in the order of the log.

    Raises UnreadablePositionError.
    """
    found: dict[TopicPartition, Position] = {}
    prefix = f"{name}/".encode()
    for key, value in records:
        if key is None or not key.startswith(prefix) or key in (owner_key(name), source_key(name)):
            continue
        topic, _, number = key[len(prefix) :].rpartition(b"/")
        try:
            partition = TopicPartition(topic.decode(), int(number))
            if value is None:
                found.pop(partition, None)
            else:
                offset, _, topic_id = value.partition(b" ")
                found[partition] = Position(int(offset), topic_id.decode())
        except ValueError as error:
            raise UnreadablePositionError(
                f"{POSITIONS_TOPIC} has a record with key {key!r} that is no position of a partition ({error}): another program "
                "has written it; delete the record's key, or the topic (then all topics are mirrored again)"
            ) from error
    return found
