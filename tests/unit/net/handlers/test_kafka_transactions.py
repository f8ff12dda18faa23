"""Transactions over Kafka's wire, from InitProducerId to the markers: one broker that leads all and coordinates all."""

import asyncio
import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import Client, broker, partition, simulated, topic, turns

from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL
from barnabas.kraft.metadata.image import SLOT_COUNT, BrokerImage, TopicImage
from barnabas.kraft.metadata.requests import AppendGroupRecords, GroupRecordsAppended
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    NOT_STARTED,
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    ProducerIdentity,
    TransactionMarker,
    TransactionTopic,
)
from barnabas.net.coordination.transactions.transaction_service import COMPLETION_WAIT_MS
from barnabas.net.coordination.transactions.verification import MAX_ENDED, Ask, TransactionVerification
from barnabas.net.handlers.kafka.offsets import KafkaOffsetHandlers
from barnabas.net.handlers.kafka.transactions import KafkaTransactionHandlers
from barnabas.net.handlers.own.transactions import TransactionHandlers, TransactionOperationHandlers
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.kafka.apis import KafkaApi
from barnabas.net.wire.protocol.requests import KafkaProduceRequest, ProducePartition, WriteMarkersRequest
from barnabas.net.wire.protocol.responses import AddToTransactionResponse, ProduceResponse, WriteMarkersResponse

OFFSET_FETCH, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT, DESCRIBE, LIST = 9, 22, 24, 25, 26, 28, 65, 66
TX, GROUP = "tx", "g"
ALONE = topic("t", partition(0, replicas=(0,)), partition(0, replicas=(0,)))
STUCK = topic("t", partition(0, replicas=(0,)), partition(0))  # the follower of partition 1 is silent
UNKNOWN = 1 << 40  # when a transaction began


def upgraded(node_id: int) -> BrokerImage:
    return replace(broker(node_id), max_feature_level=NEWEST_LEVEL)


class World:
    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        own = TransactionHandlers(world.services)
        kafka = KafkaTransactionHandlers(world.services, own)
        self.own = own
        self.operations = TransactionOperationHandlers(world.services)
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
    async def start(cls, *, brokers: tuple[BrokerImage, ...] = (upgraded(0),), known: TopicImage = ALONE) -> "World":
        world = cls(await HandlerWorld.start(known, brokers=brokers, slots=tuple(range(SLOT_COUNT))))
        world.world.source.script(GroupRecordsAppended())
        await turns()
        return world

    async def time_out(self) -> None:
        """As the broker does it with parked requests."""
        while True:
            await asyncio.sleep(0.01)
            self.world.replication.expire()

    def ask_by(self, ask: Ask) -> None:
        """Let the checks of new batches ask this instead of the coordinator."""
        services = self.world.services
        verification = TransactionVerification(find=services.replication.manager.find, ask=ask)
        self.produce_handler = ProduceHandler(dataclasses.replace(services, verification=verification))

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

    async def add_group(self, who: ProducerIdentity) -> None:
        body = made(
            "AddOffsetsToTxnRequest",
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            group_id=GROUP,
        )
        assert (await self.client.ask(ADD_OFFSETS, 3, body)).error_code == 0

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

    async def refusal(self) -> int:
        """The error of the group, of its offsets."""
        message = "OffsetFetchRequest"
        asked = made(message, "OffsetFetchRequestGroup", group_id=GROUP, topics=None)
        answer = await self.client.ask(OFFSET_FETCH, 9, made(message, groups=[asked], require_stable=True))
        code: int = answer.groups[0].error_code
        return code

    async def refusal_of_old_client(self, version: int = 6) -> int:
        """The same before version 7, which has no require_stable."""
        topic = made("OffsetFetchRequest", "OffsetFetchRequestTopic", name="t", partition_indexes=[0])
        body = made("OffsetFetchRequest", group_id=GROUP, topics=[topic])
        code: int = (await self.client.ask(OFFSET_FETCH, version, body)).error_code
        return code

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
    await world.add_group(who)
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
    assert (await world.init()).producer_epoch == 2, "the answer waits for the abort"
    assert world.stable() == (2, 2)
    assert await world.add(old, 1, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await world.add(old, 1, version=2) == [ErrorCode.PRODUCER_FENCED]
    assert (await world.end(old, commit=True, version=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await world.end(old, commit=True)).error_code == ErrorCode.PRODUCER_FENCED
    assert await world.produce(old, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


@simulated
async def test_the_end_of_a_transaction_and_the_begin_of_the_next_one_are_one_append() -> None:
    """What follows an end is often there before the markers are: it waits for them, and no longer."""
    world = await World.start()
    who = await world.init()
    await world.add(who, 0)
    await world.produce(who)
    before = len(world.world.source.asked(AppendGroupRecords))
    body = made(
        "EndTxnRequest",
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        committed=True,
    )
    assert (await world.client.ask(END, 4, body)).error_code == 0
    assert await world.state() == "PrepareCommit"
    assert await world.add(who, 0) == [0] and await world.state() == "Ongoing"
    assert len(world.world.source.asked(AppendGroupRecords)) == before + 2
    assert world.stable() == (2, 2)


@simulated
async def test_a_request_waits_a_limited_time_for_an_end_that_does_not_come() -> None:
    world = await World.start(known=STUCK)
    who = await world.init()
    await world.add(who, 1)
    assert (await world.end(who, commit=True)).error_code == 0
    began = asyncio.get_running_loop().time()
    assert await world.add(who, 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert asyncio.get_running_loop().time() - began == pytest.approx(COMPLETION_WAIT_MS / 1000, abs=0.01)


@simulated
async def test_a_partition_whose_followers_are_stuck_holds_up_its_own_transactions_only() -> None:
    world = await World.start(known=STUCK)
    timeouts = asyncio.create_task(world.time_out())
    stuck = await world.init()
    await world.add(stuck, 1)
    assert (await world.end(stuck, commit=True)).error_code == 0
    log = world.world.log(number=1)
    assert log.log_end_offset == 1, "the marker"
    transactions = world.world.services.transactions
    began = asyncio.get_running_loop().time()
    for number in range(20):
        name = f"other-{number}"
        who = await transactions.init(InitTransactionsRequest(transactional_id=name, timeout_ms=60_000))
        for offset in (0, 1):
            await transactions.add(
                AddToTransactionRequest(
                    transactional_id=name,
                    producer_id=who.producer_id,
                    producer_epoch=who.producer_epoch + offset,
                    topics=transactions.topics_with_ids({"t": {0}}),
                    uses_v2=True,
                )
            )
            await transactions.end(
                EndTransactionRequest(
                    transactional_id=name,
                    producer_id=who.producer_id,
                    producer_epoch=who.producer_epoch + offset,
                    is_commit=True,
                    uses_v2=True,
                )
            )
        await asyncio.sleep(0.02)
    assert asyncio.get_running_loop().time() - began < 1
    assert await world.state() == "PrepareCommit"
    assert log.log_end_offset == 1, "the marker is sent again, and not written again"
    world.world.follower_has(1, number=1)
    await asyncio.sleep(0.5)
    assert await world.state() == "CompleteCommit" and world.stable(1) == (1, 1)
    timeouts.cancel()


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


async def marked(
    world: World, who: ProducerIdentity, epoch: int, *, topic_id: str = "id-t", v2: bool = True, **fields: Any
) -> int:
    marker = TransactionMarker(
        transactional_id=TX,
        producer_id=who.producer_id,
        producer_epoch=epoch,
        coordinator_epoch=1,
        is_commit=True,
        topics=(TransactionTopic(topic="t", topic_id=topic_id, partitions=(0,)),),
        uses_v2=v2,
    )
    request = WriteMarkersRequest(markers=(replace(marker, **fields),))
    (outcome,) = (await world.own.write_markers(request, Client())).outcomes  # type: ignore[arg-type]
    (found,) = (*outcome.partitions, *outcome.groups)
    return found.error


@simulated
async def test_a_late_marker_of_the_first_version_ends_neither_the_next_transaction_nor_its_offsets() -> None:
    """Its first request hung while the coordinator sent it again on another connection. The epochs are the same."""
    world = await World.start()
    who = await world.init()
    sent: list[TransactionMarker] = []
    write = world.world.services.markers.write

    async def recorded(request: WriteMarkersRequest) -> WriteMarkersResponse:
        sent.extend(request.markers)
        return await write(request)

    world.world.services.markers.write = recorded  # type: ignore[method-assign]
    for _ in range(2):
        await world.add(who, 0)
        assert await world.produce(who, len(sent)) == 0
        await world.add_group(who)
        assert await world.commit_offset(who, 40 + len(sent)) == 0
        if not sent:
            await world.end(who, commit=True)
    (late,) = sent
    assert world.stable() == (2, 3) and await world.fetched(stable=False) == (40, 0)
    request = WriteMarkersRequest(markers=(late,))
    (outcome,) = (await world.own.write_markers(request, Client())).outcomes  # type: ignore[arg-type]
    assert [item.error for item in outcome.partitions] == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert world.stable() == (2, 3) and await world.fetched(stable=False) == (40, 0), "both stay open"
    await world.end(who, commit=True)
    assert world.stable() == (4, 4) and await world.fetched() == (41, 0)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"coordinator_epoch": 0}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ({"coordinator_epoch": 2}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ({"leader_epochs": (0,)}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epochs": (2,)}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"leader_epochs": (1,)}, 0),
        ({"topics": (), "groups": (GROUP,), "group_epochs": (0,)}, ErrorCode.NOT_COORDINATOR),
        ({"topics": (), "groups": (GROUP,), "group_epochs": (1,), "coordinator_epoch": 0},
         ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ({"topics": (), "groups": (GROUP,), "group_epochs": (1,)}, 0),
    ],
)  # fmt: skip
@simulated
async def test_a_marker_counts_only_in_the_epochs_that_it_was_sent_to(fields: dict[str, Any], error: int) -> None:
    world = await World.start()
    who = await world.init()
    assert await marked(world, who, 0, v2=False, **fields) == error


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
async def test_the_next_transaction_waits_for_the_marker_of_the_last_one() -> None:
    """A producer of the second version has its next epoch before the markers are written. Its next batch would otherwise join
    the transaction that is still open in the partition, and the marker of that one would come too late for it."""
    world = await World.start()
    first = await world.init(5)
    assert await world.produce(first, version=12) == 0
    second = replace(first, producer_epoch=1)
    asked: list[int] = []

    async def marker_comes_second(request: AddToTransactionRequest) -> AddToTransactionResponse:
        asked.append(request.producer_epoch)
        assert (await world.end(first, commit=True, version=5)).error_code == 0
        return await world.world.services.transactions.add(request)

    world.ask_by(marker_comes_second)
    assert await world.produce(second, version=12) == 0
    assert asked == [1] and world.stable() == (2, 3), "a record, its marker, and the record of the open transaction"
    assert (await world.end(second, commit=True, version=5)).error_code == 0
    assert world.stable() == (4, 4)


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
    ended: list[tuple[int, int]] = []  # producer, and how much later its transaction began than that of the question

    async def ends_meanwhile(request: AddToTransactionRequest) -> AddToTransactionResponse:
        answer = await world.world.services.transactions.add(request)
        for producer_id, later_ms in ended:
            started_ms = NOT_STARTED if later_ms == UNKNOWN else answer.started_ms + later_ms
            verification.marker_appended(TopicPartition("t", 0), producer_id, started_ms)
        return replace(answer, started_ms=NOT_STARTED) if is_old else answer

    verification = TransactionVerification(find=world.world.replication.manager.find, ask=ends_meanwhile)
    producer = ProducerFields(
        producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=0, is_transactional=True
    )
    item = ProducePartition(topic="t", partition=0, records=world.world.batch(b"x", producer=producer))
    request = KafkaProduceRequest(acks=-1, timeout_ms=1_000, partitions=(item,), transactional_id=TX, kafka_version=9)
    assert verification.is_needed(item)
    own, other, is_old = who.producer_id, who.producer_id + 1, False
    for ends, why in (
        ([(own, 0)], "its transaction"),
        ([(own, -1), (own, 0)], "its transaction, behind the one before"),
        ([(own, UNKNOWN)], "which transaction is not known"),
        ([(own, -number) for number in range(1, MAX_ENDED + 2)], "too many to remember"),
    ):
        ended = list(ends)
        refused = (await verification.verified(request)).close()
        assert [error.code for error in refused.values()] == [ErrorCode.NOT_ENOUGH_REPLICAS], why
    ended = [(other, 0)]
    assert (await verification.verified(request)).close() == {}, "the end of another producer does not matter"
    ended = [(own, -1)]
    assert (await verification.verified(request)).close() == {}, (
        "the coordinator waits for the marker of the one before"
    )
    is_old = True
    assert (await verification.verified(request)).close() != {}, "an old coordinator does not say which one it means"
    anonymous = await verification.verified(replace(request, transactional_id=None))
    assert [error.code for error in anonymous.close().values()] == [ErrorCode.INVALID_TXN_STATE]


@simulated
async def test_the_next_transaction_asks_the_coordinator_although_the_last_one_has_no_marker_here_yet() -> None:
    """Its first record would become a part of the last transaction, with the outcome of that."""
    world = await World.start()
    first = await world.init(5)
    assert await world.produce(first, version=12) == 0
    verification = TransactionVerification(
        find=world.world.replication.manager.find, ask=world.world.services.transactions.add
    )

    def first_of(epoch: int, sequence: int) -> ProducePartition:
        fields = ProducerFields(
            producer_id=first.producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
        )
        return ProducePartition(topic="t", partition=0, records=world.world.batch(b"x", producer=fields))

    assert not verification.is_needed(first_of(first.producer_epoch, 1)), "the same transaction"
    assert verification.is_needed(first_of(first.producer_epoch + 1, 0))
