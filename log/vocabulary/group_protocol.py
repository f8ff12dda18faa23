"""What classic members exchange through the coordinator with the "consumer" protocol type: subscriptions (versions 0 to 3) and
assignments, in Kafka's binary form, so that members of Barnabas and of Kafka can be in one group.

The coordinator passes these bytes on without reading them; it decodes them only to describe a group. Therefore, bytes that do not
parse (another protocol type, a client's own format) give None, never an error. The SDK's members write and read them: this is why
the codec is in this layer, as the assignors are (`group_assignors`).
Source: Kafka's ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json.
"""

import struct
from dataclasses import dataclass

from .group_assignors import NO_PARTITIONS, PartitionSet

PROTOCOL_TYPE = "consumer"
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
MAX_ITEMS = 100_000  # in one array: more than a member can hold, few enough that a forged length costs little


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSubscription:
    topics: tuple[str, ...]
    owned: PartitionSet = NO_PARTITIONS  # since version 1: the partitions that a cooperative member still holds
    generation: int = -1  # since version 2
    rack: str | None = None  # since version 3
    user_data: bytes = b""  # bytes from the assignor of this member


class _Reader:
    """Raises ValueError or struct.error when the bytes are malformed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def short(self) -> int:
        (value,) = _SHORT.unpack_from(self._data, self._at)
        self._at += _SHORT.size
        return int(value)

    def int32(self) -> int:
        (value,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        return int(value)

    def take(self, length: int) -> bytes:
        if length < 0 or self._at + length > len(self._data):
            raise ValueError(f"{length} bytes are needed, {len(self._data) - self._at} are left")
        taken = self._data[self._at : self._at + length]
        self._at += length
        return taken

    def text(self) -> str:
        return self.take(self.short()).decode()

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length < 0 else self.take(length)

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= MAX_ITEMS:
            raise ValueError(f"{count} items")
        return count

    def partitions(self) -> PartitionSet:
        keys: set[tuple[str, int]] = set()
        for _ in range(self.count()):
            topic = self.text()
            keys.update((topic, self.int32()) for _ in range(self.count()))
        return frozenset(keys)


def decode_subscription(data: bytes) -> ClientSubscription | None:
    reader = _Reader(data)
    try:
        version = reader.short()
        topics = tuple(reader.text() for _ in range(reader.count()))
        user_data = reader.blob()
        owned = reader.partitions() if version >= 1 else NO_PARTITIONS
        generation = reader.int32() if version >= 2 else -1
        length = reader.short() if version >= 3 else -1
        rack = None if length < 0 else reader.take(length).decode()
    except (ValueError, struct.error):
        return None
    return ClientSubscription(topics=topics, owned=owned, generation=generation, rack=rack, user_data=user_data)


def encode_subscription(subscription: ClientSubscription) -> bytes:
    """Encode as version 3."""
    rack = subscription.rack
    parts = [_SHORT.pack(3), _INT.pack(len(subscription.topics)), *map(_text, subscription.topics)]
    parts += [_blob(subscription.user_data), _partitions(subscription.owned), _INT.pack(subscription.generation)]
    parts.append(_SHORT.pack(-1) if rack is None else _text(rack))
    return b"".join(parts)


def decode_assignment(data: bytes) -> PartitionSet | None:
    reader = _Reader(data)
    try:
        reader.short()
        return reader.partitions()
    except (ValueError, struct.error):
        return None


def encode_assignment(assigned: PartitionSet, user_data: bytes = b"") -> bytes:
    """Encode as version 1."""
    return _SHORT.pack(1) + _partitions(assigned) + _blob(user_data)


def _text(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _blob(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _partitions(keys: PartitionSet) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(keys):
        by_topic.setdefault(topic, []).append(partition)
    parts = [_INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_text(topic), _INT.pack(len(numbers)), *map(_INT.pack, numbers)]
    return b"".join(parts)
