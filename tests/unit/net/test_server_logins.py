"""Listeners with logins: what is served before a login, its limits, failures, and logging in again."""

import asyncio
import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from unit.net.sasl.sasl_world import PASSWORD, SomeUsers
from unit.net.wire_world import (
    World,
    connect,
    count_up,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_real,
)

from barnabas.log.vocabulary.errors import BarnabasError, IllegalSaslStateError, NetworkError, SaslAuthenticationError
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.base.limits import MAX_LOGIN_FRAME_BYTES
from barnabas.net.base.sasl.credentials import Credentials
from barnabas.net.base.settings.server_limits import ServerLimits
from barnabas.net.handlers.kafka.versions import api_versions
from barnabas.net.handlers.security.sasl import KafkaSaslHandlers
from barnabas.net.handlers.security.users import LoginHandler
from barnabas.net.server.access.audit import AuditLog
from barnabas.net.server.dispatcher import Dispatcher, Handler, RequestContext, answering
from barnabas.net.server.logins.authenticator import Authenticator, LoginSettings
from barnabas.net.server.server import Server
from barnabas.net.wire import login
from barnabas.net.wire.network import Network
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.kafka.apis import KafkaApi
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.user_messages import AuthenticateRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import BrokerLoginNetwork, LoginNetwork

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ALICE = Principal(name="alice")


class Seen:
    """A handler that keeps who has asked."""

    def __init__(self) -> None:
        self.principals: list[Principal] = []

    def __call__(self, request: Any, context: RequestContext, reply: Any) -> None:
        self.principals.append(context.principal)
        reply(produce_response(0))


class Listener:
    """A server with logins, and what it has seen and recorded."""

    def __init__(self, *, max_session_ms: int = 0, delay_ms: int = 1, wall_ms: int = 0) -> None:
        self.seen = Seen()
        self.is_current = True
        self.audited: list[dict[str, str]] = []
        audit = AuditLog(lambda: 0, lambda line: self.audited.append(json.loads(line)))
        self.authenticator = Authenticator(
            SomeUsers({"alice": PASSWORD}),
            LoginSettings(failure_delay_ms=delay_ms, max_session_ms=max_session_ms),
            wall_ms=lambda: wall_ms,
            audit=audit,
            is_current=lambda: self.is_current,
        )

    async def start(self, world: World, others: Mapping[int, Handler] = MappingProxyType({}), **options: Any) -> Server:
        """`others`: handlers beside those of logins."""
        kafka = KafkaSaslHandlers(self.authenticator)
        handlers: dict[int, Handler] = {
            ApiKey.PRODUCE: self.seen,
            ApiKey.METADATA: count_up(),
            **others,
            ApiKey.AUTHENTICATE: answering(LoginHandler(self.authenticator)),
            KafkaApi.API_VERSIONS: api_versions(lambda: 0),
            KafkaApi.SASL_HANDSHAKE: kafka.handshake,
            KafkaApi.SASL_AUTHENTICATE: answering(kafka.authenticate),
        }
        server = Server(world.server, Dispatcher(handlers), mechanisms=MECHANISMS, kafka_codec=KafkaCodec(), **options)
        await server.start(world.host, 0)
        return server


def network(mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str = PASSWORD) -> Network:
    return LoginNetwork(Credentials(mechanism=mechanism, user=user, password=password))


async def opened(server: Server, **who: str) -> RpcConnection:
    return await RpcConnection.open(network(**who), *server.address, client_id="c")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_requests_have_the_principal_of_the_login(mechanism: str) -> None:
    async def body(world: World) -> None:
        listener = Listener()
        server = await listener.start(world)
        connection = await opened(server, mechanism=mechanism)
        await connection.call(produce_request(b"x" * MAX_LOGIN_FRAME_BYTES), timeout_ms=5_000)
        assert listener.seen.principals == [ALICE]
        assert [(line["event"], line["user"], line["principal"]) for line in listener.audited] == [
            ("login", "alice", "User:alice")
        ]
        await connection.close()
        await server.close()

    run_real(body)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("who", [{"password": "wrong"}, {"user": "mallory"}])
def test_every_failure_is_told_alike_and_ends_the_connection(mechanism: str, who: dict[str, str]) -> None:
    async def body(world: World) -> None:
        listener = Listener()
        server = await listener.start(world)
        with pytest.raises(SaslAuthenticationError) as refused:
            await opened(server, mechanism=mechanism, **who)
        assert refused.value.message == f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
        (line,) = listener.audited
        assert line["event"] == "login_failed" and "wrong password" in line["reason"] or "no user" in line["reason"]
        assert "wrong" not in line["reason"].replace("wrong password of", "")
        await server.close(0)

    run_real(body)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_broker_that_has_just_started_tells_nobody_that_a_user_is_unknown(mechanism: str) -> None:
    """Clients do not try again after that answer."""

    async def body(world: World) -> None:
        listener = Listener()
        listener.is_current = False
        server = await listener.start(world)
        with pytest.raises(NetworkError):
            await opened(server, mechanism=mechanism, user="bob")
        assert listener.authenticator.failed_logins == 1
        listener.is_current = True
        with pytest.raises(SaslAuthenticationError):
            await opened(server, mechanism=mechanism, user="bob")
        await server.close(0)

    run_real(body)


def test_a_client_that_does_not_log_in_is_told_how_and_is_not_served() -> None:
    async def body(world: World) -> None:
        listener = Listener()
        server = await listener.start(world)
        with pytest.raises(IllegalSaslStateError, match="PLAIN or SCRAM-SHA-256"):
            await connect(world, server)
        raw = await raw_client(world, server.address)
        raw.transport.write(request_bytes(1, produce_request()))
        assert b"only clients that log in" in await raw.frame()
        await raw.closed
        assert not listener.seen.principals
        await server.close(0)

    run_real(body)


def test_a_large_frame_before_the_login_closes_the_connection() -> None:
    async def body(world: World) -> None:
        server = await Listener().start(world)
        for size in (MAX_LOGIN_FRAME_BYTES + 1, 1 << 30):
            raw = await raw_client(world, server.address)
            raw.transport.write(size.to_bytes(4, "big") + b"x" * 1_000)
            await raw.closed
            kafka = await raw_client(world, server.address, greet=False)
            kafka.transport.write(struct.pack(">ihhi", size, 18, 3, 1) + b"x" * 1_000)
            await kafka.closed
        await server.close(0)

    run_real(body)


def test_a_login_must_end_in_time() -> None:
    """Also one whose bytes keep arriving: the age of the connection counts."""

    async def body(world: World) -> None:
        server = await Listener().start(world, limits=ServerLimits(handshake_timeout_ms=1))
        raw = await raw_client(world, server.address)
        raw.transport.write(request_bytes(1, AuthenticateRequest(mechanism="SCRAM-SHA-256", data=b"n,,n=alice,r=a")))
        await raw.closed
        assert server.metrics.connections_expired == 1
        await server.close(0)

    run_real(body)


# --- Kafka's protocol -------------------------------------------------------------------------------------------------


def kafka_request(key: int, version: int, body: bytes, *, is_flexible: bool = False) -> bytes:
    head = struct.pack(">hhih", key, version, 1, 1) + b"c" + (b"\0" if is_flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def handshake(mechanism: str, version: int = 1) -> bytes:
    return kafka_request(17, version, struct.pack(">h", len(mechanism)) + mechanism.encode())


def authenticate(data: bytes) -> bytes:
    return kafka_request(36, 1, struct.pack(">i", len(data)) + data)


def test_kafkas_login_lists_its_requests_and_answers_them() -> None:
    async def body(world: World) -> None:
        listener = Listener(max_session_ms=60_000)
        server = await listener.start(world)
        raw = await raw_client(world, server.address, greet=False)
        raw.transport.write(kafka_request(18, 0, b""))
        versions = await raw.frame()
        count = int.from_bytes(versions[6:10], "big")
        listed = {struct.unpack_from(">h", versions, 10 + 6 * index)[0] for index in range(count)}
        assert {17, 36} <= listed
        raw.transport.write(handshake("PLAIN"))
        answer = await raw.frame()
        assert answer[4:6] == b"\0\0" and b"SCRAM-SHA-512" in answer
        raw.transport.write(authenticate(f"\0alice\0{PASSWORD}".encode()))
        answer = await raw.frame()
        assert answer[4:6] == b"\0\0"
        assert struct.unpack(">q", answer[-8:]) == (60_000,)
        assert not raw.closed.done()
        await server.close(0)

    run_real(body)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (handshake("GSSAPI"), 33),
        (handshake("PLAIN", version=0), 33),
        (authenticate(b"\0alice\0pencil"), 58),  # without naming a mechanism
        (handshake("PLAIN") + authenticate(b"\0alice\0wrong"), 58),
        (handshake("SCRAM-SHA-256") + authenticate(b""), 58),
        (handshake("SCRAM-SHA-256") + authenticate(b"\xff" * 60_000), 58),
        (handshake("PLAIN") + handshake("PLAIN"), 34),
    ],
)
def test_a_login_that_is_none_ends_with_its_error(sent: bytes, code: int) -> None:
    async def body(world: World) -> None:
        server = await Listener().start(world)
        raw = await raw_client(world, server.address, greet=False)
        raw.transport.write(sent)
        found = [struct.unpack_from(">h", await raw.frame(), 4)[0]]
        if sent.startswith((handshake("PLAIN"), handshake("SCRAM-SHA-256"))):
            found.append(struct.unpack_from(">h", await raw.frame(), 4)[0])
        assert found[-1] == code
        if code != 33 or b"GSSAPI" in sent:
            await raw.closed
        await server.close(0)

    run_real(body)


def test_messages_behind_a_password_that_is_being_checked_end_the_login(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the password is right. Strangers must not fill the log with tracebacks, nor the places of those that wait."""

    async def body(world: World) -> None:
        listener = Listener()
        server = await listener.start(world)
        raw = await raw_client(world, server.address, greet=False)
        right = authenticate(f"\0alice\0{PASSWORD}".encode())
        raw.transport.write(handshake("PLAIN") + right * 20)
        await raw.frame()
        codes = [struct.unpack_from(">h", await raw.frame(), 4)[0] for _ in range(2)]
        await raw.closed
        assert codes == [58, 58]
        assert listener.authenticator.failed_logins == 2, "the messages behind the failure cost nothing"
        assert not listener.authenticator.logins
        assert "internal error" not in caplog.text
        await server.close(0)

    run_real(body)


def test_kafkas_request_before_a_login_closes_the_connection() -> None:
    async def body(world: World) -> None:
        server = await Listener().start(world)
        raw = await raw_client(world, server.address, greet=False)
        raw.transport.write(kafka_request(3, 1, struct.pack(">i", 0)))
        await raw.closed
        assert not raw.received
        await server.close(0)

    run_real(body)


# --- logging in again -------------------------------------------------------------------------------------------------


def test_a_client_logs_in_again_before_its_login_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a session as short as this one, the usual shares leave less time than a busy machine needs.
    assert 0.5 < login.EARLIEST_SHARE < login.LATEST_SHARE < 1
    monkeypatch.setattr(login, "EARLIEST_SHARE", 0.1)
    monkeypatch.setattr(login, "LATEST_SHARE", 0.2)

    async def body(world: World) -> None:
        listener = Listener(max_session_ms=5_000)
        server = await listener.start(world)
        connection = await opened(server)
        while server.metrics.requests[ApiKey.AUTHENTICATE] < 6:  # of three logins
            await connection.call(produce_request(), timeout_ms=5_000)
        assert set(listener.seen.principals) == {ALICE}
        assert len(listener.audited) == 1, "only the first login of a connection is recorded"
        await connection.close()
        await server.close()

    run_real(body)


def test_an_expired_login_closes_the_connection_at_the_next_request() -> None:
    async def body(world: World) -> None:
        listener = Listener(max_session_ms=1)
        server = await listener.start(world)
        raw = await raw_client(world, server.address, greet=False)
        raw.transport.write(handshake("PLAIN") + authenticate(f"\0alice\0{PASSWORD}".encode()))
        await raw.frame()
        await raw.frame()
        while not raw.closed.done():
            raw.transport.write(kafka_request(3, 1, struct.pack(">i", 0)))
            await asyncio.sleep(0)
        await server.close(0)

    run_real(body)


def test_a_later_login_that_fails_ends_the_connection_with_its_reason() -> None:
    async def body(world: World) -> None:
        listener = Listener(max_session_ms=50)
        server = await listener.start(world)
        connection = await opened(server)
        users = listener.authenticator._users
        assert isinstance(users, SomeUsers)
        users.found.clear()  # the user was removed
        await connection.closed
        with pytest.raises(NetworkError):
            await connection.call(produce_request(), timeout_ms=1_000)
        assert listener.audited[-1]["event"] == "login_failed"
        await server.close()

    run_real(body)


# --- many failures ----------------------------------------------------------------------------------------------------


def test_brokers_take_a_refusal_for_a_broken_connection(caplog: pytest.LogCaptureFixture) -> None:
    """It may end, and a client whose request a broker hands on has nothing to do with it; the log tells of it once a minute."""

    async def body(world: World) -> None:
        listener = Listener(max_session_ms=50)
        server = await listener.start(world)
        wrong, right = (
            BrokerLoginNetwork(Credentials(mechanism="SCRAM-SHA-256", user="alice", password=password))
            for password in ("no such word", PASSWORD)
        )
        for _ in range(2):
            with pytest.raises(NetworkError, match="refuses the login of this one"):
                await RpcConnection.open(wrong, *server.address, client_id="replica-1")
        connection = await RpcConnection.open(right, *server.address, client_id="replica-1")
        users = listener.authenticator._users
        assert isinstance(users, SomeUsers)
        users.found.clear()
        await connection.closed
        await server.close()

    run_real(body)
    told = [record.message for record in caplog.records if "event=broker_login_refused" in record.message]
    assert len(told) == 2 and not any("such word" in line for line in told), "one line of each network"


def test_a_thousand_failed_logins_beside_a_client_that_goes_on() -> None:
    async def body(world: World) -> None:
        listener = Listener(delay_ms=0)  # the attackers do not wait, either
        server = await listener.start(world)
        honest = await opened(server, mechanism="PLAIN")
        failures = 0

        async def attack() -> None:
            nonlocal failures
            for number in range(50):
                # Guesses by PLAIN get 20 checks a second: more of them would only make the test long.
                mechanism = "PLAIN" if number % 10 == 0 else MECHANISMS[1 + number % 2]
                try:
                    await opened(server, mechanism=mechanism, password="wrong")
                except BarnabasError:
                    failures += 1

        attackers = [asyncio.create_task(attack()) for _ in range(20)]
        served = 0
        while not all(task.done() for task in attackers):
            await honest.call(produce_request(), timeout_ms=10_000)
            served += 1
            if served % 50 == 0:  # and new clients from the same address can log in
                newcomer = await opened(server, mechanism="PLAIN")
                await newcomer.close()
        await asyncio.gather(*attackers)
        assert failures == listener.authenticator.failed_logins == 1_000
        assert served > 50 and set(listener.seen.principals) == {ALICE}
        await honest.close()
        await server.close(0)

    run_real(body)
