"""`dead_letters`: sends records that a consumer cannot read to a topic of their own."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..connection.client import inside_of
from ..connection.errors import DeserializationError, InvalidConfigError
from ..connection.records import ConsumerRecord
from .bad_records import dead_letter_headers

BadRecordHandler = Callable[[ConsumerRecord, DeserializationError], Awaitable[None]]


class PlainInside(Protocol):
    @property
    def has_serializers(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...


class PlainProducer(Protocol):
    """`barnabas.Producer`."""

    @property
    def _inside(self) -> PlainInside: ...
    async def send(self, topic: str, value: Any, *, key: Any, headers: Any, timestamp_ms: int) -> Any: ...


def dead_letters(producer: PlainProducer, topic: str) -> BadRecordHandler:
    """A handler for `Consumer(on_bad_record=...)` and `process_each(on_failure=...)`: the record goes to `topic` as it was
    stored, with the reason in its headers.

        Consumer("orders", value_deserializer=Json(Order), on_bad_record=dead_letters(producer, "orders.bad"))

    The consumer goes on when the record is acknowledged; if it cannot be written, the record comes next again. After a crash
    between the two it is written again: at least once. Raises InvalidConfigError for a producer with serializers or a
    `transactional_id`, which cannot write bytes as they are.
    """
    _check(producer)

    async def send(record: ConsumerRecord, error: Exception) -> None:
        raw: Any = record.raw
        if isinstance(error, DeserializationError):
            reason = f"{error.part}: {error.reason}"
        else:
            reason = f"{type(error).__name__}: {error}"
        headers = dead_letter_headers(raw, reason)
        await (await producer.send(topic, raw.value, key=raw.key, headers=headers, timestamp_ms=raw.timestamp_ms))

    return send


def _check(producer: PlainProducer) -> None:
    if inside_of(producer).has_serializers:
        raise InvalidConfigError(
            "dead_letters needs a producer without serializers: bad records are written as they are"
        )
    if inside_of(producer).is_transactional:
        raise InvalidConfigError(
            "dead_letters needs a producer without a transactional_id: each record is sent by itself"
        )
