"""`Encoders`: the serializers of a producer, applied to records."""

from collections.abc import Sequence
from typing import Any

from ..connection.errors import BarnabasError, SerializationError
from .serdes import MAX_LOADS, AnySerializer, Part, SchemaNotLoaded, Serializer, serializer_of


class Encoders:
    """`None` stays None: a record without a key, a tombstone."""

    def __init__(self, key: Serializer | None, value: Serializer | None) -> None:
        self._key = key
        self._value = value

    @classmethod
    def of(cls, key: AnySerializer | None, value: AnySerializer | None) -> "Encoders | None":
        """None: keys and values are bytes already. Raises InvalidConfigError."""
        found = cls(serializer_of(key, "key_serializer"), serializer_of(value, "value_serializer"))
        return None if found._key is None and found._value is None else found

    def now(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        """The value and the key as bytes. Raises SerializationError, SchemaNotLoaded."""
        return _applied(self._value, value, topic, Part.VALUE), _applied(self._key, key, topic, Part.KEY)

    def at_once(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        """As `now`, where nothing can be awaited. Raises SerializationError."""
        try:
            return self.now(topic, value, key)
        except SchemaNotLoaded:
            raise SerializationError(
                f"the schema for topic {topic!r} is not loaded yet, and send_nowait does not wait: send the first record with"
                " `await producer.send`"
            ) from None

    async def record(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        """As `now`, with the schemas that are needed. Raises SerializationError, SchemaRegistryError."""
        for _ in range(MAX_LOADS):
            try:
                return self.now(topic, value, key)
            except SchemaNotLoaded as missing:
                await missing.load()
        raise SerializationError(f"a record needs more than {MAX_LOADS} schemas")

    async def columns(
        self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None
    ) -> tuple[list[Any], list[Any] | None]:
        """Values and keys of many records. Raises as `record`: then none of them is sent."""
        if keys is None:
            return [(await self.record(topic, value, None))[0] for value in values], None
        pairs = [await self.record(topic, value, key) for value, key in zip(values, keys, strict=True)]
        return [value for value, _ in pairs], [key for _, key in pairs]


def _applied(serializer: Serializer | None, data: Any, topic: str, part: Part) -> Any:
    if serializer is None or data is None:
        return data
    try:
        return serializer.serialize(data, topic, part)
    except (SchemaNotLoaded, BarnabasError):
        raise
    except Exception as error:
        raise SerializationError(
            f"the {part} of a record for topic {topic!r} cannot be written: {str(error) or type(error).__name__}"
        ) from error
