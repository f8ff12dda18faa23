"""What operators ask of transactions: of their coordinators, and of the leaders of partitions in which they are open."""

from barnabas.log.vocabulary.message import Items, Message
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED, TransactionTopic

ANY_EPOCH = -1


class ListTransactionsRequest(Message, frozen=True, kw_only=True):
    """To a broker, of the slots that it coordinates. An empty filter means all."""

    states: Items[str] = ()
    producer_ids: Items[int] = ()
    min_duration_ms: int = -1  # of open transactions; others are left out if it is given
    id_prefix: str = ""


class ListedTransaction(Message, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    duration_ms: int  # since its transaction began; -1: none is open
    partition_count: int
    group_count: int
    coordinator: int  # node id
    prepared_for: str = ""  # what the decision of a prepared transaction is about


class ListTransactionsResponse(Message, frozen=True, kw_only=True):
    transactions: Items[ListedTransaction]
    slots: Items[int]  # those that the broker coordinates: the others are asked elsewhere
    left_out: int = 0  # beyond the limit of an answer
    is_filtered: bool = False  # there are others, which the user may not describe


class DescribeTransactionRequest(Message, frozen=True, kw_only=True):
    """To the coordinator of the transactional id. `is_confirmed`: the quorum confirms that it still is; for a caller that acts on
    the answer, because a coordinator that was replaced while its network was cut knows an older state."""

    transactional_id: str
    is_confirmed: bool = False


class DescribeTransactionResponse(Message, frozen=True, kw_only=True):
    summary: ListedTransaction
    started_ms: int = NOT_STARTED  # wall time of the coordinator
    topics: Items[TransactionTopic] = ()
    groups: Items[str] = ()


class AbortTransactionRequest(Message, frozen=True, kw_only=True):
    """To the coordinator: abort the open transaction of this id, and fence its producer."""

    transactional_id: str


class OpenTransactionsRequest(Message, frozen=True, kw_only=True):
    """To a broker, of the partitions that it leads."""

    older_than_ms: int = 0


class OpenTransaction(Message, frozen=True, kw_only=True):
    """Of one producer in one partition."""

    topic: str
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # of the last marker of this producer; -1: there is none
    first_offset: int
    age_ms: int  # since the transaction began; where the leader does not know that, since its last record


class OpenTransactionsResponse(Message, frozen=True, kw_only=True):
    transactions: Items[OpenTransaction]  # the oldest first
    left_out: int = 0  # beyond the limit of an answer


class AbortHangingRequest(Message, frozen=True, kw_only=True):
    """To the leader of a partition: abort a transaction in it that no coordinator knows."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int = ANY_EPOCH
