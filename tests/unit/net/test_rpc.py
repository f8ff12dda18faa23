"""The client's side: deadlines, lost connections, room, the pool. Mostly in simulated time."""

import asyncio
import gc
import heapq
import itertools
from random import Random
from typing import Any

import pytest
from unit.net.wire_world import World, produce_request, produce_response, run_in_simulation, run_real

from barnabas.log.vocabulary.errors import BarnabasError, BufferExhaustedError, NetworkError, RequestTimedOutError
from barnabas.net.base.limits import ClientLimits
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.server import Server
from barnabas.net.wire.network import Network
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.msgpack import MsgpackCodec, ServerHello, write_hello
from barnabas.net.wire.protocol.responses import ProduceResponse
from barnabas.net.wire.rpc import MOST_CLOSE_WAITS, RpcConnection, RpcPool


class Replies:
    """A produce handler that answers when it is told to, or at once."""

    def __init__(self, *, parks: bool = False) -> None:
        self.parks = parks
        self.parked: list[Any] = []

    def __call__(self, request: Any, context: Any, reply: Any) -> None:
        if self.parks:
            self.parked.append(reply)
        else:
            reply(produce_response(1))


async def serve(world: World, handler: Any, port: int = 0) -> Server:
    server = Server(world.server, Dispatcher({ApiKey.PRODUCE: handler}))
    await server.start(world.host, port)
    return server


async def open_connection(world: World, server: Server, **options: Any) -> RpcConnection:
    return await RpcConnection.open(world.client, *server.address, client_id="c", **options)


def test_a_late_answer_is_a_timeout_and_then_ignored() -> None:
    async def body(world: World) -> None:
        replies = Replies(parks=True)
        server = await serve(world, replies)
        connection = await open_connection(world, server)
        loop = asyncio.get_running_loop()
        started = loop.time()
        long = connection.send(produce_request(), timeout_ms=5000)
        with pytest.raises(RequestTimedOutError, match="ProduceRequest"):
            await connection.call(produce_request(), timeout_ms=300)
        assert 0.3 <= loop.time() - started < 0.31
        replies.parked[1](produce_response(2))
        await asyncio.sleep(0.1)
        replies.parked[0](produce_response(3))
        assert await long == produce_response(3)
        replies.parks = False
        assert await connection.call(produce_request(), timeout_ms=300) == produce_response(1)
        await connection.close()
        await server.close()

    run_in_simulation(body)


def test_deadlines_fire_in_their_order_whatever_the_order_of_sending() -> None:
    async def body(world: World) -> None:
        server = await serve(world, Replies(parks=True))
        connection = await open_connection(world, server)
        loop = asyncio.get_running_loop()
        started = loop.time()
        ended: dict[int, float] = {}
        for timeout_ms in (500, 100, 300, 200, 400):
            future = connection.send(produce_request(), timeout_ms=timeout_ms)
            future.add_done_callback(lambda done, key=timeout_ms: ended.setdefault(key, loop.time() - started))
            future.add_done_callback(lambda done: done.exception())
        await asyncio.sleep(1)
        assert {key: round(at * 1000) for key, at in ended.items()} == {key: key for key in (100, 200, 300, 400, 500)}
        assert connection.in_flight == 0 and connection.is_open
        await connection.close()
        await server.close()

    run_in_simulation(body)


def test_deadlines_of_answered_requests_do_not_pile_up() -> None:
    async def body(world: World) -> None:
        server = await serve(world, Replies())
        connection = await open_connection(world, server)
        for _ in range(50):
            await asyncio.gather(*[connection.send(produce_request(), timeout_ms=3_600_000) for _ in range(200)])
        assert len(connection._pending.deadlines) < 5000
        assert heapq.nsmallest(1, connection._pending.deadlines)
        await connection.close()
        await server.close()

    run_in_simulation(body)


def test_a_lost_connection_fails_all_requests_at_once() -> None:
    async def body(world: World) -> None:
        assert world.simulated is not None
        server = await serve(world, Replies(parks=True))
        connection = await open_connection(world, server)
        futures = [connection.send(produce_request(), timeout_ms=60_000) for _ in range(20)]
        await asyncio.sleep(0.1)
        world.simulated.kill("broker")
        await connection.closed
        assert asyncio.get_running_loop().time() < 1
        for future in futures:
            with pytest.raises(NetworkError, match="lost"):
                await future
        with pytest.raises(NetworkError):
            connection.send(produce_request(), timeout_ms=10)
        with pytest.raises(NetworkError):
            connection.send_oneway(produce_request())
        assert not connection.is_open

    run_in_simulation(body)


def test_a_peer_that_parks_a_request_gives_signs_of_life_and_is_waited_for() -> None:
    async def body(world: World) -> None:
        replies = Replies(parks=True)
        server = await serve(world, replies)
        connection = await open_connection(world, server)
        future = connection.send(produce_request(), timeout_ms=60_000)
        await asyncio.sleep(20)
        assert not future.done() and connection.in_flight == 1
        replies.parked[0](produce_response(9))
        assert await future == produce_response(9)
        await asyncio.sleep(20)  # nothing is due, so nothing is asked
        assert connection.is_open and connection._silence.timer is None
        await connection.close()
        await server.close()

    run_in_simulation(body)


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_peer_without_a_sign_of_life_is_given_up_within_seconds(is_busy: bool) -> None:
    """As when it is frozen, or behind a cut wire: nothing is reset, and requests may have half a minute to wait."""

    async def body(world: World) -> None:
        loop = asyncio.get_running_loop()
        greeted = asyncio.Event()

        class Silent(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.WriteTransport)
                transport.write(write_hello(ServerHello()))
                greeted.set()

        listener = await world.server.listen(Silent, world.host, 0)
        host, port = listener.address
        connection = await RpcConnection.open(world.client, host, port, client_id="c")
        await greeted.wait()
        started = loop.time()
        future = connection.send(produce_request(), timeout_ms=30_000)
        for _ in range(20 if is_busy else 0):
            await asyncio.sleep(0.1)
            connection.send(produce_request(), timeout_ms=30_000).add_done_callback(lambda done: done.exception())
        with pytest.raises(NetworkError, match="sign of life"):
            await future
        assert 2.9 < loop.time() - started < 3.2
        await connection.closed

    run_in_simulation(body)


def test_the_number_of_requests_in_flight_is_bounded() -> None:
    async def body(world: World) -> None:
        replies = Replies(parks=True)
        server = await serve(world, replies)
        connection = await open_connection(world, server, limits=ClientLimits(max_requests_in_flight=3))
        futures = [connection.send(produce_request(), timeout_ms=60_000) for _ in range(3)]
        assert not connection.has_room
        with pytest.raises(BufferExhaustedError):
            connection.send(produce_request(), timeout_ms=60_000)
        with pytest.raises(RequestTimedOutError):
            await connection.call(produce_request(), timeout_ms=100)
        waiting = asyncio.get_running_loop().create_task(connection.call(produce_request(), timeout_ms=60_000))
        await asyncio.sleep(0.1)
        replies.parks = False
        replies.parked[0](produce_response(9))
        assert await waiting == produce_response(1)
        for reply in replies.parked[1:]:
            reply(produce_response(9))
        assert await asyncio.gather(*futures) == [produce_response(9)] * 3
        await connection.close()
        await server.close()

    run_in_simulation(body)


def test_a_cancelled_request_disturbs_nobody() -> None:
    async def body(world: World) -> None:
        replies = Replies(parks=True)
        server = await serve(world, replies)
        connection = await open_connection(world, server)
        future = connection.send(produce_request(), timeout_ms=1000)
        other = connection.send(produce_request(), timeout_ms=1000)
        future.cancel()
        await asyncio.sleep(0.1)
        for reply in replies.parked:
            reply(produce_response(5))
        assert await other == produce_response(5)
        await connection.close()
        await server.close()

    run_in_simulation(body)


def test_refused_and_silent_addresses_are_network_errors() -> None:
    async def body(world: World) -> None:
        with pytest.raises(NetworkError, match="cannot connect"):
            await RpcConnection.open(world.client, world.host, 1, client_id="c")
        if world.simulated is not None:
            world.simulated.power_off("broker")
            with pytest.raises(NetworkError, match="did not answer within 500 ms"):
                await RpcConnection.open(world.client, world.host, 1, client_id="c", connect_timeout_ms=500)

    run_real(body)
    run_in_simulation(body)


class Fake(asyncio.Protocol):
    """A server that says what it is given, whatever it is asked."""

    says = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.says)


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x02ab",
        b"\xff\xff\xff\xff",
        write_hello(ServerHello()) + b"\xff\xff\xff\xff",
        write_hello(ServerHello()) + b"\x00\x00\x00\x02ab",
        write_hello(ServerHello())
        + b"".join(bytes(chunk) for chunk in MsgpackCodec().encode_request(9, produce_request())),  # type: ignore[arg-type]
    ],
)
def test_a_server_that_talks_nonsense_is_a_network_error(says: bytes) -> None:
    async def body(world: World) -> None:
        class Nonsense(Fake):
            pass

        Nonsense.says = says
        listener = await world.server.listen(Nonsense, world.host, 0)
        with pytest.raises(NetworkError):
            connection = await RpcConnection.open(world.client, *listener.address, client_id="c")
            await connection.call(produce_request(), timeout_ms=1000)
        await listener.close()

    run_in_simulation(body)


@pytest.mark.parametrize(
    ("wrong_partition", "told"), [(object(), "cannot be encoded"), ("no partition", "cannot be decoded")]
)
def test_an_answer_of_the_wrong_shape_fails_its_request(
    caplog: pytest.LogCaptureFixture, wrong_partition: Any, told: str
) -> None:
    async def body(world: World) -> None:
        def wrong(request: Any, context: Any, reply: Any) -> None:
            reply(ProduceResponse(partitions=(wrong_partition,)))

        server = await serve(world, wrong)
        connection = await open_connection(world, server)
        with pytest.raises(BarnabasError, match=told):
            await connection.call(produce_request(), timeout_ms=1000)
        await connection.close()
        await server.close()

    run_in_simulation(body)


def pool_of(world: World, **options: Any) -> RpcPool:
    return RpcPool(world.client, client_id="pool", random=Random(3), **options)


def test_the_pool_shares_one_connection() -> None:
    async def body(world: World) -> None:
        server = await serve(world, Replies())
        pool = pool_of(world)
        assert pool.peek(*server.address) is None
        connections = await asyncio.gather(*[pool.get(*server.address) for _ in range(10)])
        assert len(set(connections)) == 1 and server.connection_count == 1
        assert pool.peek(*server.address) is connections[0]
        await pool.close()
        with pytest.raises(NetworkError):
            await pool.get(*server.address)
        await server.close()

    run_in_simulation(body)
    run_real(body)


def test_the_pool_backs_off_from_a_dead_address_and_comes_back() -> None:
    async def body(world: World) -> None:
        pool = pool_of(world)
        loop = asyncio.get_running_loop()
        attempts = []
        for _ in range(9):
            with pytest.raises(NetworkError):
                await pool.get(world.host, 7)
            attempts.append(loop.time())
        waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
        assert 0.03 < waits[0] < 0.08 and 0.7 < waits[-1] < 1.3 and max(waits) < 1.3
        server = await serve(world, Replies(), port=7)
        connection = await pool.get(world.host, 7)
        assert await connection.call(produce_request(), timeout_ms=1000) == produce_response(1)
        connection.abort()
        await connection.closed
        again = await pool.get(world.host, 7)
        assert again is not connection and again.is_open
        await pool.close()
        await server.close()

    run_in_simulation(body)


def test_a_caller_who_gives_up_does_not_end_the_others_attempt() -> None:
    async def body(world: World) -> None:
        server = await serve(world, Replies())
        pool = pool_of(world)
        impatient = asyncio.get_running_loop().create_task(pool.get(*server.address))
        patient = asyncio.get_running_loop().create_task(pool.get(*server.address))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).is_open
        await pool.close()
        await server.close()

    run_in_simulation(body)


def test_closing_the_pool_ends_attempts() -> None:
    async def body(world: World) -> None:
        assert world.simulated is not None
        world.simulated.power_off("broker")
        pool = pool_of(world)
        task = asyncio.get_running_loop().create_task(pool.get(world.host, 9))
        await asyncio.sleep(0.1)
        await pool.close()
        with pytest.raises(NetworkError):
            await task

    run_in_simulation(body)


class _SlowlyTaken:
    """What waits in an outbox whose peer takes some of it between two looks."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    @property
    def memory_bytes(self) -> int:
        return self.sizes.pop(0)

    def close_when_sent(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("sizes", "looks_left"), [([9, 8, 7, 7, 5], 1), (list(range(30, 0, -1)), 30 - MOST_CLOSE_WAITS - 1)]
)
def test_a_close_waits_while_the_peer_takes_what_was_sent(sizes: list[int], looks_left: int) -> None:
    async def body(world: World) -> None:
        server = await serve(world, Replies())
        pool = pool_of(world, limits=ClientLimits(close_ms=1))
        connection = await pool.get(*server.address)
        connection._outbox = _SlowlyTaken(sizes)
        await connection.close()
        assert len(sizes) == looks_left
        await server.close()

    run_real(body)


@pytest.mark.parametrize("size_bytes", [10_000, 200_000])
def test_what_was_sent_before_a_close_arrives_though_the_socket_was_full(size_bytes: int) -> None:
    """Of a producer with acks=0, for example: nothing tells it what has arrived."""

    async def body(world: World) -> None:
        sent, taken, all_taken = 0, 0, asyncio.Event()

        def take(request: Any, context: Any, reply: Any) -> None:
            nonlocal taken
            taken += 1
            if taken == sent:
                all_taken.set()

        server = await serve(world, take)
        connection = await open_connection(world, server)
        (peer,) = server._connections
        peer._transport.pause_reading()
        while connection._outbox.queued_bytes < 400_000:
            connection.send_oneway(produce_request(records=bytes(size_bytes)))
            sent += 1
            await asyncio.sleep(0)
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0)
        with pytest.raises(NetworkError, match="is closed"):
            connection.send_oneway(produce_request())
        peer._transport.resume_reading()
        await closing
        async with asyncio.timeout(10):
            await all_taken.wait()
        await server.close()

    run_real(body)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_close_does_not_wait_for_a_peer_that_reads_nothing(is_cancelled: bool) -> None:
    """Nothing is due from it, so that no watch would end the connection."""

    async def body(world: World) -> None:
        server = await serve(world, Replies())
        pool = pool_of(world, limits=ClientLimits(close_ms=50))
        connection = await pool.get(*server.address)
        for peer in server._connections:
            peer._transport.pause_reading()
        while not connection._transport.get_write_buffer_size():  # Small ones go there; large ones wait in the outbox.
            connection.send_oneway(produce_request(records=bytes(10_000)))
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        close = loop.create_task(pool.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if is_cancelled:
            close.cancel()
        await asyncio.wait([close], timeout=5)
        close.cancel()
        assert loop.time() - begin < 2
        assert close.cancelled() == is_cancelled
        await asyncio.wait([connection.closed], timeout=1)
        assert connection.closed.done()
        await server.close()

    run_real(body)


def test_a_close_of_the_pool_that_is_cancelled_anywhere_closes_all_connections_and_attempts() -> None:
    """One attempt waits for its time, because the address was dead before."""

    async def is_cancelled(pool: RpcPool, steps: int) -> bool:
        close = asyncio.get_running_loop().create_task(pool.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        close.cancel()
        await asyncio.wait([close])
        return close.cancelled()

    async def body(world: World) -> None:
        servers = [await serve(world, Replies(), port=port) for port in (7, 8)]
        for steps in range(1, 100):
            pool = pool_of(world)
            connections = [await pool.get(*server.address) for server in servers]
            with pytest.raises(NetworkError):
                await pool.get(world.host, 9)
            waiting = asyncio.get_running_loop().create_task(pool.get(world.host, 9))
            await asyncio.sleep(0)
            was_cancelled = await is_cancelled(pool, steps)
            assert not any(connection.is_open for connection in connections)
            with pytest.raises(NetworkError, match="the connection pool was closed"):
                await waiting
            if not was_cancelled:
                break
        assert 2 < steps < 99
        for server in servers:
            await server.close()

    run_in_simulation(body)


def test_an_open_that_is_cancelled_before_it_greets_leaves_no_error_behind() -> None:
    """Otherwise asyncio writes "Future exception was never retrieved": `topic consume -o end` did."""

    class Slow(Network):
        """The connection is there, and its caller does not have it yet."""

        def __init__(self, network: Network) -> None:
            self._network = network
            self.connected = asyncio.Event()

        async def connect(self, *args: Any, **options: Any) -> Any:
            self.protocol = await self._network.connect(*args, **options)
            self.connected.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.protocol.abort()

    told: list[Any] = []

    async def body(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        server = await serve(world, Replies())
        network = Slow(world.client)
        task = asyncio.create_task(RpcConnection.open(network, *server.address, client_id="c"))
        await network.connected.wait()
        task.cancel()
        await asyncio.wait([task])
        await network.protocol.closed
        await server.close()

    run_in_simulation(body)
    gc.collect()  # now nothing has the connection any more
    assert told == []


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_an_open_that_is_cancelled_as_the_hello_arrives_leaves_no_connection(cancelled_first: bool) -> None:
    async def body(world: World) -> None:
        server = await serve(world, Replies())
        greeted: list[RpcConnection] = []

        class Cancelled(RpcConnection):
            def _take_hello(self, frame: memoryview) -> None:
                if cancelled_first:
                    task.cancel()
                super()._take_hello(frame)
                greeted.append(self)
                task.cancel()

        task = asyncio.create_task(Cancelled.open(world.client, *server.address, client_id="c"))
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait([greeted[0].closed], timeout=5)
        assert greeted[0].closed.done()
        await server.close()

    run_in_simulation(body)
