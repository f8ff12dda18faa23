"""The transactions of one producer, one after the other, as its client knows them. Pure.

    UNINITIALIZED --initialized--> READY --begin--> OPEN --end--> COMMITTING --answered--> READY
                                     ^               |                |--refused: it was aborted--> ABORTING
                                     |               +--end--> ABORTING --answered--> READY
                                     |                            |
                                     +-- ask_again <-- IN_DOUBT <-+-- gave_up (of a commit, too)
    OPEN --prepared--> PREPARED: others end it (KIP-939); the producer goes on under another transactional id
    refused for good, from any of them --> FENCED

The second version of the protocol (KIP-890): the coordinator adds partitions and groups by itself, and every end gives the
producer its next epoch. So a request to end a transaction names it by its epoch, may be repeated until it is answered, and never
ends another one. Records that were given up may still be on their way: with the old epoch, every broker refuses them.

A transaction counts as committed only if the coordinator has said so, and as aborted only if no commit was ever asked for or the
coordinator has refused it without doubt.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from barnabas.log.vocabulary.transaction_messages import (
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
)

from ..connection.errors import (
    BarnabasError,
    ErrorCode,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
    TransactionTimedOutError,
)


class Phase(StrEnum):
    UNINITIALIZED = "uninitialized"
    READY = "ready"
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    IN_DOUBT = "in doubt"
    FENCED = "fenced"


_P = Phase
TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    _P.UNINITIALIZED: frozenset({_P.READY}),
    _P.READY: frozenset({_P.OPEN}),
    _P.OPEN: frozenset({_P.READY, _P.PREPARED, _P.COMMITTING, _P.ABORTING}),
    _P.PREPARED: frozenset(),
    _P.COMMITTING: frozenset({_P.READY, _P.ABORTING, _P.IN_DOUBT, _P.FENCED}),
    _P.ABORTING: frozenset({_P.READY, _P.IN_DOUBT, _P.FENCED}),
    _P.IN_DOUBT: frozenset({_P.COMMITTING, _P.ABORTING}),
    _P.FENCED: frozenset(),
}


class Outcome(StrEnum):
    """What is known of a transaction."""

    OPEN = "open"
    PREPARED = "prepared"  # it is complete, and decided by others
    COMMITTED = "committed"
    ABORTED = "aborted"
    ABORTING = "aborting"  # it cannot be committed any more; the coordinator has not confirmed the abort yet
    UNKNOWN = "unknown"  # a commit was asked for, and is not answered yet


@dataclass(slots=True, eq=False)
class Current:
    """The transaction that began last. Its outcome may become known after its caller has given up."""

    has_parts: bool = False  # records or offsets: if not, the coordinator need not be asked to end it
    failure: BarnabasError | None = None  # the first: from then on, it can only be aborted
    outcome: Outcome = Outcome.OPEN
    error: BarnabasError | None = None  # why it is not committed, for a caller that has not asked for an abort


# The epoch is not the producer's any more: the transaction has timed out, or another producer has taken over.
EPOCH_IS_OVER: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class TransactionMachine:
    def __init__(self, transactional_id: str, *, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.phase = Phase.UNINITIALIZED
        self.current: Current | None = None
        self._identity: ProducerIdentity | None = None
        self._asked: EndTransactionRequest | None = None  # exactly while COMMITTING, ABORTING, IN_DOUBT
        self._may_be_done = False  # an earlier copy of the commit may have been carried out
        self._why_fenced: BarnabasError | None = None  # exactly while FENCED

    @property
    def identity(self) -> ProducerIdentity:
        """Of the next transaction, or of the open one."""
        assert self._identity is not None
        return self._identity

    # --- begin --------------------------------------------------------------------------------------------------------

    def init_request(self) -> InitTransactionsRequest:
        return InitTransactionsRequest(transactional_id=self.transactional_id, timeout_ms=self.timeout_ms)

    def initialized(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._go(Phase.READY)

    def _check_may_begin(self) -> None:
        """Raises TransactionStateError while another transaction is open or ends, and ProducerFencedError (or what else ended the
        producer). In doubt, the coordinator is to be asked first (`ask_again`)."""
        match self.phase:
            case Phase.FENCED:
                raise self._end_of_producer()
            case Phase.PREPARED:
                raise TransactionStateError(
                    f"the transaction of {self.transactional_id!r} is prepared, and decided elsewhere: go on under another id"
                    " with producer.take_over"
                )
            case Phase.OPEN | Phase.COMMITTING | Phase.ABORTING:
                raise TransactionStateError(
                    f"a transaction of {self.transactional_id!r} is {self.phase.value}: a producer has one at a time. End it"
                    " first, or use another producer with another transactional id"
                )
            case Phase.UNINITIALIZED:
                raise TransactionStateError(f"the producer of {self.transactional_id!r} is not started: await start()")

    def begin(self) -> Current:
        self._check_may_begin()
        self._go(Phase.OPEN)
        self.current = Current()
        return self.current

    # --- while it is open ---------------------------------------------------------------------------------------------

    def failed(self, error: BarnabasError) -> None:
        """A part of the open transaction could not be delivered: it cannot be committed."""
        if self.phase is Phase.OPEN and self.current is not None and self.current.failure is None:
            self.current.failure = error

    # --- end ----------------------------------------------------------------------------------------------------------

    def end(self, *, is_commit: bool) -> EndTransactionRequest | None:
        """What to ask of the coordinator; None: nothing, and the transaction has ended. A transaction with a failure is aborted
        in any case; then `Current.error` says so to the caller that wanted a commit."""
        assert self.phase is Phase.OPEN and self.current is not None
        if self.current.failure is not None:
            self.current.error = self._failed_error(self.current.failure)
            is_commit = False
        if not self.current.has_parts:
            self._finish(Outcome.COMMITTED if is_commit else Outcome.ABORTED)
            return None
        self._may_be_done = False
        return self._ask(is_commit=is_commit)

    def prepare_request(self, prepared_for: str) -> PrepareTransactionRequest | None:
        """What to ask of the coordinator when all records are delivered; None: nothing, and the transaction has ended.

        Raises TransactionAbortedError if one of them has failed: the transaction stays open, to be aborted.
        """
        assert self.phase is Phase.OPEN and self.current is not None
        if self.current.failure is not None:
            raise self._failed_error(self.current.failure)
        if not self.current.has_parts:
            self._finish(Outcome.COMMITTED)
            return None
        return PrepareTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            prepared_for=prepared_for,
        )

    def prepared(self) -> None:
        """The coordinator keeps the transaction until it is decided."""
        assert self.current is not None
        self.current.outcome = Outcome.PREPARED
        self._go(Phase.PREPARED)

    def ask_again(self) -> EndTransactionRequest:
        assert self.phase is Phase.IN_DOUBT and self._asked is not None
        self._go(Phase.COMMITTING if self._asked.is_commit else Phase.ABORTING)
        return self._asked

    def answered(self, identity: ProducerIdentity) -> None:
        """The transaction has ended as asked."""
        assert self._asked is not None and self.current is not None
        if self._asked.is_commit:
            self.current.error = None
        elif self.current.failure is not None and self.current.failure.code in EPOCH_IS_OVER:
            self.current.error = (
                self._timed_out_error()
            )  # no other producer has taken over: the coordinator has aborted it
        self._identity = identity
        self._finish(Outcome.COMMITTED if self._asked.is_commit else Outcome.ABORTED)

    def refused(self, error: BarnabasError) -> EndTransactionRequest | None:
        """What to ask next: the same again, or an abort. None: there is nothing to ask any more."""
        assert self._asked is not None and self.current is not None
        if error.retriable:
            self._may_be_done = (
                True  # also where the coordinator itself does not know whether its decision is committed
            )
            return self._asked
        if self._asked.is_commit and error.code == ErrorCode.TRANSACTION_ABORTABLE:
            self.current.outcome = Outcome.ABORTED
            self.current.error = self._timed_out_error()
            return self._ask(is_commit=False)  # which tells the next epoch
        self._fence(error)
        return None

    def gave_up(self, error: BarnabasError) -> None:
        """The coordinator stays away. Before the next transaction, it is asked again."""
        assert self._asked is not None and self.current is not None
        if self._asked.is_commit:
            self.current.outcome = Outcome.UNKNOWN
            self.current.error = TransactionOutcomeUnknownError(
                f"the commit of a transaction of {self.transactional_id!r} is not confirmed: {error.message}. It is committed"
                " entirely or not at all; the next transaction of this producer finds out first (`transaction.outcome`)"
            )
        elif self.current.outcome is not Outcome.ABORTED:
            self.current.outcome = Outcome.ABORTING
        self._go(Phase.IN_DOUBT)

    # --- transitions --------------------------------------------------------------------------------------------------

    def _go(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"from {self.phase} to {phase}"
        self.phase = phase

    def _ask(self, *, is_commit: bool) -> EndTransactionRequest:
        self._go(Phase.COMMITTING if is_commit else Phase.ABORTING)
        self._asked = EndTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            is_commit=is_commit,
            uses_v2=True,
        )
        return self._asked

    def _finish(self, outcome: Outcome) -> None:
        assert self.current is not None
        self.current.outcome = outcome
        self._asked = None
        self._go(Phase.READY)

    def _fence(self, error: BarnabasError) -> None:
        """The producer that fenced this one has aborted its open transaction, but a commit that went before is not undone."""
        assert self._asked is not None and self.current is not None
        self._why_fenced = error
        if self._asked.is_commit and self._may_be_done:
            self.current.outcome = Outcome.UNKNOWN
            self.current.error = TransactionOutcomeUnknownError(
                f"the commit of a transaction of {self.transactional_id!r} was not answered, and its producer cannot ask any"
                f" more: {error.message}. It is committed entirely or not at all"
            )
        else:
            self.current.outcome = Outcome.ABORTED
            self.current.error = self._end_of_producer()
        self._asked = None
        self._go(Phase.FENCED)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _failed_error(self, failure: BarnabasError) -> TransactionAbortedError:
        error = TransactionAbortedError(
            f"the transaction of {self.transactional_id!r} is aborted, because a part of it failed: {failure.message}"
        )
        error.__cause__ = failure
        return error

    def _timed_out_error(self) -> TransactionTimedOutError:
        return TransactionTimedOutError(
            f"the coordinator has aborted the transaction of {self.transactional_id!r}, because it was open longer than"
            f" transaction_timeout_ms={self.timeout_ms}: begin a new one, or a longer timeout helps"
        )

    def _end_of_producer(self) -> BarnabasError:
        assert self._why_fenced is not None
        reason = self._why_fenced
        if not isinstance(reason, ProducerFencedError | InvalidProducerIdMappingError):
            return type(reason)(*reason.args)
        return ProducerFencedError(
            f"this producer of {self.transactional_id!r} is fenced: {reason.message}. Close it. If this process is the one to go"
            " on, create another producer, which fences the other"
        )
