"""`Decoders`: the deserializers of a consumer, applied to records; and `DecodedRecord`, what they make of one."""

from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import BarnabasError, DeserializationError, SchemaNotFoundError
from ..connection.records import ConsumerRecord, Headers
from .serdes import AnyDeserializer, Deserializer, Part, SchemaNotLoaded, deserializer_of


class DecodedRecord:
    """A record whose key and value a deserializer has read, with the attributes of ConsumerRecord. `raw` is the record as it was
    stored, with bytes."""

    __slots__ = ("key", "raw", "value")

    def __init__(self, raw: ConsumerRecord, key: Any, value: Any) -> None:
        self.raw = raw
        self.key = key
        self.value = value

    @property
    def topic(self) -> str:
        """Of the record as it was stored, as are the following ones."""
        return self.raw.topic

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.raw.partition

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and partition in one."""
        return self.raw.topic_partition

    @property
    def offset(self) -> int:
        """Its number in the partition."""
        return self.raw.offset

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.raw.timestamp_ms

    @property
    def headers(self) -> Headers:
        """Pairs of a name and bytes."""
        return self.raw.headers

    def __repr__(self) -> str:
        return (
            f"DecodedRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodedRecord):
            return NotImplemented
        return (self.raw, self.key, self.value) == (other.raw, other.key, other.value)

    def __hash__(self) -> int:
        return hash(self.raw)


class Decoders:
    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    @classmethod
    def of(cls, key: AnyDeserializer | None, value: AnyDeserializer | None) -> "Decoders | None":
        """None: the application gets bytes. Raises InvalidConfigError."""
        found = cls(deserializer_of(key, "key_deserializer"), deserializer_of(value, "value_deserializer"))
        return None if found._key is None and found._value is None else found

    def record(self, raw: ConsumerRecord) -> DecodedRecord:
        """Raises DeserializationError, SchemaNotLoaded, and other errors of the registry."""
        return DecodedRecord(raw, _applied(self._key, raw, Part.KEY), _applied(self._value, raw, Part.VALUE))


def _applied(deserializer: Deserializer | None, record: ConsumerRecord, part: Part) -> Any:
    data = record.key if part is Part.KEY else record.value
    if deserializer is None or data is None:
        return data
    try:
        return deserializer.deserialize(data, record.topic, part)
    except SchemaNotLoaded:
        raise
    except BarnabasError as error:
        if not isinstance(error, SchemaNotFoundError):
            raise  # The registry's: it says nothing about the record.
        reason: Exception = error
    except Exception as error:  # noqa: BLE001 - of a library or the application
        reason = error
    told = str(reason) or type(reason).__name__
    raise DeserializationError(record.topic_partition, record.offset, part, told) from reason
