"""SCRAM: the vector of RFC 7677, scramp as the other side byte for byte, and clients that do not know the password."""

import base64
import hashlib
import hmac
import random
from collections.abc import Callable

import pytest
import scramp
from unit.net.sasl.sasl_world import ITERATIONS, PASSWORD, SALT, SomeUsers

from barnabas.log.vocabulary.access.scram import ScramCredential, ScramMechanism
from barnabas.net.base.sasl.exchange import Accepted, Challenge, LoginRefused
from barnabas.net.base.sasl.scram import (
    MAX_ITERATIONS_OF_SERVERS,
    ScramClient,
    ScramServer,
    credential_for,
    is_password_of,
)

SHA_256, SHA_512 = ScramMechanism
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
NOW_MS = 0


def challenge(server: ScramServer, message: bytes) -> bytes:
    step = server.step(message, NOW_MS)
    assert isinstance(step, Challenge)
    return step.data


def accepted(server: ScramServer, message: bytes) -> Accepted:
    step = server.step(message, NOW_MS)
    assert isinstance(step, Accepted)
    return step


def log_in(client: ScramClient, server: ScramServer) -> Accepted:
    proof = client.answer(challenge(server, client.begin()))
    assert proof is not None
    result = accepted(server, proof)
    assert client.answer(result.data) is None
    return result


def test_the_vector_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = SomeUsers({})
    users.found[SHA_256, "user"] = credential_for(SHA_256, "pencil", salt=salt, iterations=4096)
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    server = ScramServer(SHA_256, users, SERVER_NONCE)
    first = client.begin()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    said = challenge(server, first)
    assert said == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = client.answer(said)
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    result = accepted(server, proof)
    assert result == Accepted(user="user", data=b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert not client.is_complete
    assert client.answer(result.data) is None
    assert client.is_complete


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_scramp_is_the_same_client_byte_for_byte(mechanism: ScramMechanism) -> None:
    user, password = "ali,ce=1", "a long password, with = and ,"
    server = ScramServer(mechanism, SomeUsers({user: password}), SERVER_NONCE)
    ours = ScramClient(mechanism, user, password, CLIENT_NONCE)
    theirs = scramp.ScramClient([str(mechanism)], user, password, c_nonce=CLIENT_NONCE)
    assert ours.begin() == theirs.get_client_first().encode()
    said = challenge(server, ours.begin())
    theirs.set_server_first(said.decode())
    proof = ours.answer(said)
    assert proof is not None
    assert proof == theirs.get_client_final().encode()
    result = accepted(server, proof)
    theirs.set_server_final(result.data.decode())
    assert ours.answer(result.data) is None
    assert result.user == user


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_scramp_is_the_same_server_byte_for_byte(mechanism: ScramMechanism) -> None:
    known = scramp.ScramMechanism(str(mechanism))
    auth_info = known.make_auth_info(PASSWORD, iteration_count=ITERATIONS, salt=SALT)
    theirs = known.make_server(lambda user: auth_info, s_nonce=SERVER_NONCE)
    users = SomeUsers({"alice": PASSWORD})
    credential = users.found[mechanism, "alice"]
    assert auth_info == (SALT, credential.stored_key, credential.server_key, ITERATIONS)
    client = ScramClient(mechanism, "alice", PASSWORD, CLIENT_NONCE)
    ours = ScramServer(mechanism, users, SERVER_NONCE)
    theirs.set_client_first(client.begin().decode())
    said = challenge(ours, client.begin())
    assert said == theirs.get_server_first().encode()
    proof = client.answer(said)
    assert proof is not None
    theirs.set_client_final(proof.decode())
    assert accepted(ours, proof).data == theirs.get_server_final().encode()


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_names_and_passwords_of_every_script(mechanism: ScramMechanism) -> None:
    server = ScramServer(mechanism, SomeUsers({"søren": "п@роль 密码"}), SERVER_NONCE)
    assert log_in(ScramClient(mechanism, "søren", "п@роль 密码", CLIENT_NONCE), server).user == "søren"


def test_a_wrong_password_is_refused() -> None:
    client = ScramClient(SHA_256, "alice", "wrong", CLIENT_NONCE)
    server = ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE)
    proof = client.answer(challenge(server, client.begin()))
    assert proof is not None
    with pytest.raises(LoginRefused, match="wrong password of alice"):
        server.step(proof, NOW_MS)


def test_an_unknown_user_gets_the_same_challenge_each_time_and_is_refused_only_at_the_proof() -> None:
    users = SomeUsers({"alice": PASSWORD})
    challenges = []
    for _ in range(2):
        client = ScramClient(SHA_256, "mallory", "guess", CLIENT_NONCE)
        server = ScramServer(SHA_256, users, SERVER_NONCE)
        challenges.append(challenge(server, client.begin()))
        proof = client.answer(challenges[-1])
        assert proof is not None
        with pytest.raises(LoginRefused, match="no user mallory"):
            server.step(proof, NOW_MS)
    assert challenges[0] == challenges[1]


def test_a_proof_for_the_pretended_credential_does_not_help() -> None:
    users = SomeUsers({})
    pretended = credential_for(SHA_256, "guess", salt=SALT, iterations=ITERATIONS)
    users.pretended = lambda mechanism, user: pretended  # type: ignore[method-assign]
    client = ScramClient(SHA_256, "mallory", "guess", CLIENT_NONCE)
    server = ScramServer(SHA_256, users, SERVER_NONCE)
    proof = client.answer(challenge(server, client.begin()))
    assert proof is not None
    with pytest.raises(LoginRefused, match="no user mallory"):
        server.step(proof, NOW_MS)


def test_a_recorded_proof_is_refused_by_the_next_exchange() -> None:
    users = SomeUsers({"alice": PASSWORD})
    client = ScramClient(SHA_256, "alice", PASSWORD, CLIENT_NONCE)
    recorded = client.answer(challenge(ScramServer(SHA_256, users, SERVER_NONCE), client.begin()))
    assert recorded is not None
    server = ScramServer(SHA_256, users, "another nonce".replace(" ", "-"))
    challenge(server, client.begin())
    with pytest.raises(LoginRefused, match="nonce"):
        server.step(recorded, NOW_MS)


def test_an_exchange_ends_with_its_proof() -> None:
    server = ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE)
    client = ScramClient(SHA_256, "alice", PASSWORD, CLIENT_NONCE)
    proof = client.answer(challenge(server, client.begin()))
    assert proof is not None
    accepted(server, proof)
    with pytest.raises(LoginRefused, match="after the end"):
        server.step(proof, NOW_MS)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=" + b"x" * 513,
        b"n,,n=a=2calice,r=abc",  # RFC 5802: uppercase only
        b"n,,n=a=alice,r=abc",
        b"n,,n=" + b"a" * 256 + b",r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,x=alice,n=alice,r=abc",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"x,,n=alice,r=abc",
        b"\xff\xfe",
    ],
)  # fmt: skip
def test_a_first_message_that_is_none(message: bytes) -> None:
    server = ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE)
    with pytest.raises(LoginRefused):
        server.step(message, NOW_MS)


def test_a_user_may_ask_to_act_as_himself() -> None:
    server = ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE)
    assert challenge(server, b"y,a=alice,n=alice,r=abc").startswith(b"r=abc")


def final_message(challenge: bytes, nonce: str) -> bytes:
    """With a right proof, computed apart from `ScramClient`, over a nonce of ones own choice."""
    salt, iterations = (part[2:] for part in challenge.decode().split(",")[1:])
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), base64.b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"n=alice,r={CLIENT_NONCE},{challenge.decode()},c=biws,r={nonce}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"c=biws,r={nonce},p={base64.b64encode(proof).decode()}".encode()


WHOLE = CLIENT_NONCE + SERVER_NONCE


@pytest.mark.parametrize(
    ("nonce", "is_accepted"),
    [
        (WHOLE, True),
        (CLIENT_NONCE + WHOLE, True),  # librdkafka before 2.6.1
        (CLIENT_NONCE + CLIENT_NONCE + WHOLE, False),
        ("x" + WHOLE, False),
        (WHOLE + SERVER_NONCE, False),
        (SERVER_NONCE, False),
        (CLIENT_NONCE, False),
        (CLIENT_NONCE + CLIENT_NONCE, False),
    ],
)
def test_which_nonces_a_right_proof_may_have(nonce: str, is_accepted: bool) -> None:
    server = ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE)
    message = final_message(challenge(server, f"n,,n=alice,r={CLIENT_NONCE}".encode()), nonce)
    if is_accepted:
        assert isinstance(server.step(message, NOW_MS), Accepted)
    else:
        with pytest.raises(LoginRefused, match="the nonce is not that of this exchange"):
            server.step(message, NOW_MS)


MANGLED: list[Callable[[bytes], bytes]] = [
    lambda proof: proof[:-1],
    lambda proof: proof.replace(b",p=", b",q="),
    lambda proof: proof.replace(b"c=biws", b"c=eSws"),  # "y,,"
    lambda proof: proof.replace(b"c=biws", b"c=%%%%"),
    lambda proof: proof.replace(b",r=", b",m=x,r="),
    lambda proof: proof.replace(b",p=", b",m=x,p="),
    lambda proof: proof.rpartition(b",p=")[0] + b",p=AAAA",
    lambda proof: proof.rpartition(b",p=")[0] + b",p=",
    lambda proof: b"",
    lambda proof: b"\xff",
    lambda proof: b"p=" + proof,
]


@pytest.mark.parametrize("mangle", MANGLED)
def test_a_proof_that_is_mangled(mangle: Callable[[bytes], bytes]) -> None:
    server = ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE)
    client = ScramClient(SHA_256, "alice", PASSWORD, CLIENT_NONCE)
    proof = client.answer(challenge(server, client.begin()))
    assert proof is not None
    with pytest.raises(LoginRefused):
        server.step(mangle(proof), NOW_MS)


def test_no_random_change_of_a_message_logs_in() -> None:
    """A seeded fuzz: one to three bytes of either message are replaced, removed or doubled."""
    rng = random.Random(20)
    users = SomeUsers({"alice": PASSWORD, "bob": "other"}, SHA_256)
    client = ScramClient(SHA_256, "alice", PASSWORD, CLIENT_NONCE)
    first = client.begin()
    proof = client.answer(challenge(ScramServer(SHA_256, users, SERVER_NONCE), first))
    assert proof is not None
    for _ in range(20_000):
        server = ScramServer(SHA_256, users, SERVER_NONCE)
        changed = [_changed(rng, message) if rng.random() < 0.6 else message for message in (first, proof)]
        if changed == [first, proof]:
            continue
        with pytest.raises(LoginRefused):
            for message in changed:
                server.step(message, NOW_MS)


def _changed(rng: random.Random, message: bytes) -> bytes:
    data = bytearray(message)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data))
        how = rng.randrange(3)
        data[place : place + 1] = [b"", bytes([rng.randrange(256)]), bytes(data[place : place + 1]) * 2][how]
    return bytes(data)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"e=invalid-encoding",
        b"r=other,s=AAAA,i=4096",
        b"r=" + CLIENT_NONCE.encode() + b",s=AAAA,i=4096",  # nothing of its own
        b"r=" + CLIENT_NONCE.encode() + b"x,s=AAAA,i=4095",
        b"r=" + CLIENT_NONCE.encode() + b"x,s=AAAA,i=%d" % (MAX_ITERATIONS_OF_SERVERS + 1),
        b"r=" + CLIENT_NONCE.encode() + b"x,s=AAAA,i=99999999999999999999",
        b"r=" + CLIENT_NONCE.encode() + b"x,s=AAAA,i=-1",
        b"r=" + CLIENT_NONCE.encode() + b"x,s=,i=4096",
        b"r=" + CLIENT_NONCE.encode() + b"x,s=%%,i=4096",
        b"m=x,r=" + CLIENT_NONCE.encode() + b"x,s=AAAA,i=4096",
        b"\xff",
    ],
)
def test_a_client_refuses_what_no_server_should_say(said: bytes) -> None:
    client = ScramClient(SHA_256, "alice", PASSWORD, CLIENT_NONCE)
    with pytest.raises(LoginRefused):
        client.answer(said)


@pytest.mark.parametrize("final", [b"e=other-error", b"", b"v=", b"v=AAAA"])
def test_a_client_refuses_a_server_that_does_not_know_the_password(final: bytes) -> None:
    client = ScramClient(SHA_256, "alice", PASSWORD, CLIENT_NONCE)
    client.answer(challenge(ScramServer(SHA_256, SomeUsers({"alice": PASSWORD}), SERVER_NONCE), client.begin()))
    with pytest.raises(LoginRefused):
        client.answer(final)
    assert not client.is_complete


def test_credentials_show_nothing() -> None:
    credential = credential_for(SHA_512, PASSWORD, salt=SALT, iterations=ITERATIONS)
    assert is_password_of(SHA_512, credential, PASSWORD)
    assert not is_password_of(SHA_512, credential, PASSWORD + " ")
    assert repr(credential) == f"{credential}" == "ScramCredential(iterations=4096, ...)"
    assert isinstance(credential, ScramCredential)
