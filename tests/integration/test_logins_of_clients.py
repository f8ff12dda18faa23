"""Clients in Java, Go, JavaScript and Python, unchanged, log in by TLS with every mechanism that they have; wrong secrets are
refused."""

import asyncio
import gc
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import kafka
import kafka.errors
import kafka.net.sasl.oauth
import pytest
from confluent_kafka import Producer as RdProducer
from integration import java_client, programs
from integration.cluster import SESSION, Cluster
from integration.load import read_all
from integration.test_kafka_client_transactions import FRANZ_GO, KAFKAJS, SARAMA
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.net.client.admin.admin import Admin

JAVA = "4.1.1"
RUN_S = 150.0
TOKEN_S = 900  # the life of a token, longer than a test
USER, PASSWORD = "sue", "s=cret, 7"
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
pytestmark = pytest.mark.timeout(900.0)  # a first build in Go compiles the client


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    name: str
    bootstrap: str
    mechanism: str = ""  # none: the certificate is the login
    user: str = ""
    secret: str = ""  # a password, or a token
    certificate: str = ""
    is_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    cluster: Cluster
    authority: str
    logins: tuple[Login, ...]

    @property
    def expected(self) -> list[str]:
        return [f"{'REFUSED' if item.is_refused else 'WORKED'} {item.name}" for item in self.logins]

    async def topic(self, name: str) -> str:
        await self.cluster.ready()
        async with Admin(self.cluster.logins, **self.cluster.login) as admin:
            await admin.users.add(USER, PASSWORD)  # with the secrets of both SCRAM mechanisms
            await admin.create_topic(name, partitions=1, replication_factor=1)
        return name


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("logins")
    key = RSAKey.generate_key(2048, {"kid": "k"})
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}), encoding="utf-8")
    overrides = {
        "sasl.enabled.mechanisms": ",".join((*PASSWORD_MECHANISMS, "OAUTHBEARER")),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "barnabas",
        "super.users": "User:admin;User:robot;User:CN=admin;User:sue",
        **SESSION,
    }

    def token(audience: str) -> str:
        now = int(time.time())
        claims = {"sub": "robot", "aud": audience, "iat": now, "exp": now + TOKEN_S}
        return jwt.encode({"alg": "RS256", "kid": "k"}, claims, key)

    with Cluster(folder / "c", 1, overrides=overrides, secure=True) as cluster:
        by_password = [
            Login(
                name=f"{kind}{mechanism}",
                bootstrap=cluster.logins,
                mechanism=mechanism,
                user=USER,
                secret=secret,
                is_refused=kind != "",
            )
            for mechanism in PASSWORD_MECHANISMS
            for kind, secret in (("", PASSWORD), ("wrong-", "no password"))
        ]
        by_token = [
            Login(
                name=f"{kind}OAUTHBEARER",
                bootstrap=cluster.logins,
                mechanism="OAUTHBEARER",
                secret=token(audience),
                is_refused=kind != "",
            )
            for kind, audience in (("", "barnabas"), ("wrong-", "another"))
        ]
        by_certificate = Login(
            name="certificate", bootstrap=cluster.bootstrap, certificate=cluster.security["ssl_certfile"]
        )
        yield World(
            cluster=cluster,
            authority=cluster.security["ssl_cafile"],
            logins=(*by_password, *by_token, by_certificate),
        )


# --- Go and JavaScript ------------------------------------------------------------------------------------------------

Make = Callable[[Path], list[str]]


def _go(source: str, module: str) -> Make:
    def make(folder: Path) -> list[str]:
        return programs.go_client(folder, java_client.SOURCES / source, module)

    return make


def _node(folder: Path) -> list[str]:
    return ["node", str(programs.node_client(folder, java_client.SOURCES / "node", KAFKAJS) / "logins.js")]


@pytest.mark.parametrize(
    "make",
    [pytest.param(_go("franz_go_logins", FRANZ_GO), id="franz-go"),
     pytest.param(_go("sarama_logins", SARAMA), id="sarama"), pytest.param(_node, id="kafkajs")],
)  # fmt: skip
async def test_clients_log_in_with_every_mechanism(
    world: World, make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command = make(tmp_path / "client")
    told = {
        "topic": await world.topic(f"logins-{request.node.callspec.id}"),
        "authority": world.authority,
        "cases": [asdict(item) for item in world.logins],
    }
    file = tmp_path / "logins.json"
    file.write_text(json.dumps(told), encoding="utf-8")
    lines = await programs.lines_of([*command, str(file)], timeout_s=RUN_S)
    assert _outcomes(lines) == world.expected, lines


def _outcomes(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("WORKED", "REFUSED"))]


# --- kcat -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat here: apt-get install kcat")
async def test_kcat_logs_in(world: World, tmp_path: Path) -> None:
    """With all but tokens, which it gets from a service of its own choice only."""
    topic = await world.topic("logins-kcat")
    for login in (item for item in world.logins if item.mechanism != "OAUTHBEARER"):
        settings = {
            "bootstrap.servers": login.bootstrap,
            "security.protocol": "SASL_SSL" if login.mechanism else "SSL",
            "ssl.ca.location": world.authority,
        }
        if login.mechanism:
            by_password = {"sasl.username": login.user, "sasl.password": login.secret}
            settings |= {"sasl.mechanism": login.mechanism, **by_password}
        else:
            settings |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
        file = tmp_path / f"{login.name}.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        kcat = ["kcat", "-F", str(file), "-m", "10"]
        written = await asyncio.to_thread(_run, [*kcat, "-P", "-t", topic], login.name)
        assert (written.returncode != 0) is login.is_refused, (login.name, written.stderr)
        if not login.is_refused:
            read = await asyncio.to_thread(_run, [*kcat, "-C", "-t", topic, "-e", "-q"])
            assert login.name in read.stdout.splitlines(), read.stderr


def _run(command: list[str], given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_S, check=False)


# --- Java -------------------------------------------------------------------------------------------------------------

MODULES = "org.apache.kafka.common.security"
JAAS = {
    "PLAIN": '{module}.plain.PlainLoginModule required username="{user}" password="{secret}";',
    "SCRAM": '{module}.scram.ScramLoginModule required username="{user}" password="{secret}";',
    "OAUTHBEARER": "{module}.oauthbearer.OAuthBearerLoginModule required;",
}


def java_properties(authority: str, login: Login, folder: Path) -> Path:
    """A file of settings for Java; a token is a file of its own, as an agent on the machine would write it."""
    found = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": "SASL_SSL" if login.mechanism else "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
    }
    if login.certificate:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login.certificate}
    if login.mechanism:
        jaas = JAAS[login.mechanism.partition("-")[0]]
        found["sasl.mechanism"] = login.mechanism
        found["sasl.jaas.config"] = jaas.format(module=MODULES, user=login.user, secret=login.secret)
    if login.mechanism == "OAUTHBEARER":
        token = folder / f"{login.name}.token"
        token.write_text(login.secret, encoding="utf-8")
        found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        found["sasl.login.callback.handler.class"] = f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
    path = folder / f"{login.name}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in found.items()), encoding="utf-8")
    return path


async def test_java_logs_in_with_every_mechanism(world: World, tmp_path: Path) -> None:
    if java_client.find():
        pytest.skip(java_client.find())
    libraries = java_client.fetch(tmp_path / "libraries", JAVA, "tools.xml")  # which has what reads tokens
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    files = [java_properties(world.authority, item, tmp_path) for item in world.logins]
    tokens = ",".join(file.as_uri() for file in tmp_path.glob("*.token"))
    command = java_client.logins(libraries, await world.topic("logins-java"), *map(str, files), allowed_urls=tokens)
    lines = await programs.lines_of(command, timeout_s=RUN_S)
    assert _outcomes(lines) == world.expected, lines


# --- Python -----------------------------------------------------------------------------------------------------------

REFUSED_S = 5.0  # a client that tries again has no end of its own


def _limit_s(login: Login) -> float:
    return REFUSED_S if login.is_refused else RUN_S


def python_options(world: World, login: Login) -> dict[str, Any]:
    """Of kafka-python and aiokafka."""
    context = ssl.create_default_context(cafile=world.authority)
    found: dict[str, Any] = {"bootstrap_servers": [login.bootstrap], "ssl_context": context}
    if login.certificate:
        context.load_cert_chain(login.certificate)
        return found | {"security_protocol": "SSL"}
    found |= {"security_protocol": "SASL_SSL", "sasl_mechanism": login.mechanism}
    if login.mechanism != "OAUTHBEARER":
        found |= {"sasl_plain_username": login.user, "sasl_plain_password": login.secret}
    return found


async def by_aiokafka(world: World, login: Login, topic: str) -> bool:
    class Provider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return login.secret

    tokens = {"sasl_oauth_token_provider": Provider()} if login.mechanism == "OAUTHBEARER" else {}
    producer = aiokafka.AIOKafkaProducer(**python_options(world, login), **tokens)
    try:
        await producer.start()
        await producer.send_and_wait(topic, login.name.encode())
    except aiokafka.errors.KafkaError:
        return False
    finally:
        await producer.stop()
    return True


async def by_kafka_python(world: World, login: Login, topic: str) -> bool:
    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return login.secret

    def write() -> bool:
        tokens = {"sasl_oauth_token_provider": Provider()} if login.mechanism == "OAUTHBEARER" else {}
        try:
            producer = kafka.KafkaProducer(
                **python_options(world, login),
                **tokens,
                max_block_ms=_limit_s(login) * 1000,
                bootstrap_timeout_ms=_limit_s(login) * 1000,
            )
        except kafka.errors.KafkaError:
            return False
        try:
            producer.send(topic, login.name.encode()).get(_limit_s(login))
        except kafka.errors.KafkaError:
            return False
        finally:
            producer.close(1)
        return True

    return await asyncio.to_thread(write)


async def by_librdkafka(world: World, login: Login, topic: str) -> bool:
    """confluent-kafka."""
    options: dict[str, Any] = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": "SASL_SSL" if login.mechanism else "SSL",
        "ssl.ca.location": world.authority,
        "error_cb": lambda error: None,
    }
    if login.certificate:
        options |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
    elif login.mechanism == "OAUTHBEARER":
        options |= {"sasl.mechanism": login.mechanism, "oauth_cb": lambda _: (login.secret, time.time() + TOKEN_S)}
    else:
        by_password = {"sasl.username": login.user, "sasl.password": login.secret}
        options |= {"sasl.mechanism": login.mechanism, **by_password}
    producer = RdProducer(options)
    producer.produce(topic, login.name.encode())
    is_written = bool(await asyncio.to_thread(producer.flush, _limit_s(login)) == 0)
    producer.purge()
    await asyncio.to_thread(producer.flush, 1)
    return is_written


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's, where it could not log in
@pytest.mark.parametrize("write", [by_aiokafka, by_kafka_python, by_librdkafka])
async def test_clients_in_python_log_in_with_every_mechanism(
    world: World, write: Callable[[World, Login, str], Awaitable[bool]]
) -> None:
    topic = await world.topic(f"logins-{write.__name__}")
    written = {item.name: await write(world, item, topic) for item in world.logins}
    gc.collect()
    assert written == {item.name: not item.is_refused for item in world.logins}
    found = await read_all(world.cluster.bootstrap, topic, **world.cluster.security)
    values = [value.decode() for records in found.values() for value in records.values()]
    assert sorted(values) == sorted(item.name for item in world.logins if not item.is_refused)
