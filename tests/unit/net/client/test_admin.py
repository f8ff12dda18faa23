"""The admin against a scripted cluster, on virtual time: what is tried again, and what is an answer."""

import asyncio

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import ErrorCode, NetworkError
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin, _resource_type_of
from barnabas.net.client.connection.errors import InvalidConfigError, PartitionGoneError, UnknownTopicOrPartitionError
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey


def unknown(node_id: int, request: q.DeleteTopicRequest) -> r.ErrorResponse:
    return r.ErrorResponse(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"there is no topic {request.name!r}")


def lost(node_id: int, request: q.DeleteTopicRequest) -> NetworkError:
    return NetworkError("the connection was lost")


def test_an_unknown_topic_is_an_answer_and_is_not_asked_for_a_minute() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.script(ApiKey.DELETE_TOPIC, unknown, forever=True)
        async with Admin(client=cluster.client()) as admin:
            with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'nope'"):
                await admin.delete_topic("nope")
            assert asyncio.get_running_loop().time() < 1

    run(body())


def test_a_deletion_whose_first_copy_was_carried_out_is_done() -> None:
    """As when the controller is killed between the commit and its answer."""

    async def body() -> None:
        cluster = FakeCluster()
        cluster.script(ApiKey.DELETE_TOPIC, lost, unknown)
        async with Admin(client=cluster.client()) as admin:
            await admin.delete_topic("t")
        assert len(cluster.sent(q.DeleteTopicRequest)) == 2

    run(body())


def test_the_broker_that_carried_out_a_change_is_asked_first_what_there_is_now() -> None:
    """Others may hear of the change later: a topic that was deleted would still be described."""

    async def body(controller: int) -> None:
        cluster = FakeCluster(brokers=5)
        cluster.controller = controller
        cluster.script(ApiKey.DELETE_TOPIC, lambda *_: r.EmptyResponse(), forever=True)
        async with Admin(client=cluster.client()) as admin:
            await admin.describe_topics()
            await admin.delete_topic("t")
            cluster.requests.clear()
            for _ in range(10):
                await admin.describe_topics()
            assert {node_id for node_id, _ in cluster.requests} == {controller}
            cluster.down.add(controller)
            await admin.describe_topics()

    for controller in range(5):
        run(body(controller))


def not_here(node_id: int, request: q.OffsetCommitRequest) -> g.OffsetCommitResponse:
    """A coordinator that has not heard of the topics."""
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    outcomes = (
        PartitionOutcome(topic=item.topic, partition=item.partition, error=error) for item in request.partitions
    )
    return g.OffsetCommitResponse(partitions=tuple(outcomes))


def test_a_commit_waits_until_the_coordinator_has_heard_of_a_new_topic() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"new": 1})
        cluster.script(ApiKey.OFFSET_COMMIT, not_here, not_here)
        async with Admin(client=cluster.client()) as admin:
            await admin.commit_offsets("g", {TopicPartition("new", 0): 7})
        assert cluster.committed["g"] == {TopicPartition("new", 0): 7}

    run(body())


@pytest.mark.parametrize("partition", [TopicPartition("new", 1), TopicPartition("nope", 0)])
def test_a_commit_of_a_partition_that_nobody_knows_is_refused_at_once(partition: TopicPartition) -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"new": 1})
        cluster.script(ApiKey.OFFSET_COMMIT, not_here, forever=True)
        async with Admin(client=cluster.client()) as admin:
            with pytest.raises(PartitionGoneError):
                await admin.commit_offsets("g", {partition: 7})
            assert asyncio.get_running_loop().time() < 1

    run(body())


@pytest.mark.parametrize("partition", [99, -1])
def test_records_of_a_partition_that_does_not_exist_are_not_deleted_for_a_minute(partition: int) -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 2})
        async with Admin(client=cluster.client()) as admin:
            with pytest.raises(
                UnknownTopicOrPartitionError, match=f"t has no partition {partition}; its partitions are 0 to 1"
            ):
                await admin.delete_records("t", partition, before_offset=1)
            assert asyncio.get_running_loop().time() < 1

    run(body())


def test_resource_types_have_names() -> None:
    assert [_resource_type_of(kind) for kind in ("topic", "broker", "group", 32)] == [2, 4, 32, 32]
    with pytest.raises(InvalidConfigError, match="one of topic, broker, group"):
        _resource_type_of("queue")
