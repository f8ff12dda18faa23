"""Which of Kafka's APIs are served, in which versions, and the values for those without a request in our protocol.

Every version inside of a range is served: clients that do not negotiate send fixed ones. Produce begins at 0, as
librdkafka looks at that number before it compresses (KAFKA-18659), though no version below 3 is taken.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from msgspec import Struct

from .schema import Versions, messages

_KAFKA = 2000  # Kafka's own keys behind ours, so that one dispatcher serves both


class KafkaApi(IntEnum):
    """APIs whose requests are handled as Kafka makes them, many items in one: `KafkaRequest`. The value is the key + 2000."""

    FETCH = _KAFKA + 1  # by topic id
    METADATA = _KAFKA + 3
    OFFSET_FETCH = _KAFKA + 9
    FIND_COORDINATOR = _KAFKA + 10
    JOIN_GROUP = _KAFKA + 11
    LEAVE_GROUP = _KAFKA + 13
    SYNC_GROUP = _KAFKA + 14
    DESCRIBE_GROUPS = _KAFKA + 15
    LIST_GROUPS = _KAFKA + 16
    SASL_HANDSHAKE = _KAFKA + 17
    API_VERSIONS = _KAFKA + 18
    CREATE_TOPICS = _KAFKA + 19
    DELETE_TOPICS = _KAFKA + 20
    DELETE_RECORDS = _KAFKA + 21
    ADD_PARTITIONS_TO_TXN = _KAFKA + 24
    ADD_OFFSETS_TO_TXN = _KAFKA + 25
    END_TXN = _KAFKA + 26
    WRITE_TXN_MARKERS = _KAFKA + 27
    TXN_OFFSET_COMMIT = _KAFKA + 28
    DESCRIBE_ACLS = _KAFKA + 29
    CREATE_ACLS = _KAFKA + 30
    DELETE_ACLS = _KAFKA + 31
    DESCRIBE_CONFIGS = _KAFKA + 32
    ALTER_CONFIGS = _KAFKA + 33
    DESCRIBE_LOG_DIRS = _KAFKA + 35
    SASL_AUTHENTICATE = _KAFKA + 36
    CREATE_PARTITIONS = _KAFKA + 37
    DELETE_GROUPS = _KAFKA + 42
    ELECT_LEADERS = _KAFKA + 43
    INCREMENTAL_ALTER_CONFIGS = _KAFKA + 44
    ALTER_PARTITION_REASSIGNMENTS = _KAFKA + 45
    LIST_PARTITION_REASSIGNMENTS = _KAFKA + 46
    OFFSET_DELETE = _KAFKA + 47
    DESCRIBE_CLIENT_QUOTAS = _KAFKA + 48
    ALTER_CLIENT_QUOTAS = _KAFKA + 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = _KAFKA + 50
    ALTER_USER_SCRAM_CREDENTIALS = _KAFKA + 51
    DESCRIBE_QUORUM = _KAFKA + 55
    DESCRIBE_CLUSTER = _KAFKA + 60
    DESCRIBE_PRODUCERS = _KAFKA + 61
    DESCRIBE_TRANSACTIONS = _KAFKA + 65
    LIST_TRANSACTIONS = _KAFKA + 66
    CONSUMER_GROUP_HEARTBEAT = _KAFKA + 68
    CONSUMER_GROUP_DESCRIBE = _KAFKA + 69
    LIST_CONFIG_RESOURCES = _KAFKA + 74
    SHARE_GROUP_HEARTBEAT = _KAFKA + 76
    SHARE_GROUP_DESCRIBE = _KAFKA + 77
    SHARE_FETCH = _KAFKA + 78
    SHARE_ACKNOWLEDGE = _KAFKA + 79
    DESCRIBE_SHARE_GROUP_OFFSETS = _KAFKA + 90
    ALTER_SHARE_GROUP_OFFSETS = _KAFKA + 91
    DELETE_SHARE_GROUP_OFFSETS = _KAFKA + 92

    @staticmethod
    def of(key: int) -> "KafkaApi":
        return KafkaApi(key + _KAFKA)


Body = TypeVar("Body", covariant=True)


class KafkaRequest(Struct, Generic[Body], frozen=True, kw_only=True):
    """`body` is an object of the message's class (`bodies`)."""

    api_key: KafkaApi
    version: int
    body: Body


class KafkaResponse(Struct, Generic[Body], frozen=True, kw_only=True):
    """`body` is an object of the message's class (`bodies`), or its bytes in the version of the request."""

    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`name` without "Request"; versions below `taken_from` are listed and refused.

    Without `is_listed`, ApiVersions names the request only on listeners with SASL; clients that send it nevertheless receive its
    own error response.
    """

    name: str
    versions: Versions
    taken_from: int = 0
    is_listed: bool = True


SERVED: dict[int, Served] = {
    0: Served(name="Produce", versions=Versions(0, 12), taken_from=3),
    1: Served(name="Fetch", versions=Versions(4, 13)),
    2: Served(name="ListOffsets", versions=Versions(1, 8)),
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
    17: Served(name="SaslHandshake", versions=Versions(0, 1), is_listed=False),
    18: Served(name="ApiVersions", versions=Versions(0, 4)),
    19: Served(name="CreateTopics", versions=Versions(0, 7)),
    20: Served(name="DeleteTopics", versions=Versions(0, 6)),
    21: Served(name="DeleteRecords", versions=Versions(0, 2)),
    22: Served(name="InitProducerId", versions=Versions(0, 5)),
    23: Served(name="OffsetForLeaderEpoch", versions=Versions(2, 4)),
    24: Served(name="AddPartitionsToTxn", versions=Versions(0, 5)),
    25: Served(name="AddOffsetsToTxn", versions=Versions(0, 4)),
    26: Served(name="EndTxn", versions=Versions(0, 5)),
    27: Served(name="WriteTxnMarkers", versions=Versions(1, 1)),
    28: Served(name="TxnOffsetCommit", versions=Versions(0, 5)),
    29: Served(name="DescribeAcls", versions=Versions(1, 3)),
    30: Served(name="CreateAcls", versions=Versions(1, 3)),
    31: Served(name="DeleteAcls", versions=Versions(1, 3)),
    32: Served(name="DescribeConfigs", versions=Versions(0, 4)),
    33: Served(name="AlterConfigs", versions=Versions(0, 2)),
    35: Served(name="DescribeLogDirs", versions=Versions(1, 4)),
    36: Served(name="SaslAuthenticate", versions=Versions(0, 2), is_listed=False),
    37: Served(name="CreatePartitions", versions=Versions(0, 3)),
    42: Served(name="DeleteGroups", versions=Versions(0, 2)),
    43: Served(name="ElectLeaders", versions=Versions(0, 2)),
    44: Served(name="IncrementalAlterConfigs", versions=Versions(0, 1)),
    45: Served(name="AlterPartitionReassignments", versions=Versions(0, 0)),
    46: Served(name="ListPartitionReassignments", versions=Versions(0, 0)),
    47: Served(name="OffsetDelete", versions=Versions(0, 0)),
    48: Served(name="DescribeClientQuotas", versions=Versions(0, 1)),
    49: Served(name="AlterClientQuotas", versions=Versions(0, 1)),
    50: Served(name="DescribeUserScramCredentials", versions=Versions(0, 0)),
    51: Served(name="AlterUserScramCredentials", versions=Versions(0, 0)),
    55: Served(name="DescribeQuorum", versions=Versions(0, 2)),
    60: Served(name="DescribeCluster", versions=Versions(0, 2)),
    61: Served(name="DescribeProducers", versions=Versions(0, 0)),
    65: Served(name="DescribeTransactions", versions=Versions(0, 0)),
    66: Served(name="ListTransactions", versions=Versions(0, 2)),
    68: Served(name="ConsumerGroupHeartbeat", versions=Versions(0, 1)),
    69: Served(name="ConsumerGroupDescribe", versions=Versions(0, 1)),
    74: Served(name="ListConfigResources", versions=Versions(0, 1)),
    76: Served(name="ShareGroupHeartbeat", versions=Versions(1, 1)),
    77: Served(name="ShareGroupDescribe", versions=Versions(1, 1)),
    78: Served(name="ShareFetch", versions=Versions(1, 2)),
    79: Served(name="ShareAcknowledge", versions=Versions(1, 2)),
    90: Served(name="DescribeShareGroupOffsets", versions=Versions(0, 1)),
    91: Served(name="AlterShareGroupOffsets", versions=Versions(0, 0)),
    92: Served(name="DeleteShareGroupOffsets", versions=Versions(0, 0)),
}
LISTED: dict[int, Versions] = {key: served.versions for key, served in SERVED.items() if served.is_listed}
LISTED_WITH_SASL: dict[int, Versions] = {key: served.versions for key, served in SERVED.items()}
API_VERSIONS_KEY = 18
NO_TOPIC_ID = bytes(16)
OPERATIONS_NOT_ASKED = -(2**31)  # the authorised operations, if the client did not ask for them


def is_flexible(name: str, version: int) -> bool:
    """Of a message, such as "FetchRequest": its header has tagged fields too."""
    return version in messages()[name].flexible
