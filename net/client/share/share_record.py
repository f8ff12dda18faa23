"""`ShareRecord`: a record with the number of its deliveries. Pure."""

from functools import lru_cache
from typing import cast

from ..connection.records import MAX_CACHED_PARTITIONS, ConsumerRecord
from ..serde.reading import DecodedRecord


class ShareRecord(ConsumerRecord):
    """As `ConsumerRecord`; `delivery_count` is 1 at the first delivery to the group, `topic_id` that of its topic."""

    __slots__ = ()
    delivery_count: int = 0
    topic_id: str = ""


@lru_cache(MAX_CACHED_PARTITIONS)
def share_record_class(topic: str, topic_id: str, partition: int, delivery_count: int) -> type[ShareRecord]:
    """The records of this partition with so many deliveries: attributes of a class, as records are only views."""
    place = {"topic": topic, "topic_id": topic_id, "partition": partition}
    return type("ShareRecord", (ShareRecord,), {"__slots__": (), "delivery_count": delivery_count, **place})


class DecodedShareRecord(DecodedRecord):
    """A record whose key and value a deserializer has read, with the attributes of ShareRecord."""

    __slots__ = ()

    @property
    def delivery_count(self) -> int:
        """1 at the first delivery to the group."""
        return cast(ShareRecord, self.raw).delivery_count

    @property
    def topic_id(self) -> str:
        """The id of its topic: one that is created again has another."""
        return cast(ShareRecord, self.raw).topic_id
