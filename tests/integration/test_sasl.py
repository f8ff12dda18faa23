"""Logins on a real cluster with TLS: our SDK, librdkafka, kafka-python and aiokafka, every mechanism; who is refused and how."""

import asyncio
import base64
import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as RdProducer
from confluent_kafka.admin import AdminClient as RdAdmin
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from integration.cluster import SESSION, Cluster, until
from integration.librdkafka_roundtrip import check_roundtrip
from integration.test_command import run
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.net.base.sasl.verifiers import read_users
from barnabas.net.cli.frame.exit_codes import ExitCode
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import (
    BarnabasError,
    InvalidConfigError,
    ResourceNotFoundError,
    SaslAuthenticationError,
)
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.testing.access import options_for

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sasl") / "c", 3, overrides=SESSION, secure=True) as started:
        yield started


async def topic(cluster: Cluster, name: str) -> str:
    await cluster.ready()
    async with Admin(cluster.logins, **cluster.login) as admin:
        await admin.create_topic(name, partitions=3, replication_factor=3)
    return name


async def test_the_sdk_logs_in_by_the_file_that_up_has_written(cluster: Cluster) -> None:
    name = await topic(cluster, "orders")
    async with Producer(cluster.logins, **cluster.login) as producer:
        for number in range(30):
            await (await producer.send(name, b"%d" % number, partition=number % 3))
    found: set[bytes] = set()
    async with Consumer(
        name, bootstrap=cluster.logins, group="readers", auto_offset_reset="earliest", **cluster.login
    ) as consumer:
        async with asyncio.timeout(LIMIT_S):
            while len(found) < 30:
                for records in (await consumer.poll(timeout_ms=1_000)).values():
                    found |= {record.value or b"" for record in records}
    assert found == {b"%d" % number for number in range(30)}


def rd_options(cluster: Cluster, login: SecurityOptions) -> dict[str, str]:
    return {"bootstrap.servers": cluster.logins, **options_for("confluent-kafka", login)}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_librdkafka_writes_and_reads(cluster: Cluster, mechanism: str) -> None:
    name = await topic(cluster, f"rd-{mechanism}")
    options = rd_options(cluster, cluster.login) | {"sasl.mechanism": mechanism}

    await check_roundtrip(options, name)


# --- users ------------------------------------------------------------------------------------------------------------


def login(cluster: Cluster, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> SecurityOptions:
    found = SecurityOptions(**cluster.login)
    found["sasl_mechanism"] = mechanism
    found["sasl_plain_username"], found["sasl_plain_password"] = user, password
    return found


async def can_log_in(cluster: Cluster, options: SecurityOptions) -> bool:
    """At every broker."""
    for address in cluster.logins.split(","):
        try:
            async with Admin(address, **options):
                pass
        except SaslAuthenticationError as error:
            assert "invalid credentials" in error.message and options["sasl_plain_password"] not in error.message
            return False
    return True


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_a_user_is_added_changed_and_removed(cluster: Cluster, mechanism: str) -> None:
    await cluster.ready()
    user = f"søren, {mechanism}"
    options = login(cluster, user, "p=ss,wörd", mechanism)
    assert not await can_log_in(cluster, options)
    async with Admin(cluster.logins, **cluster.login) as admin:
        await admin.users.add(user, "p=ss,wörd")
        await until(lambda: can_log_in(cluster, options), "the user can log in everywhere")
        found = [(item.mechanism, item.iterations) for item in await admin.users.list(user)]
        assert found == [(1, 8192), (2, 8192)]
        await admin.users.add(user, "another", iterations=4096)
        await until(
            lambda: can_log_in(cluster, login(cluster, user, "another", mechanism)),
            "the new password counts everywhere",
        )
        assert not await can_log_in(cluster, options)
        await admin.users.remove(user)
        with pytest.raises(ResourceNotFoundError):
            await admin.users.remove(user)
        assert not await can_log_in(cluster, options)


async def test_librdkafkas_administrator_manages_users(cluster: Cluster) -> None:
    await cluster.ready()
    admin = RdAdmin(rd_options(cluster, cluster.login))

    def altered(*changes: UserScramCredentialAlteration) -> dict[str, int]:
        codes = {}  # librdkafka answers in an order of its own
        for user, future in admin.alter_user_scram_credentials(list(changes)).items():
            try:
                future.result(LIMIT_S)
                codes[user] = 0
            except KafkaException as error:
                codes[user] = error.args[0].code()
        return codes

    def work() -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        weak = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_095)
        assert altered(
            UserScramCredentialUpsertion("rd-user", info, b"rd-password"),
            UserScramCredentialUpsertion("rd-weak", weak, b"x"),
        ) == {"rd-user": 0, "rd-weak": 93}
        told = admin.describe_user_scram_credentials(["rd-user"])["rd-user"].result(LIMIT_S)
        assert [(item.mechanism, item.iterations) for item in told.scram_credential_infos] == [
            (ScramMechanism.SCRAM_SHA_512, 4_096)
        ]
        assert "rd-user" in admin.describe_user_scram_credentials().result(LIMIT_S)
        with pytest.raises(KafkaException, match="no user"):
            admin.describe_user_scram_credentials(["nobody"])["nobody"].result(LIMIT_S)

    await asyncio.to_thread(work)
    options = login(cluster, "rd-user", "rd-password")
    await until(lambda: can_log_in(cluster, options), "the user can log in")

    def remove() -> None:
        gone = UserScramCredentialDeletion("rd-user", ScramMechanism.SCRAM_SHA_512)
        assert altered(gone) == {"rd-user": 0}
        assert altered(gone) == {"rd-user": 91}

    await asyncio.to_thread(remove)
    assert not await can_log_in(cluster, options)


async def test_the_command_reads_passwords_from_its_input(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.ready()
    file = str(cluster.folder / "client.properties")

    def run(*arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "barnabas", "user", *arguments, "--command-config", file]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=2 * LIMIT_S)

    added = await asyncio.to_thread(run, "add", "carol", text="from stdin\n")
    assert (added.returncode, added.stdout.strip()) == (0, "user carol can log in"), added.stderr
    await until(lambda: can_log_in(cluster, login(cluster, "carol", "from stdin")), "carol can log in")
    (tmp_path / "password").write_text("from a file\n", encoding="utf-8")
    await asyncio.to_thread(run, "add", "carol", "--password-file", str(tmp_path / "password"))
    await until(lambda: can_log_in(cluster, login(cluster, "carol", "from a file")), "carol can log in")
    listed = await asyncio.to_thread(run, "list")
    assert "carol" in listed.stdout and "SCRAM-SHA-512" in listed.stdout
    hashed = await asyncio.to_thread(run, "hash", "dave", "--mechanism", "SCRAM-SHA-256", text="secret\n")
    ((mechanism, user),) = read_users(hashed.stdout.encode(), "stdout")
    assert (str(mechanism), user) == ("SCRAM-SHA-256", "dave") and "secret" not in hashed.stdout
    assert (await asyncio.to_thread(run, "add", "eve")).returncode == 2, "an empty password"
    removed = await asyncio.to_thread(run, "remove", "carol")
    assert removed.returncode == 0, removed.stderr
    assert not await can_log_in(cluster, login(cluster, "carol", "from a file"))


async def test_secrets_are_in_no_log_and_no_description(cluster: Cluster) -> None:
    await cluster.ready()
    password = cluster.login["sasl_plain_password"]
    async with Admin(cluster.logins, **cluster.login) as admin:
        await admin.users.add("frank", "the password of frank")
        shown = repr(await admin.describe_configs(0, resource_type=4)) + repr(await admin.users.list())
    assert not await can_log_in(cluster, login(cluster, "frank", "a wrong password"))
    shown += "".join(node.log() for node in cluster.nodes)
    for secret in (password, "the password of frank", "a wrong password"):
        assert secret not in shown
    mode = (cluster.folder / "client.properties").stat().st_mode & 0o777
    assert mode == 0o600, "it contains the password"


# --- other clients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_kafka_python_and_aiokafka(cluster: Cluster, mechanism: str) -> None:
    name = await topic(cluster, f"python-{mechanism}")
    options = {
        "bootstrap_servers": cluster.logins.split(","),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "admin",
        "sasl_plain_password": cluster.login["sasl_plain_password"],
    }
    context = ssl.create_default_context(cafile=cluster.login["ssl_cafile"])

    def write() -> None:
        producer = kafka.KafkaProducer(**options, ssl_context=context)
        for number in range(100):
            producer.send(name, b"%d" % number)
        producer.close(LIMIT_S)

    await asyncio.to_thread(write)
    consumer = aiokafka.AIOKafkaConsumer(
        name, **options, ssl_context=context, group_id=name, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            found = {(await consumer.getone()).value for _ in range(100)}
    finally:
        await consumer.stop()
    assert found == {b"%d" % number for number in range(100)}


# --- who is refused ---------------------------------------------------------------------------------------------------


async def test_who_does_not_log_in_is_told_how(cluster: Cluster) -> None:
    await cluster.ready()
    options = SecurityOptions(security_protocol="SSL", ssl_cafile=cluster.login["ssl_cafile"])
    with pytest.raises(BarnabasError, match=r"only clients that log in.*sasl_mechanism"):
        async with Admin(cluster.logins, **options):
            pass


async def test_credentials_are_not_sent_to_a_listener_without_logins(cluster: Cluster) -> None:
    await cluster.ready()
    options = SecurityOptions(**cluster.login, ssl_certfile=cluster.security["ssl_certfile"])
    with pytest.raises(BarnabasError, match="has no SASL, and no credentials were sent"):
        async with Admin(cluster.bootstrap, **options):
            pass


async def test_librdkafka_is_told_that_its_password_is_wrong(cluster: Cluster) -> None:
    await cluster.ready()
    told: list[str] = []
    options = rd_options(cluster, login(cluster, "admin", "wrong", "SCRAM-SHA-256"))
    admin = RdAdmin({**options, "error_cb": lambda error: told.append(str(error))})

    def is_told() -> bool:
        admin.poll(0)
        return any("AUTHENTICATION" in line.upper() for line in told)

    await until(is_told, "librdkafka reports the wrong password")
    with pytest.raises(KafkaException):
        await asyncio.to_thread(admin.list_topics, timeout=1)


def test_a_client_without_a_password_is_told_at_once() -> None:
    with pytest.raises(InvalidConfigError, match="sasl_plain_username"):
        Producer("localhost:1", security_protocol="SASL_SSL", sasl_mechanism="PLAIN")
    with pytest.raises(InvalidConfigError, match="no effect without"):
        Producer("localhost:1", sasl_mechanism="PLAIN")
    with pytest.raises(InvalidConfigError, match="SCRAM-SHA-256"):
        Producer("localhost:1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")


# --- HTTP -------------------------------------------------------------------------------------------------------------


async def test_the_http_api_takes_passwords(cluster: Cluster) -> None:
    await cluster.ready()
    address = cluster.nodes[0].property("admin.listener").removeprefix("HTTPS://")
    context = ssl.create_default_context(cafile=cluster.login["ssl_cafile"])

    def status(path: str, password: str | None) -> int:
        request = urllib.request.Request(f"https://{address}{path}")
        if password is not None:
            told = base64.b64encode(f"admin:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {told}")
        try:
            with urllib.request.urlopen(request, context=context, timeout=LIMIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def cluster_id() -> str:
        with urllib.request.urlopen(f"https://{address}/v3/clusters", context=context, timeout=LIMIT_S) as answer:
            return str(json.load(answer)["data"][0]["cluster_id"])

    path = f"/v3/clusters/{await asyncio.to_thread(cluster_id)}/brokers"
    assert await asyncio.to_thread(status, path, cluster.login["sasl_plain_password"]) == 200
    assert await asyncio.to_thread(status, path, "wrong") == 401
    assert await asyncio.to_thread(status, path, None) == 401, "a browser asks for user and password then"


# --- logging in again -------------------------------------------------------------------------------------------------


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_tokens_of_another_service(tmp_path: Path) -> None:
    """Our SDK and librdkafka by OAUTHBEARER, HTTP by Bearer; the broker has only the public key."""
    key = RSAKey.generate_key(2048, {"kid": "k"})
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}), encoding="utf-8")
    overrides = {
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "barnabas",
        "super.users": "User:admin;User:robot;User:CN=admin",
        **SESSION,
    }

    def token(audience: str = "barnabas") -> str:
        claims = {"sub": "robot", "aud": audience, "exp": int(time.time()) + 60}
        return jwt.encode({"alg": "RS256", "kid": "k"}, claims, key)

    async def fresh() -> str:
        return token()

    with Cluster(tmp_path / "c", 1, overrides=overrides, secure=True) as cluster:
        await cluster.ready()
        authority = cluster.login["ssl_cafile"]
        options = SecurityOptions(
            security_protocol="SASL_SSL",
            ssl_cafile=authority,
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=fresh,
        )
        async with Producer(cluster.logins, **options) as producer:
            await (await producer.send("tokens", b"sdk"))
        wrong = SecurityOptions(**options)
        wrong["sasl_oauth_token_provider"] = lambda: token("other")
        with pytest.raises(SaslAuthenticationError):
            async with Admin(cluster.logins, **wrong):
                pass
        rd = RdProducer(
            {
                "bootstrap.servers": cluster.logins,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": authority,
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (token(), time.time() + 60),
            }
        )
        rd.produce("tokens", b"rd")
        assert await asyncio.to_thread(rd.flush, LIMIT_S) == 0
        address = cluster.nodes[0].property("admin.listener").removeprefix("HTTPS://")
        context = ssl.create_default_context(cafile=authority)

        def metrics(told: str) -> int:
            request = urllib.request.Request(f"https://{address}/metrics", headers={"Authorization": f"Bearer {told}"})
            try:
                with urllib.request.urlopen(request, context=context, timeout=LIMIT_S) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        assert await asyncio.to_thread(metrics, token()) == 200
        assert await asyncio.to_thread(metrics, token("other")) == 401
        assert token().rpartition(".")[2] not in cluster.nodes[0].log()
        await asyncio.to_thread(_the_command_takes_tokens, tmp_path, cluster, token)


def _the_command_takes_tokens(folder: Path, cluster: Cluster, token: Callable[[str], str]) -> None:
    """From a file, as Java's clients do."""
    file, told = folder / "client.properties", folder / "token"
    settings = {
        "bootstrap.servers": cluster.logins,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": cluster.login["ssl_cafile"],
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": told.as_uri(),
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    told.write_text(token("barnabas"), encoding="ascii")
    assert "tokens" in run("topic", "list", "--command-config", str(file))
    told.write_text(token("other"), encoding="ascii")
    run("topic", "list", "--command-config", str(file), code=ExitCode.FAILED)
