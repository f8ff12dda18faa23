"""Prepared transactions in a broker: the requests, what readers and Kafka's clients see, and brokers of older versions."""

import pytest
from msgspec.structs import replace
from unit.net.handlers.kafka_client import made
from unit.net.handlers.test_kafka_transactions import DESCRIBE, INIT, LIST, TX, World, upgraded
from unit.net.handlers.test_transaction_operations import HERE
from unit.net.shell_world import simulated, turns

from barnabas.kraft.metadata.feature_levels import PREPARED_LEVEL
from barnabas.log.vocabulary.errors import ErrorCode, UnsupportedVersionError
from barnabas.log.vocabulary.transaction_messages import (
    EndTransactionRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
)
from barnabas.net.handlers.own.transactions import TransactionOperationHandlers
from barnabas.net.wire.protocol.transaction_operations import ListTransactionsRequest


async def prepared(world: World) -> ProducerIdentity:
    who = await world.init()
    await world.add(who, 0)
    assert await world.produce(who) == 0
    await world.own.prepare(
        PrepareTransactionRequest(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            prepared_for="batch 7",
        ),
        HERE,
    )
    return who


def stable(world: World) -> tuple[int, int]:
    log = world.world.log(number=0)
    return log.last_stable_offset, log.high_watermark


@simulated
async def test_readers_wait_until_another_process_commits() -> None:
    world = await World.start()
    who = await prepared(world)
    assert stable(world) == (0, 1)
    end = EndTransactionRequest(
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        is_commit=True,
        uses_v2=True,
    )
    first = await world.own.end(end, HERE)
    await turns(40)
    assert stable(world) == (2, 2)
    assert await world.own.end(end, HERE) == first, "a repetition"


@simulated
async def test_kafka_clients_see_an_open_transaction_and_cannot_take_its_id_over() -> None:
    world = await World.start()
    await prepared(world)
    described = await world.client.ask(DESCRIBE, 0, made("DescribeTransactionsRequest", transactional_ids=[TX]))
    assert described.transaction_states[0].transaction_state == "Ongoing"
    for states, expected in ((["Ongoing"], [TX]), ([], [TX]), (["Empty"], []), (["Prepared"], [])):
        listed = await world.client.ask(LIST, 0, made("ListTransactionsRequest", state_filters=states))
        assert [item.transactional_id for item in listed.transaction_states] == expected
        assert {item.transaction_state for item in listed.transaction_states} <= {"Ongoing"}
        assert listed.unknown_state_filters == (["Prepared"] if states == ["Prepared"] else [])
    asked = made("InitProducerIdRequest", transactional_id=TX, transaction_timeout_ms=60_000)
    assert (await world.client.ask(INIT, 4, asked)).error_code == ErrorCode.INVALID_TXN_STATE


@simulated
async def test_what_its_producer_sends_late_is_committed_with_the_rest_or_refused() -> None:
    """Leaders do not know that it is prepared: docs/guarantees.md."""
    world = await World.start()
    who = await prepared(world)
    assert await world.produce(who, sequence=0) == 0, "a repetition"
    assert stable(world) == (0, 1)
    assert await world.produce(who, sequence=1) == 0
    assert await world.produce(who, number=1) == ErrorCode.INVALID_TXN_STATE
    end = EndTransactionRequest(
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        is_commit=False,
        uses_v2=True,
    )
    await world.own.end(end, HERE)
    await turns(40)
    assert stable(world) == (3, 3), "two records and the marker"
    assert await world.produce(who, sequence=2) == ErrorCode.INVALID_PRODUCER_EPOCH


@simulated
async def test_operators_see_what_it_is_prepared_for() -> None:
    world = await World.start()
    await prepared(world)
    operations = TransactionOperationHandlers(world.world.services)
    for prefix, count in (("", 1), ("t", 1), ("x", 0)):
        found = await operations.list(ListTransactionsRequest(states=("Prepared",), id_prefix=prefix), HERE)
        assert [(item.state, item.prepared_for) for item in found.transactions] == [("Prepared", "batch 7")] * count


@simulated
async def test_a_broker_of_an_older_version_keeps_transactions_from_being_prepared() -> None:
    old = replace(upgraded(1), max_feature_level=PREPARED_LEVEL - 1)
    world = await World.start(brokers=(upgraded(0), old))
    with pytest.raises(UnsupportedVersionError, match=r"brokers \[1\] do not support prepared transactions"):
        await prepared(world)
