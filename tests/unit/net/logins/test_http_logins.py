"""Passwords at the HTTP API: which header is a login, and how one fails."""

import base64

import pytest
from unit.net.sasl.sasl_world import PASSWORD, SomeUsers

from barnabas.log.vocabulary.errors import SaslAuthenticationError, UnsupportedSaslMechanismError
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.base.sasl.exchange import Accepted, LoginRefused
from barnabas.net.server.logins.authenticator import Authenticator, LoginSettings
from barnabas.net.server.logins.http import http_login


def header(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def authenticator() -> Authenticator:
    return Authenticator(
        SomeUsers({"alice": PASSWORD, "søren": "a:b"}), LoginSettings(failure_delay_ms=0), wall_ms=lambda: 0
    )


@pytest.mark.parametrize(("text", "user"), [("alice:pencil", "alice"), ("søren:a:b", "søren")])
async def test_a_user_with_the_right_password(text: str, user: str) -> None:
    checks = authenticator()
    assert await http_login(checks, header(text), "h") == Principal(name=user)
    assert await http_login(checks, header(text).replace("Basic", "basic"), "h") == Principal(name=user)
    checks.close()


@pytest.mark.parametrize(
    "told",
    [
        header("alice:wrong"),
        header("mallory:pencil"),
        header("alice:"),
        header(":pencil"),
        header("alice"),
        header("alice\0x:pencil"),
        "Basic",
        "Basic !!!",
        "Basic /w==",
        "Basic \udcff",  # as aiohttp gives bytes that are no text
        "Bearer \udcff",
        "",
    ],
)
async def test_every_other_header_is_refused(told: str) -> None:
    checks = authenticator()
    with pytest.raises(SaslAuthenticationError) as refused:
        await http_login(checks, told, "h")
    assert "pencil" not in refused.value.message and "wrong" not in refused.value.message
    checks.close()


class Tokens:
    def accept(self, token: str, now_ms: int) -> Accepted:
        if token != "good":
            raise LoginRefused("unknown")
        return Accepted(user="robot")


async def test_a_bearer_token_where_there_are_keys() -> None:
    with pytest.raises(UnsupportedSaslMechanismError, match="no keys"):
        await http_login(authenticator(), "Bearer good", "h")
    checks = Authenticator(SomeUsers({}), LoginSettings(failure_delay_ms=0), wall_ms=lambda: 0, tokens=Tokens())
    assert await http_login(checks, "Bearer good", "h") == Principal(name="robot")
    with pytest.raises(SaslAuthenticationError):
        await http_login(checks, "Bearer bad", "h")
