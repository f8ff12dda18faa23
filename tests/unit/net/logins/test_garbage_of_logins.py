"""Connections whose logins failed leave nothing to the cyclic collector: in a storm of them, each collection stopped a broker for
tens of milliseconds."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from unit.net.sasl.sasl_world import PASSWORD
from unit.net.test_server_logins import Listener, authenticate, handshake
from unit.net.wire_world import World, raw_client, run_real

from barnabas.net.server.connection import ServerConnection
from barnabas.net.server.logins import password_checks
from barnabas.net.server.replies import Call

CLIENTS = 5
RIGHT = handshake("PLAIN") + authenticate(f"\0alice\0{PASSWORD}".encode())
WRONG = handshake("PLAIN") + authenticate(b"\0alice\0wrong")
NONE = handshake("SCRAM-SHA-256") + authenticate(b"n,,n=alice")  # no message of SCRAM


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[Any]:
    return [found for found in gc.get_objects() if isinstance(found, ServerConnection | Call)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


async def storm(world: World, message: bytes, *, waits: bool, delay_ms: int = 1) -> None:
    """`waits`: the clients wait for their answers, and the server closes; else they go when it works on them."""
    listener = Listener(delay_ms=delay_ms)
    server = await listener.start(world)
    clients = [await raw_client(world, server.address, greet=False) for _ in range(CLIENTS)]
    for client in clients:
        client.transport.write(message)
    counted = listener.authenticator
    await until(lambda: waits or counted.failed_logins + counted.logins == CLIENTS)
    for client in clients:
        if not waits:
            client.transport.abort()
        await client.closed
    await until(lambda: not server.connection_count)
    await server.close(0)


@pytest.mark.parametrize("message", [WRONG, NONE])
def test_an_answered_login_is_gone(message: bytes) -> None:
    run_real(lambda world: storm(world, message, waits=True))
    assert not left()


def test_a_client_that_does_not_wait_for_its_answer_is_gone() -> None:
    run_real(lambda world: storm(world, WRONG, waits=False, delay_ms=60_000))
    assert not left()


def test_a_client_that_had_logged_in_is_gone() -> None:
    run_real(lambda world: storm(world, RIGHT, waits=False))
    assert not left()


def test_a_login_that_gave_way_to_others_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_checks, "MAX_WAITING", 0)
    run_real(lambda world: storm(world, WRONG, waits=True))
    assert not left()
