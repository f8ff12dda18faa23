"""The first batch of a transaction is appended only if the coordinator knows the partition (KIP-890): what must not pass it."""

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace
from unit.net.handlers.test_kafka_transactions import TX, World
from unit.net.shell_world import Client, simulated, turns

from barnabas.log.format.record_codec import ProducerFields, encode_marker
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    ProducerIdentity,
)
from barnabas.net.coordination.transactions.verification import TransactionVerification
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.wire.protocol.requests import KafkaProduceRequest, ProducePartition
from barnabas.net.wire.protocol.responses import AddToTransactionResponse, ProduceResponse

PLACE = TopicPartition("t", 0)


def batch_of(world: World, who: ProducerIdentity, sequence: int) -> bytes:
    producer = ProducerFields(
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    return bytes(world.world.batch(b"x", producer=producer))


def request_of(*batches: bytes) -> KafkaProduceRequest:
    item = ProducePartition(topic="t", partition=0, records=b"".join(batches))
    return KafkaProduceRequest(acks=-1, timeout_ms=1_000, partitions=(item,), transactional_id=TX, kafka_version=9)


def codes(refused: dict[int, object]) -> list[int]:
    return [error.code for error in refused.values()]  # type: ignore[attr-defined]


def append_marker(world: World, who: ProducerIdentity) -> None:
    replication = world.world.replication
    marker = encode_marker(
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        is_commit=False,
        coordinator_epoch=0,
        timestamp_ms=1_700_000_000_000,
    )
    replication.append(replication.manager.partition(PLACE), bytearray(marker), acks=-1, from_coordinator=True)


@simulated
async def test_the_next_transaction_of_the_second_version_waits_for_the_marker_of_the_last_one() -> None:
    """The producer learns its next epoch before the markers are written. Its records must not get into what is open still."""
    world = await World.start()
    first = await world.init(5)
    assert await world.produce(first, version=12) == 0
    second = replace(first, producer_epoch=1)
    assert await world.produce(second, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH, (
        "the coordinator does not know it yet"
    )
    assert world.stable() == (0, 1)
    ended = asyncio.create_task(
        world.world.services.transactions.end(
            EndTransactionRequest(
                transactional_id=TX,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                is_commit=True,
                uses_v2=True,
            )
        )
    )
    while not ended.done():
        assert world.stable() == (0, 1)
        await asyncio.sleep(0)
    client = Client()
    request = replace(request_of(batch_of(world, second, 0)), kafka_version=12)
    world.produce_handler(request, client, client.reply)
    await asyncio.sleep(1)
    answer = client.answer()
    assert isinstance(answer, ProduceResponse)
    assert answer.partitions[0].error == 0, "the client does not have to send it again"
    assert world.stable() == (2, 3), "behind the marker"


@simulated
async def test_a_batch_behind_a_repeated_one_is_verified() -> None:
    """In the protocol of Barnabas, a request has several batches of a partition."""
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    await world.produce(who)
    await world.end(who, commit=False)
    verification = world.world.services.verification
    old, late = batch_of(world, who, 0), batch_of(world, who, 1)
    assert not verification.is_needed(request_of(old).partitions[0]), "it is not appended again"
    assert codes((await verification.verified(request_of(old, late))).close()) == [ErrorCode.INVALID_TXN_STATE]


@simulated
async def test_a_batch_whose_transaction_ends_while_it_waits_for_its_turn_begins_no_other_one() -> None:
    """It was part of the open transaction when it came, so nobody was asked."""
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    await world.produce(who)
    verified = await world.world.services.verification.verified(request_of(batch_of(world, who, 1)))
    append_marker(world, who)
    assert codes(verified.close()) == [ErrorCode.NOT_ENOUGH_REPLICAS]


@pytest.mark.parametrize("topic_id", ["id-t", "another"])
@simulated
async def test_a_permit_is_void_in_a_later_topic_of_the_same_name(topic_id: str) -> None:
    """Both may have the same leadership: each begins with leader epoch 0."""
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    known = world.world.replication.manager.find(PLACE)
    assert known is not None

    async def granted(request: AddToTransactionRequest) -> AddToTransactionResponse:
        known.topic_id = topic_id  # type: ignore[union-attr]
        return await world.world.services.transactions.add(replace(request, topics=()))

    def find(topic_partition: TopicPartition) -> Partition | None:
        return known

    verified = await TransactionVerification(find=find, ask=granted).verified(request_of(batch_of(world, who, 0)))
    assert codes(verified.close()) == ([] if topic_id == "id-t" else [ErrorCode.NOT_ENOUGH_REPLICAS])
    await turns()


@simulated
async def test_a_coordinator_that_does_not_answer_holds_up_its_own_producers_only() -> None:
    """Requests of one connection keep their order; those of others for the same partition do not wait for it."""
    world = await World.start()
    who = await world.init()
    answer: asyncio.Future[AddToTransactionResponse] = asyncio.get_running_loop().create_future()

    async def late(request: AddToTransactionRequest) -> AddToTransactionResponse:
        return await answer

    verification = TransactionVerification(find=world.world.replication.manager.find, ask=late)
    handler = ProduceHandler(dataclasses.replace(world.world.services, verification=verification))
    plain = request_of(bytes(world.world.batch(b"plain")))
    own, behind, other = Client(), Client(), Client()
    own.connection = behind.connection = object()
    handler(request_of(batch_of(world, who, 0)), own, own.reply)
    handler(plain, behind, behind.reply)
    handler(plain, other, other.reply)
    await turns()
    assert [len(client.replies) for client in (own, behind, other)] == [0, 0, 1]
    answer.set_result(AddToTransactionResponse(partitions=()))
    await turns(20)
    responses = [client.answer() for client in (own, behind, other)]
    assert [response.partitions[0].base_offset for response in responses] == [1, 2, 0]  # type: ignore[union-attr]
