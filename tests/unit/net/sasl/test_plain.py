"""PLAIN: what a server reads, and whom it asks to check."""

import pytest
from unit.net.sasl.sasl_world import PASSWORD, SomeUsers

from barnabas.log.vocabulary.access.scram import ScramMechanism
from barnabas.net.base.sasl.exchange import Accepted, LoginRefused, PasswordCheck
from barnabas.net.base.sasl.plain import MAX_PASSWORD_LENGTH, PlainClient, PlainServer
from barnabas.net.base.sasl.scram import is_password_of

NOW_MS = 0


def check_of(server: PlainServer, message: bytes) -> PasswordCheck:
    step = server.step(message, NOW_MS)
    assert isinstance(step, PasswordCheck)
    return step


def is_right(check: PasswordCheck) -> bool:
    return is_password_of(ScramMechanism(check.claimed.mechanism), check.claimed.credential, check.password)


@pytest.mark.parametrize("mechanisms", [tuple(ScramMechanism), *((item,) for item in ScramMechanism)])
def test_a_login_with_the_credential_that_the_user_has(mechanisms: tuple[ScramMechanism, ...]) -> None:
    server = PlainServer(SomeUsers({"alice": PASSWORD}, *mechanisms))
    client = PlainClient("alice", PASSWORD)
    check = check_of(server, client.begin())
    assert check.claimed.mechanism in mechanisms
    assert server.password_checked(is_right(check)) == Accepted(user="alice")
    assert client.answer(b"") is None
    assert client.is_complete


def test_a_wrong_password() -> None:
    server = PlainServer(SomeUsers({"alice": PASSWORD}))
    check = check_of(server, b"alice\0alice\0wrong")
    assert not is_right(check)
    with pytest.raises(LoginRefused, match="wrong password"):
        server.password_checked(False)


def test_an_unknown_user_is_checked_too_and_refused_whatever_the_result() -> None:
    server = PlainServer(SomeUsers({"alice": PASSWORD}))
    check = check_of(server, b"\0mallory\0guess")
    assert not check.is_known
    assert check.claimed.credential.iterations
    with pytest.raises(LoginRefused, match="no user mallory"):
        server.password_checked(True)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"alice\0secret",
        b"\0alice\0a\0b",
        b"\0\0secret",
        b"\0alice\0",
        b"bob\0alice\0secret",
        b"\0" + b"a" * 256 + b"\0secret",
        b"\0alice\0" + b"x" * (MAX_PASSWORD_LENGTH + 1),
        b"\xff\0alice\0secret",
    ],
)
def test_a_message_that_is_none(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        PlainServer(SomeUsers({"alice": PASSWORD})).step(message, NOW_MS)


def test_one_message_only() -> None:
    server = PlainServer(SomeUsers({"alice": PASSWORD}))
    check_of(server, b"\0alice\0wrong")
    with pytest.raises(LoginRefused, match="after the end"):
        server.step(b"\0alice\0" + PASSWORD.encode(), NOW_MS)


def test_a_check_does_not_show_the_password() -> None:
    assert PASSWORD not in repr(check_of(PlainServer(SomeUsers({})), b"\0alice\0" + PASSWORD.encode()))
