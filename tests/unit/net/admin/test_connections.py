"""The admin API's pool of connections: who makes room for whom, and for how long a client may say nothing."""

import asyncio
import socket

import pytest
from unit.net.admin.fake_broker import FakeBroker

from barnabas.net.admin.app import start_admin
from barnabas.net.admin.frame.connections import BUSY_S, FIRST_REQUEST_S, IDLE_S, AdminConnection, AdminConnections

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Pool:
    """A pool on a clock of its own."""

    def __init__(self, size: int) -> None:
        self.now_s = 0.0
        self.connections = AdminConnections(lambda: self.now_s, size)

    def open(self) -> tuple[AdminConnection, FakeTransport]:
        self.now_s += 0.001
        connection, transport = self.connections.accept(asyncio.Protocol()), FakeTransport()
        connection.connection_made(transport)
        return connection, transport


def test_the_silent_make_room_before_those_that_speak_and_these_before_those_that_were_served() -> None:
    pool = Pool(3)
    _, served = pool.open()
    with pool.connections.serving(served):
        pass
    speaks, speaking = pool.open()
    speaks.data_received(b"GET /")
    _, silent = pool.open()
    assert len(pool.connections) == 3
    for leaves, others in ((silent, (served, speaking)), (speaking, (served,))):
        newcomer, _ = pool.open()
        newcomer.data_received(b"G")
        assert leaves.is_aborted and not any(one.is_aborted for one in others)
        assert len(pool.connections) == 3


def test_requests_that_take_long_make_room_the_longest_first() -> None:
    pool = Pool(2)
    _, first = pool.open()
    _, second = pool.open()
    with pool.connections.serving(first):
        pool.now_s += 1
        with pool.connections.serving(second):
            pool.now_s += BUSY_S - 1.5
            _, refused = pool.open()
            assert refused.is_aborted
            pool.now_s += 1
            _, welcome = pool.open()
            assert first.is_aborted and not second.is_aborted and not welcome.is_aborted


def test_nothing_in_progress_makes_room() -> None:
    pool = Pool(1)
    _, working = pool.open()
    with pool.connections.serving(working):
        _, refused = pool.open()
        assert refused.is_aborted and not working.is_aborted
    _, welcome = pool.open()
    assert working.is_aborted and not welcome.is_aborted


@pytest.mark.parametrize(("asked", "limit_s"), [(False, FIRST_REQUEST_S), (True, IDLE_S)])
def test_who_ends_no_request_in_time_is_closed_whatever_it_sends(asked: bool, limit_s: float) -> None:
    pool = Pool(2)
    connection, transport = pool.open()
    if asked:
        with pool.connections.serving(transport):
            pass
    pool.now_s += limit_s - 0.1
    connection.data_received(b"X")
    pool.connections.sweep()
    assert not transport.is_aborted
    pool.now_s += 0.2
    connection.data_received(b"X")
    pool.connections.sweep()
    assert transport.is_aborted


def test_a_connection_that_has_gone_leaves_its_place() -> None:
    pool = Pool(1)
    connection, _ = pool.open()
    connection.connection_lost(None)
    assert len(pool.connections) == 0
    _, next_one = pool.open()
    assert not next_one.is_aborted


async def test_an_operator_is_served_beside_a_silent_crowd() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = await start_admin(FakeBroker(), listening, max_connections=4)
    crowd = [await asyncio.open_connection(*server.address) for _ in range(20)]
    try:
        reader, writer = await asyncio.open_connection(*server.address)
        for _ in range(2):  # on a connection that is kept, too
            writer.write(HEALTH)
            assert (await asyncio.wait_for(reader.readuntil(b"}"), 10)).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(10):
            for made_room, _ in crowd[: 20 - 4]:  # the oldest; at most four are left
                assert await made_room.read() == b""
        writer.close()
    finally:
        for _, one in crowd:
            one.transport.abort()
        await server.close()
