"""A whole broker while its cluster changes to TLS: whose certificates it believes, and how it asks for the quorum."""

import asyncio
import datetime
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.disk.files import RealFiles
from barnabas.log.disk.secret_files import write_secret
from barnabas.net.base.clock import SystemClock
from barnabas.net.base.local.certificates import AUTHORITY, broker_certificate, make_authority
from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.broker.broker import Broker, Ports
from barnabas.net.broker.metadata_sources import QuorumPorts, build_source
from barnabas.net.broker.tls import BrokerTls
from barnabas.net.metadata.metadata_service import MetadataSource
from barnabas.net.server.dispatcher import Handler, RequestContext
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles

LIMIT_S = 30.0
HOST = "127.0.0.1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an authority, and certificates of brokers 0 and 1."""
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now)
    for node_id in (0, 1):
        write_secret(tmp_path / f"node-{node_id}.pem", broker_certificate(authority, node_id, [HOST], now=now))
    return tmp_path


def config_of(folder: Path, step: str, *, voter: int = 0) -> BrokerConfig:
    return load(
        None,
        {
            "node.id": "0",
            "log.dirs": str(folder / "data"),
            "listeners": f"PLAINTEXT://{HOST}:0",
            "listener.security.protocol.map": "PLAINTEXT:SSL",
            "admin.listener": "none",
            "controller.quorum.voters": f"{voter}@{HOST}:{free_ports(1)[0]}",
            "ssl.keystore.location": str(folder / "node-0.pem"),
            "ssl.truststore.location": str(folder / AUTHORITY),
            "ssl.client.auth": "required",
            "tls.transition": step,
        },
        {},
    )


def broker_of(
    config: BrokerConfig,
    intercept: Callable[[dict[int, Handler]], dict[int, Handler]] | None = None,
    make_source: Callable[[Broker], MetadataSource] = build_source,
) -> Broker:
    tls = BrokerTls(config)
    ports = Ports(
        network=tls.network(config.inter_broker_listener()),
        network_of=tls.network,
        quorum_tls=tls.quorum(),
        files=RealFiles(),
        clock=SystemClock(),
        rng=random.Random(1),
        make_source=make_source,
        fatal=pytest.fail,
        incarnation="a",
        intercept=intercept,
    )
    return Broker(config, ports)


def noting_into(seen: list[int | None]) -> Callable[[dict[int, Handler]], dict[int, Handler]]:
    """Whose certificate the broker believes of the client "stranger", at each request for metadata."""

    def noting(handlers: dict[int, Handler]) -> dict[int, Handler]:
        answer = handlers[ApiKey.METADATA]

        def note(request: Any, context: RequestContext, reply: Any) -> None:
            if context.client_id == "stranger":
                seen.append(context.certified_node)
            answer(request, context, reply)

        return {**handlers, ApiKey.METADATA: note}

    return noting


@pytest.mark.parametrize(("step", "believed"), [("accept", None), ("use", None), ("off", 1)])
async def test_certificates_make_brokers_when_the_transition_is_over(
    folder: Path, step: str, believed: int | None
) -> None:
    """Before, brokers also come in plain text, and show none."""
    seen: list[int | None] = []

    broker = broker_of(config_of(folder, step), noting_into(seen))
    await broker.start()
    try:
        certificate = TlsFiles(certificate=str(folder / "node-1.pem"), authorities=str(folder / AUTHORITY))
        (address,) = broker.listeners.addresses.values()
        connection = await RpcConnection.open(TcpNetwork(TlsContexts(certificate)), *address, client_id="stranger")
        await connection.call(MetadataRequest(topics=()), timeout_ms=10_000)
        await connection.close()
    finally:
        await broker.stop()
    assert seen == [believed]


@dataclass(slots=True)
class Dials:
    """A network that connects to nothing, and notes how it was asked to."""

    asked: "asyncio.Future[ssl.SSLContext | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def connect(self, *_: Any, tls: ssl.SSLContext | None = None, **__: Any) -> Any:
        if not self.asked.done():
            self.asked.set_result(tls)
        raise ConnectionRefusedError

    async def listen(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("an observer has no port of the quorum")


@pytest.mark.parametrize(("step", "in_plain_text"), [("accept", True), ("use", False), ("off", False)])
async def test_a_broker_that_is_no_voter_asks_for_the_quorum_as_its_step_says(
    folder: Path, step: str, in_plain_text: bool
) -> None:
    """In the first round, voters that have not restarted yet do not understand TLS."""
    dials = Dials()
    ports = QuorumPorts(network=lambda: dials)
    broker = broker_of(config_of(folder, step, voter=7), make_source=lambda broker: build_source(broker, ports))
    starting = asyncio.ensure_future(broker.start())
    try:
        tls = await asyncio.wait_for(dials.asked, LIMIT_S)
        assert (tls is None) is in_plain_text
        assert tls is None or tls.verify_mode is ssl.CERT_REQUIRED
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.stop()
