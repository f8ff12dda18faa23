"""Listeners: what their names promise, and where a broker says that it is reached."""

import pytest

from barnabas.log.settings.table import check_broker_config
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.sasl.credentials import Credentials
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.base.settings.config_descriptions import describe_broker
from barnabas.net.base.settings.listeners import (
    accepts_plain_text,
    advertise_name,
    are_brokers_certified,
    binds_all_interfaces,
    broker_login,
    dials_plain_text,
    is_encrypted,
    is_quorum_encrypted,
    mechanisms_of,
    needs_name,
    pem_files,
    reachable_host,
)


def config(**given: str) -> BrokerConfig:
    """Of a network that is trusted: what plain text shows to others is the subject of test_exposure."""
    named = {key.replace("_", "."): text for key, text in given.items()}
    return load(None, {"allow.plaintext.listeners": "true"} | named, {})


def refusal(**given: str) -> str:
    with pytest.raises(InvalidConfigError) as refused:
        config(**given)
    return str(refused.value)


# --- protection -------------------------------------------------------------------------------------------------------


TLS_FILES = {"ssl_keystore_location": "/etc/own.pem", "ssl_truststore_location": "/etc/ca.pem"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SASL_PLAINTEXT", "a login alone does not say which broker it is"),
        ("SASL_SSL", "so brokers log in to each other: set sasl.mechanism.inter.broker.protocol"),
        ("sasl_ssl", "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"),
    ],
)
def test_a_listener_with_logins_needs_another_one_or_a_login_for_brokers(name: str, reason: str) -> None:
    told = refusal(listeners=f"{name}://h:1", **TLS_FILES)
    assert reason in told and f"{name.upper()}:{name.upper()},BROKERS:SSL" in told
    found = config(listeners=f"{name}://h:1,SSL://h:2", security_inter_broker_protocol="SSL", **TLS_FILES)
    assert mechanisms_of(found, name.upper()) == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert mechanisms_of(found, "SSL") == ()
    assert is_encrypted(found, name.upper()) == name.upper().endswith("SSL")


def test_a_listener_of_any_name_has_logins_by_the_map() -> None:
    found = config(
        listeners="BROKERS://h:1,USERS://h:2",
        listener_security_protocol_map="BROKERS:PLAINTEXT,USERS:SASL_PLAINTEXT",
        sasl_enabled_mechanisms="PLAIN",
    )
    assert mechanisms_of(found, "USERS") == ("PLAIN",)


@pytest.mark.parametrize(
    "given",
    [
        {"quorum_listener": "SASL_SSL://h:1"},
        {"admin_listener": "SASL_SSL://h:1"},
        {"controller_listener_names": "SASL_SSL"},
        {
            "controller_listener_names": "CONTROLLER",
            "listener_security_protocol_map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        },
    ],
)
def test_only_the_listeners_of_clients_have_logins(given: dict[str, str]) -> None:
    assert "only the listeners of clients have SASL" in refusal(**given)


@pytest.mark.parametrize("given", [{"sasl_kerberos_service_name": "x"}])
def test_protection_is_refused_wherever_it_is_asked_for(given: dict[str, str]) -> None:
    assert "Kerberos is not available" in refusal(**given)


def test_an_authorizer_needs_brokers_that_show_who_they_are() -> None:
    assert "must be one of" in refusal(authorizer_class_name="x")
    for key, value in (("super_users", "User:a"), ("allow_everyone_if_no_acl_found", "true")):
        assert "authorizer.class.name=acl" in refusal(**{key: value})
        assert config(**{key: value}, authorizer_class_name="acl").authorizer_class_name == "acl"
    assert config(super_users="User:a; User:CN=b,O=c;", authorizer_class_name="acl").super_users == (
        "User:a",
        "User:CN=b,O=c",
    )
    assert "super.users must be principals" in refusal(super_users="admin", authorizer_class_name="acl")
    secure = {"listeners": "SSL://h:1", "authorizer_class_name": "acl", **TLS_FILES}
    assert "ssl.client.auth=required" in refusal(**secure)
    assert is_quorum_encrypted(config(**secure, ssl_client_auth="requested"))


@pytest.mark.parametrize("mechanism", ["GSSAPI", "SCRAM-SHA-1", "PLAIN,GSSAPI", ""])
def test_a_mechanism_that_is_not_there_is_refused(mechanism: str) -> None:
    assert "SCRAM-SHA-256" in refusal(sasl_enabled_mechanisms=mechanism)


def test_tls_is_taken_by_name_by_map_and_by_the_protocol_between_brokers() -> None:
    found = config(
        listeners="PLAINTEXT://h:1,INSIDE://h:2",
        listener_security_protocol_map="INSIDE:SSL,PLAINTEXT:PLAINTEXT",
        security_inter_broker_protocol="SSL",
        **TLS_FILES,
    )
    assert [is_encrypted(found, item.name) for item in found.client_listeners()] == [False, True]
    assert found.inter_broker_listener() == "INSIDE" and is_quorum_encrypted(found)
    by_name = config(listeners="SSL://h:1", **TLS_FILES)
    assert is_encrypted(by_name, "SSL") and is_quorum_encrypted(by_name)
    only_clients = config(listeners="PLAINTEXT://h:1,SSL://h:2", ssl_keystore_location="/etc/own.pem")
    assert is_encrypted(only_clients, "SSL") and not is_quorum_encrypted(only_clients)


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"listeners": "PLAINTEXT://h:1,SSL://h:2"}, "ssl.keystore.location"),
        ({"admin_listener": "HTTPS://h:1"}, "ssl.keystore.location"),
        ({"listeners": "SSL://h:2", "ssl_keystore_location": "/etc/own.pem"}, "ssl.truststore.location"),
        ({"security_inter_broker_protocol": "SSL"}, "none of listeners has this protocol"),
        (
            {"inter_broker_listener_name": "PLAINTEXT", "security_inter_broker_protocol": "PLAINTEXT"},
            "not both",
        ),
        ({"quorum_listener": "SSL://h:1", **TLS_FILES}, "security.inter.broker.protocol=SSL"),
        ({"controller_listener_names": "SSL", **TLS_FILES}, "security.inter.broker.protocol=SSL"),
        ({"ssl_keystore_type": "JKS"}, "PEM"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "TLSv1.2"),
        ({"ssl_client_auth": "yes"}, "required"),
    ],
)
def test_tls_that_would_be_incomplete_is_refused_with_the_cure(given: dict[str, str], cure: str) -> None:
    assert cure in refusal(**given)


def test_the_cure_is_no_command_that_does_not_exist() -> None:
    assert refusal(listeners="SSL://h:2").endswith("a PEM file with the private key and the certificate")


def test_a_password_is_told_nowhere() -> None:
    found = config(ssl_key_password="hunter2", **TLS_FILES)
    assert found.ssl_key_password == "hunter2"
    assert "hunter2" not in repr(found) and "hunter2" not in str(found.text("ssl.key.password"))
    told = {item.key: item for item in describe_broker(found, own={}, cluster={})}["ssl.key.password"]
    assert told.sensitive and told.value is None and {item.value for item in told.synonyms} == {None}


def test_plain_text_by_an_explicit_map_is_taken_as_in_kafka() -> None:
    found = config(
        listeners="SASL_SSL://h:1,EXTERNAL://h:2",
        listener_security_protocol_map="SASL_SSL:PLAINTEXT, EXTERNAL:PLAINTEXT",
    )
    assert [item.name for item in found.client_listeners()] == ["SASL_SSL", "EXTERNAL"]
    assert found.text("listener.security.protocol.map") == "SASL_SSL:PLAINTEXT,EXTERNAL:PLAINTEXT"


def test_the_map_of_kafkas_own_file_is_taken_because_only_listeners_in_use_count() -> None:
    found = config(
        listeners="PLAINTEXT://h:1,CONTROLLER://h:2",
        controller_listener_names="CONTROLLER",
        security_inter_broker_protocol="PLAINTEXT",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    )
    assert found.inter_broker_listener() == "PLAINTEXT"


def test_names_of_ones_own_are_plain_text_and_a_map_must_name_them_all() -> None:
    assert config(listeners="INTERNAL://h:1").inter_broker_listener() == "INTERNAL"
    told = refusal(listeners="INTERNAL://h:1", listener_security_protocol_map="EXTERNAL:PLAINTEXT")
    assert "add INTERNAL:PLAINTEXT" in told


@pytest.mark.parametrize("text", ["SSL", "A:TLS", "A:SSL,A:PLAINTEXT", ":SSL"])
def test_a_map_that_cannot_be_read_is_refused(text: str) -> None:
    assert refusal(listener_security_protocol_map=text).startswith(
        "listener.security.protocol.map must be NAME:PROTOCOL"
    )


# --- where others reach this broker -----------------------------------------------------------------------------------


def test_addresses_to_listen_on_only_are_told_from_hosts() -> None:
    every = ("", "0.0.0.0", "::", "0:0::0", "0", "*", "0x0", "00.0.0.0", "0.0", "::ffff:0.0.0.0")
    assert all(map(binds_all_interfaces, every))
    assert not any(
        map(binds_all_interfaces, ("127.0.0.1", "::1", "example.org", "0.example.org", "0x1", "::ffff:127.0.0.1"))
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0"])
def test_every_interface_is_never_advertised(host: str) -> None:
    told = refusal(listeners=f"{host}:9092")
    assert "add PLAINTEXT://HOST:9092 to advertised.listeners" in told and "PLAINTEXT://:9092" in told
    assert "use a host" in refusal(listeners="h:1", advertised_listeners=f"{host}:1")
    assert "INTERNAL" in refusal(listeners=f"h:1,INTERNAL://{host}:2", advertised_listeners="h:1")
    assert "other voters" in refusal(controller_quorum_voters=f"0@{host}:1")
    assert "voters cannot connect" in refusal(quorum_listener=f"{host}:1")


def test_a_listener_without_a_host_is_reached_by_the_machines_name() -> None:
    found = config(listeners=":9092,INTERNAL://10.0.0.1:2,OUTSIDE://:3", advertised_listeners="OUTSIDE://example.org:3")
    assert needs_name(found)
    named = advertise_name(found, "broker-0.example")
    assert named.text("advertised.listeners") == "OUTSIDE://example.org:3,PLAINTEXT://broker-0.example:9092"
    assert not needs_name(named) and not needs_name(config())


def test_the_admin_api_on_every_interface_is_told_by_the_brokers_own_host() -> None:
    found = config(
        listeners="0.0.0.0:1,B://10.0.0.1:2", advertised_listeners="PLAINTEXT://a:1", inter_broker_listener_name="B"
    )
    assert reachable_host(found, "0.0.0.0") == "10.0.0.1"
    assert reachable_host(found, "192.168.0.1") == "192.168.0.1"


@pytest.mark.parametrize("host", ["\x00\x007.0.0.1", "höst", "broker-1.example.com", "10.0.0.1"])
def test_what_is_no_address_is_not_every_interface(host: str) -> None:
    assert not binds_all_interfaces(host)


def test_a_transition_needs_tls_between_brokers_and_demands_no_certificates_yet() -> None:
    assert "has no effect" in refusal(tls_transition="accept")
    assert "PLAINTEXT:SSL" not in refusal(tls_transition="use", listeners="PLAINTEXT://h:1,SSL://h:2", **TLS_FILES)
    given = {"listener_security_protocol_map": "PLAINTEXT:SSL", "listeners": "PLAINTEXT://h:1", **TLS_FILES}
    found = {step: config(**given, tls_transition=step) for step in ("off", "accept", "use")}
    assert [are_brokers_certified(item) for item in found.values()] == [True, False, False]
    assert [accepts_plain_text(item) for item in found.values()] == [False, True, True]
    assert [dials_plain_text(item) for item in found.values()] == [False, True, False]
    assert "must be one of" in refusal(**given, tls_transition="on")


# --- keys of single listeners -----------------------------------------------------------------------------------------

TWO = {
    "listeners": "SASL_SSL://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "SASL_SSL:SASL_SSL,BROKERS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "admin.listener": "HTTPS://127.0.0.1:0",
    "ssl.keystore.location": "own.pem",
    "ssl.truststore.location": "ca.pem",
    "ssl.client.auth": "required",
}
OF_CLIENTS = {
    "listener.name.sasl_ssl.ssl.keystore.location": "public.pem",
    "listener.name.sasl_ssl.ssl.keystore.type": "PEM",
    "listener.name.sasl_ssl.ssl.key.password": "hush",
    "listener.name.SASL_SSL.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.https.ssl.client.auth": "none",
}


def with_keys(given: dict[str, str], environment: dict[str, str] | None = None) -> BrokerConfig:
    return load(None, {"node.id": "0", "log.dirs": "/nowhere", **TWO, **given}, environment or {})


def test_a_listener_has_its_own_values_and_the_others_those_of_the_broker() -> None:
    found = with_keys(OF_CLIENTS)
    clients, brokers, admin = (found.for_listener(name) for name in ("SASL_SSL", "BROKERS", "HTTPS"))
    assert (clients.ssl_keystore_location, brokers.ssl_keystore_location) == ("public.pem", "own.pem")
    assert (clients.ssl_truststore_location, admin.ssl_keystore_location) == ("ca.pem", "own.pem")
    assert (admin.ssl_client_auth, brokers.ssl_client_auth) == ("none", "required")
    assert mechanisms_of(found, "SASL_SSL") == ("PLAIN",) and mechanisms_of(found, "BROKERS") == ()
    assert pem_files(found) == ["own.pem", "ca.pem", "public.pem"]


def test_the_environment_sets_keys_of_listeners() -> None:
    """Also of a listener whose name has the underscore that stands for a dot."""
    variables = {
        "BARNABAS_LISTENER_NAME_SASL_SSL_SSL_KEYSTORE_LOCATION": "public.pem",
        "BARNABAS_LISTENER_NAME_BROKERS_SSL_CLIENT_AUTH": "requested",
    }
    found = with_keys({}, variables)
    assert found.for_listener("SASL_SSL").ssl_keystore_location == "public.pem"
    assert found.for_listener("BROKERS").ssl_client_auth == "requested"


def test_keys_of_listeners_are_described_and_secrets_are_not() -> None:
    found = {item.key: item for item in describe_broker(with_keys(OF_CLIENTS), own={}, cluster={})}
    assert found["listener.name.sasl_ssl.ssl.keystore.location"].value == "public.pem"
    secret = found["listener.name.sasl_ssl.ssl.key.password"]
    assert secret.sensitive and secret.value is None and secret.read_only
    assert "hush" not in repr(with_keys(OF_CLIENTS)) and "hush" not in repr(found)
    with pytest.raises(InvalidConfigError, match="cannot be changed while a broker runs"):
        check_broker_config("listener.name.sasl_ssl.ssl.keystore.location", "other.pem")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listener.name.missing.ssl.client.auth": "none"}, "no such listener; there are SASL_SSL, BROKERS, HTTPS"),
        ({"listener.name.brokers.ssl.client.auth": "always"}, "must be one of none, requested, required"),
        ({"listener.name.brokers.num.partitions": "1"}, "a listener may have ssl.keystore.location"),
        ({"listener.name.brokers.ssl.keystore.type": "JKS"}, "must be one of PEM"),
        ({"listener.name.ssl.client.auth": "none"}, "unknown configuration key"),
        ({"listener.name.brokers.sasl.enabled.mechanisms": "PLAIN"}, "no client logs in at the listener BROKERS"),
        ({"listener.name.https.sasl.enabled.mechanisms": "PLAIN"}, "no client logs in at the listener HTTPS"),
        ({f"listener.name.{name}.ssl.client.auth": "none" for name in ("brokers", "BROKERS")}, "occurs twice"),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SSL",
                "listener.name.plaintext.ssl.client.auth": "none",
            },
            "the listener PLAINTEXT has no TLS",
        ),
    ],
)
def test_a_key_of_a_listener_that_cannot_have_it_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        with_keys(given)


def test_the_certificates_of_brokers_may_be_those_of_their_listener_only() -> None:
    no_common = {"ssl.keystore.location": "", "ssl.truststore.location": "", "admin.listener": "none"}
    own = {f"listener.name.{name}.ssl.keystore.location": "x.pem" for name in ("brokers", "sasl_ssl")}
    with pytest.raises(InvalidConfigError, match=r"need ssl\.truststore\.location"):
        with_keys({**no_common, **own})
    found = with_keys({**no_common, **own, "listener.name.brokers.ssl.truststore.location": "ca.pem"})
    assert found.for_listener("BROKERS").ssl_truststore_location == "ca.pem"
    del own["listener.name.sasl_ssl.ssl.keystore.location"]
    with pytest.raises(InvalidConfigError, match="SASL_SSL://127.0.0.1:0 needs a certificate"):
        with_keys({**no_common, **own, "listener.name.brokers.ssl.truststore.location": "ca.pem"})


def test_an_authorizer_looks_at_the_listener_of_brokers() -> None:
    acl = {"authorizer.class.name": "acl", "ssl.client.auth": "none"}
    with pytest.raises(InvalidConfigError, match="at the listener of brokers, BROKERS"):
        with_keys(acl)
    with_keys({**acl, "listener.name.brokers.ssl.client.auth": "required"})


# --- logins of brokers ------------------------------------------------------------------------------------------------

ONE_PORT = {
    "node.id": "0",
    "log.dirs": "/nowhere",
    "listeners": "SASL_SSL://127.0.0.1:0",
    "ssl.keystore.location": "own.pem",
    "ssl.truststore.location": "ca.pem",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
}
JAAS_KEY = "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config"
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="brokers" password="open; sesame";'


def one_port(**changes: str) -> BrokerConfig:
    return load(None, {**ONE_PORT, JAAS_KEY: JAAS, **changes}, {})


def test_brokers_log_in_as_kafkas_keys_say() -> None:
    found = one_port()
    assert broker_login(found) == Credentials(mechanism="SCRAM-SHA-512", user="brokers", password="open; sesame")
    assert is_quorum_encrypted(found) and are_brokers_certified(found)
    assert "sesame" not in repr(found) and "sesame" not in str(found.text(JAAS_KEY))
    by_protocol = one_port(**{"listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
                              "security.inter.broker.protocol": "SASL_SSL"})  # fmt: skip
    assert by_protocol.inter_broker_listener() == "SASL_SSL"
    variable = {"BARNABAS_LISTENER_NAME_SASL_SSL_SCRAM_SHA_512_SASL_JAAS_CONFIG": JAAS}
    assert broker_login(load(None, ONE_PORT, variable)) == broker_login(found)
    one_port(
        **{"authorizer.class.name": "acl"}
    )  # brokers are asked for their certificates, whatever ssl.client.auth says


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "does not accept it; add it to sasl.enabled.mechanisms"),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "needs listener.name.sasl_ssl.scram-sha-256",
        ),
        ({JAAS_KEY.replace("512", "256"): JAAS}, "has no effect: brokers log in at their own listener"),
        ({JAAS_KEY: JAAS.replace("username", "user")}, "must be ScramLoginModule or PlainLoginModule required"),
        ({JAAS_KEY: JAAS.replace('"brokers"', '""')}, "the user or the password is empty"),
        ({JAAS_KEY: JAAS.replace(";", ' user_alice="x";')}, "remove the options user_"),
        ({"tls.transition": "accept"}, "would have to send passwords"),
        ({"listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0"}, "has no effect"),
        ({"ssl.truststore.location": ""}, r"need ssl\.truststore\.location"),
        ({"security.inter.broker.protocol": "SASL_PLAINTEXT"}, "must be one of PLAINTEXT, SSL, SASL_SSL"),
    ],
)
def test_a_login_of_brokers_that_cannot_work_is_refused_with_the_cure(changes: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told) as refused:
        one_port(**changes)
    assert "sesame" not in str(refused.value)


def test_a_login_of_brokers_needs_its_user() -> None:
    with pytest.raises(InvalidConfigError, match=f"needs {JAAS_KEY}: the user and the password"):
        load(None, ONE_PORT, {})
