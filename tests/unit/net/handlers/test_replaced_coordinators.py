"""What a coordinator of transactions answers that was replaced while its network was cut, and does not know it: nothing that its
client would not ask again.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.handlers.test_kafka_transactions import TX, World
from unit.net.shell_world import simulated

from barnabas.kraft.metadata.requests import GroupRecordsAppended, RenewSlot, SlotRefusal
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidProducerIdMappingError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from barnabas.log.vocabulary.transaction_messages import (
    EndTransactionRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
)
from barnabas.net.wire.protocol.transaction_operations import DescribeTransactionRequest


def moved(request: Any) -> object:
    """The controller's answer to the coordinator that was replaced."""
    if isinstance(request, RenewSlot):
        return NotCoordinatorError("it has moved")
    refusals = tuple(
        SlotRefusal(slot=item.slot, error=ErrorCode.NOT_COORDINATOR, message="it has moved") for item in request.slots
    )
    return GroupRecordsAppended(refused=refusals)


@simulated
async def test_a_coordinator_that_was_replaced_repeats_no_commit_and_tells_no_offsets() -> None:
    """The commit that it repeats was of the transaction before, and its producer would take it for that of the next one."""
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    await world.add_group(who)
    await world.produce(who)
    await world.commit_offset(who, 7)
    assert (await world.end(who, commit=True)).error_code == 0
    assert (await world.end(who, commit=True)).error_code == 0 and await world.fetched() == (7, 0)

    assert [await world.refusal_of_old_client(version) for version in (2, 6)] == [0, 0]
    world.world.source.decide = moved
    assert await world.refusal_of_old_client() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await world.end(who, commit=True)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await world.refusal() == ErrorCode.COORDINATOR_NOT_AVAILABLE


def _end(who: ProducerIdentity) -> EndTransactionRequest:
    return EndTransactionRequest(
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        is_commit=True,
        uses_v2=True,
    )


def _prepare(who: ProducerIdentity) -> PrepareTransactionRequest:
    return PrepareTransactionRequest(
        transactional_id=TX, producer_id=who.producer_id, producer_epoch=who.producer_epoch
    )


DEFINITE: dict[str, tuple[str, Callable[[ProducerIdentity], Any], type[BarnabasError] | None]] = {
    "a later epoch is committed": ("end", lambda who: _end(replace(who, producer_epoch=5)), ProducerFencedError),
    "a later producer id is committed": (
        "end",
        lambda who: _end(replace(who, producer_id=who.producer_id + 7)),
        InvalidProducerIdMappingError,
    ),
    "a later epoch is prepared": ("prepare", lambda who: _prepare(replace(who, producer_epoch=5)), ProducerFencedError),
    "an id that it does not know is described": (
        "describe",
        lambda who: DescribeTransactionRequest(transactional_id="later"),
        TransactionalIdNotFoundError,
    ),
    "its id is described, to act on it": (
        "describe",
        lambda who: DescribeTransactionRequest(transactional_id=TX, is_confirmed=True),
        None,
    ),
}


@pytest.mark.parametrize("name", DEFINITE)
@simulated
async def test_a_coordinator_that_was_replaced_says_nothing_that_is_not_asked_again(name: str) -> None:
    """What it does not know may be a later producer, or a transaction that is prepared at its successor."""
    world = await World.start()
    who = await world.init()
    method, make, told = DEFINITE[name]
    handler: Any = world.operations if method == "describe" else world.own
    with pytest.raises(told) if told else nullcontext():
        await getattr(handler, method)(make(who), None)
    world.world.source.decide = moved
    with pytest.raises(CoordinatorNotAvailableError):
        await getattr(handler, method)(make(who), None)


@simulated
async def test_a_refusal_that_is_asked_again_costs_the_quorum_nothing() -> None:
    """Clients repeat these refused requests every few milliseconds."""

    def busy(machine: Any) -> Any:
        raise ConcurrentTransactionsError("the transaction before is not complete")

    world = await World.start()
    await world.init()
    world.world.source.decide = moved  # asked now, the quorum would refuse
    with pytest.raises(ConcurrentTransactionsError):
        await world.world.services.transactions.handle(TX, busy)
