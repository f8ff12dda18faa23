"""Brokers among themselves: controller calls as opaque bodies, and the feed of committed commands."""

import asyncio

import pytest
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import now_ms, simulated

from barnabas.kraft.metadata.controller_errors import DivergentMetadataError
from barnabas.kraft.metadata.requests import DeleteTopic, Done, decode_answer, encode_request
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.log.vocabulary.errors import InvalidRequestError, NotControllerError
from barnabas.log.vocabulary.quorum import CommittedCommand
from barnabas.net.handlers.own.controller import ControllerHandlers
from barnabas.net.wire.protocol.requests import ControllerCallRequest, MetadataFeedRequest
from barnabas.net.wire.protocol.responses import MetadataFeedResponse

REQUEST = DeleteTopic(name="t")


async def call(world: HandlerWorld, body: bytes) -> object:
    response = await ask(ControllerHandlers(world.services).call, ControllerCallRequest(body=body))
    return decode_answer(REQUEST, response.body)


async def feed(world: HandlerWorld, *, after_offset: int, max_wait_ms: int) -> MetadataFeedResponse:
    request = MetadataFeedRequest(node_id=5, after_offset=after_offset, max_bytes=1_000, max_wait_ms=max_wait_ms)
    response = await ask(ControllerHandlers(world.services).feed, request)
    assert isinstance(response, MetadataFeedResponse)
    return response


@simulated
async def test_the_controller_of_this_node_answers() -> None:
    world = await HandlerWorld.start()
    world.source.script(Done(offset=44))
    assert await call(world, encode_request(REQUEST)) == Done(offset=44)
    assert world.source.requests == [REQUEST]


@simulated
async def test_an_error_travels_inside_of_the_answer() -> None:
    world = await HandlerWorld.start()
    world.source.script(NotControllerError("broker 2 leads the quorum"))
    with pytest.raises(NotControllerError, match="broker 2 leads"):
        await call(world, encode_request(REQUEST))


@pytest.mark.parametrize("body", [b"", b"\x93", b"\x92\xcd\xff\xff\x90", b"garbage", b"\x92\x06\xc0", b"\x92\x90\x90"])
@simulated
async def test_a_body_that_is_no_request_is_refused_without_asking(body: bytes) -> None:
    world = await HandlerWorld.start()
    with pytest.raises(InvalidRequestError):
        await call(world, body)
    assert world.source.requests == []


@simulated
async def test_news_are_fed_at_once_with_who_leads() -> None:
    world = await HandlerWorld.start()
    command = CommittedCommand(index=9, term=3, command=b"x")
    world.source.feeds.append(MetadataFeed(commands=(command,)))
    response = await feed(world, after_offset=8, max_wait_ms=5_000)
    assert response.entries == (command,)
    assert (response.leader_id, response.term, response.snapshot_offset) == (0, 1, -1) and now_ms() == 0


@simulated
async def test_who_is_too_far_back_gets_a_snapshot() -> None:
    world = await HandlerWorld.start()
    world.source.feeds.append(MetadataFeed(snapshot_index=9, snapshot=(b"a", b"b")))
    response = await feed(world, after_offset=0, max_wait_ms=0)
    assert (response.snapshot_offset, response.snapshot_chunks, response.entries) == (9, (b"a", b"b"), ())


@simulated
async def test_an_observer_of_another_history_is_told_so_and_who_leads() -> None:
    world = await HandlerWorld.start()
    world.source.feeds.append(DivergentMetadataError("broker 5 knows more"))
    response = await feed(world, after_offset=8, max_wait_ms=0)
    assert (response.contradiction, response.leader_id, response.entries) == ("broker 5 knows more", 0, ())


@simulated
async def test_a_feed_waits_for_news() -> None:
    world = await HandlerWorld.start()
    asked = asyncio.create_task(feed(world, after_offset=10, max_wait_ms=3_000))
    await asyncio.sleep(1)
    assert not asked.done()
    world.source.feeds.append(MetadataFeed(commands=(CommittedCommand(index=11, term=1, command=b"x"),)))
    world.show(offset=11)
    assert [entry.index for entry in (await asked).entries] == [11]


@simulated
async def test_a_feed_without_news_ends_empty_and_nobody_waits_longer_than_the_limit() -> None:
    world = await HandlerWorld.start()
    world.source.publish(leader=None)
    response = await feed(world, after_offset=10, max_wait_ms=10**9)
    assert response.entries == () and response.leader_id == -1
    assert 5_000 <= now_ms() <= 5_002
