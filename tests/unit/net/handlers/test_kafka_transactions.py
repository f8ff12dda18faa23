"""Transactions over Kafka's wire, from InitProducerId to the markers: one broker that leads all and coordinates all."""

from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import Client, broker, partition, simulated, topic, turns

from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL
from barnabas.kraft.metadata.image import SLOT_COUNT, BrokerImage
from barnabas.kraft.metadata.requests import GroupRecordsAppended
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import ErrorCode, UnsupportedVersionError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    ProducerIdentity,
    TransactionMarker,
    TransactionTopic,
)
from barnabas.net.handlers.kafka.offsets import KafkaOffsetHandlers
from barnabas.net.handlers.kafka.transactions import KafkaTransactionHandlers
from barnabas.net.handlers.own.transactions import TransactionHandlers
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.protocol.api_keys import ApiKey
from barnabas.net.protocol.kafka.apis import KafkaApi
from barnabas.net.protocol.requests import KafkaProduceRequest, ProducePartition, WriteMarkersRequest
from barnabas.net.protocol.responses import AddToTransactionResponse, ProduceResponse
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.transactions.verification import TransactionVerification

OFFSET_FETCH, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT, DESCRIBE, LIST = 9, 22, 24, 25, 26, 28, 65, 66
TX, GROUP = "tx", "g"
ALONE = topic("t", partition(0, replicas=(0,)), partition(0, replicas=(0,)))


def upgraded(node_id: int) -> BrokerImage:
    return replace(broker(node_id), max_feature_level=NEWEST_LEVEL)


class World:
    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        own = TransactionHandlers(world.services)
        kafka = KafkaTransactionHandlers(world.services, own)
        self.own = own
        self.produce_handler = ProduceHandler(world.services)
        self.client = KafkaClient(
            Dispatcher(
                {
                    ApiKey.INIT_TRANSACTIONS: answering(own.init),
                    KafkaApi.ADD_PARTITIONS_TO_TXN: answering(kafka.add_partitions),
                    KafkaApi.ADD_OFFSETS_TO_TXN: answering(kafka.add_offsets),
                    KafkaApi.END_TXN: answering(kafka.end),
                    KafkaApi.TXN_OFFSET_COMMIT: answering(kafka.commit_offsets),
                    KafkaApi.DESCRIBE_TRANSACTIONS: answering(kafka.describe),
                    KafkaApi.LIST_TRANSACTIONS: answering(kafka.list),
                    KafkaApi.OFFSET_FETCH: answering(KafkaOffsetHandlers(world.services).fetch),
                }
            )
        )

    @classmethod
    async def start(cls, *, brokers: tuple[BrokerImage, ...] = (upgraded(0),)) -> "World":
        world = cls(await HandlerWorld.start(ALONE, brokers=brokers, slots=tuple(range(SLOT_COUNT))))
        world.world.source.script(GroupRecordsAppended())
        await turns()
        return world

    async def init(self, version: int = 4) -> ProducerIdentity:
        answer = await self.client.ask(
            INIT, version, made("InitProducerIdRequest", transactional_id=TX, transaction_timeout_ms=60_000)
        )
        assert answer.error_code == 0
        return ProducerIdentity(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)

    async def add(self, who: ProducerIdentity, *numbers: int, name: str = "t", version: int = 3) -> list[int]:
        message = "AddPartitionsToTxnRequest"
        asked = made(message, "AddPartitionsToTxnTopic", name=name, partitions=list(numbers))
        answer = await self.client.ask(
            ADD_PARTITIONS,
            version,
            made(
                message,
                v3_and_below_transactional_id=TX,
                v3_and_below_producer_id=who.producer_id,
                v3_and_below_producer_epoch=who.producer_epoch,
                v3_and_below_topics=[asked],
            ),
        )
        (result,) = answer.results_by_topic_v3_and_below
        return [item.partition_error_code for item in result.results_by_partition]

    async def end(self, who: ProducerIdentity, *, commit: bool, version: int = 4) -> Any:
        body = made(
            "EndTxnRequest",
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            committed=commit,
        )
        answer = await self.client.ask(END, version, body)
        await turns(40)
        return answer

    async def produce(self, who: ProducerIdentity, sequence: int = 0, *, number: int = 0, version: int = 9) -> int:
        producer = ProducerFields(
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        item = ProducePartition(topic="t", partition=number, records=self.world.batch(b"x", producer=producer))
        client = Client()
        self.produce_handler(
            KafkaProduceRequest(
                acks=-1, timeout_ms=1_000, partitions=(item,), transactional_id=TX, kafka_version=version
            ),
            client,
            client.reply,
        )
        for _ in range(200):
            if client.replies:
                break
            await turns()
        answer = client.answer()
        assert isinstance(answer, ProduceResponse)
        return answer.partitions[0].error

    async def commit_offset(self, who: ProducerIdentity, offset: int, version: int = 3) -> int:
        message = "TxnOffsetCommitRequest"
        item = made(message, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=offset)
        asked = made(message, "TxnOffsetCommitRequestTopic", name="t", partitions=[item])
        body = made(
            message,
            transactional_id=TX,
            group_id=GROUP,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            generation_id=-1,
            topics=[asked],
        )
        (result,) = (await self.client.ask(COMMIT, version, body)).topics
        code: int = result.partitions[0].error_code
        return code

    async def fetched(self, *, stable: bool = True) -> tuple[int, int]:
        """The offset of the group, and its error."""
        message = "OffsetFetchRequest"
        asked = made(message, "OffsetFetchRequestGroup", group_id=GROUP, topics=None)
        answer = await self.client.ask(OFFSET_FETCH, 9, made(message, groups=[asked], require_stable=stable))
        (found,) = answer.groups[0].topics
        return found.partitions[0].committed_offset, found.partitions[0].error_code

    async def state(self) -> str:
        (found,) = (
            await self.client.ask(DESCRIBE, 0, made("DescribeTransactionsRequest", transactional_ids=[TX]))
        ).transaction_states
        name: str = found.transaction_state
        return name

    def stable(self, number: int = 0) -> tuple[int, int]:
        log = self.world.log(number=number)
        return log.last_stable_offset, log.high_watermark


@pytest.mark.parametrize("commit", [True, False])
@simulated
async def test_a_transaction_of_the_first_version(commit: bool) -> None:
    world = await World.start()
    who = await world.init()
    assert await world.add(who, 0) == [0]
    assert [await world.produce(who, number) for number in range(3)] == [0, 0, 0]
    assert world.stable() == (0, 3) and await world.state() == "Ongoing"
    assert (await world.end(who, commit=commit)).error_code == 0
    assert world.stable() == (4, 4), "the marker ends the transaction"
    assert await world.state() == ("CompleteCommit" if commit else "CompleteAbort")
    assert await world.produce(who, 3) == ErrorCode.INVALID_TXN_STATE, "a late batch begins no transaction"
    assert world.stable() == (4, 4)


@simulated
async def test_a_transaction_of_the_second_version_adds_partitions_by_their_records() -> None:
    world = await World.start()
    first = await world.init(5)
    assert [await world.produce(first, number=number, version=12) for number in (0, 1)] == [0, 0]
    second = await world.end(first, commit=True, version=5)
    assert (second.error_code, second.producer_id, second.producer_epoch) == (0, first.producer_id, 1)
    assert world.stable(0) == world.stable(1) == (2, 2)
    assert await world.produce(first, 1, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await world.produce(replace(first, producer_epoch=1), version=12) == 0
    assert world.stable(0) == (2, 3)


@simulated
async def test_offsets_are_told_when_their_transaction_is_committed() -> None:
    world = await World.start()
    who = await world.init()
    refused = await world.commit_offset(who, 42)
    assert refused == ErrorCode.INVALID_TXN_STATE, "the group is not part of the transaction"
    body = made(
        "AddOffsetsToTxnRequest",
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        group_id=GROUP,
    )
    assert (await world.client.ask(ADD_OFFSETS, 3, body)).error_code == 0
    assert await world.commit_offset(who, 42) == 0
    assert await world.fetched() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert await world.fetched(stable=False) == (-1, 0)
    await world.end(who, commit=True)
    assert await world.fetched() == (42, 0)
    assert await world.commit_offset(who, 50, version=5) == 0, "the second version adds the group by itself"
    await world.end(who, commit=False)
    assert await world.fetched() == (42, 0)


@simulated
async def test_a_new_producer_fences_the_old_one_and_old_clients_are_told_by_an_old_code() -> None:
    world = await World.start()
    old = await world.init()
    await world.add(old, 0)
    await world.produce(old)
    init = made("InitProducerIdRequest", transactional_id=TX, transaction_timeout_ms=60_000)
    assert (await world.client.ask(INIT, 4, init)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    await turns(40)
    assert (await world.init()).producer_epoch == 2
    assert world.stable() == (2, 2)
    assert await world.add(old, 1, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await world.add(old, 1, version=2) == [ErrorCode.PRODUCER_FENCED]
    assert (await world.end(old, commit=True, version=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await world.end(old, commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    assert await world.produce(old, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


@simulated
async def test_partitions_that_do_not_exist_are_refused_and_nothing_is_added() -> None:
    world = await World.start()
    who = await world.init()
    codes = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await world.add(who, 0, 7) == codes
    assert await world.add(who, 0, name="nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await world.state() == "Empty"


@simulated
async def test_transactions_are_listed_by_state_and_name() -> None:
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    for filters, found in (
        ({}, [TX]),
        ({"state_filters": ["Ongoing", "Odd"]}, [TX]),
        ({"state_filters": ["Empty"]}, []),
        ({"producer_id_filters": [who.producer_id + 1]}, []),
        ({"duration_filter": 60_000}, []),
        ({"transactional_id_pattern": "t."}, [TX]),
        ({"transactional_id_pattern": "t"}, []),
    ):
        answer = await world.client.ask(LIST, 2, made("ListTransactionsRequest", **filters))
        assert [item.transactional_id for item in answer.transaction_states] == found, filters
        assert list(answer.unknown_state_filters) == ["Odd"] * ("Odd" in str(filters))
    (absent,) = (
        await world.client.ask(DESCRIBE, 0, made("DescribeTransactionsRequest", transactional_ids=["other"]))
    ).transaction_states
    assert absent.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@simulated
async def test_no_transaction_begins_before_every_broker_knows_its_records() -> None:
    world = await World.start(brokers=(upgraded(0), broker(1)))
    init = made("InitProducerIdRequest", transactional_id=TX, transaction_timeout_ms=60_000)
    assert (await world.client.ask(INIT, 4, init)).error_code == UnsupportedVersionError.code


# --- markers ----------------------------------------------------------------------------------------------------------


async def marked(world: World, who: ProducerIdentity, epoch: int, *, topic_id: str = "id-t", v2: bool = True) -> int:
    marker = TransactionMarker(
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=epoch,
        coordinator_epoch=1,
        is_commit=True,
        topics=(TransactionTopic(topic="t", topic_id=topic_id, partitions=(0,)),),
        uses_v2=v2,
    )
    answer = await world.own.write_markers(WriteMarkersRequest(markers=(marker,)), Client())  # type: ignore[arg-type]
    code: int = answer.outcomes[0].partitions[0].error
    return code


@simulated
async def test_a_repeated_marker_is_acknowledged_and_one_behind_the_next_transaction_is_refused() -> None:
    world = await World.start()
    first = await world.init(5)
    await world.produce(first, version=12)
    await world.end(first, commit=True, version=5)
    second = replace(first, producer_epoch=1)
    assert await marked(world, first, 1) == 0
    assert world.stable() == (2, 2), "nothing is appended"
    await world.produce(second, version=12)
    assert await marked(world, first, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.stable() == (2, 3), "the next transaction stays open"


@simulated
async def test_a_marker_of_a_former_topic_is_refused() -> None:
    world = await World.start()
    who = await world.init()
    assert await marked(world, who, 0, topic_id="another", v2=False) == ErrorCode.UNKNOWN_TOPIC_ID


@simulated
async def test_a_batch_whose_transaction_ends_while_the_coordinator_is_asked_is_refused() -> None:
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    ended: list[int] = [who.producer_id, who.producer_id + 1]

    async def ends_meanwhile(request: AddToTransactionRequest) -> AddToTransactionResponse:
        answer = await world.world.services.transactions.add(request)
        verification.marker_appended(TopicPartition("t", 0), ended.pop(0))
        return answer

    verification = TransactionVerification(find=world.world.replication.manager.find, ask=ends_meanwhile)
    producer = ProducerFields(
        producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=0, is_transactional=True
    )
    item = ProducePartition(topic="t", partition=0, records=world.world.batch(b"x", producer=producer))
    request = KafkaProduceRequest(acks=-1, timeout_ms=1_000, partitions=(item,), transactional_id=TX, kafka_version=9)
    assert verification.is_needed(item)
    refused = (await verification.verified(request)).close()
    assert [error.code for error in refused.values()] == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert (await verification.verified(request)).close() == {}, "the end of another producer does not matter"
    anonymous = await verification.verified(replace(request, transactional_id=None))
    assert [error.code for error in anonymous.close().values()] == [ErrorCode.INVALID_TXN_STATE]
