"""Keys and certificates in the configuration itself (KIP-651): of brokers, of single listeners, of clients."""

import datetime
from pathlib import Path

import pytest
from unit.net.test_tls_and_plain_text import Collect, Greeter

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.local.certificates import broker_certificate, client_certificate, make_authority
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.base.settings.config_descriptions import describe_broker
from barnabas.net.broker.monitoring.machine import MachineWatch
from barnabas.net.broker.tls import BrokerTls, configured_certificates
from barnabas.net.client.connection.kafka_options import security_options
from barnabas.net.client.connection.security import SecurityOptions, network_of
from barnabas.net.wire import pem

NOW = datetime.datetime.now(datetime.UTC)
BASE = {"node.id": "0", "log.dirs": "/nowhere", "admin.listener": "none", "listeners": "SSL://127.0.0.1:0"}
KEY, CHAIN, TRUST = "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"


class World:
    """An authority, and what a broker and a client show, as texts."""

    def __init__(self, folder: Path) -> None:
        authority = make_authority(folder, "test", now=NOW)
        self.trust = (folder / "ca.pem").read_text()
        self.key, self.chain = _parts(broker_certificate(authority, 0, ("127.0.0.1",), now=NOW))
        self.client_key, self.client_chain = _parts(client_certificate(authority, "alice", now=NOW))
        self.broker = {
            "ssl.client.auth": "required",
            "security.inter.broker.protocol": "SSL",
            KEY: self.key,
            CHAIN: self.chain,
            TRUST: self.trust,
        }

    def client(self, **changes: str) -> dict[str, str]:
        own = {KEY: self.client_key, CHAIN: self.client_chain, TRUST: self.trust}
        return {"security.protocol": "SSL", "ssl.keystore.type": "PEM", **own, **changes}


def _parts(file: bytes) -> tuple[str, str]:
    key, begin, chain = file.decode().partition("-----BEGIN CERTIFICATE-----")
    return key, begin + chain


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("pem"))


def config(given: dict[str, str], environment: dict[str, str] | None = None) -> BrokerConfig:
    return load(None, {**BASE, **given}, environment or {})


def in_one_line(text: str) -> str:
    return text.strip().replace("\n", " ")


def with_escapes(text: str) -> str:
    return text.strip().replace("\n", "\\n")


async def greeting(broker: BrokerConfig, options: SecurityOptions) -> bytes:
    """What a client hears from the listener SSL; b"" if it is not let in."""
    listener = await BrokerTls(broker).network("SSL").listen(Greeter, "127.0.0.1", 0)
    collect = Collect()
    try:
        await network_of(options).connect(lambda: collect, *listener.address)
        return await collect.ended
    except (OSError, InvalidConfigError):
        return b""
    finally:
        await listener.close()


@pytest.mark.parametrize("written", [str, in_one_line, with_escapes, lambda text: text.replace("\n", "\r\n")])
async def test_brokers_and_clients_use_them_however_the_lines_are_broken(world: World, written: object) -> None:
    assert callable(written)
    of_broker = world.broker | {key: written(world.broker[key]) for key in (KEY, CHAIN, TRUST)}
    of_client = {key: written(text) if "---" in text else text for key, text in world.client().items()}
    assert await greeting(config(of_broker), security_options(of_client, "here")) == b"encrypted hello"
    del of_client[KEY], of_client[CHAIN]
    assert await greeting(config(of_broker), security_options(of_client, "here")) == b"", "it shows no certificate"


async def test_a_properties_file_has_them_in_lines_that_go_on(world: World, tmp_path: Path) -> None:
    def lines(text: str) -> str:
        return " \\\n".join(text.strip().split("\n"))

    path = tmp_path / "server.properties"
    told = {**BASE, **world.broker, "ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    path.write_text("".join(f"{key}={lines(text)}\n" for key, text in told.items()))
    found = load(path, {}, {})
    assert await greeting(found, security_options(world.client(), "here")) == b"encrypted hello"


def test_no_description_and_no_error_shows_them(world: World) -> None:
    environment = {"BARNABAS_SSL_KEYSTORE_KEY": world.key}
    given = {key: text for key, text in world.broker.items() if key != KEY}
    listener = {f"listener.name.ssl.{key}": world.broker[key] for key in (KEY, CHAIN)}
    found = config({**given, **listener}, environment)
    secret = world.key.splitlines()[1]
    described = {item.key: item for item in describe_broker(found, own={}, cluster={})}
    assert secret not in repr(found) and secret not in repr(described)
    for key in (KEY, f"listener.name.ssl.{KEY}"):
        assert described[key].sensitive and described[key].value is None
    for wrong in (f"{world.key}{world.key}", world.chain, world.key.replace("-----END", "----END"), f"x{secret}"):
        with pytest.raises(InvalidConfigError, match=r"ssl\.keystore\.key must be one private key") as refused:
            BrokerTls(config(world.broker | {KEY: wrong}))
        assert secret not in str(refused.value)
    damaged = world.key.replace(secret, f"{secret[:-1]}!")
    with pytest.raises(InvalidConfigError, match="is no base64") as refused:
        BrokerTls(config(world.broker | {KEY: damaged}))
    assert secret[:-1] not in str(refused.value)
    with pytest.raises(InvalidConfigError, match="does not belong") as refused:
        BrokerTls(config(world.broker | {KEY: world.client_key}))
    assert world.client_key.splitlines()[1] not in str(refused.value)
    options = security_options(world.client(**{KEY: damaged}), "here")
    with pytest.raises(InvalidConfigError, match="is no base64") as refused:
        network_of(options)
    assert secret[:-1] not in str(refused.value)


def test_certificates_of_the_configuration_have_a_limit(world: World) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.truststore\.certificates has more than"):
        BrokerTls(config(world.broker | {TRUST: "x" * pem.MAX_LENGTH + world.trust}))
    with pytest.raises(InvalidConfigError, match=r"ssl\.truststore\.certificates must be certificates"):
        BrokerTls(config(world.broker | {TRUST: world.key}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ssl.keystore.location": "own.pem"}, "set ssl.keystore.location or ssl.keystore.key, not both"),
        ({"ssl.truststore.location": "ca.pem"}, "set ssl.truststore.location or ssl.truststore.certificates, not both"),
        ({KEY: ""}, "both or none of them"),
        ({CHAIN: ""}, "both or none of them"),
        ({KEY: "", CHAIN: ""}, "needs a certificate"),
        ({TRUST: ""}, r"need ssl\.truststore\.location"),
        ({"ssl.keystore.type": "JKS"}, "must be one of PEM"),
        ({f"listener.name.ssl.{KEY}": "x"}, "both or none of them"),
    ],
)
def test_two_ways_at_once_or_half_of_one_are_refused(world: World, changes: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        config(world.broker | changes)


def test_a_listener_has_its_own_instead_of_a_file(world: World) -> None:
    common = {"ssl.keystore.location": "own.pem", "ssl.truststore.location": "ca.pem"}
    own = {f"listener.name.ssl.{key}": world.broker[key] for key in (KEY, CHAIN)}
    found = config({"security.inter.broker.protocol": "SSL", **common, **own}).for_listener("SSL")
    assert found.ssl_keystore_location is None and found.ssl_keystore_key == world.key.strip()
    assert found.ssl_truststore_location == "ca.pem" and found.ssl_truststore_certificates is None
    other = config(world.broker | {"listener.name.ssl.ssl.keystore.location": "own.pem"}).for_listener("SSL")
    assert (other.ssl_keystore_location, other.ssl_keystore_key) == ("own.pem", None)
    assert other.ssl_keystore_certificate_chain is None and other.ssl_truststore_certificates == world.trust.strip()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ssl_cafile": "ca.pem"}, "set ssl_cafile or ssl_ca_pem, not both"),
        ({"ssl_certfile": "own.pem"}, "set ssl_certfile or ssl_certificate_pem, not both"),
        ({"ssl_key_pem": None}, "both or none of them"),
        ({"ssl_certificate_pem": None}, "both or none of them"),
        ({"security_protocol": "PLAINTEXT"}, "has no effect without"),
    ],
)
def test_options_of_clients_that_contradict_are_refused(
    world: World, changes: dict[str, str | None], told: str
) -> None:
    options = {**security_options(world.client(), "here"), **changes}
    made: SecurityOptions = {name: text for name, text in options.items() if text is not None}  # type: ignore[assignment]
    with pytest.raises(InvalidConfigError, match=told):
        network_of(made)


def test_their_ends_are_known_as_those_of_files(world: World) -> None:
    found = configured_certificates(config(world.broker))
    watch = MachineWatch((), lambda path: pytest.fail("there is no folder"), (), found)
    watch._look_at_process()
    assert {(item.path, item.subject) for item in watch.certificates} == {(CHAIN, "CN=node-0"), (TRUST, "CN=test")}
    assert all(item.ends_ms > NOW.timestamp() * 1000 for item in watch.certificates)
