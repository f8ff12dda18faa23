"""Logins that end after seconds, while a broker dies: clients of Python and librdkafka lose nothing, and write nothing twice."""

import asyncio
import gc
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import kafka
import kafka.net.sasl.oauth
import pytest
from confluent_kafka import Producer as RdProducer
from integration.cluster import SESSION, Cluster
from integration.load import read_all
from joserfc import jwt
from joserfc.jwk import RSAKey

from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.producer.producer import Producer

# kafka-python does not close the sockets of connections that were refused.
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
LIMIT_S = 60.0
LIFE_S = 2  # of a login
TOKEN_S = 60  # librdkafka waits for its own backoff where it needs a new token every second
PHASE_S = 4.0  # of writing, before a broker dies and after: two lives
PACE_S = 0.01
ENOUGH = 100  # records of a client: a busy machine needs longer for them than two phases
Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    cluster: Cluster
    mechanism: str
    token: Callable[[], str]

    @property
    def authority(self) -> str:
        return self.cluster.login["ssl_cafile"]

    @property
    def password(self) -> str:
        return self.cluster.login["sasl_plain_password"]

    @property
    def of_python(self) -> dict[str, Any]:
        """Options of both of Python's Kafka clients."""
        by_password = {"sasl_plain_username": "admin", "sasl_plain_password": self.password}
        return {
            "bootstrap_servers": self.cluster.logins.split(","),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": self.mechanism,
            "ssl_context": ssl.create_default_context(cafile=self.authority),
            **({} if self.mechanism == "OAUTHBEARER" else by_password),
        }


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    key = RSAKey.generate_key(2048, {"kid": "k"})
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}), encoding="utf-8")
    overrides = {
        "sasl.enabled.mechanisms": f"{request.param},SCRAM-SHA-512",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "connections.max.reauth.ms": str(LIFE_S * 1000),
        "super.users": "User:admin;User:robot;User:CN=admin",
        **SESSION,
    }

    def token() -> str:
        claims = {"sub": "robot", "iat": int(time.time()), "exp": int(time.time()) + TOKEN_S}
        return jwt.encode({"alg": "RS256", "kid": "k"}, claims, key)

    with Cluster(tmp_path / "c", 3, overrides=overrides, secure=True) as cluster:
        yield World(cluster=cluster, mechanism=request.param, token=token)


# --- the clients ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def of_ours(world: World, topic: str) -> AsyncIterator[Send]:
    security = SecurityOptions(**world.cluster.login)
    security["sasl_mechanism"] = world.mechanism
    if world.mechanism == "OAUTHBEARER":
        del security["sasl_plain_username"], security["sasl_plain_password"]
        security["sasl_oauth_token_provider"] = world.token
    async with Producer(world.cluster.logins, **security) as producer:

        async def send(value: bytes) -> None:
            await (await producer.send(topic, value))

        yield send


@asynccontextmanager
async def of_librdkafka(world: World, topic: str) -> AsyncIterator[Send]:
    options: dict[str, Any] = {
        "bootstrap.servers": world.cluster.logins,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": world.authority,
        "sasl.mechanism": world.mechanism,
        "enable.idempotence": True,
    }
    if world.mechanism == "OAUTHBEARER":
        options["oauth_cb"] = lambda _: (world.token(), time.time() + TOKEN_S)
    else:
        options |= {"sasl.username": "admin", "sasl.password": world.password}
    producer, failed = RdProducer(options), list[Any]()

    async def send(value: bytes) -> None:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)

    yield send
    assert await asyncio.to_thread(producer.flush, LIMIT_S) == 0 and not failed


@asynccontextmanager
async def of_aiokafka(world: World, topic: str) -> AsyncIterator[Send]:
    class Provider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return world.token()

    tokens = {"sasl_oauth_token_provider": Provider()} if world.mechanism == "OAUTHBEARER" else {}
    producer = aiokafka.AIOKafkaProducer(**world.of_python, **tokens, enable_idempotence=True)
    await producer.start()
    try:

        async def send(value: bytes) -> None:
            await producer.send_and_wait(topic, value)

        yield send
    finally:
        await producer.stop()


@asynccontextmanager
async def of_kafka_python(world: World, topic: str) -> AsyncIterator[Send]:
    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return world.token()

    tokens = {"sasl_oauth_token_provider": Provider()} if world.mechanism == "OAUTHBEARER" else {}
    producer = await asyncio.to_thread(lambda: kafka.KafkaProducer(**world.of_python, **tokens))

    async def send(value: bytes) -> None:
        future = producer.send(topic, value)
        await asyncio.to_thread(future.get, LIMIT_S)

    try:
        yield send
    finally:
        await asyncio.to_thread(producer.close, LIMIT_S)


CLIENTS = {"sdk": of_ours, "librdkafka": of_librdkafka, "aiokafka": of_aiokafka, "kafka-python": of_kafka_python}


async def test_clients_log_in_again_while_a_broker_dies(world: World) -> None:
    cluster = await world.cluster.ready()
    async with cluster.admin() as admin:
        for name in CLIENTS:
            await admin.create_topic(name, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
    ends_s = asyncio.get_running_loop().time() + 2 * PHASE_S

    async def write(name: str) -> int:
        count = 0
        async with CLIENTS[name](world, name) as send, asyncio.timeout(4 * LIMIT_S):
            while asyncio.get_running_loop().time() < ends_s or count <= ENOUGH:
                await send(b"%d" % count)
                count += 1
                await asyncio.sleep(PACE_S)
        return count

    writing = {name: asyncio.ensure_future(write(name)) for name in CLIENTS}
    await asyncio.sleep(PHASE_S)
    cluster.kill(1)
    counts = {name: await task for name, task in writing.items()}
    for name, count in counts.items():
        found = await read_all(cluster.bootstrap, name, **cluster.security)
        values = [value for records in found.values() for value in records.values()]
        assert sorted(map(int, values)) == list(range(count)), name
    gc.collect()  # what kafka-python has left, and not in the next test
