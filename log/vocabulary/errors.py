"""The errors of Barnabas: Kafka's error codes, and one exception class for each code that Barnabas raises.

The class of an error says whose fault it is. It has the code for the wire and the property `retriable`: whether the same request
may succeed when it is sent again. Messages name the fault and the remedy. Codes and `retriable` follow Kafka's protocol guide, so
that both protocols use the same terms.
"""

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Kafka's error codes (protocol guide, "Error codes"), as far as Barnabas uses them."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    GROUP_ID_NOT_FOUND = 69
    NON_EMPTY_GROUP = 68
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


class BarnabasError(Exception):
    """Base of all errors of Barnabas. `code` goes on the wire; `retriable` says whether a retry can succeed."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    _by_code: ClassVar[dict[int, type["BarnabasError"]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" in cls.__dict__:
            BarnabasError._by_code.setdefault(cls.code, cls)

    @property
    def message(self) -> str:
        """What happened and what to do about it, for users and operators."""
        return str(self) or type(self).__name__


def error_for(code: int, message: str = "") -> BarnabasError:
    """Return (not raise) the exception for a code that came over the wire; an unknown code gives a plain
    BarnabasError."""
    found = BarnabasError._by_code.get(code)
    if found is not None:
        return found(message)
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error code {code}"
    return BarnabasError(f"{name}: {message}" if message else name)


class RetriableError(BarnabasError):
    """The same request may succeed later, or on another broker after a refresh of the metadata."""

    retriable = True


class OffsetOutOfRangeError(BarnabasError):
    """The offset lies before the log start offset or after the end that the reader may see."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class FetchSessionIdNotFoundError(RetriableError):
    """The fetch session does not exist: the client must send all of its partitions again (KIP-227)."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpochError(RetriableError):
    """A request of a fetch session does not continue the one before it: the client must send all of its partitions again."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class FetchSessionTopicIdError(RetriableError):
    """A fetch session began with topic names and continues with ids, or the other way round: the client must begin a new one."""

    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class CorruptRecordError(RetriableError):
    """A record batch whose CRC, length or structure is wrong."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartitionError(RetriableError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailableError(RetriableError):
    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollowerError(RetriableError):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOutError(RetriableError):
    """The outcome is not known: a write may have happened."""

    code = ErrorCode.REQUEST_TIMED_OUT


class BrokerNotAvailableError(RetriableError):
    code = ErrorCode.BROKER_NOT_AVAILABLE


class RecordTooLargeError(BarnabasError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class NetworkError(RetriableError):
    """The connection was lost or refused; if a request had been sent, its outcome is not known."""

    code = ErrorCode.NETWORK_EXCEPTION


class CoordinatorLoadInProgressError(RetriableError):
    """The broker has not loaded what the response needs."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailableError(RetriableError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(RetriableError):
    code = ErrorCode.NOT_COORDINATOR


class InvalidTopicError(BarnabasError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class NotEnoughReplicasError(RetriableError):
    """Fewer in-sync replicas than `min.insync.replicas`: the batch was refused before it was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(RetriableError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcksError(BarnabasError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class IllegalGenerationError(BarnabasError):
    code = ErrorCode.ILLEGAL_GENERATION


class UnknownMemberIdError(BarnabasError):
    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(BarnabasError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(BarnabasError):
    code = ErrorCode.REBALANCE_IN_PROGRESS


class UnsupportedVersionError(BarnabasError):
    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExistsError(BarnabasError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(BarnabasError):
    code = ErrorCode.INVALID_PARTITIONS


class TopicDeletionDisabledError(BarnabasError):
    code = ErrorCode.TOPIC_DELETION_DISABLED


class InvalidReplicationFactorError(BarnabasError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(BarnabasError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfigError(BarnabasError):
    code = ErrorCode.INVALID_CONFIG


class NotControllerError(RetriableError):
    code = ErrorCode.NOT_CONTROLLER


class ThrottlingQuotaExceededError(RetriableError):
    """Topics are created or deleted too fast; nothing was done (KIP-599)."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class InvalidRequestError(BarnabasError):
    code = ErrorCode.INVALID_REQUEST


class InvalidRegularExpressionError(InvalidRequestError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION


class InvalidGroupIdError(InvalidRequestError):
    code = ErrorCode.INVALID_GROUP_ID


class AuthorizationError(BarnabasError):
    """The principal of the client has no permission. Base of the errors for each kind of resource."""


class TopicAuthorizationError(AuthorizationError):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationError(AuthorizationError):
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class ClusterAuthorizationError(AuthorizationError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class TransactionalIdAuthorizationError(AuthorizationError):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class SecurityDisabledError(BarnabasError):
    """The cluster has no authorizer, so permissions would have no effect."""

    code = ErrorCode.SECURITY_DISABLED


class PolicyViolationError(BarnabasError):
    """The request is well formed, but violates a rule that an operator has set."""

    code = ErrorCode.POLICY_VIOLATION


class StorageError(RetriableError):
    """A disk refused an operation: full, read-only, EIO. Unless a subclass says otherwise, the log takes no more writes."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class DiskFullError(StorageError):
    """There is no space. Nothing of the refused write was stored; the same write can succeed when there is space."""


class MissingFileError(StorageError):
    """A file of a log is gone, although only the broker may remove it."""


class TooManyFilesError(StorageError):
    """The process or the machine has no free file descriptor. Nothing was changed, and the disk may be healthy."""


class DiskFailedError(StorageError):
    """The disk or its file system is broken (EIO, read-only, a flush that failed): the whole data folder is suspect."""


class InvalidTimestampError(BarnabasError):
    """A record's timestamp is too far from the broker's clock."""

    code = ErrorCode.INVALID_TIMESTAMP


class OutOfOrderSequenceError(BarnabasError):
    """A batch of an idempotent producer is missing before this one: it was lost, or this one arrived first."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceError(BarnabasError):
    """The batch was appended, and its offset is not known any more. Only earlier versions answer this."""

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpochError(BarnabasError):
    """Another producer with the same id and a newer epoch has taken over."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnStateError(BarnabasError):
    """The producer's transaction is in a state in which this request makes no sense."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFencedError(BarnabasError):
    """Another coordinator has taken over the transactions of this producer."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class UnknownProducerIdError(BarnabasError):
    """The producer is not known: its records are too old, or it has sent nothing for too long (KIP-360)."""

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidProducerIdMappingError(BarnabasError):
    """The transactional id is not known, or it has another producer id."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeoutError(BarnabasError):
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(RetriableError):
    """The last transaction of this transactional id is decided, and its markers are still being written."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class UnstableOffsetCommitError(RetriableError):
    """A transaction with offsets of this partition is open: they are committed or dropped soon."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class ProducerFencedError(BarnabasError):
    """Another producer with the same transactional id has taken over, or the transaction timed out."""

    code = ErrorCode.PRODUCER_FENCED


class TransactionAbortableError(BarnabasError):
    """The transaction cannot be committed: abort it and begin the next one."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionalIdNotFoundError(BarnabasError):
    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class NonEmptyGroupError(BarnabasError):
    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(BarnabasError):
    code = ErrorCode.GROUP_ID_NOT_FOUND


class UnsupportedSaslMechanismError(BarnabasError):
    """The other side does not accept this way to log in."""

    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslStateError(BarnabasError):
    """A request that belongs to a login came at the wrong time, or one that needs a login came before it."""

    code = ErrorCode.ILLEGAL_SASL_STATE


class SaslAuthenticationError(BarnabasError):
    """The client has not proved who it is. It learns no more than that."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class ResourceNotFoundError(BarnabasError):
    code = ErrorCode.RESOURCE_NOT_FOUND


class DuplicateResourceError(BarnabasError):
    code = ErrorCode.DUPLICATE_RESOURCE


class UnacceptableCredentialError(BarnabasError):
    code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class FencedLeaderEpochError(RetriableError):
    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(RetriableError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionError(BarnabasError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class StaleBrokerEpochError(BarnabasError):
    code = ErrorCode.STALE_BROKER_EPOCH


class OffsetNotAvailableError(RetriableError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE


class InvalidRecordError(BarnabasError):
    code = ErrorCode.INVALID_RECORD


class InvalidUpdateVersionError(RetriableError):
    code = ErrorCode.INVALID_UPDATE_VERSION


class DuplicateBrokerRegistrationError(BarnabasError):
    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class UnknownTopicIdError(RetriableError):
    """No topic has this id: it was deleted, or is so new that it is not known here."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class InconsistentTopicIdError(RetriableError):
    """The partition on this broker belongs to an older or newer topic of the same name."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class InconsistentClusterIdError(BarnabasError):
    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class IneligibleReplicaError(RetriableError):
    code = ErrorCode.INELIGIBLE_REPLICA


class FencedMemberEpochError(BarnabasError):
    code = ErrorCode.FENCED_MEMBER_EPOCH


class StaleMemberEpochError(RetriableError):
    code = ErrorCode.STALE_MEMBER_EPOCH


class FencedInstanceIdError(BarnabasError):
    """Another member has taken over this static member's instance id: stop, it is the one that runs."""

    code = ErrorCode.FENCED_INSTANCE_ID


class UnreleasedInstanceIdError(BarnabasError):
    """A member with this instance id still runs, or its session has not run out yet."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignorError(BarnabasError):
    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class GroupMaxSizeReachedError(BarnabasError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class InconsistentGroupProtocolError(BarnabasError):
    """The group's members and this one have no assignor in common, or are members by another protocol."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class MemberIdRequiredError(BarnabasError):
    """Join again with the member id that the answer carries (KIP-394)."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class EligibleLeadersNotAvailableError(BarnabasError):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class BufferExhaustedError(RetriableError):
    """The producer's buffer is full and stayed so for `max.block.ms`: slow down, or raise `buffer.memory`."""
