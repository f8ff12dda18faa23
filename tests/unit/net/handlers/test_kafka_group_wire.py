"""What Kafka's clients say to a group's coordinator, as they say it: leaves with zeros, patterns, and who fetches offsets."""

from __future__ import annotations

from typing import Any, cast

import pytest
from unit.net.handlers.handler_world import ask
from unit.net.shell_world import simulated

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRegularExpressionError
from barnabas.net.handlers.kafka.groups import KafkaGroupHandlers
from barnabas.net.handlers.kafka.offsets import KafkaOffsetHandlers
from barnabas.net.handlers.own.classic_groups import ClassicGroupHandlers
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest
from barnabas.net.wire.protocol.kafka.message_classes import types_of

from .kafka_client import KafkaClient, versions_of
from .test_groups import GROUP, World

HEARTBEAT, OFFSET_COMMIT = 12, 8


async def beat(world: World, **fields: Any) -> Any:
    """A ConsumerGroupHeartbeat of version 1, with Kafka's defaults for what is left out."""
    body = types_of("ConsumerGroupHeartbeatRequest")["ConsumerGroupHeartbeatRequest"](
        group_id=GROUP, member_id="m", **{"member_epoch": 0, **fields}
    )
    services = world.world.services
    handlers = KafkaGroupHandlers(services, GroupHandlers(services), ClassicGroupHandlers(services))
    request = cast(Any, KafkaRequest(api_key=cast(Any, 68), version=1, body=body))
    return (await ask(handlers.consumer_heartbeat, request)).body


async def fetched(world: World, member_id: str | None, member_epoch: int) -> int:
    """The error of an OffsetFetch of version 9."""
    types = types_of("OffsetFetchRequest")
    group = types["OffsetFetchRequestGroup"](
        group_id=GROUP, member_id=member_id, member_epoch=member_epoch, topics=None
    )
    request = cast(Any, KafkaRequest(api_key=cast(Any, 9), version=9, body=types["OffsetFetchRequest"](groups=[group])))
    answer = await ask(KafkaOffsetHandlers(world.world.services).fetch, request)
    code: int = answer.body.groups[0].error_code
    return code


async def joined(world: World) -> int:
    epoch: int = (
        await beat(world, subscribed_topic_names=["none"], rebalance_timeout_ms=60_000, topic_partitions=[])
    ).member_epoch
    return epoch


@simulated
async def test_a_leave_with_a_rebalance_timeout_of_zero_is_taken() -> None:
    world = await World.start()
    await joined(world)
    assert (await beat(world, member_epoch=-1, rebalance_timeout_ms=0)).member_epoch == -1


@simulated
async def test_a_pattern_that_re2_refuses_has_kafkas_code() -> None:
    world = await World.start()
    with pytest.raises(InvalidRegularExpressionError) as caught:
        await beat(world, subscribed_topic_regex="(a", rebalance_timeout_ms=60_000, topic_partitions=[])
    assert caught.value.code == 128


@simulated
async def test_a_fetch_of_offsets_names_its_member() -> None:
    world = await World.start()
    epoch = await joined(world)
    assert await fetched(world, "m", epoch) == ErrorCode.NONE
    assert await fetched(world, None, -1) == ErrorCode.NONE, "a tool"
    assert await fetched(world, "m", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert await fetched(world, "ghost", epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def asker(world: World) -> KafkaClient:
    """Heartbeats and commits, which our own handlers answer."""
    services = world.world.services
    return KafkaClient(
        Dispatcher(
            {
                ApiKey.HEARTBEAT: answering(ClassicGroupHandlers(services).heartbeat),
                ApiKey.OFFSET_COMMIT: answering(GroupHandlers(services).commit_offsets),
            }
        )
    )


@simulated
async def test_a_classic_heartbeat_of_every_version_is_answered_by_our_handler() -> None:
    client = asker(await World.start())
    for version in versions_of(HEARTBEAT):
        answer = await client.ask(
            HEARTBEAT, version, bodies.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="ghost")
        )
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@simulated
async def test_a_classic_member_is_told_the_protocol_type_that_its_group_has_taken() -> None:
    services = (await World.start()).world.services
    handlers = KafkaGroupHandlers(services, GroupHandlers(services), ClassicGroupHandlers(services))

    async def joined_as(member_id: str) -> Any:
        body = bodies.JoinGroupRequest(
            group_id=GROUP, member_id=member_id, session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
            protocol_type="connect", protocols=[bodies.JoinGroupRequest.JoinGroupRequestProtocol(name="own")],
        )  # fmt: skip
        return (await ask(handlers.join, cast(Any, KafkaRequest(api_key=cast(Any, 11), version=9, body=body)))).body

    refused = await joined_as("")
    assert (refused.error_code, refused.protocol_type) == (ErrorCode.MEMBER_ID_REQUIRED, None)
    told = await joined_as(refused.member_id)
    assert (told.error_code, told.protocol_type, told.protocol_name) == (ErrorCode.NONE, "connect", "own")
    body = bodies.SyncGroupRequest(
        group_id=GROUP, generation_id=told.generation_id, member_id=told.member_id, protocol_type="connect",
        protocol_name="own", assignments=[],
    )  # fmt: skip
    request = cast(Any, KafkaRequest(api_key=cast(Any, 14), version=5, body=body))
    synced = (await ask(handlers.sync, request)).body
    assert (synced.protocol_type, synced.protocol_name) == ("connect", "own")


def commit(member_id: str, member_epoch: int, *, group_id: str = GROUP) -> bodies.OffsetCommitRequest:
    message = bodies.OffsetCommitRequest
    topics = [
        message.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                message.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata=None)
            ],
        )
        for name in ("t", "u")
    ]
    return message(group_id=group_id, member_id=member_id, generation_id_or_member_epoch=member_epoch, topics=topics)


@simulated
async def test_a_commit_of_every_version_is_answered_by_our_handler() -> None:
    client = asker(await World.start())

    async def errors(version: int, body: bodies.OffsetCommitRequest) -> dict[tuple[str, int], int]:
        answer: bodies.OffsetCommitResponse = await client.ask(OFFSET_COMMIT, version, body)
        return {
            (topic.name, item.partition_index): item.error_code for topic in answer.topics for item in topic.partitions
        }

    for version in versions_of(OFFSET_COMMIT):
        assert await errors(version, commit("", -1)) == {
            ("t", 0): ErrorCode.NONE,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        refused = await errors(version, commit("ghost", 3))
        assert set(refused) == {("t", 0), ("u", 0)}, "a refusal of the whole request is told at each partition"
        assert set(refused.values()) == {ErrorCode.UNKNOWN_MEMBER_ID}
