"""The logins of a broker: performs what `Login` decides, delays failures, and reports the principal of each connection.

The client learns only that it has failed; the log has the reason. Nothing here ever logs or shows a password, a token or a proof.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from barnabas.log.vocabulary.access.scram import SCRAM_MECHANISMS
from barnabas.log.vocabulary.errors import (
    IllegalSaslStateError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.base.sasl.exchange import (
    OAUTHBEARER,
    PLAIN,
    Accepted,
    LoginRefused,
    PasswordCheck,
    ServerMechanism,
    Step,
    Users,
)
from barnabas.net.base.sasl.oauthbearer import OAuthBearerServer, Tokens
from barnabas.net.base.sasl.plain import PlainServer
from barnabas.net.base.sasl.scram import NONCE_BYTES, ScramServer
from barnabas.net.wire.protocol.user_messages import AuthenticateResponse

from .failures import FailedLogins, counted_as
from .login import Login, LoginState
from .password_checks import PasswordChecks, TooManyLogins

logger = logging.getLogger("barnabas.logins")

# Failed logins that wait for their delay. More are closed without an answer: their connections would fill the broker.
MAX_DELAYED: Final = 512
LOG_AGAIN_AFTER_S: Final = 60.0  # per address: failures must not fill the disk
MAX_LOGGED_ADDRESSES: Final = 1_024
NO_SASL: Final = "this listener does not support SASL: set security.protocol without SASL"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    failure_delay_ms: int = 100
    max_session_ms: int = 0  # until a client must log in again; 0: never


class LoginClient(Protocol):
    """The connection of a client that logs in."""

    @property
    def client_host(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def principal(self) -> Principal: ...
    @property
    def login(self) -> Login | None: ...
    def logged_in(self, principal: Principal) -> None: ...
    def drain(self) -> None:
        """Take no more requests, and close the connection when those in flight have been answered."""

    def hang_up(self) -> None:
        """Close without an answer."""


class LoginAudit(Protocol):
    """Where logins are recorded."""

    def login(self, client: LoginClient, *, mechanism: str, user: str, failure: str = "") -> None: ...


class Authenticator:
    """Of one broker."""

    def __init__(
        self,
        users: Users,
        settings: LoginSettings,
        *,
        wall_ms: Callable[[], int],
        audit: LoginAudit | None = None,
        tokens: Tokens | None = None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self._audit = audit
        self._tokens = tokens  # None: OAUTHBEARER is not enabled
        self._users = users
        self._is_current = is_current  # are all users known that there were before this process started?
        self._settings = settings
        self._wall_ms = wall_ms
        self._checks = PasswordChecks()
        self._failures = FailedLogins(settings.failure_delay_ms / 1000)
        self._guesses = FailedLogins(0.0)  # by address and user: guesses for one user do not hold up another one
        self._delayed = 0
        self.logins = 0  # that have succeeded, first ones and later ones
        self.failed_logins = 0
        self.unchecked_logins = (
            0  # too many passwords were to be checked: their connections were closed without an answer
        )
        self._logged: dict[str, tuple[float, int]] = {}  # by address: when, and how many have not been logged since

    def close(self) -> None:
        self._checks.close()

    def choose(self, client: LoginClient, mechanism: str) -> Login:
        """The client names a mechanism. Raises UnsupportedSaslMechanismError, IllegalSaslStateError."""
        login = client.login
        if login is None:
            raise IllegalSaslStateError(NO_SASL)
        login.choose(mechanism, self._server)
        return login

    async def authenticate(self, client: LoginClient, message: bytes) -> AuthenticateResponse | None:
        """One message of a mechanism. None: no answer, the connection closes. Raises SaslAuthenticationError, after a delay."""
        login = client.login
        if login is None:
            raise IllegalSaslStateError(NO_SASL)
        if login.state is LoginState.FAILED:
            return None  # it has its answer; what it has sent behind that costs neither a delay nor a line
        is_first, reason = login.principal is None, None
        try:
            step = await self._step(client, login, message)
        except (LoginRefused, IllegalSaslStateError) as error:
            reason = str(error)
        except TooManyLogins:
            self.unchecked_logins += 1
            login.fail()
            return None
        if reason is not None:  # not in the block above: hundreds that wait for their delay would each keep a traceback
            await self._refuse(client, login, reason)
            return None
        if not isinstance(step, Accepted):
            assert not isinstance(step, PasswordCheck)
            return AuthenticateResponse(data=step.data, is_complete=False)
        self.logins += 1
        lifetime_ms = self._begin_session(login, step)
        assert login.principal is not None
        client.logged_in(login.principal)
        if is_first and self._audit is not None:
            self._audit.login(client, mechanism=login.mechanism, user=step.user)
        return AuthenticateResponse(data=step.data, is_complete=True, session_lifetime_ms=lifetime_ms)

    async def _step(self, client: LoginClient, login: Login, message: bytes) -> Step:
        step = login.step(message, self._wall_ms())
        if not isinstance(step, PasswordCheck):
            return step
        login.begin_check()
        host = counted_as(client.client_host)
        guess = f"{host} {step.claimed.user}"
        failures, guesses = self._failures.count(host, _now_s()), self._guesses.count(guess, _now_s())
        is_right = await self._checks.is_right(step, failures=failures, guesses=guesses)
        if not is_right:
            self._guesses.failed(guess, _now_s())
        return login.password_checked(is_right)

    def _begin_session(self, login: Login, accepted: Accepted) -> int:
        """How long the login is valid; 0: for ever. Sets the end that the broker keeps to."""
        lifetimes = [self._settings.max_session_ms] if self._settings.max_session_ms else []
        if accepted.expires_at_ms is not None:
            lifetimes.append(max(1, accepted.expires_at_ms - self._wall_ms()))
        lifetime_ms = min(lifetimes, default=0)
        login.expires_at_s = _now_s() + lifetime_ms / 1000 if lifetime_ms else None
        return lifetime_ms

    def _server(self, mechanism: str) -> ServerMechanism:
        if mechanism == PLAIN:
            return PlainServer(self._users)
        if mechanism == OAUTHBEARER:
            if self._tokens is None:
                raise UnsupportedSaslMechanismError("this broker has no keys to check tokens with")
            return OAuthBearerServer(self._tokens)
        return ScramServer(SCRAM_MECHANISMS[mechanism], self._users, secrets.token_urlsafe(NONCE_BYTES))

    # --- failures ----------------------------------------------------------------------------------------------------

    async def _refuse(self, client: LoginClient, login: Login, reason: str) -> None:
        """Returns where the client gets no answer. Raises SaslAuthenticationError, after a delay."""
        login.fail()
        if not await self._delay(client, login, reason) or not self._is_current():
            return  # a client gives up after an answer, and its user may only be unknown to this broker yet
        client.drain()
        raise SaslAuthenticationError(
            f"Authentication failed: invalid credentials with SASL mechanism {login.mechanism or '(none)'}"
        )

    async def _delay(self, client: LoginClient, login: Login, reason: str) -> bool:
        """False: too many wait already, and this client gets no answer."""
        now_s = _now_s()
        self.failed_logins += 1
        delay_s = self._failures.failed(counted_as(client.client_host), now_s)
        self._log(client, login, reason, now_s)
        if self._audit is not None:
            self._audit.login(client, mechanism=login.mechanism, user="", failure=reason)
        if self._delayed >= MAX_DELAYED:
            return False
        self._delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._delayed -= 1
        return True

    def _log(self, client: LoginClient, login: Login, reason: str, now_s: float) -> None:
        logged_s, left_out = self._logged.get(client.client_host, (-LOG_AGAIN_AFTER_S, 0))
        if now_s - logged_s < LOG_AGAIN_AFTER_S:
            self._logged[client.client_host] = (logged_s, left_out + 1)
            return
        if len(self._logged) >= MAX_LOGGED_ADDRESSES:
            self._logged.clear()
        self._logged[client.client_host] = (now_s, 0)
        logger.warning(
            "event=login_failed client=%s client_id=%s mechanism=%s reason=%s not_logged_before=%d",
            client.client_host, client.client_id, login.mechanism, reason, left_out,
        )  # fmt: skip


def _now_s() -> float:
    return asyncio.get_running_loop().time()
