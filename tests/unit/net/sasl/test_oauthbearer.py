"""OAUTHBEARER: what a server reads, which tokens it accepts, and with which keys."""

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.sasl.exchange import Accepted, LoginRefused
from barnabas.net.base.sasl.oauthbearer import MAX_TOKEN_LENGTH, OAuthBearerClient, OAuthBearerServer, first_message
from barnabas.net.base.sasl.tokens import JwtTokens, TokenRules

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
RSA = RSAKey.generate_key(2048, {"kid": "one"})
EC = ECKey.generate_key("P-256", {"kid": "two"})
RULES = TokenRules(issuer="https://issuer", audiences=("barnabas", "kafka"), clock_skew_ms=1_000)


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def signed(key: Any = RSA, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    told = {"sub": "alice", "iss": "https://issuer", "aud": "kafka", "exp": NOW_S + 60} | claims
    return jwt.encode(
        {"alg": algorithm, "kid": key.kid} | (header or {}),
        {name: value for name, value in told.items() if value is not None},
        key,
        algorithms=[algorithm],
    )


def tokens(*keys: Any, rules: TokenRules = RULES) -> JwtTokens:
    return JwtTokens(rules, key_set(*(keys or (RSA, EC))))


class AnyToken:
    def accept(self, token: str, now_ms: int) -> Accepted:
        return Accepted(user=token)


# --- the message ------------------------------------------------------------------------------------------------------


def test_a_client_and_a_server() -> None:
    client = OAuthBearerClient(lambda: "never asked here")
    client.token = "abc.def"
    assert client.begin() == b"n,,\x01auth=Bearer abc.def\x01\x01"
    server = OAuthBearerServer(AnyToken())
    assert server.step(client.begin(), NOW_MS) == Accepted(user="abc.def")
    assert client.answer(b"") is None and client.is_complete
    with pytest.raises(LoginRefused, match="after the end"):
        server.step(client.begin(), NOW_MS)


@pytest.mark.parametrize(
    "message",
    [
        b"n,a=abc,\x01auth=Bearer abc\x01\x01",
        b"y,,\x01host=h\x01port=1\x01auth=bearer abc\x01\x01",
        b"n,,\x01auth=Bearer abc\x01scope=a=b\x01\x01",
    ],
)
def test_messages_of_other_clients(message: bytes) -> None:
    assert OAuthBearerServer(AnyToken()).step(message, NOW_MS) == Accepted(user="abc")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\x01\x01\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01other=Bearer abc\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"n,x=abc,\x01auth=Bearer abc\x01\x01",
        b"n,a=other,\x01auth=Bearer abc\x01\x01",
        b"n\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        first_message("x" * (MAX_TOKEN_LENGTH + 1)),
    ],
)
def test_a_message_that_is_none(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        OAuthBearerServer(AnyToken()).step(message, NOW_MS)


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256")])
def test_a_signed_token_names_its_user_and_its_end(key: Any, algorithm: str) -> None:
    found = tokens().accept(signed(key, algorithm), NOW_MS)
    assert found == Accepted(user="alice", expires_at_ms=NOW_MS + 60_000)


def test_the_claims_that_the_rules_name() -> None:
    rules = TokenRules(user_claim="email")
    assert tokens(rules=rules).accept(signed(email="a@b", iss=None, aud=None), NOW_MS).user == "a@b"
    assert tokens().accept(signed(aud=["x", "barnabas"]), NOW_MS).user == "alice"
    assert tokens().accept(signed(exp=NOW_S - 0.5, nbf=NOW_S + 0.5), NOW_MS).user == "alice", "the clocks differ"


REFUSED: list[Callable[[], str]] = [
    lambda: signed(exp=NOW_S - 1),
    lambda: signed(exp=None),
    lambda: signed(exp="soon"),
    lambda: signed(nbf=NOW_S + 2),
    lambda: signed(iss="https://other"),
    lambda: signed(iss=None),
    lambda: signed(aud="other"),
    lambda: signed(aud=["other"]),
    lambda: signed(aud=None),
    lambda: signed(sub=None),
    lambda: signed(sub=""),
    lambda: signed(sub="a\nb"),
    lambda: signed(sub="a" * 256),
    lambda: signed(sub=7),
    lambda: signed(RSAKey.generate_key(2048, {"kid": "one"})),  # another key with a known name
    lambda: signed(RSAKey.generate_key(2048, {"kid": "three"})),
    lambda: signed()[:-3] + "abc",
    lambda: ".".join(["e30", signed().split(".")[1], ""]),
    lambda: "abc",
    lambda: "a.b.c",
    lambda: "",
]


@pytest.mark.parametrize("make", REFUSED)
def test_a_token_that_is_refused_is_not_shown(make: Callable[[], str]) -> None:
    token = make()
    with pytest.raises(LoginRefused) as refused:
        tokens().accept(token, NOW_MS)
    assert len(token) < 10 or token not in str(refused.value)


def test_no_algorithm_and_a_shared_secret_sign_nothing() -> None:
    """The two classical attacks: `alg: none`, and the public key as the secret of an HMAC."""
    claims = encoded({"sub": "alice", "exp": NOW_S + 60})
    lenient = tokens(rules=TokenRules())
    with pytest.raises(LoginRefused):
        lenient.accept(f"{encoded({'alg': 'none'})}.{claims}.", NOW_MS)
    said = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{claims}"
    for secret in (RSA.as_pem(private=False), json.dumps(RSA.as_dict(private=False)).encode(), b""):
        proof = base64.urlsafe_b64encode(hmac.digest(secret, said.encode(), "sha256")).rstrip(b"=").decode()
        with pytest.raises(LoginRefused):
            lenient.accept(f"{said}.{proof}", NOW_MS)


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "keys",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [{"kty": "RSA"}]}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}]}',
        b"\xff",
        b" " * (1024 * 1024 + 1),
    ],
)
def test_keys_that_are_none(keys: bytes) -> None:
    with pytest.raises(InvalidConfigError):
        JwtTokens(RULES, keys)
    good = tokens()
    with pytest.raises(InvalidConfigError):
        good.replace_keys(keys)
    assert good.accept(signed(), NOW_MS).user == "alice", "the former keys stay"


def test_new_keys_replace_the_old_ones() -> None:
    both = tokens(RSA)
    with pytest.raises(LoginRefused):
        both.accept(signed(EC, "ES256"), NOW_MS)
    both.replace_keys(key_set(EC))
    assert both.accept(signed(EC, "ES256"), NOW_MS).user == "alice"
    with pytest.raises(LoginRefused):
        both.accept(signed(), NOW_MS)


def test_a_check_is_fast_enough_for_the_loop() -> None:
    made, token = tokens(), signed()
    begin_s = time.process_time()
    for _ in range(20):
        made.accept(token, NOW_MS)
    assert time.process_time() - begin_s < 1.0, "50 ms each would stop the broker"
