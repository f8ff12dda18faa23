"""The errors that users of the SDK meet: those of the brokers, and the few that only a client can have."""

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    BufferExhaustedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptRecordError,
    ErrorCode,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NetworkError,
    NotControllerError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RecordTooLargeError,
    RequestTimedOutError,
    RetriableError,
    StaleMemberEpochError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    error_for,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

__all__ = [
    "BarnabasError",
    "BrokerNotAvailableError",
    "BufferExhaustedError",
    "ClientClosedError",
    "CommitDuringRebalanceError",
    "ConcurrentUseError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptRecordError",
    "DeliveryTimeoutError",
    "ErrorCode",
    "FencedInstanceIdError",
    "FencedMemberEpochError",
    "GroupIdNotFoundError",
    "IllegalGenerationError",
    "InvalidAssignmentError",
    "InvalidConfigError",
    "InvalidRequestError",
    "InvalidTopicError",
    "LeaderNotAvailableError",
    "NetworkError",
    "NoBrokersAvailableError",
    "NoOffsetForPartitionError",
    "NotAssignedError",
    "NotControllerError",
    "NotCoordinatorError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "OffsetOutOfRangeError",
    "PartitionGoneError",
    "RebalanceInProgressError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "RetriableError",
    "StaleMemberEpochError",
    "TopicAlreadyExistsError",
    "TopicRecreatedError",
    "UnknownMemberIdError",
    "UnknownTopicOrPartitionError",
    "UnreadableBatchError",
    "error_for",
]


class ReplicaNotAvailableError(RetriableError):
    code = ErrorCode.REPLICA_NOT_AVAILABLE


class ThrottlingQuotaExceededError(RetriableError):
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class NoBrokersAvailableError(BrokerNotAvailableError):
    """Not one address answered; the message names each with its reason."""


class DeliveryTimeoutError(RequestTimedOutError):
    """A record was not acknowledged within `delivery_timeout_ms`. If it had been sent, it may have been written."""


class ClientClosedError(BarnabasError):
    """The client was closed, before or during this call."""


class ConcurrentUseError(InvalidRequestError):
    """A client was called from another event loop than its own, or a consumer by two tasks at once."""


class CommitDuringRebalanceError(RetriableError):
    """The group is amid a rebalance; the same commit is taken when it is through, if the partitions are still ours."""


class InvalidAssignmentError(BarnabasError):
    """The application's own assignor gave something that is no assignment; the message says what."""


class PartitionGoneError(BarnabasError):
    """A commit for a partition that does not exist. Of a group's own partitions its topic was deleted, so waiting for it (as
    everywhere else) would only hold up the others."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicRecreatedError(BarnabasError):
    """The topic was deleted, and there is another one of its name: offsets of the old one mean nothing in it."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class NoOffsetForPartitionError(BarnabasError):
    """Nothing is committed, or the offset is out of range, and `auto_offset_reset` is "none"."""


class UnreadableBatchError(CorruptRecordError):
    """The next batch of a partition cannot be read. Every further read raises this again, until the application goes behind
    the batch: `consumer.seek(error.partition, error.next_offset)`. Its records are then lost to this consumer."""

    retriable = False

    def __init__(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        self.partition = partition
        self.offset = offset  # the first that cannot be read
        self.next_offset = next_offset  # the first behind the batch
        super().__init__(
            f"the batch of {partition} with the offsets {offset} to {next_offset - 1} cannot be read: {reason}; to go on"
            f" without these records, seek to offset {next_offset}"
        )


class NotAssignedError(BarnabasError):
    """The call names a partition that this consumer does not have."""
