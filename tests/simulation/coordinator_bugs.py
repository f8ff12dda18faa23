"""Bugs of the transaction coordinator and of the log's markers, found by `unit.consumer_groups.transaction_simulation`."""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from unit.consumer_groups import transaction_simulation
from unit.consumer_groups.prepared_simulation import PreparedSimulation
from unit.consumer_groups.transaction_log_model import Done, Log
from unit.consumer_groups.transaction_simulation import Call, Host, TransactionSimulation
from unit.consumer_groups.transaction_variants import FEW_EPOCHS, few_epochs, second_version_without_stamps

from barnabas.consumer_groups.offsets.transactional_offsets import Permit, TransactionalOffsets
from barnabas.consumer_groups.transactions import coordinator, ends, identity
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.stamps import TransactionStamps
from barnabas.kraft.group_state.pending_offsets import PendingOffsets
from barnabas.kraft.metadata.records import TransactionRecord

from .planted import planted

QUIET_STEPS = 4_000  # in which a history without a bug settles


def markers_before_the_decision_is_committed() -> AbstractContextManager[Any]:
    def decided(self: TransactionSimulation, host: Host, result: Any) -> None:
        TransactionSimulation.committed(self, host, result)

    return patch.object(TransactionSimulation, "decided", decided)


def complete_before_the_markers_are_replicated() -> AbstractContextManager[Any]:
    genuine = TransactionSimulation.acknowledge_marker

    def acknowledge(self: TransactionSimulation, log: Log, record: TransactionRecord, done: Done) -> None:
        genuine(self, log, record, lambda _: None)
        done(None)

    return patch.object(TransactionSimulation, "acknowledge_marker", acknowledge)


def no_new_epoch_at_an_abort() -> AbstractContextManager[Any]:
    return patch.object(coordinator, "fenced_by_abort", lambda known: replace(known, last_producer_epoch=-1))


def no_new_epoch_at_an_end() -> AbstractContextManager[Any]:
    return patch.object(coordinator, "ended_by_second_version", lambda known, _: known)


def offsets_count_before_the_end() -> AbstractContextManager[Any]:
    def record(self: Any, request: Any, accepted: Any, now_ms: int) -> Any:
        return self._offsets.commit_record(request.group_id, accepted[0], now_ms)

    return patch.object(TransactionalOffsets, "_pending_record", record)


def permits_outlive_the_transaction() -> AbstractContextManager[Any]:
    genuine = TransactionalOffsets.end

    def end(self: Any, **named: Any) -> Any:
        kept = self._valid_from.copy()
        result = genuine(self, **named)
        self._valid_from.update(kept)
        return result

    return patch.object(TransactionalOffsets, "end", end)


def permits_of_a_former_coordinator_are_valid() -> AbstractContextManager[Any]:
    genuine = TransactionalOffsets.commit

    def commit(self: Any, request: Any, *, permit: Permit, **named: Any) -> Any:
        own = permit._replace(coordinator_epoch=self._state.coordinator_epoch)
        return genuine(self, request, permit=own, **named)

    return patch.object(TransactionalOffsets, "commit", commit)


@contextlib.contextmanager
def a_late_end_ends_the_offsets_of_the_next_transaction() -> Iterator[None]:
    genuine = TransactionalOffsets.end

    def end(self: Any, *, uses_v2: bool, **named: Any) -> Any:
        return genuine(self, uses_v2=False, **named)

    with second_version_without_stamps(), patch.object(TransactionalOffsets, "end", end):
        yield


def unstable_offsets_are_told() -> AbstractContextManager[Any]:
    return patch.object(PendingOffsets, "keys", lambda self, group_id: frozenset())


def records_are_not_verified() -> AbstractContextManager[Any]:
    def produce(self: TransactionSimulation, name: str, who: Any, number: int, token: Any) -> Call:
        return lambda done: self.logs[number].write(who, token, done)

    return patch.object(TransactionSimulation, "produce", produce)


@contextlib.contextmanager
def a_late_marker_ends_the_next_transaction() -> Iterator[None]:
    genuine = Log.mark

    def mark(self: Log, producer_id: int, epoch: int, outcome: bool, uses_v2: bool, done: Done) -> None:
        genuine(self, producer_id, epoch, outcome, False, done)

    with second_version_without_stamps(), patch.object(Log, "mark", mark):
        yield


def a_late_marker_of_the_first_version_ends_the_next() -> AbstractContextManager[Any]:
    def is_late(self: Log, producer_id: int, *, leader_epoch: int, started_ms: int) -> bool:
        return leader_epoch != self.leader_epoch

    return patch.object(Log, "is_late", is_late)


def a_late_marker_outlives_the_leadership() -> AbstractContextManager[Any]:
    genuine = Log.is_late

    def is_late(self: Log, producer_id: int, *, leader_epoch: int, started_ms: int) -> bool:
        return genuine(self, producer_id, leader_epoch=self.leader_epoch, started_ms=started_ms)

    return patch.object(Log, "is_late", is_late)


def a_late_end_of_the_first_version_ends_the_next_offsets() -> AbstractContextManager[Any]:
    genuine = TransactionalOffsets.end

    def end(self: Any, *, started_ms: int, **named: Any) -> Any:
        return genuine(self, **named)

    return patch.object(TransactionalOffsets, "end", end)


def transactions_share_their_stamp() -> AbstractContextManager[Any]:
    return patch.object(TransactionStamps, "next", lambda self, transactional_id, now_ms: now_ms // 500 * 500)


def a_successor_sends_no_markers() -> AbstractContextManager[Any]:
    return patch.object(TransactionCoordinator, "undecided_markers", lambda self: ())


@contextlib.contextmanager
def the_fencing_epoch_is_given_to_a_producer() -> Iterator[None]:
    with few_epochs(), patch.object(identity, "is_exhausted", lambda epoch: epoch > FEW_EPOCHS), \
            patch.object(coordinator, "is_exhausted", lambda epoch: epoch > FEW_EPOCHS):  # fmt: skip
        yield


@contextlib.contextmanager
def a_used_up_producer_id_begins_again() -> Iterator[None]:
    genuine = identity.ended_by_second_version

    def ended(known: TransactionRecord, fresh_producer_id: int) -> TransactionRecord:
        return genuine(known, known.producer_id)

    with few_epochs(), patch.object(coordinator, "ended_by_second_version", ended):
        yield


# --- prepared transactions ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_prepared_transaction_times_out() -> Iterator[None]:
    genuine, genuine_deadline = TransactionCoordinator.tick, TransactionCoordinator.next_deadline_ms

    def deadlines(self: Any) -> dict[int, str]:
        known = self._state.transactions.values()
        return {item.started_ms + item.timeout_ms: item.transactional_id for item in known if item.state == "Prepared"}

    def tick(self: Any, now_ms: int) -> Any:
        due = {at_ms: name for at_ms, name in deadlines(self).items() if at_ms <= now_ms}
        return self.abort(transactional_id=due[min(due)], now_ms=now_ms) if due else genuine(self, now_ms)

    def next_deadline_ms(self: Any) -> int | None:
        found = genuine_deadline(self)
        return min((*deadlines(self), *([] if found is None else [found])), default=None)

    with (
        patch.object(TransactionCoordinator, "tick", tick),
        patch.object(TransactionCoordinator, "next_deadline_ms", next_deadline_ms),
    ):
        yield


def a_new_producer_aborts_what_is_prepared() -> AbstractContextManager[Any]:
    genuine = TransactionCoordinator.init

    def init(self: Any, request: Any, *, fresh_producer_id: int, now_ms: int) -> Any:
        known = self._state.transactions.get(request.transactional_id)
        if known is not None and known.state == "Prepared":
            aborted = self.abort(transactional_id=request.transactional_id, now_ms=now_ms)
            return dataclasses.replace(aborted, response=ends.concurrent(request.transactional_id))
        return genuine(self, request, fresh_producer_id=fresh_producer_id, now_ms=now_ms)

    return patch.object(TransactionCoordinator, "init", init)


@contextlib.contextmanager
def a_prepare_is_answered_before_its_commit() -> Iterator[None]:
    """A failover makes the transaction an open one again."""
    genuine = PreparedSimulation.prepare

    def prepare(self: PreparedSimulation, name: str, who: Any) -> Call:
        ask = genuine(self, name, who)

        def early(done: Done) -> None:
            ask(lambda _: None)
            result = self.host_of(name).waiting[-1][0].response
            done(result)

        return early

    with patch.object(PreparedSimulation, "prepare", prepare):
        yield


def _run_prepared(seed: int) -> None:
    with patch.object(transaction_simulation, "QUIET_STEPS", QUIET_STEPS):
        PreparedSimulation(seed).run()


def _run(seed: int) -> None:
    with patch.object(transaction_simulation, "QUIET_STEPS", QUIET_STEPS):
        TransactionSimulation(seed).run()


BUGS = planted(
    "coordinator",
    _run,
    {
        "markers before the decision is committed": markers_before_the_decision_is_committed,
        "complete before the markers are replicated": complete_before_the_markers_are_replicated,
        "no new epoch at an abort": no_new_epoch_at_an_abort,
        "no new epoch at an end": no_new_epoch_at_an_end,
        "offsets count before the end": offsets_count_before_the_end,
        "permits outlive the transaction": permits_outlive_the_transaction,
        "permits of a former coordinator are valid": permits_of_a_former_coordinator_are_valid,
        "a late end ends the offsets of the next transaction": a_late_end_ends_the_offsets_of_the_next_transaction,
        "unstable offsets are told": unstable_offsets_are_told,
        "records are not verified": records_are_not_verified,
        "a late marker ends the next transaction": a_late_marker_ends_the_next_transaction,
        "a late marker of the first version ends the next transaction": a_late_marker_of_the_first_version_ends_the_next,
        "a late marker outlives the leadership": a_late_marker_outlives_the_leadership,
        "a late end of the first version ends the next offsets": a_late_end_of_the_first_version_ends_the_next_offsets,
        "transactions share their stamp": transactions_share_their_stamp,
        "a successor sends no markers": a_successor_sends_no_markers,
        "the fencing epoch is given to a producer": the_fencing_epoch_is_given_to_a_producer,
        "a used up producer id begins again": a_used_up_producer_id_begins_again,
    },
) + planted(
    "prepared",
    _run_prepared,
    {
        "a prepared transaction times out": a_prepared_transaction_times_out,
        "a new producer aborts what is prepared": a_new_producer_aborts_what_is_prepared,
        "a prepare is answered before its commit": a_prepare_is_answered_before_its_commit,
    },
)
