"""OAUTHBEARER (RFC 7628): the client sends a token, which another service has signed. Pure; `tokens` reads them."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from .exchange import OAUTHBEARER, Accepted, LoginRefused, Step

MAX_TOKEN_LENGTH: Final = 32_768
TokenSource = Callable[[], str | Awaitable[str]]
"""A function or a coroutine function that returns a fresh token."""


class Tokens(Protocol):
    """The port to what brokers know about the service that signs tokens."""

    def accept(self, token: str, now_ms: int) -> Accepted:
        """`now_ms` is the wall clock. Raises LoginRefused, whose text does not contain the token."""


class OAuthBearerServer:
    """One message of the client."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._is_over = False

    def step(self, message: bytes, now_ms: int) -> Step:
        if self._is_over:
            raise LoginRefused("a message came after the end of the exchange")
        self._is_over = True
        user, token = _read(message)
        accepted = self._tokens.accept(token, now_ms)
        if user and user != accepted.user:
            raise LoginRefused(f"{accepted.user} asks to act as another user")
        return accepted

    def password_checked(self, is_right: bool) -> Accepted:
        raise AssertionError("OAUTHBEARER never asks for the check of a password")


def first_message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def _read(message: bytes) -> tuple[str, str]:
    """The user that the client wants to be ("": that of the token), and the token."""
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError as error:
        raise LoginRefused("the message is not ASCII") from error
    header, *pairs = text.split("\x01")
    if len(pairs) < 3 or pairs[-2:] != ["", ""] or not header.startswith(("n,", "y,")) or not header.endswith(","):
        raise LoginRefused("the message cannot be read")
    wanted = header[2:-1]
    if wanted and not wanted.startswith("a="):
        raise LoginRefused("the message cannot be read")
    found = dict(pair.partition("=")[::2] for pair in pairs[:-2])
    scheme, _, token = found.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
        raise LoginRefused("the message has no token, or one that is too long")
    return wanted.removeprefix("a=").replace("=2C", ",").replace("=3D", "="), token


class OAuthBearerClient:
    """`source` returns the token of this login; the caller asks it, because it may take long."""

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self.token = ""  # set before `begin`

    @property
    def name(self) -> str:
        return OAUTHBEARER

    @property
    def is_complete(self) -> bool:
        return True  # The server has nothing to show: TLS has said who it is.

    def begin(self) -> bytes:
        return first_message(self.token)

    def answer(self, challenge: bytes) -> bytes | None:
        return None
