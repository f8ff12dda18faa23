"""Bugs of transactions in whole brokers, found by `transaction_history`."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from barnabas.consumer_groups.offsets.transactional_offsets import StableOffsets, TransactionalOffsets
from barnabas.consumer_groups.transactions.ends import EarlyCommits
from barnabas.log.partition.aborted_transactions import AbortedTransactions
from barnabas.log.segment import producer_state
from barnabas.log.segment.producer_state import ProducerState
from barnabas.net.coordination.groups import group_service
from barnabas.net.coordination.transactions import transaction_service, verification
from barnabas.net.coordination.transactions.marker_sender import MarkerSender
from barnabas.net.coordination.transactions.verification import TransactionVerification
from barnabas.net.handlers.kafka.offsets import KafkaOffsetHandlers

from .coordinator_bugs import a_new_producer_aborts_what_is_prepared, a_prepared_transaction_times_out
from .cut_off_members import run_cut_off_member
from .planted import in_histories, passed, planted
from .transaction_history import run_cut_off, run_cut_off_decision, run_prepared, run_stopped, run_transactions


@contextlib.contextmanager
def _no_verification_after_a_change_of_leader() -> Iterator[None]:
    """A leader that is not the first one trusts its producers."""
    genuine = TransactionVerification._first_batch

    def first_batch(self: Any, item: Any) -> Any:
        partition = self._find((item.topic, item.partition))
        return None if partition is not None and partition.leadership > 0 else genuine(self, item)

    with patch.object(TransactionVerification, "_first_batch", first_batch):
        yield


@contextlib.contextmanager
def _next_transaction_joins_the_open_one() -> Iterator[None]:
    """A batch of the next epoch that comes before the marker of the last one needs no verification, and is appended."""

    def repeated(partition: Any, batch: Any) -> bool:
        entry = partition.log.producers.find(batch.producer_id)
        return genuine(partition, batch) or (entry is not None and entry.open_transaction_offset >= 0)

    genuine = verification._is_repeated
    with (
        patch.object(verification, "_is_repeated", repeated),
        patch.object(ProducerState, "_check_continues", lambda *arguments, **named: None),
    ):
        yield


@contextlib.contextmanager
def _stable_offsets_do_not_wait() -> Iterator[None]:
    """OffsetFetch with require_stable tells what is committed, also while a transaction with the offset is open."""
    genuine = TransactionalOffsets.fetch_stable

    def fetch(self: Any, **asked: Any) -> Any:
        found = genuine(self, **asked)
        return type(found)(records=(), response=StableOffsets(offsets=found.response.offsets, unstable=frozenset()))

    with patch.object(TransactionalOffsets, "fetch_stable", fetch):
        yield


@contextlib.contextmanager
def _old_clients_read_unconfirmed_offsets() -> Iterator[None]:
    """A coordinator that was replaced without knowing it answers OffsetFetch of clients that have no require_stable."""
    genuine = KafkaOffsetHandlers._committed

    async def committed(self: Any, *arguments: Any, **named: Any) -> Any:
        return await genuine(self, *arguments, **{**named, "must_confirm": named["require_stable"]})

    with patch.object(KafkaOffsetHandlers, "_committed", committed):
        yield


def _unsure(decide: Any, machine: Any, is_final: Any) -> Any:
    return decide(machine)


@contextlib.contextmanager
def _refusals_of_members_are_not_confirmed() -> Iterator[None]:
    """A coordinator that was replaced without knowing it says that the instance id of a static member belongs to another one."""
    with patch.object(group_service, "with_sure_refusals", _unsure):
        yield


@contextlib.contextmanager
def _refusals_are_not_confirmed() -> Iterator[None]:
    """A coordinator that was replaced without knowing it says that a prepared transaction, which it does not know, is over."""
    with patch.object(transaction_service, "with_sure_refusals", _unsure):
        yield


@contextlib.contextmanager
def _list_of_the_first_batch() -> Iterator[None]:
    """The aborted transactions of the request's first offset, and not of all that was read."""

    def in_read(self: Any, read: Any, offset: int) -> Any:
        return self.between(offset, offset + 1)

    with patch.object(AbortedTransactions, "in_read", in_read):
        yield


@contextlib.contextmanager
def _successor_sends_no_markers() -> Iterator[None]:
    """A coordinator that takes over leaves decided transactions to the former one."""
    with patch.object(MarkerSender, "started", lambda self, slot: None):
        yield


@contextlib.contextmanager
def _early_commits_are_refused() -> Iterator[None]:
    """A commit that overtakes its records ends the producer."""
    with patch.object(EarlyCommits, "may_come_again", lambda *arguments: False):
        yield


@contextlib.contextmanager
def _a_marker_does_not_end_what_may_be_repeated() -> Iterator[None]:
    """A record with a sequence of an aborted transaction is taken for the one that was written there."""
    with patch.object(producer_state, "_nothing_after", lambda batch: batch):
        yield


BUGS = (
    in_histories(
        "transactions in clusters",
        run_transactions,
        {
            "no verification after a change of leader": (_no_verification_after_a_change_of_leader, ("elect", "kill")),
            "the next transaction joins the open one": (_next_transaction_joins_the_open_one, ("slow", "stall")),
            "stable offsets do not wait": (_stable_offsets_do_not_wait, ("slow", "kill")),
            "the aborted list of the first batch": (_list_of_the_first_batch, ("kill",)),
            "early commits are refused": (_early_commits_are_refused, ()),
            "a successor sends no markers": (_successor_sends_no_markers, ("kill",)),
        },
    )
    + planted(
        "transactions in clusters",
        lambda seed: passed(run_transactions(seed)),
        {"a marker does not end what may be repeated": _a_marker_does_not_end_what_may_be_repeated},
    )
    + planted(
        "a coordinator that is cut off",
        lambda seed: passed(run_cut_off(seed)),
        {"old clients read unconfirmed offsets": _old_clients_read_unconfirmed_offsets},
    )
    + planted(
        "a controller that was stopped",
        lambda seed: passed(run_stopped(seed)),
        {"old clients read unconfirmed offsets of its group": _old_clients_read_unconfirmed_offsets},
    )
    + planted(
        "a coordinator that is cut off",
        lambda seed: passed(run_cut_off_decision(seed)),
        {"refusals of transactions are not confirmed": _refusals_are_not_confirmed},
    )
    + planted(
        "a coordinator that is cut off",
        lambda seed: passed(run_cut_off_member(seed)),
        {"refusals of members are not confirmed": _refusals_of_members_are_not_confirmed},
    )
    + in_histories(
        "prepared in clusters",
        run_prepared,
        {
            "a prepared transaction times out": (a_prepared_transaction_times_out, ()),
            "a new producer aborts what is prepared": (a_new_producer_aborts_what_is_prepared, ()),
        },
    )
)
