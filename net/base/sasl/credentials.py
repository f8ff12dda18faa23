"""What a client logs in with, and the machine of its mechanism."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from barnabas.log.vocabulary.access.scram import SCRAM_MECHANISMS

from .exchange import OAUTHBEARER, PLAIN, ClientMechanism
from .oauthbearer import OAuthBearerClient, TokenSource
from .plain import PlainClient
from .scram import NONCE_BYTES, ScramClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Of one mechanism. Nothing here shows in a repr; pickled, it contains the password."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    token_source: TokenSource | None = field(default=None, repr=False)

    def new_login(self) -> ClientMechanism:
        return _MAKE[self.mechanism](self)


def _scram(credentials: Credentials) -> ClientMechanism:
    mechanism = SCRAM_MECHANISMS[credentials.mechanism]
    return ScramClient(mechanism, credentials.user, credentials.password, secrets.token_urlsafe(NONCE_BYTES))


def _oauth(credentials: Credentials) -> ClientMechanism:
    assert credentials.token_source is not None, "checked with the options"
    return OAuthBearerClient(credentials.token_source)


_MAKE: dict[str, Callable[[Credentials], ClientMechanism]] = {
    PLAIN: lambda credentials: PlainClient(credentials.user, credentials.password),
    OAUTHBEARER: _oauth,
    **dict.fromkeys(SCRAM_MECHANISMS, _scram),
}
MECHANISMS = tuple(_MAKE)
