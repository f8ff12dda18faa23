"""One request that names the same group, partition or topic again and again: the answer must not grow with the repetitions."""

from __future__ import annotations

from typing import Any, cast

import pytest
from simulation.log_building import NOW_MS, transactional
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import partition, simulated, topic

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.group_messages import OffsetToCommit, TopicPartitions
from barnabas.net.handlers.kafka.group_admin import KafkaGroupAdminHandlers
from barnabas.net.handlers.kafka.groups import KafkaGroupHandlers
from barnabas.net.handlers.kafka.offsets import KafkaOffsetHandlers
from barnabas.net.handlers.kafka.partitions import KafkaPartitionHandlers
from barnabas.net.handlers.kafka.transactions import KafkaTransactionHandlers
from barnabas.net.handlers.own.classic_groups import ClassicGroupHandlers
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.handlers.own.metadata import MetadataHandler
from barnabas.net.handlers.own.offsets import OffsetHandlers
from barnabas.net.handlers.own.topics import TopicHandlers
from barnabas.net.handlers.own.transactions import TransactionHandlers
from barnabas.net.handlers.shares.kafka_admin import KafkaShareAdminHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaRequest
from barnabas.net.wire.protocol.requests import MetadataRequest, OffsetFetchRequest, ResetOffsetsRequest

from .test_groups import GROUP, World

TIMES = 50
OFFSET_FETCH, FIND, DESCRIBE, DELETE_GROUPS = 9, 10, 15, 42
PRODUCERS, TRANSACTIONS, CONSUMER_DESCRIBE, SHARE_DESCRIBE, SHARE_OFFSETS = 61, 65, 69, 77, 90


def client_of(world: HandlerWorld) -> KafkaClient:
    services = world.services
    own = GroupHandlers(services)
    admin, shares = KafkaGroupAdminHandlers(services, own), KafkaShareAdminHandlers(services)
    return KafkaClient(
        Dispatcher(
            {
                KafkaApi.FIND_COORDINATOR: answering(
                    KafkaGroupHandlers(services, own, ClassicGroupHandlers(services)).find_coordinator
                ),
                KafkaApi.OFFSET_FETCH: answering(KafkaOffsetHandlers(services).fetch),
                KafkaApi.DESCRIBE_GROUPS: answering(admin.describe),
                KafkaApi.CONSUMER_GROUP_DESCRIBE: answering(admin.describe_consumer_groups),
                KafkaApi.DELETE_GROUPS: answering(admin.delete),
                KafkaApi.DESCRIBE_TRANSACTIONS: answering(
                    KafkaTransactionHandlers(services, TransactionHandlers(services)).describe
                ),
                KafkaApi.DESCRIBE_PRODUCERS: answering(
                    KafkaPartitionHandlers(
                        services, TopicHandlers(services), OffsetHandlers(services)
                    ).describe_producers
                ),
                KafkaApi.SHARE_GROUP_DESCRIBE: answering(shares.describe),
                KafkaApi.DESCRIBE_SHARE_GROUP_OFFSETS: answering(shares.describe_offsets),
            }
        )
    )


@pytest.mark.parametrize(
    ("key", "version", "name", "field", "results"),
    [
        (FIND, 4, "FindCoordinatorRequest", "coordinator_keys", "coordinators"),
        (DESCRIBE, 5, "DescribeGroupsRequest", "groups", "groups"),
        (CONSUMER_DESCRIBE, 1, "ConsumerGroupDescribeRequest", "group_ids", "groups"),
        (SHARE_DESCRIBE, 1, "ShareGroupDescribeRequest", "group_ids", "groups"),
        (DELETE_GROUPS, 2, "DeleteGroupsRequest", "groups_names", "results"),
        (TRANSACTIONS, 0, "DescribeTransactionsRequest", "transactional_ids", "transaction_states"),
    ],
)
@simulated
async def test_each_group_or_transaction_is_answered_once(
    key: int, version: int, name: str, field: str, results: str
) -> None:
    world = await World.start()
    answer = await client_of(world.world).ask(key, version, made(name, **{field: [GROUP, "other"] * TIMES}))
    assert len(getattr(answer, results)) == 2


@simulated
async def test_the_producers_of_a_partition_are_described_once() -> None:
    world = await HandlerWorld.start(topic("t", partition(0, replicas=(0,))))
    world.log().append_as_leader(transactional(7, 0, b"a"), leader_epoch=1, now_ms=NOW_MS)
    message = "DescribeProducersRequest"
    topics = [made(message, "TopicRequest", name="t", partition_indexes=[0] * TIMES)] * TIMES
    answer = await client_of(world).ask(PRODUCERS, 0, made(message, topics=topics))
    ((only,),) = [item.partitions for item in answer.topics]
    assert [item.producer_id for item in only.active_producers] == [7]


@simulated
async def test_a_topic_is_described_once() -> None:
    world = await HandlerWorld.start(topic("t", partition(0), partition(1)))
    topic_id = world.metadata.image.topics["t"].topic_id
    named = MetadataRequest(topics=("t", "nope") * TIMES, topic_ids=(topic_id,) * TIMES)
    answer = await ask(MetadataHandler(world.services), named)
    assert [item.name for item in answer.topics] == ["t", "nope", "t"]


# --- offsets ----------------------------------------------------------------------------------------------------------


@simulated
async def test_the_offset_of_a_partition_is_fetched_once() -> None:
    """Its metadata has up to 4 KiB, and a partition takes one byte of the request."""
    world = await World.start()
    await world.commit((0, 7), metadata="m" * 1_000)
    assert await world.fetched(*(0,) * TIMES) == [(0, 7)]
    stable = OffsetFetchRequest(
        group_id=GROUP, partitions=(TopicPartitions(topic="t", partitions=(0,) * TIMES),) * 2, require_stable=True
    )
    assert len((await ask(world.handlers.fetch_offsets, stable)).partitions) == 1
    message = "OffsetFetchRequest"
    for version, body in (
        (7, {"group_id": GROUP, "topics": [made(message, "OffsetFetchRequestTopic", name="t", partition_indexes=[0] * TIMES)]}),
        (9, {"groups": [_group(topics=[made(message, "OffsetFetchRequestTopics", name="t", partition_indexes=[0] * TIMES)])]}),
    ):  # fmt: skip
        answer = await client_of(world.world).ask(OFFSET_FETCH, version, made(message, **body))
        (one,) = answer.topics if version == 7 else answer.groups[0].topics
        assert [item.committed_offset for item in one.partitions] == [7]


@simulated
async def test_a_fetch_of_offsets_that_names_a_group_twice_is_refused() -> None:
    """Each entry may ask for all offsets of the group, and they need not agree."""
    world = await World.start()
    with pytest.raises(InvalidRequestError, match="group 'g' appears 50 times in one request; give it once"):
        await _asked(KafkaOffsetHandlers(world.world.services).fetch, 9, "OffsetFetchRequest", [_group()] * TIMES)
    shares = KafkaShareAdminHandlers(world.world.services)
    entry = made("DescribeShareGroupOffsetsRequest", "DescribeShareGroupOffsetsRequestGroup", group_id=GROUP)
    with pytest.raises(InvalidRequestError, match="appears 50 times"):
        await _asked(shares.describe_offsets, 1, "DescribeShareGroupOffsetsRequest", [entry] * TIMES)


@simulated
async def test_a_reset_that_names_a_partition_twice_is_refused() -> None:
    """Which of the two offsets is meant? And an undo would restore, and keep, the partition twice."""
    world = await World.start()
    await world.commit((0, 7))
    twice = tuple(OffsetToCommit(topic="t", partition=0, offset=offset) for offset in (1, 2))
    with pytest.raises(InvalidRequestError, match="t-0 appears 2 times in one request; give it once"):
        await ask(world.handlers.reset_offsets, ResetOffsetsRequest(group_id=GROUP, partitions=twice))
    assert await world.fetched(0) == [(0, 7)]


def _group(**fields: Any) -> Any:
    return made("OffsetFetchRequest", "OffsetFetchRequestGroup", **{"group_id": GROUP, "topics": None, **fields})


async def _asked(handler: Any, version: int, message: str, groups: list[Any]) -> Any:
    request = cast(Any, KafkaRequest(api_key=cast(Any, 0), version=version, body=made(message, groups=groups)))
    return await ask(handler, request)
