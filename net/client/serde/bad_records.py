"""Records that a deserializer cannot read: what the application wants to happen. Pure."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final

from ..connection.errors import DeserializationError, InvalidConfigError
from ..connection.records import ConsumerRecord

# The names that `barnabas pipeline` uses, so that one reader serves all dead-letter topics.
ERROR_HEADER: Final = "barnabas-error"
TOPIC_HEADER: Final = "barnabas-record-topic"
PARTITION_HEADER: Final = "barnabas-record-partition"
OFFSET_HEADER: Final = "barnabas-record-offset"
MAX_ERROR_BYTES: Final = 4_096  # of the reason in a header

Handler = Callable[
    [ConsumerRecord, DeserializationError], Awaitable[None] | None
]  # A function or a coroutine function.


class Policy(StrEnum):
    STOP = "stop"
    SKIP = "skip"


def policy_of(given: str | Handler) -> Policy | Handler:
    """Raises InvalidConfigError."""
    if callable(given) and not isinstance(given, str):
        return given
    try:
        return Policy(given)
    except ValueError:
        raise InvalidConfigError(
            f'on_bad_record is {given!r}; it must be "stop", "skip", or a function of the record and its error'
        ) from None


def dead_letter_headers(record: Any, reason: str) -> list[tuple[str, bytes | None]]:
    """The headers of a record in a dead-letter topic: its own, why it is there, and where it was."""
    return [
        *record.headers,
        (ERROR_HEADER, reason.encode("utf-8", "replace")[:MAX_ERROR_BYTES]),
        (TOPIC_HEADER, record.topic.encode()),
        (PARTITION_HEADER, b"%d" % record.partition),
        (OFFSET_HEADER, b"%d" % record.offset),
    ]
