"""What a step of a server's mechanism results in, and the ports of both sides. Pure.

A machine serves one exchange: a message that was recorded from another one has the wrong nonce, and is refused.
"""

from dataclasses import dataclass, field
from typing import Final, Protocol

from barnabas.log.vocabulary.access.scram import ScramCredential, ScramMechanism, UserCredential

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"


class LoginRefused(Exception):
    """The client has not proved who it is. The text is for the broker's log; the client is told less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The client must answer this."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The client is this user, and learns it by `data`."""

    user: str
    data: bytes = b""
    expires_at_ms: int | None = None  # wall clock; None: what proved it does not expire


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordCheck:
    """Is this the password of the credential? It takes milliseconds, so the caller computes it elsewhere and says it to
    `password_checked`."""

    claimed: UserCredential
    password: str = field(repr=False)
    is_known: bool  # False: there is no such user; the check takes as long, and then the login is refused


Step = Challenge | Accepted | PasswordCheck


class ServerMechanism(Protocol):
    def step(self, message: bytes, now_ms: int) -> Step:
        """`now_ms` is the wall clock. Raises LoginRefused."""

    def password_checked(self, is_right: bool) -> Accepted:
        """The result of the `PasswordCheck`. Raises LoginRefused."""


class ClientMechanism(Protocol):
    @property
    def name(self) -> str: ...

    def begin(self) -> bytes:
        """The first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message, which may take milliseconds to compute; None: there is none. Raises LoginRefused: the server has not
        proved that it knows the password's credential."""

    @property
    def is_complete(self) -> bool:
        """Has the server shown all that it has to show?"""


class Users(Protocol):
    """The port to the credentials of users."""

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None: ...

    def pretended(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """A credential for an unknown user: always the same one for the same name, and no password fits it."""

    def usual_mechanism(self) -> ScramMechanism:
        """Whose credential the passwords of most users are checked with: also those of unknown ones, so that it takes as long."""
