"""Listeners: what their names promise, and where a broker says that it is reached."""

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.settings.config import BrokerConfig, load
from barnabas.net.settings.listeners import advertise_name, binds_all_interfaces, needs_name, reachable_host

PROTECTED = ("SSL", "SASL_PLAINTEXT", "SASL_SSL", "sasl_ssl")


def config(**given: str) -> BrokerConfig:
    return load(None, {key.replace("_", "."): text for key, text in given.items()}, {})


def refusal(**given: str) -> str:
    with pytest.raises(InvalidConfigError) as refused:
        config(**given)
    return str(refused.value)


# --- protection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTECTED)
def test_a_listener_that_asks_for_protection_is_refused_with_the_cure(name: str) -> None:
    told = refusal(listeners=f"PLAINTEXT://h:1,{name}://h:2")
    assert told.startswith(f"listeners={name.upper()}://h:2: ") and "TLS and SASL are not available yet" in told
    assert f"listener.security.protocol.map={name.upper()}:PLAINTEXT" in told


@pytest.mark.parametrize(
    "given",
    [
        {"advertised_listeners": "SSL://h:1"},
        {"quorum_listener": "SSL://h:1"},
        {"admin_listener": "HTTPS://h:1"},
        {"listeners": "INTERNAL://h:1", "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT"},
        {"security_inter_broker_protocol": "SSL"},
        {"controller_listener_names": "SSL"},
        {
            "controller_listener_names": "CONTROLLER",
            "listener_security_protocol_map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
        },
        {"ssl_keystore_location": "/etc/key"},
        {"authorizer_class_name": "x"},
    ],
)
def test_protection_is_refused_wherever_it_is_asked_for(given: dict[str, str]) -> None:
    assert "not available yet" in refusal(**given)


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
