"""The login of one connection: its mechanism, the next message, the principal and when the login expires. Pure.

A connection whose client has logged in may log in again at any time (KIP-368): as the same user, by the same mechanism. Requests
go on meanwhile, until the former login expires.
"""

from collections.abc import Callable
from enum import Enum, auto

from barnabas.log.vocabulary.errors import IllegalSaslStateError, UnsupportedSaslMechanismError
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.base.sasl.exchange import Accepted, LoginRefused, ServerMechanism, Step


class LoginState(Enum):
    WAITING = auto()  # for the name of a mechanism
    EXCHANGING = auto()  # messages of the mechanism
    CHECKING = auto()  # one of them is being checked: no other one may come
    FAILED = auto()  # for ever: the connection closes


class Login:
    __slots__ = ("_exchange", "expires_at_s", "mechanism", "mechanisms", "principal", "state")

    def __init__(self, mechanisms: tuple[str, ...]) -> None:
        self.mechanisms = mechanisms  # those of the listener
        self.principal: Principal | None = None  # of the current login
        self.expires_at_s: float | None = None  # of the login, on the loop's clock; None: never
        self.mechanism = ""  # of the exchange, or of the last one
        self.state = LoginState.WAITING
        self._exchange: ServerMechanism | None = None  # while EXCHANGING and CHECKING

    def may_serve(self, now_s: float) -> bool:
        """Requests that are not part of a login."""
        if self.principal is None or self.state is LoginState.FAILED:
            return False
        return self.expires_at_s is None or now_s < self.expires_at_s

    def choose(self, mechanism: str, make: Callable[[str], ServerMechanism]) -> None:
        """Raises UnsupportedSaslMechanismError, IllegalSaslStateError."""
        if self.state is not LoginState.WAITING:
            raise IllegalSaslStateError("a login is under way on this connection, or has failed")
        if mechanism not in self.mechanisms:
            raise UnsupportedSaslMechanismError(
                f"SASL mechanism {mechanism!r} is not enabled here; use {' or '.join(self.mechanisms)}"
            )
        if self.principal is not None and mechanism != self.mechanism:
            raise UnsupportedSaslMechanismError(
                f"this connection was authenticated by {self.mechanism}, and must use it again, not {mechanism}"
            )
        self._exchange = make(mechanism)
        self.mechanism = mechanism
        self.state = LoginState.EXCHANGING

    def step(self, message: bytes, wall_ms: int) -> Step:
        """One message of the client. Raises LoginRefused, IllegalSaslStateError."""
        if self.state is not LoginState.EXCHANGING:
            raise IllegalSaslStateError("the client sends a message of a mechanism without having named one")
        assert self._exchange is not None
        self.state = LoginState.CHECKING
        step = self._exchange.step(message, wall_ms)
        if isinstance(step, Accepted):
            self._accept(step)
        else:
            self.state = LoginState.EXCHANGING
        return step

    def begin_check(self) -> None:
        """No other message may come until `password_checked`."""
        assert self.state is LoginState.EXCHANGING
        self.state = LoginState.CHECKING

    def password_checked(self, is_right: bool) -> Accepted:
        """Raises LoginRefused, IllegalSaslStateError: another message came meanwhile, which has ended the login."""
        if self.state is LoginState.FAILED:
            raise IllegalSaslStateError("the client sent another message while its password was being checked")
        assert self.state is LoginState.CHECKING and self._exchange is not None
        accepted = self._exchange.password_checked(is_right)
        self._accept(accepted)
        return accepted

    def _accept(self, accepted: Accepted) -> None:
        principal = Principal(name=accepted.user)
        if self.principal is not None and principal != self.principal:
            raise LoginRefused(f"{self.principal} must not become {principal} on the same connection")
        self.principal = principal
        self._exchange = None
        self.state = LoginState.WAITING

    def fail(self) -> None:
        self._exchange = None
        self.state = LoginState.FAILED
