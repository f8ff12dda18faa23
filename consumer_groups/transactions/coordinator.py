"""The coordinator of the transactions of one slot. A pure machine, beside that of the slot's groups (`slot_coordinator`).

A transaction is decided by a record with a Prepare state: when the quorum has committed it, only the same outcome can follow.
Then the shell writes markers to the partitions and ends the pending offsets of the groups, as `undecided_markers` says, and
reports `markers_done`. A coordinator that takes over finds the Prepare state and has all markers written again: it need not know
anything else.
"""

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.kraft.metadata.records import RemoveTransactionRecord, TransactionRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    NotCoordinatorError,
    PolicyViolationError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
)
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.transaction_messages import (
    MAX_PREPARED_FOR_LENGTH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NOT_STARTED,
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
    TransactionState,
    TransactionTopic,
)

from ..model.deadlines import Deadlines
from ..model.decision import Decision
from ..model.messages import CoordinatorResult
from .counts import TransactionCounts
from .ends import EarlyCommits, EndAnswer, concurrent, early, judged, refused
from .identity import (
    aborted_by_operator,
    check_expected,
    check_producer,
    completed,
    ended_by_second_version,
    fenced_by_abort,
    initialized,
    is_exhausted,
    timed_out,
)
from .participants import check_names, check_size, merged, missing
from .settings import TransactionSettings
from .stamps import TransactionStamps
from .states import TRANSACTION_TRANSITIONS

R = TypeVar("R")
MAX_EXPIRED_PER_TICK = 500  # records of one decision: expiry leaves room for requests


class TransactionCoordinator:
    def __init__(
        self, *, state: SlotState, settings: TransactionSettings, now_ms: int, counts: TransactionCounts | None = None
    ) -> None:
        """`state` belongs to the whole slot; its groups have another machine."""
        self._counts = counts or TransactionCounts()
        self._state = state
        self._settings = settings
        self._stamps = TransactionStamps(item for item in state.transactions.values() if item.started_ms != NOT_STARTED)
        self._early_commits = EarlyCommits()
        self._timers = Deadlines()  # timeouts of open transactions, and expiry of unused ids
        for transaction in state.transactions.values():
            self._arm(transaction, now_ms)

    # --- requests of producers ----------------------------------------------------------------------------------------

    def init(
        self, request: InitTransactionsRequest, *, fresh_producer_id: int, now_ms: int
    ) -> CoordinatorResult[ProducerIdentity | BarnabasError]:
        """Give the producer its id and epoch, which fences the producer that had the transactional id before.

        An open transaction is aborted first, with an epoch that no producer gets. The answer is a ConcurrentTransactionsError
        until the abort is complete. `fresh_producer_id` was never used; it is taken only if it is needed. Raises
        InvalidTransactionTimeoutError, ProducerFencedError, ConcurrentTransactionsError, PolicyViolationError,
        and InvalidTxnStateError while the transaction is prepared: only its decision ends it.
        """
        self._check_id(request.transactional_id)
        if not 0 < request.timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"the transaction timeout is {request.timeout_ms} ms, it must be between 1 and {self._settings.max_timeout_ms} "
                "(transaction.max.timeout.ms of the brokers)"
            )
        decision = self._decision(now_ms)
        known = self._state.transactions.get(request.transactional_id)
        if known is None:
            found = self._created(request, fresh_producer_id, now_ms)
            self._put(found, decision)
            return _result(decision, _identity(found))
        check_expected(known, request.producer_id, request.producer_epoch)
        self._check_not_decided(known)
        self._check_not_prepared(known)
        if _state_of(known) is TransactionState.ONGOING:
            self._abort(fenced_by_abort(known), decision)
            self._counts.fenced += 1
            return _result(decision, concurrent(known.transactional_id))
        found = initialized(
            known,
            expected_id=request.producer_id,
            expected_epoch=request.producer_epoch,
            fresh_producer_id=fresh_producer_id,
        )
        if found is not known:
            self._put(_as_empty(found, timeout_ms=request.timeout_ms, now_ms=now_ms), decision)
        return _result(decision, _identity(found))

    def add(self, request: AddToTransactionRequest, *, now_ms: int) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """Make partitions and groups part of the transaction, which begins with them; or, with `is_check`, say which of them are
        not (TRANSACTION_ABORTABLE). Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError,
        InvalidTxnStateError (`is_check` for a group), PolicyViolationError."""
        known = self._known(request.transactional_id, request.producer_id, request.producer_epoch)
        self._check_not_prepared(known)
        if request.is_check:
            return CoordinatorResult(records=(), response=self._checked(known, request))
        decision = self._decision(now_ms)
        topics = merged(known.partitions, request.topics)
        groups = tuple(sorted({*known.offset_groups, *request.groups}))
        check_size(request.transactional_id, topics, groups, self._settings)
        check_names(request, self._settings)
        is_open = _state_of(known) is TransactionState.ONGOING
        if not is_open or (topics, groups) != (known.partitions, known.offset_groups):
            changed = replace(
                known,
                state=TransactionState.ONGOING.value,
                partitions=topics,
                offset_groups=groups,
                started_ms=known.started_ms if is_open else self._stamps.next(known.transactional_id, now_ms),
                updated_ms=now_ms,
                uses_v2=request.uses_v2,
            )
            self._put(changed, decision)
        return _result(decision, tuple(_outcomes(request.topics)))

    def prepare(self, request: PrepareTransactionRequest, *, now_ms: int) -> CoordinatorResult[None]:
        """Keep the transaction, whole as it is, until it is decided: no timeout ends it any more. May be repeated.

        Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, InvalidRequestError,
        InvalidTxnStateError (no transaction is open, or it is prepared for something else), and
        TransactionalIdAuthorizationError (the brokers' configuration forbids it).
        """
        known = self._known(request.transactional_id, request.producer_id, request.producer_epoch)
        if len(request.prepared_for) > MAX_PREPARED_FOR_LENGTH:
            raise InvalidRequestError(
                f"prepared_for has at most {MAX_PREPARED_FOR_LENGTH} characters, not {len(request.prepared_for)}"
            )
        state = _state_of(known)
        if state is TransactionState.PREPARED and known.prepared_for == request.prepared_for:
            return CoordinatorResult(records=(), response=None, must_confirm=True)
        self._check_not_prepared(known)
        if not self._settings.is_two_phase_enabled:
            raise TransactionalIdAuthorizationError(
                f"the transaction of {request.transactional_id!r} was not prepared: transaction.two.phase.commit.enable is false "
                "at its coordinator; set it to true on all brokers, or commit without prepare (Spark: delivery=at_least_once)"
            )
        if state is not TransactionState.ONGOING:
            raise InvalidTxnStateError(
                f"transactional id {request.transactional_id!r} has no open transaction to prepare: it is {known.state}"
            )
        decision = self._decision(now_ms)
        prepared = replace(known, state=TransactionState.PREPARED.value, updated_ms=now_ms)
        self._put(replace(prepared, prepared_for=request.prepared_for), decision)
        return _result(decision, None)

    def end(
        self, request: EndTransactionRequest, *, fresh_producer_id: int, now_ms: int
    ) -> CoordinatorResult[ProducerIdentity]:
        """Decide the transaction. Its outcome is final when the records of this result are committed.

        `fresh_producer_id` is needed if the epoch of the request is the last one (`is_exhausted`). Raises
        InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, InvalidTxnStateError, and
        TransactionAbortableError if the transaction has timed out: its producer may ask for an abort, and go on; or if it was
        prepared, and an operator has aborted it.
        """
        self._check_id(request.transactional_id)
        known = self._existing(request.transactional_id)
        answer = judged(known, request)
        if answer is EndAnswer.EARLY:
            if not self._early_commits.may_come_again(known, now_ms):
                raise refused(known, request)
            raise early(known.transactional_id)
        if answer is EndAnswer.REPEATED:
            # In the first version, the request may be about a later transaction, which only a newer coordinator knows.
            return CoordinatorResult(records=(), response=_identity(known), must_confirm=not request.uses_v2)
        assert not is_exhausted(known.producer_epoch) or not request.uses_v2 or fresh_producer_id != NO_PRODUCER_ID
        decision = self._decision(now_ms)
        prepared = replace(known, uses_v2=request.uses_v2)
        if request.uses_v2:
            prepared = ended_by_second_version(prepared, fresh_producer_id)
        prepared = replace(prepared, is_last=request.is_last)
        outcome = TransactionState.PREPARE_COMMIT if request.is_commit else TransactionState.PREPARE_ABORT
        self._decide(prepared, outcome, decision)
        return _result(decision, _identity(completed(prepared)))

    # --- what the shell reports ---------------------------------------------------------------------------------------

    def undecided_markers(self) -> tuple[TransactionRecord, ...]:
        """Transactions that are decided, and whose markers must be written, again if a former coordinator has written some."""
        return tuple(item for item in self._state.transactions.values() if _state_of(item).is_decided)

    def markers_done(self, ended: TransactionRecord, *, now_ms: int) -> CoordinatorResult[None]:
        """Every partition and every group has the outcome. A report about another transaction than the current one is ignored."""
        decision = self._decision(now_ms)
        known = self._state.transactions.get(ended.transactional_id)
        if known is not None and _named(known) == _named(ended):
            self._complete(known, decision)
        return _result(decision, None)

    def is_ending(self, transactional_id: str) -> bool:
        """Whether its transaction is decided and not complete: until then, most requests are refused."""
        known = self._state.transactions.get(transactional_id)
        return known is not None and _state_of(known).is_decided

    def started_ms(self, transactional_id: str) -> int:
        """The stamp of the open transaction; NOT_STARTED if there is none."""
        known = self._state.transactions.get(transactional_id)
        return NOT_STARTED if known is None else known.started_ms

    def tick(self, now_ms: int) -> CoordinatorResult[None]:
        """Abort transactions that have timed out, and forget ids that were not used for long."""
        decision = self._decision(now_ms)
        for count, (transactional_id, _) in enumerate(self._timers.take_expired(decision.now_ms)):
            known = self._state.transactions[transactional_id]
            if count >= MAX_EXPIRED_PER_TICK:
                self._timers.set((transactional_id, ""), decision.now_ms)
            elif _state_of(known) is TransactionState.ONGOING:
                self._abort(timed_out(known), decision)
                self._counts.timed_out += 1
            else:
                self._remove(known, decision)
        return _result(decision, None)

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    @property
    def slot(self) -> int:
        return self._state.slot

    # --- operators ----------------------------------------------------------------------------------------------------

    def abort(self, *, transactional_id: str, now_ms: int) -> CoordinatorResult[None]:
        """Abort an open transaction, prepared or not, and fence its producer. Raises TransactionalIdNotFoundError,
        ConcurrentTransactionsError, InvalidTxnStateError."""
        self._check_id(transactional_id)
        known = self._found(transactional_id)
        self._check_not_decided(known)
        if not _state_of(known).is_open:
            raise InvalidTxnStateError(
                f"transactional id {transactional_id!r} has no open transaction: it is {known.state}"
            )
        decision = self._decision(now_ms)
        self._abort(aborted_by_operator(known), decision)
        self._counts.fenced += 1
        return _result(decision, None)

    def list(self) -> CoordinatorResult[tuple[TransactionRecord, ...]]:
        return CoordinatorResult(records=(), response=tuple(self._state.transactions.values()))

    def describe(self, transactional_id: str, *, must_confirm: bool = False) -> CoordinatorResult[TransactionRecord]:
        """Raises TransactionalIdNotFoundError."""
        self._check_id(transactional_id)
        return CoordinatorResult(records=(), response=self._found(transactional_id), must_confirm=must_confirm)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_id(self, transactional_id: str) -> None:
        if slot_of(transactional_id) != self._state.slot:
            raise NotCoordinatorError(
                f"transactional id {transactional_id!r} belongs to slot {slot_of(transactional_id)}, not to {self._state.slot}"
            )
        if not transactional_id or len(transactional_id) > self._settings.max_id_length:
            raise InvalidRequestError(
                f"a transactional id has 1 to {self._settings.max_id_length} characters, not {len(transactional_id)}"
            )

    def _existing(self, transactional_id: str) -> TransactionRecord:
        known = self._state.transactions.get(transactional_id)
        if known is None:
            raise InvalidProducerIdMappingError(
                f"transactional id {transactional_id!r} is not known, or was not used for too long: initialize the producer again"
            )
        return known

    def _found(self, transactional_id: str) -> TransactionRecord:
        known = self._state.transactions.get(transactional_id)
        if known is None:
            raise TransactionalIdNotFoundError(
                f"there is no transactional id {transactional_id!r}; see them all: barnabas transaction list"
            )
        return known

    def _known(self, transactional_id: str, producer_id: int, producer_epoch: int) -> TransactionRecord:
        """The transaction of a producer that may add to it."""
        self._check_id(transactional_id)
        known = self._existing(transactional_id)
        if known.next_producer_id != NO_PRODUCER_ID and (producer_id, producer_epoch) == (known.next_producer_id, 0):
            raise concurrent(transactional_id)  # its producer continues with the new id already
        check_producer(known, producer_id, producer_epoch)
        self._check_not_decided(known)
        return known

    def _check_not_decided(self, known: TransactionRecord) -> None:
        if _state_of(known).is_decided:
            raise concurrent(known.transactional_id)

    def _check_not_prepared(self, known: TransactionRecord) -> None:
        if _state_of(known) is TransactionState.PREPARED:
            raise InvalidTxnStateError(
                f"the transaction of {known.transactional_id!r} is prepared for {known.prepared_for!r}, and waits for its "
                f"decision: commit or abort it, or end it by hand: barnabas transaction abort {known.transactional_id}"
            )

    def _checked(self, known: TransactionRecord, request: AddToTransactionRequest) -> tuple[PartitionOutcome, ...]:
        strangers = sorted(set(request.groups) - set(known.offset_groups))
        if strangers:
            raise InvalidTxnStateError(
                f"offsets of group {strangers[0]!r} are not part of the transaction of {known.transactional_id!r}: add them first"
            )
        absent = missing(known.partitions, request.topics)
        return tuple(
            replace(item, error=ErrorCode.TRANSACTION_ABORTABLE, message="the partition is not part of the transaction")
            if (item.topic, item.partition) in absent
            else item
            for item in _outcomes(request.topics)
        )

    # --- changes ------------------------------------------------------------------------------------------------------

    def _created(self, request: InitTransactionsRequest, fresh_producer_id: int, now_ms: int) -> TransactionRecord:
        count = len(self._state.transactions)
        if count >= self._settings.max_transactions_per_slot:
            raise PolicyViolationError(
                f"transactional id {request.transactional_id!r} is not created: its coordinator has {count} of them, at most "
                f"{self._settings.max_transactions_per_slot} are allowed; use fewer ids, or lower transactional.id.expiration.ms"
            )
        return TransactionRecord(
            slot=self._state.slot,
            coordinator_epoch=self._state.coordinator_epoch,
            transactional_id=request.transactional_id,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=request.timeout_ms,
            state=TransactionState.EMPTY.value,
            partitions=(),
            offset_groups=(),
            started_ms=NOT_STARTED,
            updated_ms=now_ms,
        )

    def _abort(self, record: TransactionRecord, decision: Decision) -> None:
        self._decide(record, TransactionState.PREPARE_ABORT, decision)

    def _decide(self, record: TransactionRecord, outcome: TransactionState, decision: Decision) -> None:
        """`record` has the epoch of the markers. Without partitions and groups, no marker is due, and the end is complete."""
        prepared = replace(record, state=outcome.value, updated_ms=decision.now_ms)
        self._put(prepared, decision)
        if not prepared.partitions and not prepared.offset_groups:
            self._complete(prepared, decision)

    def _complete(self, known: TransactionRecord, decision: Decision) -> None:
        match _state_of(known):
            case TransactionState.PREPARE_COMMIT:
                state = TransactionState.COMPLETE_COMMIT
            case TransactionState.PREPARE_ABORT:
                state = TransactionState.COMPLETE_ABORT
            case _:
                return
        done = replace(
            completed(known),
            state=state.value,
            partitions=(),
            offset_groups=(),
            started_ms=NOT_STARTED,
            updated_ms=decision.now_ms,
            prepared_for="",
        )
        self._put(done, decision)
        if known.is_last:
            self._remove(done, decision)

    def _put(self, record: TransactionRecord, decision: Decision) -> None:
        self._early_commits.forget(record.transactional_id)
        before = self._state.transactions.get(record.transactional_id)
        state = TransactionState.DEAD if before is None else _state_of(before)
        assert _state_of(record) in TRANSACTION_TRANSITIONS[state]
        decision.add(replace(record, coordinator_epoch=self._state.coordinator_epoch))
        if not state is _state_of(record) is TransactionState.ONGOING:  # what is added prolongs nothing
            self._arm(record, decision.now_ms)

    def _remove(self, known: TransactionRecord, decision: Decision) -> None:
        assert TransactionState.DEAD in TRANSACTION_TRANSITIONS[_state_of(known)]
        self._timers.cancel((known.transactional_id, ""))
        self._stamps.forget(known.transactional_id)
        self._early_commits.forget(known.transactional_id)
        decision.add(
            RemoveTransactionRecord(
                slot=self._state.slot,
                coordinator_epoch=self._state.coordinator_epoch,
                transactional_id=known.transactional_id,
            )
        )

    def _arm(self, record: TransactionRecord, now_ms: int) -> None:
        """A former coordinator whose clock was ahead must not make a time longer."""
        key = (record.transactional_id, "")
        state = _state_of(record)
        if state.is_decided or state is TransactionState.PREPARED:
            self._timers.cancel(key)  # its end is decided, or others decide it, however late
        elif state is TransactionState.ONGOING:
            self._timers.set(key, min(record.started_ms, now_ms) + record.timeout_ms)
        else:
            self._timers.set(key, min(record.updated_ms, now_ms) + self._settings.id_expiration_ms)

    def _decision(self, now_ms: int) -> Decision:
        return Decision(state=self._state, now_ms=now_ms)


def _result(decision: Decision, response: R) -> CoordinatorResult[R]:
    return CoordinatorResult(records=decision.finish(), response=response)


def _state_of(record: TransactionRecord) -> TransactionState:
    return TransactionState(record.state)


def _identity(record: TransactionRecord) -> ProducerIdentity:
    return ProducerIdentity(producer_id=record.producer_id, producer_epoch=record.producer_epoch)


def _named(record: TransactionRecord) -> tuple[int, int, int]:
    return record.producer_id, record.producer_epoch, record.started_ms


def _as_empty(record: TransactionRecord, *, timeout_ms: int, now_ms: int) -> TransactionRecord:
    return replace(
        record,
        state=TransactionState.EMPTY.value,
        timeout_ms=timeout_ms,
        started_ms=NOT_STARTED,
        updated_ms=now_ms,
        uses_v2=False,
    )


def _outcomes(topics: Iterable[TransactionTopic]) -> Iterable[PartitionOutcome]:
    return (PartitionOutcome(topic=item.topic, partition=number) for item in topics for number in item.partitions)
