"""Listeners that trust different authorities: whose certificates make a broker, and which listeners demand one."""

import datetime
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
from unit.net.admin.fake_broker import FakeBroker
from unit.net.test_brokers_in_transition import HOST, broker_of, noting_into

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.disk.secret_files import write_secret
from barnabas.net.admin.app import start_admin
from barnabas.net.base.local.certificates import AUTHORITY, broker_certificate, make_authority
from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.broker.access import access_of
from barnabas.net.broker.tls import BrokerTls
from barnabas.net.server.access.audit import AuditLog
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two authorities, of brokers and of clients; each has signed for the name of node 1."""
    now = datetime.datetime.now(datetime.UTC)
    for name in ("brokers", "clients"):
        (tmp_path / name).mkdir()
        authority = make_authority(tmp_path / name, name, now=now)
        for node_id in (0, 1):
            certificate = broker_certificate(authority, node_id, [HOST], now=now)
            write_secret(tmp_path / name / f"node-{node_id}.pem", certificate)
    both = b"".join((tmp_path / name / AUTHORITY).read_bytes() for name in ("brokers", "clients"))
    (tmp_path / "both.pem").write_bytes(both)
    return tmp_path


PERMISSIONS = {"authorizer.class.name": "acl"}


def config_of(folder: Path, **changes: str) -> BrokerConfig:
    values = {
        "node.id": "0",
        "log.dirs": str(folder / "data"),
        "listeners": f"CLIENTS://{HOST}:0,BROKERS://{HOST}:0",
        "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
        "admin.listener": f"HTTPS://{HOST}:0",
        "controller.quorum.voters": f"0@{HOST}:{free_ports(1)[0]}",
        "ssl.keystore.location": str(folder / "brokers" / "node-0.pem"),
        "ssl.truststore.location": str(folder / "brokers" / AUTHORITY),
        "ssl.client.auth": "required",
    }
    return load(None, values | changes, {})


def client_of(folder: Path, authority: str) -> TlsContexts:
    own = str(folder / authority / "node-1.pem")
    return TlsContexts(TlsFiles(certificate=own, authorities=str(folder / "both.pem")))


@pytest.mark.parametrize(("authority", "believed"), [("clients", None), ("brokers", 1)])
async def test_the_authority_of_clients_makes_no_broker(folder: Path, authority: str, believed: int | None) -> None:
    """Otherwise, who signs for clients could make one of them a broker, that may do everything."""
    seen: list[int | None] = []

    trusted = str(folder / authority / AUTHORITY)
    broker = broker_of(
        config_of(folder, **{"listener.name.clients.ssl.truststore.location": trusted}), noting_into(seen)
    )
    await broker.start()
    try:
        address = broker.listeners.addresses["CLIENTS"]
        network = TcpNetwork(client_of(folder, authority))
        connection = await RpcConnection.open(network, *address, client_id="stranger")
        await connection.call(MetadataRequest(topics=()), timeout_ms=10_000)
        await connection.close()
    finally:
        await broker.stop()
    assert seen == [believed]


@pytest.mark.parametrize(("authority", "status"), [("clients", 403), ("brokers", 200)])
async def test_the_authority_of_callers_of_http_makes_no_broker(folder: Path, authority: str, status: int) -> None:
    trusted = str(folder / authority / AUTHORITY)
    config = config_of(folder, **PERMISSIONS, **{"listener.name.https.ssl.truststore.location": trusted})
    backend = FakeBroker()
    backend.access = access_of(config, MetadataImage, AuditLog(lambda: 0, lambda line: None), lambda: True)
    server = await start_admin(backend, socket.create_server((HOST, 0)), tls=BrokerTls(config).admin())
    try:
        tls = client_of(folder, authority).client
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"https://{HOST}:{server.address[1]}/v3/clusters/c1/brokers", ssl=tls)
            assert answer.status == status
    finally:
        await server.close()


@pytest.mark.parametrize(("given", "mode"), [("required", ssl.CERT_REQUIRED), ("requested", ssl.CERT_OPTIONAL)])
def test_a_listener_with_logins_may_demand_certificates_by_its_own_key(
    folder: Path, given: str, mode: ssl.VerifyMode
) -> None:
    """As Kafka since KIP-684: ssl.client.auth of all listeners says nothing about those with logins."""
    protocols = {"listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL"}
    own = {"listener.name.clients.ssl.client.auth": given}
    for changes, wanted in (({}, ssl.CERT_NONE), (own, mode)):
        made = BrokerTls(config_of(folder, **protocols, **changes))
        assert made._of_listeners["CLIENTS"].server_now().verify_mode is wanted


def test_callers_of_http_must_show_certificates_where_the_key_of_its_listener_says_so(folder: Path) -> None:
    """Without it, a password is enough, if there is an authorizer."""
    for changes, wanted in (
        ({}, ssl.CERT_OPTIONAL),
        ({"listener.name.https.ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
    ):
        admin = BrokerTls(config_of(folder, **PERMISSIONS, **changes)).admin()
        assert admin is not None and admin().verify_mode is wanted
