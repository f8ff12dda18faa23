"""Seeds of `transaction_simulation`, and planted bugs that the seeds must find. BARNABAS_TRANSACTION_SEEDS (30) is the number of
seeds; `TransactionSimulation(seed).run()` repeats a failure."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.offsets.transactional_offsets import Permit, TransactionalOffsets
from barnabas.consumer_groups.transactions import coordinator, ends, identity
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.kraft.group_state.pending_offsets import PendingOffsets
from barnabas.kraft.metadata.records import TransactionRecord

from . import transaction_simulation
from .transaction_simulation import Call, Done, Host, Log, TransactionSimulation, Violation

SEEDS = int(os.environ.get("BARNABAS_TRANSACTION_SEEDS", "30"))
MOST_SEEDS = 60  # that a planted bug may need
FEW_EPOCHS = 4  # instead of 32,766, so that histories use them up

Planted = Callable[[], AbstractContextManager[Any]]


@contextlib.contextmanager
def few_epochs() -> Iterator[None]:
    with (
        patch.object(identity, "LAST_EPOCH", FEW_EPOCHS),
        patch.object(identity, "FENCING_EPOCH", FEW_EPOCHS + 1),
        patch.object(ends, "LAST_EPOCH", FEW_EPOCHS),
    ):
        yield


@pytest.mark.parametrize("epochs", [contextlib.nullcontext, few_epochs])
def test_every_seed_keeps_the_invariants_and_settles(epochs: Planted) -> None:
    with epochs():
        for seed in range(SEEDS):
            try:
                TransactionSimulation(seed).run()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error


def test_histories_have_what_they_are_about() -> None:
    simulations = [TransactionSimulation(seed) for seed in range(4)]
    for simulation in simulations:
        simulation.run()
    tokens = [token for simulation in simulations for token in simulation.tokens]
    told = [token.told for token in tokens]
    assert told.count(True) > 50 and told.count(False) > 30 and told.count(None) > 10
    assert any(token.told and token.has_offset for token in tokens)
    assert {uses_v2 for simulation in simulations for uses_v2 in simulation.uses_v2.values()} == {True, False}


# --- planted bugs -----------------------------------------------------------------------------------------------------


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

    def commit(self: Any, request: Any, *, permit: Permit, now_ms: int) -> Any:
        own = permit._replace(coordinator_epoch=self._state.coordinator_epoch)
        return genuine(self, request, permit=own, now_ms=now_ms)

    return patch.object(TransactionalOffsets, "commit", commit)


def a_late_end_ends_the_offsets_of_the_next_transaction() -> AbstractContextManager[Any]:
    genuine = TransactionalOffsets.end

    def end(self: Any, *, uses_v2: bool, **named: Any) -> Any:
        return genuine(self, uses_v2=False, **named)

    return patch.object(TransactionalOffsets, "end", end)


def unstable_offsets_are_told() -> AbstractContextManager[Any]:
    return patch.object(PendingOffsets, "keys", lambda self, group_id: frozenset())


def records_are_not_verified() -> AbstractContextManager[Any]:
    def produce(self: TransactionSimulation, name: str, who: Any, number: int, token: Any) -> Call:
        return lambda done: self.logs[number].write(who, token, done)

    return patch.object(TransactionSimulation, "produce", produce)


def a_late_marker_ends_the_next_transaction() -> AbstractContextManager[Any]:
    genuine = Log.mark

    def mark(self: Log, producer_id: int, epoch: int, outcome: bool, uses_v2: bool, done: Done) -> None:
        genuine(self, producer_id, epoch, outcome, False, done)

    return patch.object(Log, "mark", mark)


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


PLANTED: list[Planted] = [
    markers_before_the_decision_is_committed,
    complete_before_the_markers_are_replicated,
    no_new_epoch_at_an_abort,
    no_new_epoch_at_an_end,
    offsets_count_before_the_end,
    permits_outlive_the_transaction,
    permits_of_a_former_coordinator_are_valid,
    a_late_end_ends_the_offsets_of_the_next_transaction,
    unstable_offsets_are_told,
    records_are_not_verified,
    a_late_marker_ends_the_next_transaction,
    a_successor_sends_no_markers,
    the_fencing_epoch_is_given_to_a_producer,
    a_used_up_producer_id_begins_again,
]


def seeds_until_found(planted: Planted) -> int | None:
    """The number of seeds that it takes to find the bug; None: none of MOST_SEEDS does."""
    with planted(), patch.object(transaction_simulation, "QUIET_STEPS", 4_000):
        for seed in range(MOST_SEEDS):
            try:
                TransactionSimulation(seed).run()
            except (Violation, AssertionError):
                return seed + 1
    return None


@pytest.mark.parametrize("planted", PLANTED)
def test_seeds_find_a_planted_bug(planted: Planted) -> None:
    assert seeds_until_found(planted) is not None
