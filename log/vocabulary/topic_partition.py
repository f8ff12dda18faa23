"""Names of topics and partitions, and the rule that a topic's name must follow. Nothing here touches a disk or a socket."""

import re
from typing import NamedTuple

from .errors import InvalidRequestError, InvalidTopicError

MAX_TOPIC_NAME_LENGTH = (
    249  # Kafka's limit: the name becomes a folder, with `-<partition>` behind it, in a 255-byte file name.
)
_TOPIC_ID = re.compile(r"[0-9a-f]{32}")
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
CONSUMER_OFFSETS_PARTITIONS = 50
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS_TOPIC, "__transaction_state"})


class TopicPartition(NamedTuple):
    """One partition of one topic. A tuple, not a dataclass: it is a key of dicts on the hot path, and hashes in C."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_topic_name(name: str) -> str:
    """Return `name` if it is a valid name for a topic.

    Raises InvalidTopicError, which names the fault and the rule: the name becomes a folder, so it must not lead to another
    folder.
    """
    if name and not isinstance(name, str):
        raise InvalidTopicError(f"the topic name must be a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise InvalidTopicError("the topic name is empty; use 1 to 249 characters of a-z A-Z 0-9 . _ -")
    if name in (".", ".."):
        raise InvalidTopicError(
            f"{name!r} is not a valid topic name: it refers to a folder of the file system; use another name"
        )
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopicError(
            f"the topic name has {len(name)} characters; at most {MAX_TOPIC_NAME_LENGTH} are allowed"
        )
    if not _LEGAL_TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(f"the topic name {name!r} has an illegal character; use only a-z A-Z 0-9 . _ -")
    return name


def check_topic_id(topic_id: str) -> str:
    """Return `topic_id` if it is one, or "". Raises InvalidRequestError: it becomes a part of the names of folders."""
    if topic_id and _TOPIC_ID.fullmatch(topic_id) is None:
        raise InvalidRequestError(f"{topic_id[:64]!r} is not a valid topic id: use 32 hexadecimal digits")
    return topic_id


def no_such_topic(name: str) -> str:
    """The message of UnknownTopicOrPartitionError, the same from brokers, clients and the HTTP API."""
    return f"there is no topic {name!r}: create it (barnabas topic create {name}), or correct the name"


def no_such_topic_id(topic_id: str) -> str:
    """The message of UnknownTopicIdError."""
    return f"there is no topic with the id {topic_id}"
