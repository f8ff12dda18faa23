"""From a broker's configuration to what it demands: permissions, logins, certificates, and where the keys of tokens come from."""

import asyncio
import datetime
import ssl
from pathlib import Path

import pytest
from unit.net.access.access_world import allow, by_resource
from unit.net.logins.test_authenticator import Connection
from unit.net.sasl.sasl_world import ITERATIONS, PASSWORD, SALT
from unit.net.shell_world import Client, simulated
from unit.net.test_tls_and_plain_text import Collect, Greeter, answer

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.disk.secret_files import write_secret
from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.access.scram import ScramMechanism
from barnabas.log.vocabulary.errors import ClusterAuthorizationError, InvalidConfigError, SaslAuthenticationError
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.base.clock import SystemClock
from barnabas.net.base.local.certificates import broker_certificate, make_authority
from barnabas.net.base.sasl.exchange import Accepted
from barnabas.net.base.sasl.scram import credential_for
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.broker import tls as broker_tls
from barnabas.net.broker.access import access_of, audit_of
from barnabas.net.broker.logins import authenticator_of
from barnabas.net.broker.tls import BrokerTls, tls_of
from barnabas.net.broker.token_keys import tokens_of
from barnabas.net.metadata.events.event_log import EventLog
from barnabas.net.server.access.access import AccessControl
from barnabas.net.server.access.audit import AuditLog
from barnabas.net.wire.network import Listener
from barnabas.net.wire.tcp import TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles

SECURE = {
    "listeners": "SASL_SSL://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "SASL_SSL:SASL_SSL,BROKERS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "admin.listener": "HTTPS://127.0.0.1:0",
    "authorizer.class.name": "acl",
    "super.users": "User:root",
    "ssl.client.auth": "required",
}
CREDENTIAL = credential_for(ScramMechanism.SHA_256, PASSWORD, salt=SALT, iterations=ITERATIONS)
FILE_USERS = {(ScramMechanism.SHA_256, "alice"): CREDENTIAL}


def config(**changes: str) -> BrokerConfig:
    return load(None, {"node.id": "0", "log.dirs": "/nowhere", **SECURE, **changes}, {})


def plain(**changes: str) -> BrokerConfig:
    return load(None, {"node.id": "0", "log.dirs": "/nowhere", **changes}, {})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, now = tmp_path_factory.mktemp("tls"), datetime.datetime.now(datetime.UTC)
    authority = make_authority(folder, "test", now=now)
    write_secret(folder / "broker.pem", broker_certificate(authority, 0, ("127.0.0.1",), now=now))
    return {"ssl.keystore.location": str(folder / "broker.pem"), "ssl.truststore.location": str(folder / "ca.pem")}


# --- permissions ------------------------------------------------------------------------------------------------------


def client(name: str, node_id: int | None = None) -> Client:
    made = Client()
    made.principal, made.certified_node = Principal(name=name), node_id
    return made


def audit(broker: BrokerConfig) -> AuditLog:
    return audit_of(broker, SystemClock(), EventLog(0, SystemClock()))


def control_of(broker: BrokerConfig, image: MetadataImage | None = None) -> AccessControl:
    control = access_of(broker, lambda: image or MetadataImage(), audit(broker), lambda: True)
    assert control is not None
    return control


def may_read(broker: BrokerConfig, name: str, image: MetadataImage | None = None) -> bool:
    return control_of(broker, image).of(client(name)).may_topic(Operation.READ, "t")


@simulated
async def test_permissions_are_demanded_of_all_but_super_users(files: dict[str, str]) -> None:
    broker = config(**files)
    assert may_read(broker, "root") and not may_read(broker, "alice")
    image = MetadataImage(acls=by_resource([allow(Operation.READ, ResourceKind.TOPIC, "t")]))
    assert may_read(broker, "alice", image) and not may_read(broker, "bob", image)
    everyone = config(**files, **{"allow.everyone.if.no.acl.found": "true"})
    assert may_read(everyone, "alice") and not may_read(everyone, "bob", image)
    assert access_of(plain(), MetadataImage, audit(plain()), lambda: True) is None


@simulated
async def test_a_super_user_is_no_broker_where_brokers_show_certificates(files: dict[str, str]) -> None:
    control = control_of(config(**files))
    control.of(client("node-1", 1)).require_broker(1)
    for who, speaks_for in ((client("root"), None), (client("node-1", 1), 2)):
        with pytest.raises(ClusterAuthorizationError):
            control.of(who).require_broker(speaks_for)
    elsewhere = control_of(plain(**{"authorizer.class.name": "acl", "super.users": "User:root"}))
    elsewhere.of(client("root")).require_broker(2)


# --- logins -----------------------------------------------------------------------------------------------------------


@simulated
async def test_logins_obey_the_configuration_and_are_in_the_audit() -> None:
    broker = plain(
        **{
            "authorizer.class.name": "acl",
            "connections.max.reauth.ms": "7000",
            "connection.failed.authentication.delay.ms": "400",
        }
    )
    lines: list[str] = []
    told = AuditLog(lambda: 0, lines.append)
    logins = authenticator_of(broker, FILE_USERS, SystemClock(), MetadataImage, told, AnyToken())
    began_s = asyncio.get_running_loop().time()
    failing = Connection()
    logins.choose(failing, "OAUTHBEARER")
    with pytest.raises(SaslAuthenticationError):
        await logins.authenticate(failing, b"no token")
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(0.4)
    right = Connection()
    logins.choose(right, "OAUTHBEARER")
    answer = await logins.authenticate(right, b"n,,\x01auth=Bearer x\x01\x01")
    assert answer is not None and answer.session_lifetime_ms == 7000
    assert ["login_failed" in lines[0], '"login"' in lines[1], len(lines)] == [True, True, 2]


class AnyToken:
    def accept(self, token: str, now_ms: int) -> Accepted:
        return Accepted(user=token)


# --- certificates -----------------------------------------------------------------------------------------------------


def tls(files: dict[str, str], **changes: str) -> BrokerTls:
    found = tls_of(config(**files, **changes))
    assert found is not None
    return found


@pytest.mark.parametrize("client_auth", ["required", "requested"])
def test_voters_demand_certificates_and_callers_of_http_are_asked(files: dict[str, str], client_auth: str) -> None:
    """A caller without one may log in with a password."""
    made = tls(files, **{"ssl.client.auth": client_auth})
    quorum, admin = made.quorum(), made.admin()
    assert quorum is not None and admin is not None
    assert quorum.server().verify_mode is quorum.client().verify_mode is ssl.CERT_REQUIRED
    assert admin().verify_mode is ssl.CERT_OPTIONAL


def test_without_an_authorizer_http_demands_what_listeners_demand(files: dict[str, str]) -> None:
    changes = {key: value for key, value in SECURE.items() if key not in ("authorizer.class.name", "super.users")}
    for client_auth, mode in (("none", ssl.CERT_NONE), ("required", ssl.CERT_REQUIRED)):
        made = tls_of(plain(**changes | files | {"ssl.client.auth": client_auth}))
        assert made is not None
        admin = made.admin()
        assert admin is not None and admin().verify_mode is mode


@pytest.mark.parametrize(
    ("step", "accepted", "dialed"),
    [("accept", b"plain", b"plain"), ("use", b"plain", b"encrypted"), ("off", b"", b"encrypted")],
)
async def test_only_the_listener_of_brokers_takes_part_in_a_transition(
    files: dict[str, str], step: str, accepted: bytes, dialed: bytes
) -> None:
    """A listener of clients with TLS refuses plain text in each step, and brokers connect as their step says."""
    listeners = "SSL://127.0.0.1:0,BROKERS://127.0.0.1:0"
    changes = {
        "listeners": listeners,
        "listener.security.protocol.map": "SSL:SSL,BROKERS:SSL",
        "allow.plaintext.listeners": "true",
        "tls.transition": step,
    }
    made = tls(files, **changes)
    of_brokers, of_clients = made.network("BROKERS"), made.network("SSL")
    for network, told in ((of_brokers, accepted), (of_clients, b"")):
        listener = await network.listen(Greeter, "127.0.0.1", 0)
        assert await answer(TcpNetwork(), listener) in {told + b" hello", told}
        await listener.close()
    both = await TcpNetwork(contexts_of(files), also_plain=True).listen(Greeter, "127.0.0.1", 0)
    assert await answer(of_brokers, both) == dialed + b" hello"
    assert await answer(of_clients, both) == b"encrypted hello"
    await both.close()
    quorum = made.quorum()
    assert quorum is not None and quorum.also_plain is (step != "off")
    assert (quorum.for_dialing() is None) is (step == "accept")


def contexts_of(files: dict[str, str]) -> TlsContexts:
    return TlsContexts(
        TlsFiles(certificate=files["ssl.keystore.location"], authorities=files["ssl.truststore.location"])
    )


async def test_each_listener_shows_and_trusts_what_its_own_keys_say(files: dict[str, str], tmp_path: Path) -> None:
    """Clients know another authority than brokers, and neither trusts the certificates of the other."""
    now = datetime.datetime.now(datetime.UTC)
    public = make_authority(tmp_path, "public", now=now)
    write_secret(tmp_path / "public.pem", broker_certificate(public, 0, ("127.0.0.1",), now=now))
    of_clients = {
        "ssl.keystore.location": str(tmp_path / "public.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }
    changes = {
        "listeners": "SSL://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "SSL:SSL,BROKERS:SSL",
        **{f"listener.name.ssl.{key}": value for key, value in of_clients.items()},
        "listener.name.ssl.ssl.enabled.protocols": "TLSv1.3",
    }
    made = tls(files, **changes)
    for name, right, wrong in (("SSL", of_clients, files), ("BROKERS", files, of_clients)):
        listener = await made.network(name).listen(Greeter, "127.0.0.1", 0)
        assert await answer(TcpNetwork(contexts_of(right)), listener) == b"encrypted hello"
        with pytest.raises(ConnectionError, match="not accepted"):
            await answer(TcpNetwork(contexts_of(wrong)), listener)
        own = contexts_of({**right, "ssl.keystore.location": wrong["ssl.keystore.location"]})
        try:
            assert await answer(TcpNetwork(own), listener) == b"", "a certificate of the other authority"
        except ConnectionError:
            pass
        await listener.close()
    quorum = made.quorum()
    assert quorum is not None and quorum.server().minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_wrong_file_of_one_listener_keeps_no_other_from_its_new_one(
    files: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_tls, "RELOAD_S", 0.01)
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "public", now=now)
    for name in ("one", "two"):
        write_secret(tmp_path / f"{name}.pem", broker_certificate(authority, 0, ("127.0.0.1",), now=now))
    changes = {
        "listeners": "ONE://127.0.0.1:0,TWO://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "ONE:SSL,TWO:SSL,BROKERS:SSL",
        "listener.name.one.ssl.keystore.location": str(tmp_path / "one.pem"),
        "listener.name.two.ssl.keystore.location": str(tmp_path / "two.pem"),
    }
    made = tls(files, **changes)
    listener = await made.network("TWO").listen(Greeter, "127.0.0.1", 0)
    (tmp_path / "one.pem").write_text("no certificate")
    write_secret(tmp_path / "two.pem", broker_certificate(authority, 0, ("127.0.0.1", "localhost"), now=now))
    trusting = TcpNetwork(contexts_of({**files, "ssl.truststore.location": str(tmp_path / "ca.pem")}))
    keeping = asyncio.ensure_future(made.keep_fresh())
    try:
        async with asyncio.timeout(30):
            while "localhost" not in await names_shown(trusting, listener):  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.01)
        assert "event=certificates_not_reloaded" in caplog.text and "one.pem" in caplog.text
    finally:
        keeping.cancel()
        await listener.close()


async def names_shown(network: TcpNetwork, listener: Listener) -> list[str]:
    client = await network.connect(Collect, *listener.address)
    assert isinstance(client, Collect)
    shown = client.transport.get_extra_info("peercert")["subjectAltName"]
    client.transport.abort()
    await client.ended
    return [value for _, value in shown]


@simulated
async def test_certificates_decide_who_is_a_broker_when_the_transition_is_over(files: dict[str, str]) -> None:
    """Before, brokers come without one, so the permission decides, as in a cluster without TLS."""
    steps = {step: config(**files, **{"tls.transition": step}) for step in ("off", "accept", "use")}
    assert [control_of(item).brokers_are_certified for item in steps.values()] == [True, False, False]


def test_an_own_certificate_that_has_expired_is_found_at_the_start(tmp_path: Path) -> None:
    """As one of another authority or for another node: the other brokers would refuse it."""
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now - datetime.timedelta(days=90))
    long_ago = now - datetime.timedelta(days=60)
    write_secret(tmp_path / "broker.pem", broker_certificate(authority, 0, ("127.0.0.1",), now=long_ago, days=30))
    files = {"ssl.keystore.location": str(tmp_path / "broker.pem"), "ssl.truststore.location": str(tmp_path / "ca.pem")}
    with pytest.raises(InvalidConfigError, match="expired"):
        tls(files)


# --- keys of tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://issuer.example.com/keys", "ftp://127.0.0.1/keys", "keys.json"])
def test_keys_of_tokens_do_not_come_from_where_others_could_change_them(url: str) -> None:
    broker = plain(**{"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": url})
    with pytest.raises(InvalidConfigError, match="use file:///path or https://"):
        tokens_of(broker)
