"""What strangers send as a login: messages of every mechanism, damaged, cut, swollen, repeated, and those of other exchanges.

A message is refused by an error of ours, or is a step of the login. Only who proves a password or shows a token logs in, and as
the user who it is.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from fuzz.mutations import mutated
from unit.net.sasl.sasl_world import PASSWORD, SomeUsers

from barnabas.log.vocabulary.access.scram import SCRAM_MECHANISMS, ScramMechanism
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.base.limits import MAX_LOGIN_FRAME_BYTES
from barnabas.net.base.sasl.exchange import (
    OAUTHBEARER,
    PLAIN,
    Accepted,
    Challenge,
    LoginRefused,
    PasswordCheck,
    ServerMechanism,
)
from barnabas.net.base.sasl.oauthbearer import OAuthBearerServer, first_message
from barnabas.net.base.sasl.plain import PlainServer
from barnabas.net.base.sasl.scram import ScramClient, ScramServer
from barnabas.net.server.logins.login import Login, LoginState

USER: Final = "alice"
TOKEN: Final = "head.claims.signature"
MECHANISMS: Final = (PLAIN, OAUTHBEARER, *SCRAM_MECHANISMS)
MOST_MESSAGES: Final = 6  # of one connection; a whole login has at most three
_USERS: Final = SomeUsers({USER: PASSWORD, "bob": "another"})


class _Tokens:
    def accept(self, token: str, now_ms: int) -> Accepted:
        if token != TOKEN:
            raise LoginRefused("another token")
        return Accepted(user=USER)


def _server(mechanism: str, nonce: str) -> ServerMechanism:
    if mechanism == PLAIN:
        return PlainServer(_USERS)
    if mechanism == OAUTHBEARER:
        return OAuthBearerServer(_Tokens())
    return ScramServer(SCRAM_MECHANISMS[mechanism], _USERS, nonce)


class _Connection:
    """A broker's side, as `Authenticator` uses it: after a failure nothing more is read. The attacker knows a name only."""

    def __init__(self, rng: Random, mechanism: str) -> None:
        self._nonce = f"server-{rng.getrandbits(64):x}"
        self.login = Login(MECHANISMS)
        self.login.choose(mechanism, lambda chosen: _server(chosen, self._nonce))

    def takes(self, message: bytes) -> bytes | None:
        """The answer; None: the login has failed."""
        try:
            step = self.login.step(message, 0)
            if isinstance(step, PasswordCheck):
                self.login.begin_check()
                # Not computed: it takes milliseconds, and only the right password is right.
                is_right = step.is_known and (step.claimed.user, step.password) in (
                    (USER, PASSWORD),
                    ("bob", "another"),
                )
                step = self.login.password_checked(is_right)
        except (LoginRefused, BarnabasError):
            self.login.fail()
            return None
        assert isinstance(step, Challenge | Accepted)
        return step.data

    @property
    def user(self) -> str | None:
        return None if self.login.principal is None else self.login.principal.name


def recorded(rng: Random, mechanism: str) -> list[bytes]:
    """The messages of a client that has logged in, over another connection."""
    if mechanism == PLAIN:
        return [f"\0{USER}\0{PASSWORD}".encode()]
    if mechanism == OAUTHBEARER:
        return [first_message(TOKEN)]
    return list(_scram(_Connection(rng, mechanism), SCRAM_MECHANISMS[mechanism], rng))


def _scram(connection: _Connection, mechanism: ScramMechanism, rng: Random) -> Iterator[bytes]:
    # Few of them are computed: the salted password is the same each time, and takes milliseconds.
    client = ScramClient(mechanism, USER, PASSWORD, f"client-{rng.getrandbits(64):x}")
    first = client.begin()
    yield first
    challenge = connection.takes(first)
    assert challenge is not None
    proof = client.answer(challenge)
    assert proof is not None
    assert connection.takes(proof) is not None and connection.user == USER, "a whole login is accepted"
    yield proof


_RECORDED: Final[dict[str, list[list[bytes]]]] = {}


def _recordings(mechanism: str) -> list[list[bytes]]:
    if mechanism not in _RECORDED:
        _RECORDED[mechanism] = [recorded(Random(seed), mechanism) for seed in range(5)]
    return _RECORDED[mechanism]


def _damage(rng: Random, message: bytes) -> bytes:
    how: Callable[[], bytes] = rng.choice(
        (
            lambda: mutated(rng, message),
            lambda: message[: rng.randrange(len(message))],
            lambda: message + rng.randbytes(rng.randint(1, 64)),
            lambda: message + bytes([rng.choice(message)]) * rng.choice((1, 300, MAX_LOGIN_FRAME_BYTES - len(message))),
            lambda: message.replace(
                b"alice", rng.choice((b"bob", b"", b"a" * 300, b"=2C", b"\xc3\xa9", b"alice,a=bob"))
            ),
            lambda: rng.randbytes(rng.randrange(80)),
            lambda: b"",
        )
    )
    return how()


def damaged_logins(rng: Random) -> None:
    """No message of a recorded login, damaged or not, logs in by SCRAM; by the others, only the same secret does."""
    mechanism = rng.choice(MECHANISMS)
    messages = rng.choice(_recordings(mechanism))
    connection = _Connection(rng, mechanism)
    for _ in range(rng.randint(1, MOST_MESSAGES)):
        message = rng.choice(messages)
        if rng.random() < 0.7:
            message = _damage(rng, message)
        answer = connection.takes(message)
        if answer is None:
            assert connection.login.state is LoginState.FAILED and not connection.login.may_serve(0.0)
            assert connection.takes(messages[0]) is None, "a failure is for ever"
            return
        if connection.user is not None:
            assert mechanism in (PLAIN, OAUTHBEARER), "a recorded proof logs in"
            secret = PASSWORD if mechanism == PLAIN else TOKEN
            assert connection.user == USER and secret.encode() in message
            return
    assert not connection.login.may_serve(0.0)


def swollen_logins(rng: Random) -> None:
    """As large as a frame may be before a login: separators, names, nonces, and numbers of fields without end."""
    mechanism = rng.choice(MECHANISMS)
    connection = _Connection(rng, mechanism)
    size = rng.choice((MAX_LOGIN_FRAME_BYTES, MAX_LOGIN_FRAME_BYTES // 2, 5_000))
    piece = rng.choice((b",", b"=", b"\0", b"\x01", b"a=b,", b"x=y\x01", b"=2C", b"n=alice,r=abc,", b"\xff", b"9"))
    head = rng.choice(
        (b"", b"n,,", b"n,,n=alice,r=", b"n,,n=alice,r=abc,", b"\0alice\0", b"n,,\x01auth=Bearer ", b"n,a=alice,")
    )
    tail = rng.choice((b"", b"\x01\x01", b",p=AAAA", b"\0x"))
    connection.takes(head + (piece * (size // len(piece)))[: size - len(head) - len(tail)] + tail)
    connection.takes(b"c=biws,r=" + piece * (size // len(piece)) + tail)
    assert connection.user is None


def clients_of_strange_servers(rng: Random) -> None:
    """What a server says to a client of ours: refused, or answered; the client believes only who has its credential."""
    mechanism = rng.choice(list(ScramMechanism))
    client = ScramClient(mechanism, USER, PASSWORD, "client")
    client.begin()
    said = b"r=client-server,s=AAECAwQFBgcICQoLDA0ODw==,i=4096"
    try:
        client.answer(_damage(rng, said) if rng.random() < 0.9 else rng.choice((b"e=other-error", b"v=AAAA")))
        client.answer(_damage(rng, b"v=" + b"A" * 43 + b"="))
    except LoginRefused:
        pass
    assert not client.is_complete


TARGETS: Final = (damaged_logins, swollen_logins, clients_of_strange_servers)
