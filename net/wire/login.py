"""Logs a connection of our own protocol in, and again before the login expires (KIP-368)."""

import asyncio
import inspect
from random import Random
from typing import Any, Final, Protocol, runtime_checkable

from barnabas.log.vocabulary.errors import BarnabasError, IllegalSaslStateError, NetworkError, SaslAuthenticationError

from ..base.sasl.exchange import ClientMechanism, LoginRefused
from ..base.sasl.oauthbearer import OAuthBearerClient, TokenSource
from .protocol.msgpack import ServerHello
from .protocol.user_messages import SASL_FEATURE, AuthenticateRequest, AuthenticateResponse

MAX_MESSAGES: Final = 8  # of one login; SCRAM has two
LOGIN_TIMEOUT_MS: Final = 10_000
# When to log in again, as a share of the lifetime: Kafka's. Not all connections at the same time.
EARLIEST_SHARE, LATEST_SHARE = 0.85, 0.95


@runtime_checkable
class HasLogin(Protocol):
    """A network whose connections log in."""

    def new_login(self) -> ClientMechanism:
        """For one login of one connection."""

    def refusal(self, error: BarnabasError) -> BarnabasError:
        """What callers learn when the other side has refused a login."""


class LoginConnection(Protocol):
    """A connection, as far as a login uses it."""

    @property
    def address(self) -> tuple[str, int]: ...
    @property
    def hello(self) -> ServerHello: ...
    async def call(self, request: AuthenticateRequest, *, timeout_ms: int) -> Any: ...
    def fail(self, error: BarnabasError) -> None:
        """A later login has failed: the broker closes the connection."""


async def logged_in(connection: LoginConnection, network: object) -> "ClientLogin | None":
    """Log in if the network says how, and if the listener wants it. Raises SaslAuthenticationError, IllegalSaslStateError,
    NetworkError."""
    where = ":".join(map(str, connection.address))
    if not isinstance(network, HasLogin):
        check_offer(connection.hello, None, where)
        return None
    login = ClientLogin(connection, network)
    try:
        check_offer(connection.hello, network.new_login().name, where)
        await login.log_in()
    except (SaslAuthenticationError, IllegalSaslStateError) as error:
        raise network.refusal(error) from error
    return login


class ClientLogin:
    """Of one connection."""

    def __init__(self, connection: LoginConnection, network: HasLogin) -> None:
        self._connection = connection
        self._network = network
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def log_in(self) -> None:
        """Raises SaslAuthenticationError, NetworkError."""
        loop = asyncio.get_running_loop()
        mechanism = self._network.new_login()
        if isinstance(mechanism, OAuthBearerClient):
            mechanism.token = await _token(mechanism.source)
        name, data = mechanism.name, mechanism.begin()
        for _ in range(MAX_MESSAGES):
            request = AuthenticateRequest(mechanism=name, data=data)
            answer: AuthenticateResponse = await self._connection.call(request, timeout_ms=LOGIN_TIMEOUT_MS)
            try:
                # In a thread: the proof of a password is computed for milliseconds, so that guesses are slow.
                following = await loop.run_in_executor(None, mechanism.answer, answer.data)
            except LoginRefused as error:
                raise SaslAuthenticationError(f"{mechanism.name}: {error}") from error
            if answer.is_complete and mechanism.is_complete:
                self._log_in_before_end(answer.session_lifetime_ms)
                return
            if answer.is_complete or following is None:
                raise SaslAuthenticationError(f"{mechanism.name}: the server has not proved that it knows the password")
            name, data = "", following
        raise SaslAuthenticationError(f"the login takes more than {MAX_MESSAGES} messages")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _log_in_before_end(self, lifetime_ms: int) -> None:
        if lifetime_ms > 0:
            share = Random().uniform(EARLIEST_SHARE, LATEST_SHARE)
            self._timer = asyncio.get_running_loop().call_later(lifetime_ms * share / 1000, self._begin_again)

    def _begin_again(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._again())

    async def _again(self) -> None:
        try:
            await self.log_in()
        except BarnabasError as error:
            self._connection.fail(self._network.refusal(error))


async def _token(source: TokenSource) -> str:
    """A function runs in a thread, because it may ask a server; a coroutine function runs on this loop. Raises NetworkError: the
    source has failed, and may succeed later."""
    try:
        made = source() if inspect.iscoroutinefunction(source) else await asyncio.to_thread(source)
        token = await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise NetworkError(f"sasl_oauth_token_provider has failed: {error!r}") from error
    if not isinstance(token, str) or not token:
        raise SaslAuthenticationError(f"sasl_oauth_token_provider returned a {type(token).__name__}, not a token")
    return token


def check_offer(hello: ServerHello, mechanism: str | None, where: str) -> None:
    """Does the listener want what this side is to do? `mechanism` None: it does not log in. Raises IllegalSaslStateError,
    SaslAuthenticationError."""
    offered = sorted(name.removeprefix(SASL_FEATURE) for name in hello.features if name.startswith(SASL_FEATURE))
    if mechanism is None and offered:
        raise IllegalSaslStateError(
            f"the listener {where} serves only clients that log in: set security_protocol=SASL_SSL (or SASL_PLAINTEXT) and "
            f"sasl_mechanism to {' or '.join(offered)}"
        )
    if mechanism is not None and not offered:
        raise IllegalSaslStateError(
            f"the listener {where} has no SASL, and no credentials were sent; set security_protocol to SSL or PLAINTEXT"
        )
    if mechanism is not None and mechanism not in offered:
        raise SaslAuthenticationError(
            f"{where} does not accept {mechanism}; set sasl_mechanism to {' or '.join(offered)}"
        )
