"""Prepared transactions: no timeout ends them, they take nothing more, and their decision may be repeated."""

import pytest
from msgspec.structs import replace
from unit.consumer_groups.test_transactions import T0, TX, World

from barnabas.consumer_groups.transactions.identity import MAX_GIVEN_UP
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.log.vocabulary.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
)
from barnabas.log.vocabulary.transaction_messages import (
    EndTransactionRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
    TransactionState,
)

DAY_MS = 24 * 3_600_000


class PreparedWorld(World):
    def prepare(self, who: ProducerIdentity, prepared_for: str = "batch 7") -> None:
        request = PrepareTransactionRequest(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            prepared_for=prepared_for,
        )
        self.machine.prepare(request, now_ms=self.now_ms)

    def end_id(self, who: ProducerIdentity) -> None:
        request = EndTransactionRequest(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            is_commit=True,
            uses_v2=True,
            is_last=True,
        )
        self.machine.end(request, fresh_producer_id=self.fresh(), now_ms=self.now_ms)


def prepared_world() -> tuple[PreparedWorld, ProducerIdentity]:
    world = PreparedWorld()
    who = world.init()
    world.add(who, T0, uses_v2=True)
    world.prepare(who)
    return world, who


def test_a_prepared_transaction_outlives_its_timeout_and_its_coordinator_until_it_is_decided() -> None:
    world, who = prepared_world()
    assert world.phase is TransactionState.PREPARED and world.known.prepared_for == "batch 7"
    assert world.machine.next_deadline_ms() is None
    for _ in range(3):
        world.now_ms += 10 * world.known.timeout_ms
        world.tick()
        world.fail_over()
        world.tick()
    assert world.phase is TransactionState.PREPARED and not world.machine.undecided_markers()
    following = world.end(who, v2=True)
    (marker,) = world.machine.undecided_markers()
    assert marker.partitions == (T0,) and marker.state == TransactionState.PREPARE_COMMIT
    world.complete()
    assert world.end(who, v2=True) == following, "a commit may be repeated"
    assert world.phase is TransactionState.COMPLETE_COMMIT and world.known.prepared_for == ""
    with pytest.raises(InvalidTxnStateError):
        world.end(who, commit=False, v2=True)


def test_a_prepared_transaction_takes_nothing_more_and_keeps_its_id() -> None:
    world, who = prepared_world()
    world.prepare(who)  # a repetition
    with pytest.raises(InvalidTxnStateError, match=r"prepared for 'batch 7'.*barnabas transaction abort tx"):
        world.prepare(who, "another")
    for is_check in (False, True):
        with pytest.raises(InvalidTxnStateError, match="is prepared"):
            world.add(who, T0, is_check=is_check, uses_v2=True)
    for old in (None, who):
        with pytest.raises(InvalidTxnStateError, match="is prepared"):
            world.init(old)
    assert world.phase is TransactionState.PREPARED


@pytest.mark.parametrize("how", ["end", "operator"])
def test_a_prepared_transaction_may_be_aborted(how: str) -> None:
    world, who = prepared_world()
    if how == "end":
        world.end(who, commit=False, v2=True)
    else:
        world.machine.abort(transactional_id=TX, now_ms=world.now_ms)
    assert world.phase is TransactionState.PREPARE_ABORT
    world.complete()
    with pytest.raises(TransactionAbortableError):
        world.end(who, v2=True)
    assert world.init().producer_epoch > who.producer_epoch


def test_the_commit_of_what_an_operator_aborted_is_refused_although_the_id_has_gone_on() -> None:
    world, first = prepared_world()
    given_up = [first]
    for _ in range(3):
        world.machine.abort(transactional_id=TX, now_ms=world.now_ms)
        world.complete()
        who = world.init()
        world.add(who, T0, uses_v2=True)
        world.prepare(who)
        given_up.append(who)
        world.fail_over()
    last = given_up.pop()
    for who in given_up:
        with pytest.raises(TransactionAbortableError, match="by an operator"):
            world.end(who, v2=True)
        with pytest.raises(ProducerFencedError):
            world.end(who, commit=False, v2=True)
    world.end(last, v2=True)
    world.complete()
    assert world.phase is TransactionState.COMPLETE_COMMIT


def test_an_id_remembers_a_limited_number_of_transactions_that_were_given_up() -> None:
    world, who = prepared_world()
    for _ in range(MAX_GIVEN_UP + 3):
        world.machine.abort(transactional_id=TX, now_ms=world.now_ms)
        world.complete()
        who = world.init()
        world.add(who, T0, uses_v2=True)
        world.prepare(who)
    assert len(world.known.given_up) == MAX_GIVEN_UP
    world.machine.abort(transactional_id=TX, now_ms=world.now_ms)
    assert world.known.given_up[-1] == (who.producer_id, who.producer_epoch)
    world.complete()
    who = world.init()
    world.add(who, T0, uses_v2=True)
    world.machine.abort(transactional_id=TX, now_ms=world.now_ms)
    assert (who.producer_id, who.producer_epoch) not in world.known.given_up, "nobody decides what is not prepared"


def test_only_an_open_transaction_of_its_producer_is_prepared() -> None:
    world = PreparedWorld()
    who = world.init()
    with pytest.raises(InvalidTxnStateError, match="no open transaction to prepare: it is Empty"):
        world.prepare(who)
    world.add(who, T0, uses_v2=True)
    with pytest.raises(ProducerFencedError):
        world.prepare(replace(who, producer_epoch=who.producer_epoch + 1))
    with pytest.raises(InvalidRequestError, match="at most 300 characters, not 301"):
        world.prepare(who, "x" * 301)
    world.now_ms += world.known.timeout_ms
    world.tick()
    with pytest.raises(ProducerFencedError):
        world.prepare(who)


def test_brokers_may_be_configured_to_refuse_what_has_no_timeout() -> None:
    world, who = prepared_world()
    world.settings = TransactionSettings(is_two_phase_enabled=False)
    world.fail_over()
    world.prepare(who)  # a repetition: it is prepared already
    world.end(who, v2=True)
    world.complete()
    who = world.init()
    world.add(who, T0, uses_v2=True)
    with pytest.raises(TransactionalIdAuthorizationError, match=r"transaction\.two\.phase\.commit\.enable is false"):
        world.prepare(who)
    world.now_ms += world.known.timeout_ms
    world.tick()
    assert world.phase is TransactionState.PREPARE_ABORT


def test_an_id_whose_last_transaction_ends_is_forgotten() -> None:
    world, who = prepared_world()
    world.end_id(who)
    assert TX in world.state.transactions
    world.fail_over()
    world.complete()
    assert TX not in world.state.transactions
    with pytest.raises(InvalidProducerIdMappingError):
        world.end_id(who)


def test_nothing_is_left_of_an_id_that_is_forgotten_and_its_coordinator_goes_on() -> None:
    """A timer of it would end the tick in which the transactions of others time out."""
    world, who = prepared_world()
    world.end_id(who)
    world.complete()
    assert world.machine.next_deadline_ms() is None
    world.now_ms += 10 * DAY_MS
    world.tick()
