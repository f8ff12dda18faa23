"""Topics that are created by being asked for: the wait of a client, and what goes on without it, have an end and a limit."""

import asyncio

import pytest
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import Shell, now_ms, partition, simulated, topic, turns

from barnabas.kraft.metadata.requests import ControllerRequest, CreateTopic
from barnabas.log.vocabulary.errors import ErrorCode, LeaderNotAvailableError
from barnabas.net.handlers.own.auto_creation import (
    ANSWER_WITHIN_MS,
    CREATION_TIMEOUT_MS,
    MAX_CREATIONS,
    MAX_CREATIONS_AT_A_TIME,
)
from barnabas.net.handlers.own.metadata import KNOWN_WITHIN_MS, MAX_CREATED_PER_REQUEST, MetadataHandler
from barnabas.net.server.dispatcher import answering
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.protocol.responses import MetadataResponse


def never_answers(world: HandlerWorld) -> None:
    def decide(request: ControllerRequest) -> object:
        return asyncio.get_running_loop().create_future()

    world.source.decide = decide


async def asked(handler: MetadataHandler, *names: str) -> MetadataResponse:
    response = await ask(handler, MetadataRequest(topics=names, allow_auto_topic_creation=True))
    assert isinstance(response, MetadataResponse)
    return response


@simulated
async def test_a_silent_controller_holds_no_request_for_long_however_many_wait() -> None:
    """All of them wait for the same few turns at the controller; each is answered within one limit."""
    world = await HandlerWorld.start()
    never_answers(world)
    handler = MetadataHandler(world.services)
    requests = [asked(handler, *(f"t-{number}-{topic}" for topic in range(100))) for number in range(5)]
    answers = await asyncio.gather(*requests)
    assert ANSWER_WITHIN_MS <= now_ms() <= ANSWER_WITHIN_MS + 10
    assert {topic.error for answer in answers for topic in answer.topics} == {ErrorCode.LEADER_NOT_AVAILABLE}
    assert len({request.name for request in world.source.asked(CreateTopic)}) == MAX_CREATIONS_AT_A_TIME
    await asyncio.sleep((CREATION_TIMEOUT_MS - ANSWER_WITHIN_MS) / 1000 + 0.01)
    assert handler.tasks == []  # those without a turn have ended, too


@simulated
async def test_a_topic_is_created_once_and_goes_on_without_the_client_that_asked() -> None:
    world = await HandlerWorld.start()
    never_answers(world)
    handler = MetadataHandler(world.services)
    first = asyncio.create_task(asked(handler, "new"))
    second = asyncio.create_task(asked(handler, "new"))
    await turns()
    first.cancel()
    await turns()
    assert len(world.source.asked(CreateTopic)) == 1 and len(handler.tasks) == 1
    assert (await second).topics[0].error == ErrorCode.LEADER_NOT_AVAILABLE
    assert len(world.source.asked(CreateTopic)) >= 1 and handler.tasks != []


@simulated
async def test_more_creations_than_may_wait_are_told_to_ask_again_at_once() -> None:
    world = await HandlerWorld.start()
    never_answers(world)
    handler = MetadataHandler(world.services)
    per_request = MAX_CREATED_PER_REQUEST
    waiting = [
        asyncio.create_task(asked(handler, *(f"t-{number}-{topic}" for topic in range(per_request))))
        for number in range(MAX_CREATIONS // per_request)
    ]
    await turns()
    assert len(handler.tasks) == MAX_CREATIONS
    (one_more,) = (await asked(handler, "one-more")).topics
    assert one_more.error == ErrorCode.LEADER_NOT_AVAILABLE and now_ms() == 0
    assert len(handler.tasks) == MAX_CREATIONS
    await asyncio.gather(*waiting)


@simulated
async def test_a_dispatcher_that_closes_ends_what_is_created() -> None:
    world = await HandlerWorld.start()
    never_answers(world)
    handler = MetadataHandler(world.services)
    request = asyncio.create_task(asked(handler, "new"))
    await turns()
    assert set(handler.tasks) <= set(answering(handler).tasks)
    request.cancel()


# --- a broker that has just started -----------------------------------------------------------------------------------


@simulated
async def test_a_broker_that_has_just_started_answers_once_it_knows_a_broker() -> None:
    world = HandlerWorld(await Shell.start(), {})
    handler = MetadataHandler(world.services)
    early = asyncio.create_task(ask(handler, MetadataRequest(topics=())))
    await asyncio.sleep(1)
    assert not early.done()
    world.show()
    response = await early
    assert isinstance(response, MetadataResponse)
    assert [item.node_id for item in response.brokers] == [0, 1] and 1_000 <= now_ms() <= 1_001


@simulated
async def test_a_topic_is_not_denied_by_a_broker_that_knows_only_the_past() -> None:
    """What a broker finds on its disk after a crash may be older than a topic; librdkafka gives up a topic that is denied."""
    world = HandlerWorld(await Shell.start(broker_epoch=20), {})
    world.show(offset=19)
    early = asyncio.create_task(ask(MetadataHandler(world.services), MetadataRequest(topics=("t",))))
    await asyncio.sleep(1)
    assert not early.done()
    world.show(topic("t", partition(0)), offset=20)
    response = await early
    assert isinstance(response, MetadataResponse)
    assert [(item.name, item.error) for item in response.topics] == [("t", ErrorCode.NONE)]


@simulated
async def test_a_broker_that_gets_to_know_none_says_so() -> None:
    """An empty list of brokers is no answer: a client might believe it."""
    world = HandlerWorld(await Shell.start(), {})
    with pytest.raises(LeaderNotAvailableError, match="just started"):
        await ask(MetadataHandler(world.services), MetadataRequest(topics=()))
    assert KNOWN_WITHIN_MS <= now_ms() <= KNOWN_WITHIN_MS + 1
