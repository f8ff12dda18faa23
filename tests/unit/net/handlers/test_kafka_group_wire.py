"""What Kafka's clients say to a group's coordinator, as they say it: leaves with zeros, patterns, and who fetches offsets."""

from typing import Any, cast

import pytest
from unit.net.handlers.handler_world import ask
from unit.net.shell_world import simulated

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRegularExpressionError
from barnabas.net.handlers.kafka.groups import KafkaGroupHandlers
from barnabas.net.handlers.kafka.offsets import KafkaOffsetHandlers
from barnabas.net.protocol.kafka.apis import KafkaRequest
from barnabas.net.protocol.kafka.message_classes import types_of

from .test_groups import GROUP, World


async def beat(world: World, **fields: Any) -> Any:
    """A ConsumerGroupHeartbeat of version 1, with Kafka's defaults for what is left out."""
    body = types_of("ConsumerGroupHeartbeatRequest")["ConsumerGroupHeartbeatRequest"](
        group_id=GROUP, member_id="m", **{"member_epoch": 0, **fields}
    )
    handlers = KafkaGroupHandlers(world.world.services)
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
