"""What producers, coordinators of transactions and partition leaders ask of each other: each message once, as it travels.

consumer_groups decides on these values, net/wire/protocol frames them, and brokers and the SDK send them. Errors that concern a
whole request are raised as `BarnabasError`; those of one partition are codes in the answer.
"""

from enum import StrEnum
from typing import Final

from .group_messages import OffsetToCommit
from .message import Items, Message

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NOT_STARTED = -1  # no transaction is open; in a message also: the sender is a broker of an older version


class TransactionState(StrEnum):
    """Kafka's names, which are also those of the stored records. A Prepare state is the decision: only the same outcome can
    follow. A Complete state means that every marker is written.

    PREPARED is ours, after KIP-939: the transaction has all of its records, and waits for a decision that is made elsewhere. It
    has no timeout. Kafka's clients see ONGOING.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARED = "Prepared"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"  # the transactional id is not known: no record has this state

    @property
    def is_decided(self) -> bool:
        """Decided, and not every marker is written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_open(self) -> bool:
        """Not decided: it has records, and may still be committed or aborted."""
        return self in (TransactionState.ONGOING, TransactionState.PREPARED)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


STORED_STATES: Final = tuple(state for state in TransactionState if state is not TransactionState.DEAD)
# Of a transaction that may still hold up readers of committed records.
UNDECIDED_STATES: Final = (
    TransactionState.ONGOING,
    TransactionState.PREPARED,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
)
MAX_PREPARED_FOR_LENGTH: Final = 300


class TransactionTopic(Message, frozen=True, kw_only=True):
    """Some partitions of one topic, sorted. The id tells a topic from a later one of the same name."""

    topic: str
    topic_id: str
    partitions: Items[int]


class ProducerIdentity(Message, frozen=True, kw_only=True):
    """What a producer puts into its batches from now on."""

    producer_id: int
    producer_epoch: int


class InitTransactionsRequest(Message, frozen=True, kw_only=True):
    """Take over a transactional id: its former owner is fenced. `producer_id` and `producer_epoch`: what the producer had
    before an error (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddToTransactionRequest(Message, frozen=True, kw_only=True):
    """Partitions, and groups with offsets, that become part of the transaction before their first record. `is_check`: only ask
    whether they are (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topics: Items[TransactionTopic] = ()
    groups: Items[str] = ()
    is_check: bool = False
    uses_v2: bool = False


class PrepareTransactionRequest(Message, frozen=True, kw_only=True):
    """The transaction is whole, and waits for a decision that is made elsewhere: it takes no more records, no timeout ends it,
    and who knows its id, producer id and epoch may commit or abort it (EndTransactionRequest, second version)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    prepared_for: str = ""  # what the decision will be about, for operators and for those who decide


class EndTransactionRequest(Message, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    uses_v2: bool = False  # the epoch grows; the answer has the next one
    is_last: bool = False  # of this transactional id, which is forgotten when the transaction is complete


class TransactionalOffsetCommitRequest(Message, frozen=True, kw_only=True):
    """Offsets of a group that are committed when the transaction is (KIP-447). Without a member id, the member is not checked."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    member_id: str
    member_epoch: int  # the generation where the group is classic
    partitions: Items[OffsetToCommit]
    instance_id: str | None = None
    uses_v2: bool = False  # the group becomes part of the transaction by this request


class TransactionMarker(Message, frozen=True, kw_only=True):
    """The outcome of a transaction, for some of its partitions and groups."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    topics: Items[TransactionTopic] = ()
    groups: Items[str] = ()
    uses_v2: bool = False  # its epoch is newer than that of the records
    started_ms: int = NOT_STARTED  # when the transaction began: in the first version, the next one has the same epoch
    # What the coordinator's metadata said when the marker was sent; () from a broker of an older version.
    leader_epochs: Items[int] = ()  # of the partitions, in the order of `topics`
    group_epochs: Items[int] = ()  # the coordinator epochs of the groups' slots


class GroupOutcome(Message, frozen=True, kw_only=True):
    group_id: str
    error: int = 0
    message: str = ""
