"""The server over real loopback sockets and over the simulated network: the same tests."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from unit.net.wire_world import (
    Body,
    Parked,
    World,
    connect,
    count_up,
    fetch_request,
    fetch_response,
    offset_of,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_in_simulation,
    serve,
)

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    NetworkError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from barnabas.net.base.limits import MAX_FRAMES_PER_TURN
from barnabas.net.base.settings.server_limits import ServerLimits
from barnabas.net.server.dispatcher import RequestContext, answering
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.group_responses import ListGroupsResponse
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, MsgpackCodec, ServerHello, read_hello, write_hello
from barnabas.net.wire.protocol.requests import DescribeClusterRequest, FetchRequest, ListGroupsRequest, ProduceRequest
from barnabas.net.wire.protocol.responses import EmptyResponse, ErrorResponse, Response

Run = Callable[[Body], None]


def test_hello_tells_versions_cluster_and_node(run: Run) -> None:
    async def body(world: World) -> None:
        hello = ServerHello(features={"groups": 1}, cluster_id="c-1", node_id=4)
        server = await serve(world, {}, hello=lambda: hello)
        connection = await connect(world, server)
        assert connection.hello == hello
        await connection.close()
        await server.close()

    run(body)


def test_a_version_that_is_not_spoken_is_answered_and_closed(run: Run) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {})
        client = await raw_client(world, server.address, greet=False)
        client.transport.write(PREAMBLE + write_hello(ClientHello(versions=(7, 8), client_id="new")))
        assert read_hello(ServerHello, await client.frame()).max_version == 1
        await client.closed
        old = await serve(world, {}, hello=lambda: ServerHello(min_version=5, max_version=6))
        with pytest.raises(UnsupportedVersionError, match="5 to 6"):
            await connect(world, old)
        await old.close()
        await server.close()

    run(body)


def test_pipelined_requests_are_handled_in_order_and_answered(run: Run) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: count_up()})
        connection = await connect(world, server)
        futures = [connection.send(produce_request(), timeout_ms=9000) for _ in range(500)]
        offsets = [(await future).partitions[0].base_offset for future in futures]  # type: ignore[union-attr]
        assert offsets == list(range(500))
        assert server.metrics.requests[ApiKey.PRODUCE] == 500
        await connection.close()
        await server.close()
        assert server.metrics.bytes_in > 500 and server.metrics.bytes_out > 500

    run(body)


def test_one_connection_does_not_take_a_whole_turn_of_the_loop(run: Run) -> None:
    """However much it has sent at once: what others have sent comes in between, and its rest after that."""

    async def body(world: World) -> None:
        handled, at_turns = 0, []

        def count(request: Any, context: RequestContext, reply: Callable[[Response], None]) -> None:
            nonlocal handled
            if handled % 50 == 0:
                before = handled
                asyncio.get_running_loop().call_soon(lambda: at_turns.append(handled - before))
            handled += 1
            reply(produce_response(handled - 1))

        server = await serve(world, {ApiKey.PRODUCE: count})
        client = await raw_client(world, server.address)
        client.transport.write(b"".join(request_bytes(number, produce_request(b"")) for number in range(400)))
        for number in range(400):
            assert MsgpackCodec().decode_response(memoryview(await client.frame())).correlation_id == number
        assert handled == 400 and max(at_turns) <= MAX_FRAMES_PER_TURN
        client.transport.abort()
        await server.close()

    run(body)


def test_answers_may_overtake_each_other(run: Run) -> None:
    async def body(world: World) -> None:
        parked = Parked()
        server = await serve(world, {ApiKey.FETCH: parked, ApiKey.PRODUCE: count_up()})
        connection = await connect(world, server)
        slow = connection.send(fetch_request(), timeout_ms=9000)
        quick = await connection.call(produce_request(), timeout_ms=9000)
        assert quick == produce_response(0) and not slow.done()
        parked.calls[0][2](fetch_response(b"late"))
        assert await slow == fetch_response(b"late")
        await connection.close()
        await server.close()

    run(body)


def test_acks_0_gets_no_answer_and_keeps_its_place(run: Run) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: count_up()})
        connection = await connect(world, server)
        for _ in range(3):
            connection.send_oneway(produce_request(acks=0))
        assert await connection.call(produce_request(), timeout_ms=9000) == produce_response(3)
        await connection.close()
        await server.close()

    run(body)


def test_a_handler_that_hangs_up_ends_the_connection_after_the_other_answers(run: Run) -> None:
    parked = Parked()

    def produce(request: Any, context: RequestContext, reply: Any) -> None:
        if request.acks == 0:
            context.hang_up()
        else:
            parked(request, context, reply)

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: produce})
        connection = await connect(world, server)
        answer = connection.send(produce_request(), timeout_ms=9000)
        connection.send_oneway(produce_request(acks=0))
        late = connection.send(produce_request(), timeout_ms=9000)
        await parked.until(lambda: len(parked.calls) == 1)
        _, _, reply = parked.calls[0]
        reply(produce_response(0))
        assert await answer == produce_response(0)
        with pytest.raises(NetworkError):
            await late
        await connection.close()
        await server.close()

    run(body)


def test_errors_become_answers_and_the_connection_lives(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Any, context: RequestContext, reply: Any) -> None:
        raise NotLeaderOrFollowerError("the leader is broker 2")

    def break_down(request: Any, context: RequestContext, reply: Any) -> None:
        raise ZeroDivisionError("secret detail")

    async def fail_later(request: Any, context: RequestContext) -> Response:
        await asyncio.sleep(0)
        raise NotLeaderOrFollowerError("later")

    async def break_later(request: Any, context: RequestContext) -> Response:
        raise KeyError("secret detail")

    async def body(world: World) -> None:
        server = await serve(
            world,
            {
                ApiKey.PRODUCE: fail,
                ApiKey.FETCH: break_down,
                ApiKey.DESCRIBE_CLUSTER: answering(fail_later),
                ApiKey.LIST_GROUPS: answering(break_later),
            },
        )
        connection = await connect(world, server)
        for request in (produce_request(), DescribeClusterRequest()):
            with pytest.raises(NotLeaderOrFollowerError):
                await connection.call(request, timeout_ms=9000)
        for request in (fetch_request(), ListGroupsRequest()):
            with pytest.raises(BarnabasError) as caught:
                await connection.call(request, timeout_ms=9000)
            assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert "secret" not in str(caught.value)
        await connection.close()
        await server.close()
        assert sum(server.measures.errors.values()) == 4

    run(body)
    bugs = [record for record in caplog.records if record.exc_info]
    assert len(bugs) == 2


def test_a_response_that_cannot_be_encoded_is_an_error_for_the_client(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(request: Any, context: RequestContext, reply: Any) -> None:
        reply(produce_response(2**80))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: wrong})
        connection = await connect(world, server)
        with pytest.raises(BarnabasError, match="encoded"):
            await connection.call(produce_request(), timeout_ms=9000)
        await connection.close()
        await server.close()

    run(body)


def test_a_second_reply_is_not_sent(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def twice(request: Any, context: RequestContext, reply: Any) -> None:
        reply(produce_response(1))
        reply(produce_response(2))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: twice})
        connection = await connect(world, server)
        for _ in range(2):
            assert await connection.call(produce_request(), timeout_ms=9000) == produce_response(1)
        await connection.close()
        await server.close()

    run(body)
    assert "second reply" in caplog.text


def test_a_client_that_goes_in_a_long_poll_leaves_nothing_behind(run: Run) -> None:
    cancelled = []

    async def wait_for_ever(request: Any, context: RequestContext) -> Response:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(context.is_connected)
            raise
        return EmptyResponse()

    async def body(world: World) -> None:
        parked = Parked()
        poll = answering(wait_for_ever)
        server = await serve(world, {ApiKey.FETCH: parked, ApiKey.LIST_GROUPS: poll})
        connection = await connect(world, server)
        poller = connection.send(ListGroupsRequest(), timeout_ms=60_000)
        fetcher = connection.send(fetch_request(), timeout_ms=60_000)
        await parked.until(lambda: bool(parked.calls))
        _, context, reply = parked.calls[0]
        assert context.is_connected and context.client_id == "tester" and context.listener_name == "PLAINTEXT"
        connection.abort()
        await parked.until(lambda: parked.disconnected == 1)
        assert not context.is_connected
        reply(fetch_response(b"nobody listens"))
        for future in (poller, fetcher):
            with pytest.raises(NetworkError):
                await future
        await asyncio.sleep(0)
        assert cancelled == [False] and server.connection_count == 0
        late: list[str] = []
        context.on_disconnect(lambda: late.append("at once"))
        assert late == ["at once"]
        await server.close()
        assert not poll.tasks  # type: ignore[attr-defined]

    run(body)


def test_a_replied_request_is_not_told_of_the_disconnect(run: Run) -> None:
    async def body(world: World) -> None:
        parked = Parked()
        server = await serve(world, {ApiKey.PRODUCE: parked})
        connection = await connect(world, server)
        future = connection.send(produce_request(), timeout_ms=9000)
        await parked.until(lambda: bool(parked.calls))
        parked.calls[0][2](produce_response(1))
        await future
        await connection.close()
        await server.close()
        assert parked.disconnected == 0

    run(body)


def test_a_small_limit_holds_with_many_frames_in_the_buffer(run: Run) -> None:
    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: count_up()}, limits=ServerLimits(max_requests_in_flight=1))
        client = await raw_client(world, server.address)
        client.transport.write(b"".join(request_bytes(number, produce_request()) for number in range(20_000)))
        for number in range(20_000):
            assert offset_of(await client.frame()) == (number, number)
        client.transport.close()
        await server.close()

    run(body)


def test_too_many_requests_in_flight_are_not_read(run: Run) -> None:
    async def body(world: World) -> None:
        parked = Parked()
        limits = ServerLimits(max_requests_in_flight=10)
        server = await serve(world, {ApiKey.PRODUCE: parked}, limits=limits)
        client = await raw_client(world, server.address)
        client.transport.write(b"".join(request_bytes(number, produce_request()) for number in range(1, 101)))
        for number in range(1, 101):
            await parked.until(lambda: bool(parked.calls))
            assert len(parked.calls) <= 10
            parked.calls.pop(0)[2](produce_response(number))
            assert offset_of(await client.frame()) == (number, number)
        client.transport.close()
        await server.close()

    run(body)


def test_a_client_that_does_not_read_its_answers_is_not_read(run: Run) -> None:
    answered = 0
    by_client: dict[str, int] = {}
    data = b"x" * 100_000

    def fetch(request: FetchRequest, context: RequestContext, reply: Any) -> None:
        nonlocal answered
        answered += 1
        by_client[context.client_id] = by_client.get(context.client_id, 0) + 1
        reply(fetch_response(data))

    async def body(world: World) -> None:
        limits = ServerLimits(max_buffered_bytes=1 << 20)
        server = await serve(world, {ApiKey.FETCH: fetch}, limits=limits)
        client = await raw_client(world, server.address)
        client.transport.pause_reading()
        client.transport.write(b"".join(request_bytes(number, fetch_request()) for number in range(1, 501)))
        probe = await connect(world, server)
        seen = -1
        while answered != seen:  # Until it stands still while others are served.
            seen = answered
            for _ in range(50):
                await probe.call(fetch_request(), timeout_ms=9000)
            seen += 50
        assert 0 < by_client["raw"] < 400
        [connection] = [it for it in server._connections if it.client_id == "raw"]
        assert connection.replies.outbox.queued_bytes <= limits.max_buffered_bytes + 200_000
        client.transport.resume_reading()
        for number in range(1, 501):
            frame = await client.frame()
            assert MsgpackCodec().decode_response(memoryview(frame)).correlation_id == number
            assert frame.endswith(data)
        client.transport.close()
        await probe.close()
        await server.close()

    run(body)


def test_close_lets_requests_in_flight_finish(run: Run) -> None:
    async def body(world: World) -> None:
        parked = Parked()
        server = await serve(world, {ApiKey.FETCH: parked})
        connection = await connect(world, server)
        idle = await connect(world, server)
        future = connection.send(fetch_request(), timeout_ms=9000)
        await parked.until(lambda: bool(parked.calls))
        closing = asyncio.get_running_loop().create_task(server.close())
        await idle.closed
        assert not closing.done()
        with pytest.raises(NetworkError):
            await connect(world, server)
        parked.calls[0][2](fetch_response(b"x" * 3_000_000))
        assert await future == fetch_response(b"x" * 3_000_000)
        await closing
        await connection.closed

    run(body)


def test_close_ends_after_its_bound(run: Run) -> None:
    async def never(request: Any, context: RequestContext) -> Response:
        await asyncio.get_running_loop().create_future()
        return EmptyResponse()

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.LIST_GROUPS: answering(never, survives_disconnect=True)})
        connection = await connect(world, server)
        future = connection.send(ListGroupsRequest(), timeout_ms=60_000)
        with pytest.raises(RequestTimedOutError):
            await connection.call(ListGroupsRequest(), timeout_ms=20)
        await server.close(drain_timeout_ms=20)
        with pytest.raises(NetworkError):
            await future

    run(body)


def test_large_requests_and_answers_pass_both_ways(run: Run) -> None:
    seen: list[bytes] = []

    def produce(request: ProduceRequest, context: RequestContext, reply: Any) -> None:
        seen.append(bytes(request.partitions[0].records))
        reply(produce_response(len(seen)))

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: produce})
        connection = await connect(world, server)
        batches = [os.urandom(size) for size in (10, 5_000_000, 70_000, 0, 2_000_000, 300_000)] * 2
        futures = [connection.send(produce_request(batch), timeout_ms=20_000) for batch in batches]
        for number, future in enumerate(futures, 1):
            assert await future == produce_response(number)
        assert seen == batches
        await connection.close()
        await server.close()

    seen.clear()
    run(body)


def test_an_error_response_passes_through_send() -> None:
    async def body(world: World) -> None:
        server = await serve(world, {})
        connection = await connect(world, server)
        response = await connection.send(ListGroupsRequest(), timeout_ms=1000)
        assert isinstance(response, ErrorResponse) and response.error == ErrorCode.UNSUPPORTED_VERSION
        assert ListGroupsResponse(groups=()) != response
        await connection.close()
        await server.close()

    run_in_simulation(body)
