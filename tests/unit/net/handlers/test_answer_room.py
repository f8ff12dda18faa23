"""Answers about many things have a limit: what does not fit is refused by itself, and the error says what to do."""

from typing import Any, cast

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.handlers.test_groups import GROUP, World
from unit.net.handlers.test_repeated_names import client_of
from unit.net.shell_world import simulated

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.records import GROUP_RESOURCE
from barnabas.log.vocabulary.errors import ErrorCode, InvalidRequestError, RequestTimedOutError
from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.net.handlers.common.answer_room import MAX_ANSWER_BYTES, OBJECTS_PER_BYTE, AnswerRoom, size_of_offsets
from barnabas.net.handlers.kafka.configs import MAX_RESOURCES, KafkaConfigHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.wire.protocol.kafka.apis import KafkaApi

UNKNOWN = next(name for name in map(str, range(1_000)) if slot_of(name) == slot_of(GROUP))
OFFSET_FETCH, DESCRIBE_GROUPS, DESCRIBE_CONFIGS, CONSUMER_DESCRIBE = 9, 15, 32, 69


def test_an_item_that_does_not_fit_leaves_the_room_to_others() -> None:
    memory = MemoryBudget()
    with AnswerRoom(memory, "ask for less") as room:
        room.take(MAX_ANSWER_BYTES - 10)
        with pytest.raises(InvalidRequestError, match=f"more than {MAX_ANSWER_BYTES} bytes: ask for less"):
            room.take(11)
        room.take(10)
        assert memory.used_bytes == MAX_ANSWER_BYTES * (1 + OBJECTS_PER_BYTE)
    assert memory.used_bytes == 0


def test_answers_that_are_made_at_the_same_time_share_the_brokers_memory() -> None:
    memory = MemoryBudget(MAX_ANSWER_BYTES * (1 + OBJECTS_PER_BYTE))
    with AnswerRoom(memory, "ask for less") as first, AnswerRoom(memory, "ask for less") as second:
        first.take(MAX_ANSWER_BYTES - 1)
        second.take(1)
        with pytest.raises(RequestTimedOutError, match="other clients have: ask again, or ask for less"):
            second.take(1)
    assert memory.used_bytes == 0


def test_what_was_reserved_is_not_taken_again() -> None:
    memory = MemoryBudget(1_000 * (1 + OBJECTS_PER_BYTE))
    with AnswerRoom(memory, "ask for less") as room:
        room.reserve(1_000)
        room.take(2_000)
        with pytest.raises(InvalidRequestError):
            room.take(MAX_ANSWER_BYTES)
        with pytest.raises(RequestTimedOutError):
            room.reserve(1)
    assert memory.used_bytes == 0


def test_an_offset_counts_with_its_texts() -> None:
    short, long = (CommittedOffset(topic="t", partition=0, offset=1, metadata="m" * size) for size in (0, 1_000))
    assert size_of_offsets([short, long]) == 2 * size_of_offsets([short]) + 1_000


@simulated
async def test_groups_are_described_while_there_is_room_and_the_others_are_refused() -> None:
    world = await World.start()
    await world.beat(member_id="m" * 200)
    memory = world.world.services.memory
    kafka = client_of(world.world)
    memory.limit_bytes = 500
    old, new = [
        await kafka.ask(key, version, made(name, **{field: [GROUP, UNKNOWN]}))
        for key, version, name, field in (
            (DESCRIBE_GROUPS, 5, "DescribeGroupsRequest", "groups"),
            (CONSUMER_DESCRIBE, 1, "ConsumerGroupDescribeRequest", "group_ids"),
        )
    ]
    assert [group.error_code for group in old.groups] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    assert new.groups[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "describe fewer groups in one request" in new.groups[0].error_message
    memory.limit_bytes = 100_000
    whole = await kafka.ask(DESCRIBE_GROUPS, 5, made("DescribeGroupsRequest", groups=[GROUP]))
    assert len(whole.groups[0].members) == 1 and memory.used_bytes == 0


@simulated
async def test_offsets_beyond_the_limit_are_refused_in_both_protocols() -> None:
    """Metadata of 4 KB at each of 100,000 offsets would be an answer of 400 MB."""
    world = await World.start()
    await world.commit((0, 1), (1, 1), metadata="m" * 4_000)
    memory = world.world.services.memory
    memory.limit_bytes = 10_000
    with pytest.raises(RequestTimedOutError, match="fetch the offsets of fewer partitions"):
        await world.fetched()
    group = made("OffsetFetchRequest", "OffsetFetchRequestGroup", group_id=GROUP, topics=None)
    kafka = client_of(world.world)
    (found,) = (await kafka.ask(OFFSET_FETCH, 8, made("OffsetFetchRequest", groups=[group]))).groups
    # Java's consumer tries this again. Any other error, such as REQUEST_TIMED_OUT, ends its poll.
    assert (found.error_code, list(found.topics)) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    memory.limit_bytes = 100_000
    assert await world.fetched() == [(0, 1), (1, 1)]
    assert memory.used_bytes == 0


@simulated
async def test_configurations_of_20_000_names_are_cut() -> None:
    """An answer of 28 MB, for which a broker took 330 MB."""
    world = await HandlerWorld.start()
    kafka = KafkaClient(
        Dispatcher({KafkaApi.DESCRIBE_CONFIGS: answering(KafkaConfigHandlers(world.services).describe)})
    )
    resource = cast(Any, made)("DescribeConfigsRequest", "DescribeConfigsResource", configuration_keys=None)
    resources = [
        type(resource)(resource_type=GROUP_RESOURCE, resource_name=f"g{number}", configuration_keys=None)
        for number in range(MAX_RESOURCES)
    ]
    body = made("DescribeConfigsRequest", resources=resources, include_documentation=True, include_synonyms=True)
    answer = await kafka.ask(DESCRIBE_CONFIGS, 4, body)
    codes = [item.error_code for item in answer.results]
    described = codes.count(ErrorCode.NONE)
    assert 1_000 < described < MAX_RESOURCES and codes == sorted(codes)
    assert set(codes[described:]) == {ErrorCode.INVALID_REQUEST}
    assert "describe fewer resources, or fewer keys, in one request" in answer.results[-1].error_message
    told = sum(
        len(item.name) + len(item.value or "") + len(item.documentation or "") for item in answer.results[0].configs
    )
    assert described * told < MAX_ANSWER_BYTES
    assert world.services.memory.used_bytes == 0
