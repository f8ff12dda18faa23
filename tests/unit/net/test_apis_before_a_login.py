"""Every API of both protocols at a listener with logins: before a login, and behind one that fails, none reaches its handler;
after one, each does."""

import struct
from random import Random
from typing import Any, Final

import pytest
from fuzz.kafka_targets import kafka_frame
from unit.net.access.test_matrix import request_of
from unit.net.sasl.sasl_world import PASSWORD
from unit.net.test_server_logins import Listener, authenticate, handshake
from unit.net.wire_world import World, raw_client, request_bytes, run_real

from barnabas.net.server.access.guard import RULES
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import REQUEST_OF, api_name
from barnabas.net.wire.protocol.kafka.apis import SERVED
from barnabas.net.wire.protocol.user_messages import AuthenticateRequest

# What a login is made of, and how a client learns which versions there are.
LOGIN: Final = frozenset({17, 18, 36, int(ApiKey.AUTHENTICATE)})
OWN: Final = sorted(int(api) for api in REQUEST_OF if api not in LOGIN and api in set(ApiKey))
KAFKAS: Final = sorted(set(SERVED) - LOGIN)


class AnyApi:
    """A server whose handlers, but for those of logins, note what reaches them, and answer nothing."""

    def __init__(self) -> None:
        self.reached: list[int] = []

    async def start(self, world: World) -> Server:
        return await Listener().start(world, others={int(api): self._noting(int(api)) for api in RULES})

    def _noting(self, api: int) -> Any:
        def note(request: Any, context: Any, reply: Any) -> None:
            self.reached.append(api)
            context.hang_up()

        return note


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize("api", OWN, ids=api_name)
def test_own_requests(api: int) -> None:
    async def body(world: World) -> None:
        apis = AnyApi()
        server = await apis.start(world)
        raw = await raw_client(world, server.address)
        raw.transport.write(request_bytes(1, request_of(api)))
        assert b"only clients that log in" in await raw.frame()
        await raw.closed
        assert not apis.reached
        await server.close(0)

    run_real(body)


@pytest.mark.parametrize("key", KAFKAS, ids=lambda key: SERVED[key].name)
def test_requests_of_kafka(key: int) -> None:
    """Valid ones: after a login, on another connection, the same bytes reach a handler."""
    request = framed(kafka_frame(Random(key), key, SERVED[key].versions.last))

    async def body(world: World) -> None:
        apis = AnyApi()
        server = await apis.start(world)
        stranger = await raw_client(world, server.address, greet=False)
        stranger.transport.write(request)
        await stranger.closed
        assert not apis.reached and not stranger.received
        user = await raw_client(world, server.address, greet=False)
        user.transport.write(handshake("PLAIN") + authenticate(f"\0alice\0{PASSWORD}".encode()))
        await user.frame()
        await user.frame()
        user.transport.write(request)
        await user.closed
        assert len(apis.reached) == 1
        await server.close(0)

    run_real(body)


# --- behind a login that fails ----------------------------------------------------------------------------------------

WRONG: Final = {"wrong password": b"\0alice\0wrong", "unknown user": b"\0mallory\0" + PASSWORD.encode()}
each_wrong = pytest.mark.parametrize("login", WRONG.values(), ids=WRONG.keys())


@each_wrong
@pytest.mark.parametrize("api", OWN, ids=api_name)
def test_own_requests_of_a_wrong_user(api: int, login: bytes) -> None:
    """Sent behind the login, without waiting for its answer."""

    async def body(world: World) -> None:
        apis = AnyApi()
        server = await apis.start(world)
        raw = await raw_client(world, server.address)
        request = request_bytes(2, request_of(api))
        raw.transport.write(request_bytes(1, AuthenticateRequest(mechanism="PLAIN", data=login)) + request)
        raw.transport.write(request)
        await raw.closed
        assert not apis.reached
        await server.close(0)

    run_real(body)


@each_wrong
@pytest.mark.parametrize("key", KAFKAS, ids=lambda key: SERVED[key].name)
def test_requests_of_kafka_by_a_wrong_user(key: int, login: bytes) -> None:
    request = framed(kafka_frame(Random(key), key, SERVED[key].versions.last))

    async def body(world: World) -> None:
        apis = AnyApi()
        server = await apis.start(world)
        raw = await raw_client(world, server.address, greet=False)
        raw.transport.write(handshake("PLAIN") + authenticate(login) + request)
        raw.transport.write(request)
        await raw.closed
        assert not apis.reached
        await server.close(0)

    run_real(body)
