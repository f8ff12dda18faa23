"""Whether a request to end a transaction is valid in its state, and whether it repeats one that has been decided (EndTxn).

In the first version of the protocol, the epoch stays the same, so a repetition is recognized by the state alone. In the second
one (KIP-890) every end raises the epoch: the same epoch means a new request, and the epoch before it a repetition.
"""

from enum import Enum
from typing import Final

from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    TransactionAbortableError,
)
from barnabas.log.vocabulary.transaction_messages import NO_PRODUCER_EPOCH, EndTransactionRequest, TransactionState

from .identity import LAST_EPOCH, check_producer

EARLY_COMMIT_MS: Final = 5_000
_ABORTED = frozenset({TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT})


def concurrent(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the last transaction of {transactional_id!r} is decided and not complete yet: try again"
    )


def early(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the commit of {transactional_id!r} has come before any record of its transaction: try again"
    )


class EndAnswer(Enum):
    DECIDE = "decide"  # the transaction is to be ended now
    REPEATED = "repeated"  # it has ended this way already
    EARLY = "early"  # a commit of a transaction that has no record yet; see `EarlyCommits`


class EarlyCommits:
    """Commits of the second version that come before the first record of their transaction.

    Kafka's Java client (4.0 to 4.1) may do this: its sender looks for unsent batches, the application then sends records and
    commits, and the sender takes the commit, since it has seen no batch. An INVALID_TXN_STATE would end the producer. A commit
    that is told to come again finds the batches, and waits for them. A client that really has nothing to commit gets the error
    at the end of `EARLY_COMMIT_MS`.
    """

    def __init__(self) -> None:
        self._since: dict[
            str, tuple[int, int]
        ] = {}  # epoch and time of the first one, by transactional id; of known ids only

    def may_come_again(self, known: TransactionRecord, now_ms: int) -> bool:
        epoch, since_ms = self._since.get(known.transactional_id, (NO_PRODUCER_EPOCH, now_ms))
        if epoch != known.producer_epoch:
            since_ms = now_ms
            self._since[known.transactional_id] = (known.producer_epoch, since_ms)
        return now_ms - since_ms < EARLY_COMMIT_MS

    def forget(self, transactional_id: str) -> None:
        self._since.pop(transactional_id, None)


def judged(known: TransactionRecord, request: EndTransactionRequest) -> EndAnswer:
    """Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, InvalidTxnStateError, and
    TransactionAbortableError for a commit after the timeout, and for that of a prepared transaction that an operator aborted."""
    if not request.uses_v2:
        check_producer(known, request.producer_id, request.producer_epoch)
        return _judged_by_state(known, request, is_repeated=True)
    if request.is_commit and (request.producer_id, request.producer_epoch) in known.given_up:
        raise TransactionAbortableError(
            f"the prepared transaction of {known.transactional_id!r} with producer id {request.producer_id} and epoch "
            f"{request.producer_epoch} was aborted, by an operator"
        )
    is_repeated = _is_repeated(known, request)
    if not is_repeated:
        check_producer(known, request.producer_id, request.producer_epoch)
        if TransactionState(known.state).is_decided:  # the producer knows its next epoch already
            raise concurrent(known.transactional_id)
    return _judged_by_state(known, request, is_repeated=is_repeated)


def _is_repeated(known: TransactionRecord, request: EndTransactionRequest) -> bool:
    """Return whether this producer has ended the current transaction with this epoch."""
    if not known.uses_v2 or request.producer_epoch != known.last_producer_epoch:
        return False
    if request.producer_id == known.producer_id:
        return request.producer_epoch == known.producer_epoch - 1
    return request.producer_id == known.previous_producer_id and request.producer_epoch == LAST_EPOCH


def _judged_by_state(known: TransactionRecord, request: EndTransactionRequest, *, is_repeated: bool) -> EndAnswer:
    state = TransactionState(known.state)
    if state.is_open and not (is_repeated and request.uses_v2):
        return EndAnswer.DECIDE
    prepared, complete = (
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if request.is_commit
        else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
    )
    if state is prepared and is_repeated:
        raise concurrent(known.transactional_id)
    if state is complete and is_repeated:
        return EndAnswer.REPEATED
    is_new = request.uses_v2 and not is_repeated
    if is_new and (state is TransactionState.EMPTY or state.is_complete):
        # An abort: the producer does not know whether any of its records has arrived.
        return EndAnswer.EARLY if request.is_commit else EndAnswer.DECIDE
    if request.uses_v2 and is_repeated and request.is_commit and state in _ABORTED:
        raise TransactionAbortableError(
            f"the transaction of {known.transactional_id!r} was aborted, because it was open longer than its timeout of"
            f" {known.timeout_ms} ms: abort it, and begin another one"
        )
    raise refused(known, request)


def refused(known: TransactionRecord, request: EndTransactionRequest) -> InvalidTxnStateError:
    wanted = "committed" if request.is_commit else "aborted"
    return InvalidTxnStateError(
        f"the transaction of {known.transactional_id!r} cannot be {wanted}: it is {known.state}"
    )
