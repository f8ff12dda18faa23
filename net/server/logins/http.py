"""Logins at the HTTP API: `Authorization: Basic`, checked like PLAIN, and `Bearer`, checked like OAUTHBEARER; with the same
delays, limits and audit."""

import base64
import binascii

from barnabas.log.vocabulary.errors import RequestTimedOutError, SaslAuthenticationError
from barnabas.log.vocabulary.principal import ANONYMOUS, Principal
from barnabas.net.base.sasl.exchange import OAUTHBEARER, PLAIN
from barnabas.net.base.sasl.oauthbearer import first_message

from .authenticator import Authenticator
from .login import Login

BASIC, BEARER = "basic", "bearer"


class _Caller:
    """The client of one call. HTTP has no session, so the call ends with the answer."""

    client_id = "http"

    def __init__(self, client_host: str, mechanism: str, again: Principal | None) -> None:
        self.client_host = client_host
        self.principal: Principal = ANONYMOUS
        login = Login((PLAIN, OAUTHBEARER))
        if again is not None:
            login.principal, login.mechanism = again, mechanism
        self.login: Login | None = login

    def logged_in(self, principal: Principal) -> None:
        self.principal = principal

    def drain(self) -> None:
        """The answer is the end."""

    def hang_up(self) -> None:
        """Likewise."""


async def http_login(
    authenticator: Authenticator, header: str, client_host: str, again: Principal | None = None
) -> Principal:
    """`header` is the value of Authorization. `again`: a login in the middle of a call, which the audit does not tell if it
    succeeds; it must be the same user. Raises SaslAuthenticationError, after a delay, UnsupportedSaslMechanismError, and
    RequestTimedOutError: too many logins wait for their check, or this broker has just started and may not know the user yet."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() == BEARER:
        if not encoded.isascii():  # bytes that are no text cannot be encoded again
            raise SaslAuthenticationError("the token of the Authorization header must be ASCII")
        mechanism, message = OAUTHBEARER, first_message(encoded.strip())
    else:
        mechanism, message = PLAIN, _password(scheme, encoded)
    caller = _Caller(client_host, mechanism, again)
    authenticator.choose(caller, mechanism)
    answer = await authenticator.authenticate(caller, message)
    if answer is None:
        raise RequestTimedOutError(
            "too many clients log in at the same time, or this broker has just started; try again"
        )
    return caller.principal


def _password(scheme: str, encoded: str) -> bytes:
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        user, colon, password = "", "", ""
    if scheme.lower() != BASIC or not colon:
        raise SaslAuthenticationError("the Authorization header must be Basic, with user:password in base64, or Bearer")
    return f"\0{user}\0{password}".encode()
