"""Transactions of careless and hostile clients: a typed error for each, and nothing of others is lost."""

from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.handlers.kafka_client import made
from unit.net.handlers.test_kafka_transactions import ADD_OFFSETS, COMMIT, END, INIT, World
from unit.net.shell_world import simulated

from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.log.vocabulary.errors import ErrorCode, PolicyViolationError
from barnabas.log.vocabulary.transaction_messages import InitTransactionsRequest


async def opened() -> tuple[World, Any]:
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    assert await world.produce(who) == 0
    return world, who


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"producer_epoch": 1}, ErrorCode.PRODUCER_FENCED),
        ({"producer_epoch": -1}, ErrorCode.PRODUCER_FENCED),
        ({"producer_epoch": 32_767}, ErrorCode.PRODUCER_FENCED),
        ({"producer_id": 9}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": -1}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
@simulated
async def test_wrong_ids_and_epochs_change_nothing(wrong: dict[str, int], error: ErrorCode) -> None:
    world, who = await opened()
    stranger = replace(who, **wrong)
    assert await world.add(stranger, 1) == [error]
    for commit in (True, False):
        assert (await world.end(stranger, commit=commit)).error_code == error
    body = made("AddOffsetsToTxnRequest", transactional_id="tx", group_id="g", producer_id=stranger.producer_id,
                producer_epoch=stranger.producer_epoch)  # fmt: skip
    assert (await world.client.ask(ADD_OFFSETS, 3, body)).error_code == error
    assert await world.state() == "Ongoing" and world.stable() == (0, 1)
    assert (await world.end(who, commit=True)).error_code == 0 and world.stable() == (2, 2)


@simulated
async def test_a_foreign_transactional_id_is_not_known() -> None:
    world, who = await opened()
    body = made("EndTxnRequest", transactional_id="of another", producer_id=who.producer_id,
                producer_epoch=who.producer_epoch, committed=True)  # fmt: skip
    assert (await world.client.ask(END, 4, body)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for name in ("", "x" * 1_001):
        init = made("InitProducerIdRequest", transactional_id=name, transaction_timeout_ms=1_000)
        assert (await world.client.ask(INIT, 4, init)).error_code == ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 2**31 - 1):
        init = made("InitProducerIdRequest", transactional_id="other", transaction_timeout_ms=timeout_ms)
        assert (await world.client.ask(INIT, 4, init)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert await world.state() == "Ongoing"


@simulated
async def test_a_commit_without_a_begin_is_refused() -> None:
    world = await World.start()
    who = await world.init()
    for version in (3, 4):
        assert (await world.end(who, commit=True, version=version)).error_code == ErrorCode.INVALID_TXN_STATE
    early = await world.end(who, commit=True, version=5)  # its records may be on their way, for some seconds
    assert early.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await world.end(who, commit=False)).error_code == ErrorCode.INVALID_TXN_STATE
    assert await world.state() == "Empty"


@simulated
async def test_offsets_for_a_group_that_is_no_part_of_the_transaction_are_refused() -> None:
    world, who = await opened()
    assert await world.commit_offset(who, 5) == ErrorCode.INVALID_TXN_STATE
    await world.add_group(who)
    message = "TxnOffsetCommitRequest"
    item = made(message, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=5)
    body = made(message, transactional_id="tx", group_id="g", producer_id=who.producer_id,
                producer_epoch=who.producer_epoch, generation_id=7, member_id="nobody",
                topics=[made(message, "TxnOffsetCommitRequestTopic", name="t", partitions=[item])])  # fmt: skip
    (result,) = (await world.client.ask(COMMIT, 3, body)).topics
    assert result.partitions[0].error_code in (
        ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND,
    )  # fmt: skip
    assert (await world.end(who, commit=True)).error_code == 0 and await world.state() == "CompleteCommit"


def test_transactional_ids_of_one_client_are_limited_and_those_that_exist_go_on() -> None:
    """A slot is full; its other ids begin transactions as before."""
    settings = TransactionSettings(max_transactions_per_slot=3)
    wanted = slot_of("tx")
    names = [name for name in (f"id-{number}" for number in range(1_000)) if slot_of(name) == wanted][:4]
    machine = TransactionCoordinator(state=SlotState(slot=wanted, coordinator_epoch=1), settings=settings, now_ms=1_000)

    def init(name: str) -> Any:
        request = InitTransactionsRequest(transactional_id=name, timeout_ms=1_000)
        return machine.init(request, fresh_producer_id=5, now_ms=1_000).response

    for name in names[:3]:
        assert init(name).producer_epoch == 0
    with pytest.raises(PolicyViolationError, match="at most 3 are allowed"):
        init(names[3])
    assert init(names[0]).producer_epoch == 1
