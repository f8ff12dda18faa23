"""The login of one connection: the order of its messages, logging in again, and what is served meanwhile."""

import pytest
from unit.net.sasl.sasl_world import PASSWORD, SomeUsers

from barnabas.log.vocabulary.access.scram import ScramMechanism
from barnabas.log.vocabulary.errors import IllegalSaslStateError, UnsupportedSaslMechanismError
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.base.sasl.exchange import Accepted, Challenge, LoginRefused, PasswordCheck, ServerMechanism
from barnabas.net.base.sasl.plain import PlainServer
from barnabas.net.base.sasl.scram import ScramClient, ScramServer
from barnabas.net.server.logins.login import Login, LoginState

USERS = SomeUsers({"alice": PASSWORD, "bob": PASSWORD}, ScramMechanism.SHA_256)
SCRAM = "SCRAM-SHA-256"
ALICE = Principal(name="alice")


def server(mechanism: str) -> ServerMechanism:
    return PlainServer(USERS) if mechanism == "PLAIN" else ScramServer(ScramMechanism.SHA_256, USERS, "server-nonce")


def log_in(login: Login, user: str = "alice") -> None:
    login.choose(SCRAM, server)
    client = ScramClient(ScramMechanism.SHA_256, user, PASSWORD, "client-nonce")
    step = login.step(client.begin(), 0)
    assert isinstance(step, Challenge)
    proof = client.answer(step.data)
    assert proof is not None
    assert isinstance(login.step(proof, 0), Accepted)


def new_login() -> Login:
    return Login((SCRAM, "PLAIN"))


def test_nothing_is_served_before_the_proof() -> None:
    login = new_login()
    assert not login.may_serve(0)
    login.choose(SCRAM, server)
    assert not login.may_serve(0)
    login.step(b"n,,n=alice,r=abc", 0)
    assert not login.may_serve(0) and login.principal is None
    login = new_login()
    log_in(login)
    assert login.may_serve(0) and login.principal == ALICE


def test_a_message_needs_a_mechanism_first() -> None:
    with pytest.raises(IllegalSaslStateError):
        new_login().step(b"n,,n=alice,r=abc", 0)


def test_a_mechanism_that_is_not_enabled() -> None:
    login = new_login()
    with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-256 or PLAIN"):
        login.choose("SCRAM-SHA-512", server)
    log_in(login)


def test_one_mechanism_at_a_time() -> None:
    login = new_login()
    login.choose(SCRAM, server)
    with pytest.raises(IllegalSaslStateError):
        login.choose(SCRAM, server)


def test_no_message_comes_while_a_password_is_checked() -> None:
    login = new_login()
    login.choose("PLAIN", server)
    assert isinstance(login.step(b"\0alice\0pencil", 0), PasswordCheck)
    login.begin_check()
    for again in (lambda: login.step(b"\0alice\0pencil", 0), lambda: login.choose("PLAIN", server)):
        with pytest.raises(IllegalSaslStateError):
            again()
    login.password_checked(True)
    assert login.principal == ALICE


def test_a_login_that_was_cut_short_does_not_succeed_when_its_password_is_right() -> None:
    login = new_login()
    login.choose("PLAIN", server)
    login.step(b"\0alice\0pencil", 0)
    login.begin_check()
    login.fail()  # another message came meanwhile
    with pytest.raises(IllegalSaslStateError):
        login.password_checked(True)
    assert login.principal is None and not login.may_serve(0)


def test_a_failure_is_for_ever() -> None:
    login = new_login()
    log_in(login)
    login.fail()
    assert login.state is LoginState.FAILED and not login.may_serve(0)
    with pytest.raises(IllegalSaslStateError):
        login.choose(SCRAM, server)


def test_the_same_user_logs_in_again_while_requests_go_on() -> None:
    login = new_login()
    log_in(login)
    login.expires_at_s = 10.0
    login.choose(SCRAM, server)
    assert login.may_serve(9.9), "the former login is still valid"
    assert not login.may_serve(10.0)


def test_another_user_on_the_same_connection_is_refused() -> None:
    login = new_login()
    log_in(login)
    with pytest.raises(LoginRefused, match="User:alice must not become User:bob"):
        log_in(login, "bob")
    login.fail()
    assert not login.may_serve(0)


def test_another_mechanism_on_the_same_connection_is_refused() -> None:
    login = new_login()
    log_in(login)
    with pytest.raises(UnsupportedSaslMechanismError, match="must use it again"):
        login.choose("PLAIN", server)
