"""Which of Kafka's APIs are served, in which versions, and the values that stand for those that have no request of ours.

Every version inside of a range is served: clients that do not negotiate send fixed ones. Produce begins at 0, as
librdkafka looks at that number before it compresses (KAFKA-18659), though no version below 3 is taken.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .schema import Versions, messages

_KAFKA = 2000  # Kafka's own keys behind ours, so that one dispatcher serves both


class KafkaApi(IntEnum):
    """APIs whose requests are handled as Kafka makes them, many items in one: `KafkaRequest`. The value is the key + 2000."""

    OFFSET_COMMIT = _KAFKA + 8
    OFFSET_FETCH = _KAFKA + 9
    FIND_COORDINATOR = _KAFKA + 10
    JOIN_GROUP = _KAFKA + 11
    HEARTBEAT = _KAFKA + 12
    LEAVE_GROUP = _KAFKA + 13
    SYNC_GROUP = _KAFKA + 14
    DESCRIBE_GROUPS = _KAFKA + 15
    LIST_GROUPS = _KAFKA + 16
    API_VERSIONS = _KAFKA + 18
    DELETE_GROUPS = _KAFKA + 42
    OFFSET_DELETE = _KAFKA + 47
    CONSUMER_GROUP_HEARTBEAT = _KAFKA + 68
    CONSUMER_GROUP_DESCRIBE = _KAFKA + 69

    @staticmethod
    def of(key: int) -> "KafkaApi":
        return KafkaApi(key + _KAFKA)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRequest:
    """`body` is an object of the message's class (`compiler.types_of`)."""

    api_key: KafkaApi
    version: int
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaResponse:
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`name` without "Request"; versions below `taken_from` are listed and refused."""

    name: str
    versions: Versions
    taken_from: int = 0


SERVED: dict[int, Served] = {
    0: Served(name="Produce", versions=Versions(0, 9), taken_from=3),
    1: Served(name="Fetch", versions=Versions(4, 12)),
    2: Served(name="ListOffsets", versions=Versions(1, 7)),
    3: Served(name="Metadata", versions=Versions(0, 12)),
    8: Served(name="OffsetCommit", versions=Versions(2, 9)),
    9: Served(name="OffsetFetch", versions=Versions(1, 9)),
    10: Served(name="FindCoordinator", versions=Versions(0, 4)),
    11: Served(name="JoinGroup", versions=Versions(0, 9)),
    12: Served(name="Heartbeat", versions=Versions(0, 4)),
    13: Served(name="LeaveGroup", versions=Versions(0, 5)),
    14: Served(name="SyncGroup", versions=Versions(0, 5)),
    15: Served(name="DescribeGroups", versions=Versions(0, 5)),
    16: Served(name="ListGroups", versions=Versions(0, 5)),
    18: Served(name="ApiVersions", versions=Versions(0, 3)),
    22: Served(name="InitProducerId", versions=Versions(0, 4)),
    23: Served(name="OffsetForLeaderEpoch", versions=Versions(2, 4)),
    42: Served(name="DeleteGroups", versions=Versions(0, 2)),
    47: Served(name="OffsetDelete", versions=Versions(0, 0)),
    68: Served(name="ConsumerGroupHeartbeat", versions=Versions(0, 1)),
    69: Served(name="ConsumerGroupDescribe", versions=Versions(0, 1)),
}
API_VERSIONS_KEY = 18


def is_flexible(name: str, version: int) -> bool:
    """Of a message, such as "FetchRequest": its header has tagged fields too."""
    return version in messages()[name].flexible
