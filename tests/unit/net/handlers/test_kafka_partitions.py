"""Partitions as Kafka's tools look after them: every version's shape, an error for each, what the controller is asked."""

from typing import Any

import pytest
from msgspec.structs import replace
from simulation.log_building import NOW_MS, end_transaction, transactional
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made, versions_of
from unit.net.shell_world import partition, simulated, topic

from barnabas.kraft.metadata.image import PartitionImage
from barnabas.kraft.metadata.requests import ControllerRequest, Done
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.cluster_changes import (
    AssignReplicasRequest,
    ElectionNotNeededError,
    ElectLeaderRequest,
    NoReassignmentInProgressError,
)
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.kafka.partitions import PREFERRED, UNCLEAN, KafkaPartitionHandlers
from barnabas.net.handlers.own.offsets import OffsetHandlers
from barnabas.net.handlers.own.topics import TopicHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.kafka.apis import KafkaApi

DELETE_RECORDS, ELECT, REASSIGN, LIST, PRODUCERS = 21, 43, 45, 46, 61
ALONE = partition(0, replicas=(0,))
ELSEWHERE = partition(1, replicas=(1,))
MOVING = replace(partition(0, replicas=(0, 1, 2)), adding_replicas=(2,), removing_replicas=(1,))
DONE = Done(offset=10)


def client_of(world: HandlerWorld) -> KafkaClient:
    services = world.services
    handlers = KafkaPartitionHandlers(services, TopicHandlers(services), OffsetHandlers(services))
    return KafkaClient(
        Dispatcher(
            {
                KafkaApi.DELETE_RECORDS: handlers.delete_records,
                KafkaApi.ELECT_LEADERS: answering(handlers.elect),
                KafkaApi.ALTER_PARTITION_REASSIGNMENTS: answering(handlers.reassign),
                KafkaApi.LIST_PARTITION_REASSIGNMENTS: handlers.list_reassignments,
                KafkaApi.DESCRIBE_PRODUCERS: answering(handlers.describe_producers),
            }
        )
    )


async def started(*partitions: PartitionImage, name: str = "t", **configs: dict[str, str]) -> tuple[HandlerWorld, Any]:
    world = await HandlerWorld.start(topic(name, *partitions))
    if configs:
        world.show(topic(name, *partitions), offset=11, topic_configs={name: configs["configs"]})
    return world, client_of(world)


# --- elections --------------------------------------------------------------------------------------------------------


def election(topics: dict[str, list[int]] | None, kind: int = PREFERRED) -> Any:
    message = "ElectLeadersRequest"
    named = topics and [
        made(message, "TopicPartitions", topic=name, partitions=numbers) for name, numbers in topics.items()
    ]
    return made(message, election_type=kind, topic_partitions=named, timeout_ms=1_000)


def elected(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (result.topic, item.partition_id): item.error_code
        for result in answer.replica_election_results
        for item in result.partition_result
    }


@pytest.mark.parametrize("version", versions_of(ELECT))
@simulated
async def test_leaders_are_elected_each_partition_with_its_own_error(version: int) -> None:
    world, client = await started(partition(0), partition(1))
    answers = {0: DONE, 1: ElectionNotNeededError("it leads")}
    world.source.decide = lambda request: answers[request.partition]
    kind = UNCLEAN if version >= 1 else PREFERRED
    answer = await client.ask(ELECT, version, election({"t": [0, 1, 0]}, kind))
    assert elected(answer) == {("t", 0): 0, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED}
    assert world.source.requests == [
        ElectLeaderRequest(topic="t", partition=number, unclean=kind == UNCLEAN) for number in (0, 1)
    ]


@simulated
async def test_of_all_partitions_those_are_elected_that_need_it() -> None:
    leaderless = partition(-1, isr=())
    world, client = await started(partition(0), partition(1), leaderless)
    world.source.script(DONE)
    assert elected(await client.ask(ELECT, 2, election(None))) == {("t", 1): 0, ("t", 2): 0}
    assert elected(await client.ask(ELECT, 2, election(None, UNCLEAN))) == {("t", 2): 0}


@simulated
async def test_a_coordinator_needs_no_election_and_a_strange_election_is_refused() -> None:
    world, client = await started(partition(0))
    world.source.script(DONE)
    answer = await client.ask(ELECT, 2, election({"__consumer_offsets": [49]}))
    assert elected(answer) == {("__consumer_offsets", 49): ErrorCode.ELECTION_NOT_NEEDED}
    assert (await client.ask(ELECT, 2, election({"t": [0]}, 7))).error_code == ErrorCode.INVALID_REQUEST
    assert not world.source.requests


# --- reassignments ----------------------------------------------------------------------------------------------------


@simulated
async def test_replicas_are_assigned_and_a_reassignment_cancelled_each_with_its_own_error() -> None:
    world, client = await started(partition(0), partition(1), partition(0))

    def decide(request: ControllerRequest) -> object:
        assert isinstance(request, AssignReplicasRequest)
        return DONE if request.replicas else NoReassignmentInProgressError("it stands still")

    world.source.decide = decide
    message = "AlterPartitionReassignmentsRequest"
    items = [
        made(message, "ReassignablePartition", partition_index=number, replicas=replicas)
        for number, replicas in ((0, [1, 2]), (1, None), (2, []))
    ]
    body = made(message, timeout_ms=1_000, topics=[made(message, "ReassignableTopic", name="t", partitions=items)])
    answer = await client.ask(REASSIGN, 0, body)
    (result,) = answer.responses
    assert (answer.error_code, answer.error_message, result.name) == (0, None, "t")
    assert [(item.partition_index, item.error_code) for item in result.partitions] == [
        (0, 0),
        (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (2, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    assert result.partitions[0].error_message is None
    assert world.source.requests == [
        AssignReplicasRequest(topic="t", partition=0, replicas=(1, 2)),
        AssignReplicasRequest(topic="t", partition=1, replicas=()),
    ]


@simulated
async def test_reassignments_under_way_are_listed() -> None:
    _, client = await started(partition(0), MOVING)

    async def listed(topics: dict[str, list[int]] | None) -> list[Any]:
        message = "ListPartitionReassignmentsRequest"
        named = topics and [
            made(message, "ListPartitionReassignmentsTopics", name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ]
        answer = await client.ask(LIST, 0, made(message, timeout_ms=1_000, topics=named))
        assert (answer.error_code, answer.error_message) == (0, None)
        return [
            (one.name, item.partition_index, *map(list, (item.replicas, item.adding_replicas, item.removing_replicas)))
            for one in answer.topics
            for item in one.partitions
        ]

    moving = [("t", 1, [0, 1, 2], [2], [1])]
    assert await listed(None) == moving
    assert await listed({"t": [1], "nope": [0]}) == moving
    assert await listed({"t": [0]}) == []


# --- records and producers --------------------------------------------------------------------------------------------


def deletion(*items: tuple[str, int, int]) -> Any:
    message = "DeleteRecordsRequest"
    topics = [
        made(
            message,
            "DeleteRecordsTopic",
            name=name,
            partitions=[made(message, "DeleteRecordsPartition", partition_index=number, offset=offset)],
        )
        for name, number, offset in items
    ]
    return made(message, topics=topics, timeout_ms=1_000)


@pytest.mark.parametrize("version", versions_of(DELETE_RECORDS))
@simulated
async def test_records_are_deleted_each_partition_with_its_own_error(version: int) -> None:
    world, client = await started(ALONE, ELSEWHERE)
    for _ in range(3):
        world.append(b"a")
    asked = deletion(("t", 0, 2), ("t", 1, 0), ("nope", 0, 0), ("t", 0, 9), ("__consumer_offsets", 0, 1))
    answer = await client.ask(DELETE_RECORDS, version, asked)
    found = [(item.low_watermark, item.error_code) for one in answer.topics for item in one.partitions]
    assert found == [
        (2, 0),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-1, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert world.log().log_start_offset == 2


@simulated
async def test_a_log_that_is_only_compacted_keeps_its_beginning() -> None:
    world, client = await started(ALONE, configs={"cleanup.policy": "compact"})
    answer = await client.ask(DELETE_RECORDS, 2, deletion(("t", 0, 0)))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
    world.show(topic("t", ALONE), offset=12, topic_configs={"t": {"cleanup.policy": "compact,delete"}})
    answer = await client.ask(DELETE_RECORDS, 2, deletion(("t", 0, 0)))
    assert answer.topics[0].partitions[0].error_code == 0


@simulated
async def test_producers_are_described_where_there_is_a_replica() -> None:
    world, client = await started(ALONE, ELSEWHERE)
    for sequence in (0, 2):
        fields = ProducerFields(producer_id=7, producer_epoch=1, base_sequence=sequence)
        batch = world.batch(b"a", b"b", producer=fields)
        world.replication.append(world.partition(), batch, acks=1)
    message = "DescribeProducersRequest"
    topics = [
        made(message, "TopicRequest", name="t", partition_indexes=[0, 1]),
        made(message, "TopicRequest", name="nope", partition_indexes=[0]),
        made(message, "TopicRequest", name="__consumer_offsets", partition_indexes=[0, 49, 50]),
    ]
    answer = await client.ask(PRODUCERS, 0, made(message, topics=topics))
    here, elsewhere = answer.topics[0].partitions
    (producer,) = here.active_producers
    assert (here.error_code, here.error_message) == (0, None)
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 1, 3)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (world.shell.clock.wall_ms(), -1)
    assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "leader is 1" in elsewhere.error_message
    assert answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    slots = [(item.error_code, item.active_producers) for item in answer.topics[2].partitions]
    assert slots == [(0, []), (0, []), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])], "listed, and produced to by nobody"


@simulated
async def test_open_transactions_are_described_with_the_coordinator_that_ended_the_last_one() -> None:
    world, client = await started(ALONE)
    log = world.log()
    log.append_as_leader(transactional(7, 0, b"a"), leader_epoch=1, now_ms=NOW_MS)
    end_transaction(log, 7, commits=True, coordinator_epoch=5, leader_epoch=1)
    log.append_as_leader(transactional(7, 1, b"b"), leader_epoch=1, now_ms=NOW_MS)
    log.append_as_leader(transactional(8, 0, b"c"), leader_epoch=1, now_ms=NOW_MS)
    message = "DescribeProducersRequest"
    asked = made(message, topics=[made(message, "TopicRequest", name="t", partition_indexes=[0])])
    found = (await client.ask(PRODUCERS, 0, asked)).topics[0].partitions[0].active_producers
    told = {it.producer_id: (it.current_txn_start_offset, it.coordinator_epoch) for it in found}
    assert told == {7: (2, 5), 8: (3, -1)}
