"""Operations on transactions: listing, describing, aborting by id, and aborting what hangs in a partition."""

import asyncio
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.handlers.test_kafka_transactions import ALONE, TX, World, upgraded
from unit.net.shell_world import Client, simulated, turns

from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
)
from barnabas.net.base.limits import MAX_MARKERS
from barnabas.net.base.slices import SLICE_STEPS
from barnabas.net.handlers.kafka.transactions import KafkaTransactionHandlers
from barnabas.net.handlers.own.transactions import TransactionOperationHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaRequest
from barnabas.net.wire.protocol.transaction_operations import (
    AbortHangingRequest,
    AbortTransactionRequest,
    DescribeTransactionRequest,
    ListTransactionsRequest,
    OpenTransactionsRequest,
)

STRAY = ProducerFields(producer_id=4711, producer_epoch=3, base_sequence=0, is_transactional=True)
HERE: Any = Client()


def handlers(world: World) -> TransactionOperationHandlers:
    return TransactionOperationHandlers(world.world.services)


def hang(world: World) -> None:
    """A transaction that no coordinator knows, as another program may have written it into the log."""
    inner = world.world
    inner.replication.append(inner.partition(), inner.batch(b"stray", producer=STRAY), acks=1)


async def marked(world: World, *, topic: str = "t", number: int = 0, **fields: Any) -> int:
    """As `kafka-transactions.sh abort` does it."""
    (code,) = await all_marked(world, [number], topic=topic, **fields)
    return code


async def all_marked(world: World, numbers: list[int], *, topic: str = "t", **fields: Any) -> list[int]:
    kafka = KafkaTransactionHandlers(world.world.services, world.own)
    client = KafkaClient(Dispatcher({KafkaApi.WRITE_TXN_MARKERS: answering(kafka.write_markers)}))
    message = "WriteTxnMarkersRequest"
    named = made(message, "WritableTxnMarkerTopic", name=topic, partition_indexes=numbers)
    marker = {"producer_id": 4711, "producer_epoch": 3, "coordinator_epoch": 0, "transaction_result": False} | fields
    body = made(message, markers=[made(message, "WritableTxnMarker", topics=[named], **marker)])
    (result,) = (await client.ask(27, 1, body)).markers
    return [found.error_code for found in result.topics[0].partitions]


@simulated
async def test_a_hanging_transaction_is_found_and_aborted_and_its_producer_may_go_on() -> None:
    world = await World.start()
    hang(world)
    assert world.stable() == (0, 1)
    (found,) = (await handlers(world).open(OpenTransactionsRequest(), HERE)).transactions
    assert (found.topic, found.partition, found.producer_id, found.producer_epoch, found.first_offset) == (
        "t", 0, 4711, 3, 0,
    )  # fmt: skip
    await handlers(world).abort_hanging(AbortHangingRequest(topic="t", partition=0, producer_id=4711), HERE)
    assert world.stable() == (2, 2)
    assert (await handlers(world).open(OpenTransactionsRequest(), HERE)).transactions == ()
    log = world.world.log()
    assert [item.producer_id for item in log.aborted.between(0, 2)] == [4711]


@simulated
async def test_kafkas_marker_aborts_what_hangs_and_leaves_the_coordinator_epoch_as_it_was() -> None:
    """A stranger that names a large one must not fence the coordinators that come."""
    world = await World.start()
    hang(world)
    assert await marked(world, coordinator_epoch=1_000_000) == 0
    assert world.stable() == (2, 2)
    entry = world.world.log().producers.find(4711)
    assert entry is not None and (entry.epoch, entry.coordinator_epoch) == (3, -1)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transaction_result": True}, ErrorCode.INVALID_TXN_STATE),
        ({"producer_id": 1}, ErrorCode.INVALID_TXN_STATE),
        ({"producer_epoch": 2}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 4}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"number": 1}, ErrorCode.INVALID_TXN_STATE),
        ({"number": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
@simulated
async def test_a_strangers_marker_is_refused_and_changes_nothing(fields: dict[str, Any], error: ErrorCode) -> None:
    world = await World.start()
    hang(world)
    assert await marked(world, **fields) == error
    assert world.stable() == (0, 1) and world.world.log(number=1).log_end_offset == 0


@simulated
async def test_many_markers_let_the_loop_run_in_between_and_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """20,000 of them held it for 250 ms, and wrote 20,000 lines."""
    world = await World.start()
    hang(world)
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    with caplog.at_level("INFO", "barnabas.transactions"):
        codes = await all_marked(world, [*range(1, MAX_MARKERS), 0])
    counting.cancel()
    assert passes >= MAX_MARKERS // SLICE_STEPS
    assert codes[0] == ErrorCode.INVALID_TXN_STATE and codes[-1] == 0 and world.stable() == (2, 2)
    (line,) = [item.message for item in caplog.records if "refused" in item.message]
    assert f"count={MAX_MARKERS - 1} first=t-1 producer=4711" in line
    with pytest.raises(InvalidRequestError, match="2001 markers are asked for in one request; write 2000 at most"):
        await KafkaTransactionHandlers(world.world.services, world.own).write_markers(
            asked_markers(MAX_MARKERS + 1), HERE
        )


def asked_markers(count: int) -> Any:
    message = "WriteTxnMarkersRequest"
    named = made(message, "WritableTxnMarkerTopic", name="t", partition_indexes=[0] * count)
    return KafkaRequest(
        api_key=KafkaApi.WRITE_TXN_MARKERS,
        version=1,
        body=made(message, markers=[made(message, "WritableTxnMarker", topics=[named])]),
    )


@simulated
async def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    await world.produce(who)
    await world.end(who, commit=True)
    inner = world.world
    again = ProducerFields(
        producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=1, is_transactional=True
    )
    inner.replication.append(inner.partition(), inner.batch(b"stray", producer=again), acks=1)
    same = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    assert await marked(world, **same, coordinator_epoch=0) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.stable() == (2, 3)
    assert await marked(world, **same, coordinator_epoch=1) == 0
    assert world.stable() == (4, 4), "the coordinator knows the producer, and no open transaction in this partition"


@simulated
async def test_a_transaction_that_its_coordinator_knows_is_aborted_as_a_whole_or_not_at_all() -> None:
    world = await World.start()
    who = await world.init()
    await world.add(who, 0, 1)
    await world.produce(who)
    await world.produce(who, number=1)
    same = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    assert await marked(world, **same) == ErrorCode.INVALID_TXN_STATE
    with pytest.raises(InvalidTxnStateError, match="barnabas transaction abort tx"):
        await handlers(world).abort_hanging(
            AbortHangingRequest(topic="t", partition=0, producer_id=who.producer_id), HERE
        )
    assert world.stable(0) == world.stable(1) == (0, 1)
    await handlers(world).abort(AbortTransactionRequest(transactional_id=TX), HERE)
    await turns(40)
    assert world.stable(0) == world.stable(1) == (2, 2) and await world.state() == "CompleteAbort"
    assert await world.produce(who, 1) == ErrorCode.INVALID_PRODUCER_EPOCH, "the producer is fenced"
    for name, error in ((TX, InvalidTxnStateError), ("other", TransactionalIdNotFoundError)):
        with pytest.raises(error):
            await handlers(world).abort(AbortTransactionRequest(transactional_id=name), HERE)


@simulated
async def test_nothing_is_aborted_while_a_coordinator_does_not_answer() -> None:
    world = World(await HandlerWorld.start(ALONE, brokers=(upgraded(0),), slots=tuple(range(10))))
    await turns()
    hang(world)
    with pytest.raises(CoordinatorNotAvailableError, match="40 of 50 coordinators"):
        await handlers(world).abort_hanging(AbortHangingRequest(topic="t", partition=0, producer_id=4711), HERE)
    assert world.stable() == (0, 1)


@simulated
async def test_transactions_are_listed_and_described() -> None:
    world = await World.start()
    who = await world.init()
    await world.add(who, 0, 1)
    for filters, count in (
        ({}, 1),
        ({"states": ("Ongoing",)}, 1),
        ({"states": ("Empty",)}, 0),
        ({"producer_ids": (who.producer_id, 5)}, 1),
        ({"producer_ids": (who.producer_id + 1,)}, 0),
        ({"min_duration_ms": 0}, 1),
        ({"min_duration_ms": 60_000}, 0),
    ):
        answer = await handlers(world).list(ListTransactionsRequest(**filters), HERE)  # type: ignore[arg-type]
        assert len(answer.transactions) == count and len(answer.slots) == 50, filters
    described = await handlers(world).describe(DescribeTransactionRequest(transactional_id=TX), HERE)
    found = described.summary
    assert (found.producer_id, found.producer_epoch, found.state, found.partition_count, found.coordinator) == (
        who.producer_id, 0, "Ongoing", 2, 0,
    )  # fmt: skip
    assert (found.timeout_ms, described.topics[0].partitions) == (60_000, (0, 1)) and found.duration_ms >= 0
    with pytest.raises(TransactionalIdNotFoundError):
        await handlers(world).describe(DescribeTransactionRequest(transactional_id="other"), HERE)
    (opened,) = (await handlers(world).list(ListTransactionsRequest(), HERE)).transactions
    assert opened == found
