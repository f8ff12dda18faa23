"""The logins of a broker: how long they last, and what a failure costs the client, its address and the others."""

import asyncio
from typing import Final

import pytest
from unit.net.sasl.sasl_world import PASSWORD, SomeUsers
from unit.net.shell_world import simulated

from barnabas.log.vocabulary.access.scram import ScramMechanism
from barnabas.log.vocabulary.errors import SaslAuthenticationError
from barnabas.log.vocabulary.principal import ANONYMOUS, Principal
from barnabas.net.base.sasl.exchange import OAUTHBEARER, PLAIN, Accepted, LoginRefused
from barnabas.net.base.sasl.oauthbearer import first_message
from barnabas.net.server.logins.authenticator import MAX_DELAYED, Authenticator, LoginSettings
from barnabas.net.server.logins.failures import DOUBLED_AFTER
from barnabas.net.server.logins.login import Login
from barnabas.net.server.logins.password_checks import MAX_WAITING

DELAY_S: Final = 0.1
WRONG: Final = b"\0alice\0wrong"
RIGHT: Final = f"\0alice\0{PASSWORD}".encode()


class Connection:
    """Implements `LoginClient`."""

    def __init__(self, client_host: str = "10.0.0.9", client_id: str = "c") -> None:
        self.client_host = client_host
        self.client_id = client_id
        self.principal: Principal = ANONYMOUS
        self.login: Login | None = Login((PLAIN, OAUTHBEARER))
        self.is_drained = False

    def logged_in(self, principal: Principal) -> None:
        self.principal = principal

    def drain(self) -> None:
        self.is_drained = True

    def hang_up(self) -> None:
        raise AssertionError("a login never hangs up without an answer")


class Tokens:
    """A token is the number of milliseconds for which it is valid."""

    def accept(self, token: str, now_ms: int) -> Accepted:
        if not token.isdigit():
            raise LoginRefused("unknown")
        return Accepted(user="robot", expires_at_ms=now_ms + int(token))


def authenticator(*, max_session_ms: int = 0, delay_s: float = DELAY_S) -> Authenticator:
    settings = LoginSettings(failure_delay_ms=int(delay_s * 1000), max_session_ms=max_session_ms)
    users = SomeUsers({"alice": PASSWORD}, ScramMechanism.SHA_256)
    return Authenticator(users, settings, wall_ms=lambda: 1_000_000, tokens=Tokens())


async def by_token(logins: Authenticator, client: Connection, token: str) -> int | None:
    """How long the login lasts."""
    logins.choose(client, OAUTHBEARER)
    answer = await logins.authenticate(client, first_message(token))
    return None if answer is None else answer.session_lifetime_ms


async def by_password(logins: Authenticator, client: Connection, message: bytes = RIGHT) -> None:
    logins.choose(client, PLAIN)
    assert await logins.authenticate(client, message) is not None


async def failed_s(logins: Authenticator, client: Connection) -> float:
    """The seconds until the client learns of its failure."""
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(SaslAuthenticationError):
        await by_token(logins, client, "none")
    return asyncio.get_running_loop().time() - began_s


@pytest.mark.parametrize(("max_session_ms", "token", "lifetime_ms"), [(0, 500, 500), (200, 500, 200), (900, 500, 500)])
@simulated
async def test_a_login_ends_with_its_token_or_with_the_limit_whichever_is_first(
    max_session_ms: int, token: int, lifetime_ms: int
) -> None:
    client = Connection()
    assert await by_token(authenticator(max_session_ms=max_session_ms), client, str(token)) == lifetime_ms
    now_s = asyncio.get_running_loop().time()
    assert client.login is not None
    assert client.login.may_serve(now_s + lifetime_ms / 1000 - 0.001)
    assert not client.login.may_serve(now_s + lifetime_ms / 1000)


@simulated
async def test_the_connection_of_a_failed_login_takes_no_more_requests() -> None:
    client = Connection()
    assert await failed_s(authenticator(), client) == pytest.approx(DELAY_S)
    assert client.is_drained and client.principal == ANONYMOUS


@simulated
async def test_an_address_that_fails_often_waits_longer_whatever_its_clients_call_themselves() -> None:
    logins = authenticator()
    delays_s = [await failed_s(logins, Connection(client_id=f"c-{number}")) for number in range(2 * DOUBLED_AFTER)]
    assert delays_s[0] == pytest.approx(DELAY_S)
    assert delays_s[-1] == pytest.approx(4 * DELAY_S)
    assert await failed_s(logins, Connection("10.0.0.8")) == pytest.approx(DELAY_S), "other addresses do not"


@simulated
async def test_more_failures_than_may_wait_get_no_answer() -> None:
    logins = authenticator()
    waiting = [asyncio.create_task(failed_s(logins, Connection(f"h-{number}"))) for number in range(MAX_DELAYED)]
    await asyncio.sleep(0)
    assert await by_token(logins, Connection("one more"), "none") is None
    await asyncio.gather(*waiting)
    assert await failed_s(logins, Connection("later")) == pytest.approx(DELAY_S)


async def test_who_has_failed_gives_way_to_others_when_too_many_passwords_are_to_be_checked() -> None:
    """Each check takes milliseconds in a thread, so more are asked for than may wait before the first one has ended."""
    logins = authenticator(delay_s=0)
    with pytest.raises(SaslAuthenticationError):
        await by_password(logins, Connection("attacker"), WRONG)
    answers = [
        asyncio.create_task(_answer(logins, Connection("attacker"), WRONG)) for _ in range(MAX_WAITING + 2)
    ]  # all places, those in the threads included
    await asyncio.sleep(0)
    honest = Connection("honest")
    assert await _answer(logins, honest, RIGHT) == "accepted"
    assert honest.principal == Principal(name="alice")
    told = await asyncio.gather(*answers)
    assert told.count("none") >= 1 and told.count("refused") >= MAX_WAITING
    logins.close()


async def _answer(logins: Authenticator, client: Connection, message: bytes) -> str:
    logins.choose(client, PLAIN)
    try:
        return "none" if await logins.authenticate(client, message) is None else "accepted"
    except SaslAuthenticationError:
        return "refused"
