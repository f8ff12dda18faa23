"""The errors that the SDK raises: those of the brokers, and the few that occur only in a client."""

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    BufferExhaustedError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptRecordError,
    ErrorCode,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidConfigError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NetworkError,
    NotControllerError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RebalanceInProgressError,
    RecordTooLargeError,
    RequestTimedOutError,
    ResourceNotFoundError,
    RetriableError,
    SaslAuthenticationError,
    StaleMemberEpochError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
    error_for,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

__all__ = [
    "BarnabasError",
    "BrokerNotAvailableError",
    "BufferExhaustedError",
    "ClientClosedError",
    "CommitDuringRebalanceError",
    "ConcurrentTransactionsError",
    "ConcurrentUseError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptRecordError",
    "DeliveryTimeoutError",
    "DeserializationError",
    "ErrorCode",
    "FencedInstanceIdError",
    "FencedMemberEpochError",
    "GroupIdNotFoundError",
    "IllegalGenerationError",
    "InvalidAssignmentError",
    "InvalidConfigError",
    "InvalidProducerIdMappingError",
    "InvalidRequestError",
    "InvalidTopicError",
    "LeaderNotAvailableError",
    "MissingExtraError",
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
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "ResourceNotFoundError",
    "RetriableError",
    "SaslAuthenticationError",
    "SchemaNotFoundError",
    "SchemaRegistryError",
    "SchemaRegistryUnavailableError",
    "SerializationError",
    "StaleMemberEpochError",
    "TopicAlreadyExistsError",
    "TopicRecreatedError",
    "TransactionAbortedError",
    "TransactionOutcomeUnknownError",
    "TransactionStateError",
    "TransactionTimedOutError",
    "UnknownMemberIdError",
    "UnknownTopicOrPartitionError",
    "UnreadableBatchError",
    "UnstableOffsetCommitError",
    "error_for",
]


class ReplicaNotAvailableError(RetriableError):
    code = ErrorCode.REPLICA_NOT_AVAILABLE


class NoBrokersAvailableError(BrokerNotAvailableError):
    """No address answered; the message lists each address with its error."""


class DeliveryTimeoutError(RequestTimedOutError):
    """A record was not acknowledged within `delivery_timeout_ms`. If it had been sent, it may have been written."""


class ClientClosedError(BarnabasError):
    """The client was closed, before or during this call."""


class ConcurrentUseError(InvalidRequestError):
    """A client was used from an event loop other than its own, or a consumer by two tasks at once."""


class CommitDuringRebalanceError(RetriableError):
    """The group is rebalancing; retry the commit after the rebalance if this member still owns the partitions."""


class TransactionStateError(InvalidRequestError):
    """The call does not fit the state of the producer's transaction; the message names the call that does."""


class TransactionAbortedError(BarnabasError):
    """The transaction was not committed: no reader of committed records ever sees a part of it. `__cause__` is the reason. Begin
    a new one."""


class TransactionTimedOutError(TransactionAbortedError):
    """The coordinator has aborted the transaction, which was open for too long. The same producer can begin a new one."""


class TransactionOutcomeUnknownError(BarnabasError):
    """The coordinator has not answered a commit: all of the transaction is committed, or nothing of it."""


class InvalidAssignmentError(BarnabasError):
    """The application's assignor returned an invalid assignment; the message describes it."""


class PartitionGoneError(BarnabasError):
    """A commit for a partition that does not exist. For the group's own partitions the topic was deleted: waiting for it (as
    everywhere else) would only delay the others."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicRecreatedError(BarnabasError):
    """The topic was deleted and created again: offsets of the old topic are invalid in the new one."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID

    @classmethod
    def between(cls, topic: str, before: str, now: str) -> "TopicRecreatedError":
        """Between two requests for offsets or records of one name. `now`: "" if only the refusal of `before` is known."""
        other = f"is {now} now" if now not in ("", before) else "is another one at its leader now"
        return cls(
            f"topic {topic} was deleted and created again: its id was {before} and {other}, and the records of the older topic "
            "are gone; start again to read the new one"
        )


class NoOffsetForPartitionError(BarnabasError):
    """No offset is committed, or the offset is out of range, and `auto_offset_reset` is "none"."""


class UnreadableBatchError(CorruptRecordError):
    """The next batch of a partition cannot be read. Every further read raises this error again until the application skips the
    batch with `consumer.seek(error.partition, error.next_offset)`. This consumer then does not receive its records."""

    retriable = False

    def __init__(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        self.partition = partition
        self.offset = offset  # the first unreadable offset
        self.next_offset = next_offset  # the first offset after the batch
        super().__init__(
            f"the batch of {partition} with the offsets {offset} to {next_offset - 1} cannot be read: {reason}; to continue"
            f" without these records, seek to offset {next_offset}"
        )


class SerializationError(BarnabasError):
    """A serializer refuses a key or a value; `__cause__` is its error. The record was not sent."""


class DeserializationError(BarnabasError):
    """A deserializer cannot read a record; `__cause__` is its error. With `on_bad_record="stop"`, every further read raises this
    error again until the application skips the record with `consumer.seek(error.partition, error.next_offset)`, or in a share
    group with `consumer.acknowledge(error.record, "reject")`."""

    def __init__(
        self, partition: TopicPartition, offset: int, part: str, reason: str, *, record: object = None, cure: str = ""
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.next_offset = offset + 1
        self.part = part  # "key" or "value"
        self.reason = reason
        self.record = record  # of a share group: as it was stored
        super().__init__(
            f"the {part} of the record at offset {offset} of {partition} cannot be read: {reason}; to continue without it,"
            f" {cure or f'seek to offset {self.next_offset}'}, or set on_bad_record"
        )


class RecordGivenUpError(BarnabasError):
    """Why a record of a share group goes to its dead letters: the application has rejected it, or it came too often."""


class SchemaRegistryError(BarnabasError):
    """The schema registry refuses a request, or its answer cannot be used."""


class SchemaNotFoundError(SchemaRegistryError):
    """The registry does not have the schema, the subject or the version."""


class SchemaRegistryUnavailableError(SchemaRegistryError):
    """The registry does not answer, or cannot answer now. The record waits: the same call may succeed later."""

    retriable = True


class MissingExtraError(BarnabasError):
    """A method needs a library that an extra of the package installs; the message names the extra."""


class HandlerFailedError(BarnabasError):
    """The application's handler failed for a record as often as `process_each` may call it; its own error is the cause."""


class NotAssignedError(BarnabasError):
    """The call names a partition that is not assigned to this consumer."""
