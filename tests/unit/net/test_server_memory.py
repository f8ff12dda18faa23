"""A server whose memory budget is used up: who waits, who gives way, and that everything is given back."""

import asyncio
from typing import Any

from unit.net.wire_world import (
    World,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_in_simulation,
    serve,
)

from barnabas.net.base.limits import (
    LONG_STALL_MS,
    MIN_PROGRESS_BYTES,
    SHORT_FRAME_MS,
    SHORT_STALL_MS,
    SWEEP_INTERVAL_MS,
)
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.wire.protocol.api_keys import ApiKey

LIMIT_BYTES = 2 << 20
LARGE = bytes(1_500_000)


def answer(request: Any, context: Any, reply: Any) -> None:
    reply(produce_response(0))


def test_a_request_that_does_not_go_on_gives_way() -> None:
    async def body(world: World) -> None:
        memory = MemoryBudget(LIMIT_BYTES)
        server = await serve(world, {ApiKey.PRODUCE: answer}, memory=memory)
        stalled, honest = await raw_client(world, server.address), await raw_client(world, server.address)
        stalled.transport.write(request_bytes(1, produce_request(LARGE))[:1_400_000])
        await asyncio.sleep(1)
        honest.transport.write(request_bytes(1, produce_request(LARGE)))
        began = asyncio.get_running_loop().time()
        await honest.frame()
        assert asyncio.get_running_loop().time() - began < (SHORT_STALL_MS + 2 * SWEEP_INTERVAL_MS) / 1000
        await stalled.closed
        assert server.metrics.connections_expired == 1
        honest.transport.close()
        await honest.closed
        await server.close()
        assert memory.used_bytes == 0

    run_in_simulation(body)


def test_a_busy_producer_does_not_give_way_however_long_it_has_been_busy() -> None:
    """It always has the beginning of a request in its buffer, and always of another one."""

    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: answer}, memory=MemoryBudget(3 << 20))
        busy, greedy = await raw_client(world, server.address), await raw_client(world, server.address)
        request = request_bytes(1, produce_request(LARGE))
        half = len(request) // 2
        busy.transport.write(request[:half])
        for number in range(SHORT_FRAME_MS // 500 + 20):
            await asyncio.sleep(0.5)
            busy.transport.write(request[half:] + request[:half])
            if number == SHORT_FRAME_MS // 500 + 5:
                greedy.transport.write(request_bytes(1, produce_request(bytes(2_900_000))))
        assert not busy.closed.done()
        for client in (busy, greedy):
            client.transport.close()
        await server.close()

    run_in_simulation(body)


def test_where_all_wait_for_each_other_one_gives_way() -> None:
    async def body(world: World) -> None:
        memory = MemoryBudget(3 << 20)
        server = await serve(world, {ApiKey.PRODUCE: answer}, memory=memory)
        clients = [await raw_client(world, server.address) for _ in range(3)]
        for client in clients:  # Each needs the whole of it, and gets its first part.
            client.transport.write(request_bytes(1, produce_request(bytes(2_900_000))))
        await clients[0].frame()
        done = [client for client in clients[1:] if not client.closed.done()]
        for client in done:
            await client.frame()
        assert 1 <= len(done) <= 2
        for client in clients:
            client.transport.close()
        await server.close()
        assert memory.used_bytes == 0

    run_in_simulation(body)


def test_an_unfinished_request_is_not_kept_for_ever() -> None:
    async def body(world: World) -> None:
        server = await serve(world, {ApiKey.PRODUCE: answer})
        stalled, idle = await raw_client(world, server.address), await raw_client(world, server.address)
        stalled.transport.write(request_bytes(1, produce_request(LARGE))[:1_000_000])
        began = asyncio.get_running_loop().time()
        await stalled.closed
        assert LONG_STALL_MS <= (asyncio.get_running_loop().time() - began) * 1000 < LONG_STALL_MS + 5_000
        assert not idle.closed.done(), "it holds nothing"
        assert server.memory.used_bytes == 0
        idle.transport.close()
        await server.close()

    run_in_simulation(body)


def test_answers_that_are_not_read_count() -> None:
    async def body(world: World) -> None:
        def large(request: Any, context: Any, reply: Any) -> None:
            reply(produce_response(0, topic="t" * 500_000))

        server = await serve(world, {ApiKey.PRODUCE: large})
        reader = await raw_client(world, server.address)
        reader.transport.pause_reading()
        for number in range(1, 40):
            reader.transport.write(request_bytes(number, produce_request()))
        await asyncio.sleep(1)
        assert 500_000 <= server.memory.used_bytes < 20 << 20
        reader.transport.resume_reading()
        for _ in range(1, 40):
            await reader.frame()
        await asyncio.sleep(1)
        assert server.memory.used_bytes == 0
        reader.transport.close()
        await server.close()

    run_in_simulation(body)


def test_a_client_that_sends_request_after_request_is_not_taken_for_a_slow_one() -> None:
    """A part of its next request is there at any moment, for longer than one request may take."""

    async def body(world: World) -> None:
        memory = MemoryBudget(LIMIT_BYTES)
        server = await serve(world, {ApiKey.PRODUCE: answer}, memory=memory)
        busy = await raw_client(world, server.address)
        request = request_bytes(1, produce_request(bytes(800_000)))
        half = len(request) // 2
        busy.transport.write(request[:half])
        for _ in range(2 * SHORT_FRAME_MS // 1000):
            await asyncio.sleep(0.5)
            busy.transport.write(request[half:] + request[:half])
            await busy.frame()
        (connection,) = server._connections
        assert connection.held_bytes and not connection.is_slow
        busy.transport.close()
        await server.close()
        assert memory.used_bytes == 0

    run_in_simulation(body)


def test_clients_that_dribble_do_not_hold_the_memory_for_long() -> None:
    async def body(world: World) -> None:
        memory = MemoryBudget(LIMIT_BYTES)
        server = await serve(world, {ApiKey.PRODUCE: answer}, memory=memory)
        slow = [await raw_client(world, server.address) for _ in range(4)]
        honest = await raw_client(world, server.address)
        for client in slow:
            client.transport.write(request_bytes(1, produce_request(bytes(1_000_000)))[:300_000])
        await asyncio.sleep(1)
        honest.transport.write(request_bytes(1, produce_request(bytes(500_000))))
        answered, began = asyncio.ensure_future(honest.frame()), asyncio.get_running_loop().time()
        while not answered.done():
            for client in slow:
                client.transport.write(bytes(3 * MIN_PROGRESS_BYTES))
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() - began <= 6
        for client in (honest, *slow):
            client.transport.close()
        await server.close()
        assert memory.used_bytes == 0

    run_in_simulation(body)
