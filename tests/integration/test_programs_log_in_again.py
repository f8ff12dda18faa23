"""Logins that end after seconds, while a broker dies: programs in Java, Go and JavaScript lose nothing, write nothing
twice."""

import asyncio
import base64
import json
import re
import ssl
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from integration import java_client, programs
from integration.cluster import SESSION, Cluster, Node, until
from integration.load import read_all
from integration.test_kafka_client_transactions import FRANZ_GO, KAFKAJS, SARAMA
from integration.test_logins_of_clients import JAVA, Login, java_properties
from joserfc import jwt
from joserfc.jwk import RSAKey

pytestmark = pytest.mark.timeout(900.0)  # a first build in Go compiles the client
MECHANISMS = ("SCRAM-SHA-256", "OAUTHBEARER")
LIFE_S = 4  # of a login; clients log in again before its end
STEADY_S = 24  # of writing: six lives
TOKEN_S = 900
RUN_S = 240.0
HANDSHAKES = 'barnabas_requests_total{listener="SASL_SSL",api="sasl_handshake"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    cluster: Cluster
    logins: tuple[Login, ...]

    @property
    def authority(self) -> str:
        return self.cluster.login["ssl_cafile"]

    def metric(self, node: Node, name: str) -> float:
        """The sum of its samples."""
        who = base64.b64encode(f"admin:{self.cluster.login['sasl_plain_password']}".encode()).decode()
        address = node.property("admin.listener").rpartition("//")[2]
        request = urllib.request.Request(f"https://{address}/metrics", headers={"Authorization": f"Basic {who}"})
        context = ssl.create_default_context(cafile=self.authority)
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def logins_again(self) -> float:
        """Of all brokers: every login begins with this request, and the audit has a line for the first one of a connection."""
        begun = sum(self.metric(node, HANDSHAKES) for node in self.cluster.nodes)
        return begun - sum(line.count(f'"mechanism": "{name}"') for line in self._first() for name in MECHANISMS)

    def _first(self) -> list[str]:
        lines = (line for node in self.cluster.nodes for line in node.log().splitlines())
        return [line for line in lines if '"event": "login"' in line]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[RSAKey, Path]:
    key = RSAKey.generate_key(2048, {"kid": "k"})
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps({"keys": [key.as_dict(private=False)]}), encoding="utf-8")
    return key, path


@pytest.fixture
def world(keys: tuple[RSAKey, Path], tmp_path: Path) -> Iterator[World]:
    key, path = keys
    overrides = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
        "connections.max.reauth.ms": str(LIFE_S * 1000),
        "super.users": "User:admin;User:robot;User:CN=admin",
        **SESSION,
    }
    now = int(time.time())
    token = jwt.encode({"alg": "RS256", "kid": "k"}, {"sub": "robot", "iat": now, "exp": now + TOKEN_S}, key)
    with Cluster(tmp_path / "c", 3, overrides=overrides, secure=True) as cluster:
        secrets = {"SCRAM-SHA-256": cluster.login["sasl_plain_password"], "OAUTHBEARER": token}
        yield World(
            cluster=cluster,
            logins=tuple(
                Login(name=name, bootstrap=cluster.logins, mechanism=name, user="admin", secret=secrets[name])
                for name in MECHANISMS
            ),
        )


def _told(world: World, login: Login, folder: Path) -> str:
    told = {"topic": login.name, "authority": world.authority, "cases": [asdict(login)], "seconds": STEADY_S}
    file = folder / f"{login.name}.json"
    file.write_text(json.dumps(told), encoding="utf-8")
    return str(file)


def _java(world: World, folder: Path) -> list[list[str]]:
    if java_client.find():
        pytest.skip(java_client.find())
    libraries = java_client.fetch(folder / "libraries", JAVA, "tools.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    files = [java_properties(world.authority, login, folder) for login in world.logins]
    for file in files:
        file.write_text(f"{file.read_text(encoding='utf-8')}seconds={STEADY_S}\n", encoding="utf-8")
    tokens = ",".join(file.as_uri() for file in folder.glob("*.token"))
    return [
        java_client.logins(libraries, login.name, str(file), allowed_urls=tokens)
        for login, file in zip(world.logins, files, strict=True)
    ]


def _go(world: World, folder: Path, source: str, module: str) -> list[list[str]]:
    command = programs.go_client(folder / "client", java_client.SOURCES / source, module)
    return [[*command, _told(world, login, folder)] for login in world.logins]


def _node(world: World, folder: Path) -> list[list[str]]:
    made = programs.node_client(folder / "client", java_client.SOURCES / "node", KAFKAJS)
    return [["node", str(made / "logins.js"), _told(world, login, folder)] for login in world.logins]


def commands_of(client: str, world: World, folder: Path) -> list[list[str]]:
    """One for each mechanism."""
    match client:
        case "java":
            return _java(world, folder)
        case "franz-go":
            return _go(world, folder, "franz_go_logins", FRANZ_GO)
        case "sarama":
            return _go(world, folder, "sarama_logins", SARAMA)
        case _:
            return _node(world, folder)


@pytest.mark.parametrize("client", ["java", "franz-go", "sarama", "kafkajs"])
async def test_programs_log_in_again_while_a_leader_dies(world: World, client: str, tmp_path: Path) -> None:
    cluster = world.cluster
    commands = commands_of(client, world, tmp_path)
    await cluster.ready()
    async with cluster.admin() as admin:
        for name in MECHANISMS:
            await admin.create_topic(name, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
    writing = [asyncio.create_task(programs.lines_of(command, timeout_s=RUN_S)) for command in commands]

    async def is_again() -> bool:
        return await asyncio.to_thread(world.logins_again) >= 2 * len(MECHANISMS)

    await until(is_again, "the programs have logged in again, on connections that were open")
    cluster.kill(1)  # each broker leads a partition of each topic
    printed = await asyncio.gather(*writing)
    for name, lines in zip(MECHANISMS, printed, strict=True):
        (count,) = (int(line.split()[1]) for line in lines if line.startswith("COUNT"))
        found = await read_all(cluster.bootstrap, name, **cluster.security)
        values = [value for records in found.values() for value in records.values()]
        assert count > 100, (name, count)
        assert sorted(map(int, values)) == list(range(count)), name
