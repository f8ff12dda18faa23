"""Metadata: who leads what, topics that come into being by being asked for, and the wait for news."""

import asyncio
import threading
from typing import Any, cast

import pytest
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import broker, now_ms, partition, simulated, topic, turns

from barnabas.kraft.metadata.image import NO_LEADER, TopicImage
from barnabas.kraft.metadata.requests import ControllerRequest, CreateTopic, TopicCreated
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    InvalidReplicationFactorError,
    InvalidRequestError,
    TopicAlreadyExistsError,
)
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC
from barnabas.net.handlers.own.auto_creation import MAX_CREATIONS_AT_A_TIME
from barnabas.net.handlers.own.metadata import (
    MAX_CREATED_PER_REQUEST,
    MAX_ITEMS_ON_LOOP,
    MAX_NAMES,
    MetadataHandler,
)
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.protocol.responses import MetadataResponse

T, U = topic("t", partition(0), partition(1, epoch=4)), topic("u", partition(1))


async def metadata(
    world: HandlerWorld, *topics: str, listener: str = "PLAINTEXT", **options: object
) -> MetadataResponse:
    request = MetadataRequest(topics=topics or None, **options)  # type: ignore[arg-type]
    response = await ask(MetadataHandler(world.services), request, listener=listener)
    assert isinstance(response, MetadataResponse)
    return response


def creates(world: HandlerWorld, name_of_topic: str = "new") -> None:
    """The controller creates what it is asked for; the metadata shows it a little later."""

    def decide(request: ControllerRequest) -> TopicCreated:
        assert isinstance(request, CreateTopic)
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, lambda: world.show(T, topic(name_of_topic, partition(0)), offset=20))
        return TopicCreated(
            name=request.name, topic_id=f"id-{request.name}", partition_count=1, replication_factor=1, offset=20
        )

    world.source.decide = decide


@simulated
async def test_all_topics_with_leaders_epochs_and_replicas() -> None:
    world = await HandlerWorld.start(T, U)
    response = await metadata(world)
    assert [item.name for item in response.topics] == ["t", "u", CONSUMER_OFFSETS_TOPIC]
    t = response.topics[0]
    assert (t.error, t.topic_id, t.internal) == (0, "id-t", False)
    assert [(item.leader, item.leader_epoch, item.replicas, item.isr) for item in t.partitions] == [
        (0, 1, (0, 1), (0, 1)),
        (1, 4, (0, 1), (0, 1)),
    ]
    assert (response.cluster_id, response.controller_id, response.offset) == ("cluster", 0, 10)
    assert [item.name for item in (await metadata(world, "u")).topics] == ["u"]


@simulated
async def test_topics_are_found_by_their_ids_and_an_unknown_id_is_told() -> None:
    """Kafka's members by KIP-848 are told ids, and ask for what they stand for (KIP-516)."""
    world = await HandlerWorld.start(T, U)
    request = MetadataRequest(topics=("t",), topic_ids=("id-u", "id-gone"))
    response = await ask(MetadataHandler(world.services), request)
    assert isinstance(response, MetadataResponse)
    by_name, by_id, unknown = response.topics
    assert (by_name.name, by_id.name, by_id.topic_id, len(by_id.partitions)) == ("t", "u", "id-u", 1)
    assert (unknown.error, unknown.name, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, "", "id-gone")


@simulated
async def test_addresses_are_those_of_the_listener_that_asks() -> None:
    world = await HandlerWorld.start(T)
    inside, outside = await metadata(world), await metadata(world, listener="CLIENTS")
    assert [(item.host, item.port) for item in inside.brokers] == [("host-0", 9092), ("host-1", 9092)]
    assert [(item.host, item.port) for item in outside.brokers] == [("public-0", 19092), ("public-1", 19092)]


@simulated
async def test_a_fenced_broker_has_no_address_and_its_replicas_are_offline() -> None:
    world = await HandlerWorld.start(T, topic("v", partition(NO_LEADER)), brokers=(broker(0), broker(1, fenced=True)))
    response = await metadata(world)
    assert [item.node_id for item in response.brokers] == [0]
    assert response.topics[0].partitions[0].offline == (1,)
    leaderless = response.topics[1].partitions[0]
    assert (leaderless.error, leaderless.leader) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)


@simulated
async def test_the_slots_are_shown_as_kafkas_topic_for_offsets() -> None:
    world = await HandlerWorld.start(slots=(3,))
    (offsets,) = (await metadata(world, CONSUMER_OFFSETS_TOPIC)).topics
    assert offsets.internal and offsets.error == 0 and len(offsets.partitions) == 50
    assert (offsets.partitions[3].leader, offsets.partitions[3].leader_epoch, offsets.partitions[3].error) == (0, 1, 0)
    assert offsets.partitions[4].error == ErrorCode.LEADER_NOT_AVAILABLE


@simulated
async def test_unknown_and_impossible_names_are_told_apart() -> None:
    world = await HandlerWorld.start(T)
    unknown, bad, known = (await metadata(world, "nope", "../etc", "t")).topics
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "barnabas topic create nope" in unknown.message
    assert bad.error == ErrorCode.INVALID_TOPIC_EXCEPTION and "illegal character" in bad.message
    assert known.error == 0 and world.source.requests == []


@simulated
async def test_an_unknown_topic_is_created_and_shown_when_that_is_allowed() -> None:
    world = await HandlerWorld.start(T)
    creates(world)
    response = await metadata(world, "t", "new", allow_auto_topic_creation=True)
    assert [(item.name, item.error) for item in response.topics] == [("t", 0), ("new", 0)]
    (request,) = world.source.asked(CreateTopic)
    assert (request.name, request.partition_count, request.replication_factor) == ("new", -1, -1)
    assert response.offset == 20 and 195 <= now_ms() <= 205


@pytest.mark.parametrize(("enabled", "asked"), [("false", True), ("true", False)])
@simulated
async def test_nothing_is_created_unless_both_sides_want_it(enabled: str, asked: bool) -> None:
    world = await HandlerWorld.start(T, auto_create_topics_enable=enabled)
    (new,) = (await metadata(world, "new", allow_auto_topic_creation=asked)).topics
    assert new.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and world.source.requests == []


@simulated
async def test_neither_all_topics_nor_internal_nor_bad_names_create_anything() -> None:
    world = await HandlerWorld.start(T)
    await metadata(world, allow_auto_topic_creation=True)
    response = await metadata(
        world, CONSUMER_OFFSETS_TOPIC, "__transaction_state", "a b", allow_auto_topic_creation=True
    )
    assert [item.error for item in response.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert world.source.requests == []


@simulated
async def test_a_creation_that_fails_is_told_with_its_reason() -> None:
    world = await HandlerWorld.start(T)
    world.source.script(InvalidReplicationFactorError("3 replicas need 3 brokers"))
    t, new = (await metadata(world, "t", "new", allow_auto_topic_creation=True)).topics
    assert (t.error, new.error) == (0, ErrorCode.INVALID_REPLICATION_FACTOR)
    assert new.message == "3 replicas need 3 brokers"


@simulated
async def test_somebody_else_may_have_been_faster() -> None:
    world = await HandlerWorld.start(T)
    world.source.script(TopicAlreadyExistsError("new"))
    (new,) = (await metadata(world, "new", allow_auto_topic_creation=True)).topics
    assert new.error == ErrorCode.LEADER_NOT_AVAILABLE  # retriable: a later request sees it


@simulated
async def test_a_long_poll_is_answered_by_news() -> None:
    world = await HandlerWorld.start(T)
    poll = asyncio.create_task(metadata(world, known_offset=10, max_wait_ms=5_000))
    await asyncio.sleep(1)
    assert not poll.done()
    world.show(T, U, offset=11)
    response = await poll
    assert response.offset == 11 and [item.name for item in response.topics][:2] == ["t", "u"]


@simulated
async def test_who_knows_less_or_cannot_wait_is_answered_at_once() -> None:
    world = await HandlerWorld.start(T)
    assert (await metadata(world, known_offset=9, max_wait_ms=5_000)).offset == 10
    assert (await metadata(world, known_offset=10)).offset == 10
    assert now_ms() == 0


@simulated
async def test_a_long_poll_without_news_ends_with_what_is_known() -> None:
    world = await HandlerWorld.start(T)
    response = await metadata(world, known_offset=10, max_wait_ms=5_000)
    assert response.offset == 10 and 5_000 <= now_ms() <= 5_002
    poll = asyncio.create_task(metadata(world, known_offset=10, max_wait_ms=10**9))
    await turns()
    await asyncio.sleep(31)
    assert poll.done()  # nobody holds a request for longer than 30 s


@simulated
async def test_a_request_that_wants_thousands_of_topics_creates_a_few_at_a_time() -> None:
    world = await HandlerWorld.start(T)
    asked = most = 0
    creating: set[str] = set()

    def decide(request: ControllerRequest) -> TopicCreated:
        nonlocal asked, most
        assert isinstance(request, CreateTopic)
        asked += 1
        creating.add(request.name)
        most = max(most, len(creating))
        name, offset = request.name, 20 + asked
        made[name] = topic(name, partition(0))

        def show() -> None:
            creating.discard(name)
            world.show(T, *made.values(), offset=max(offset, world.shell.metadata.image.offset))

        asyncio.get_running_loop().call_later(0.2, show)
        return TopicCreated(name=name, topic_id=f"id-{name}", partition_count=1, replication_factor=1, offset=offset)

    made: dict[str, TopicImage] = {}
    world.source.decide = decide
    names = [f"new-{number}" for number in range(1_000)]
    response = await metadata(world, *names, allow_auto_topic_creation=True)
    errors = [item.error for item in response.topics]
    assert asked == MAX_CREATED_PER_REQUEST and most <= MAX_CREATIONS_AT_A_TIME
    assert errors[:asked] == [ErrorCode.NONE] * asked
    assert errors[asked:] == [ErrorCode.LEADER_NOT_AVAILABLE] * (len(names) - asked)


@simulated
async def test_more_names_than_a_client_may_want_are_refused_before_any_work() -> None:
    world = await HandlerWorld.start(T)
    names = ("t", *(f"unknown-{number}" for number in range(MAX_NAMES - 1)))
    response = await metadata(world, *names)
    assert [item.error for item in response.topics[:2]] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    with pytest.raises(InvalidRequestError, match="name at most 20000"):
        await ask(MetadataHandler(world.services), MetadataRequest(topics=(*names, "one-more")))


async def test_an_answer_about_many_partitions_is_not_made_on_the_loop() -> None:
    threads: list[int] = []
    handler = MetadataHandler(cast(Any, None))
    for items in (MAX_ITEMS_ON_LOOP, MAX_ITEMS_ON_LOOP + 1):
        assert await handler.work_on(items, lambda: threads.append(threading.get_ident()) or "done") == "done"
    assert threads[0] == threading.get_ident() != threads[1]


async def test_a_client_that_goes_does_not_make_room_for_a_second_thread() -> None:
    handler = MetadataHandler(cast(Any, None))
    begun, may_end = threading.Event(), threading.Event()
    first = asyncio.create_task(handler.work_on(MAX_ITEMS_ON_LOOP + 1, lambda: begun.set() or may_end.wait()))
    second = asyncio.create_task(handler.work_on(MAX_ITEMS_ON_LOOP + 1, may_end.is_set))
    assert await asyncio.to_thread(begun.wait)
    first.cancel()
    for _ in range(5):
        await asyncio.to_thread(threading.get_ident)  # as long as a second thread would take
    await asyncio.to_thread(may_end.set)
    assert await second, "it began when the first had ended"
    assert first.cancelled()
