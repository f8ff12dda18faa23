"""A port in plain text that other machines can reach is refused, unless the operator allows it."""

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.exposure import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "::ffff:127.0.0.1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "*", "0", "0.0.0.0", "::", "10.0.0.1", "fe80::1", "broker-0", "localhost.example", "::ffff:10.0.0.1"]
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listeners", "PLAINTEXT://10.0.0.1:9092"),
        ("listeners", "PLAINTEXT://127.0.0.1:9092,OUTSIDE://:9192"),
        ("admin.listener", "0.0.0.0:9094"),
        ("quorum.listener", "10.0.0.1:9093"),
        ("controller.quorum.voters", "0@10.0.0.1:9093,1@10.0.0.2:9093"),
    ],
)
def test_each_port_is_checked(key: str, value: str) -> None:
    given = {"node.id": "0", key: value}
    with pytest.raises(InvalidConfigError, match=f"^{key}=.*in plain text.*allow.plaintext.listeners=true"):
        load(None, given, {})
    assert load(None, given | {"allow.plaintext.listeners": "true"}, {}).allow_plaintext_listeners


def test_voters_on_other_machines_are_theirs_to_check() -> None:
    load(None, {"node.id": "5", "controller.quorum.voters": "0@10.0.0.1:9093"}, {})


def test_what_speaks_tls_may_listen_everywhere() -> None:
    tls = {
        "node.id": "0",
        "listeners": "SSL://10.0.0.1:9092",
        "security.inter.broker.protocol": "SSL",
        "controller.quorum.voters": "0@10.0.0.1:9093",
        "admin.listener": "HTTPS://10.0.0.1:9094",
        "ssl.keystore.location": "/broker.pem",
        "ssl.truststore.location": "/ca.pem",
    }
    load(None, tls, {})
    with pytest.raises(InvalidConfigError, match=r"^listeners=INSIDE://10\.0\.0\.1:9192"):
        load(None, tls | {"listeners": "SSL://10.0.0.1:9092,INSIDE://10.0.0.1:9192"}, {})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listeners": "SSL://10.0.0.1:9092"}, r"^listeners=SSL://10\.0\.0\.1"),
        (
            {"listeners": "SSL://127.0.0.1:9092", "controller.quorum.voters": "0@10.0.0.1:9093"},
            "^controller.quorum.voters=",
        ),
    ],
)
def test_what_also_accepts_plain_text_must_be_allowed(given: dict[str, str], told: str) -> None:
    given = {
        "node.id": "0",
        "ssl.keystore.location": "/broker.pem",
        "ssl.truststore.location": "/ca.pem",
        "tls.transition": "use",
        **given,
    }
    with pytest.raises(InvalidConfigError, match=told):
        load(None, given, {})
    load(None, {**given, "tls.transition": "off"}, {})
    load(None, {**given, "allow.plaintext.listeners": "true"}, {})


# --- the HTTP API -----------------------------------------------------------------------------------------------------

OPEN_ADMIN = {
    "node.id": "0",
    "listeners": "SASL_SSL://10.0.0.1:9092,BROKERS://10.0.0.1:9095",
    "listener.security.protocol.map": "SASL_SSL:SASL_SSL,BROKERS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "admin.listener": "HTTPS://10.0.0.1:9094",
    "ssl.keystore.location": "/broker.pem",
    "ssl.truststore.location": "/ca.pem",
}
REFUSED = r"^admin\.listener=HTTPS?://10\.0\.0\.1:9094: .*would serve everyone.*allow\.anonymous\.admin=true"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"listener.name.brokers.ssl.client.auth": "required"},
        {"ssl.client.auth": "requested"},
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:9092,BROKERS://10.0.0.1:9095",
         "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,BROKERS:SSL"},
        {"listeners": "SSL://10.0.0.1:9092,BROKERS://10.0.0.1:9095",
         "listener.security.protocol.map": "SSL:SSL,BROKERS:SSL",
         "listener.name.ssl.ssl.client.auth": "required"},
        {"admin.listener": "HTTP://10.0.0.1:9094", "ssl.client.auth": "required", "allow.plaintext.listeners": "true"},
    ],
)  # fmt: skip
def test_http_serves_no_strangers_of_other_machines_where_clients_show_who_they_are(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match=REFUSED):
        load(None, OPEN_ADMIN | given, {})
    load(None, OPEN_ADMIN | given | {"allow.anonymous.admin": "true"}, {})
    load(None, OPEN_ADMIN | given | {"admin.listener": "HTTPS://127.0.0.1:9094"}, {})


@pytest.mark.parametrize(
    "given",
    [
        {"authorizer.class.name": "acl", "ssl.client.auth": "required"},
        {"ssl.client.auth": "required"},
        {"listener.name.https.ssl.client.auth": "required"},
        {"admin.listener": "none"},
        {"listeners": "SSL://10.0.0.1:9092", "listener.security.protocol.map": "SSL:SSL", "inter.broker.listener.name": "SSL"},
    ],
    ids=["permissions", "certificates of all", "certificates of callers", "no HTTP", "clients need not show anything, either"],
)  # fmt: skip
def test_where_callers_are_known_or_nobody_is_http_may_be_reached(given: dict[str, str]) -> None:
    load(None, OPEN_ADMIN | given, {})
