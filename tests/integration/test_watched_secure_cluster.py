"""A cluster with TLS and logins, as operators see it: scraped by Prometheus, looked at and bundled by doctor."""

import asyncio
import base64
import datetime
import json
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.failed_logins import failing_login
from integration.cluster import SESSION, Cluster, clean_environment
from integration.faulty import admins, findings, wait_for_finding
from integration.prometheus import LIMIT_S, needs_prometheus, until, watching

from barnabas.log.disk.secret_files import write_secret
from barnabas.net.base.local.certificates import broker_certificate, read_authority
from barnabas.net.base.local.secure_layout import CLIENT_PROPERTIES, SECURITY

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("watched") / "c", 3, overrides=SESSION, secure=True) as started:
        asyncio.run(started.ready())
        yield started


def login(cluster: Cluster) -> tuple[str, str]:
    return "--command-config", str(cluster.folder / CLIENT_PROPERTIES)


@needs_prometheus
def test_failed_logins_are_an_alert_of_a_cluster_that_is_scraped_by_tls(cluster: Cluster, tmp_path: Path) -> None:
    settings = {
        "scheme": "https",
        "tls_config": {"ca_file": cluster.login["ssl_cafile"]},
        "basic_auth": {"username": "admin", "password": cluster.login["sasl_plain_password"]},
    }
    host, _, port = cluster.logins.partition(",")[0].rpartition(":")
    context = ssl.create_default_context(cafile=cluster.login["ssl_cafile"])
    is_ended = threading.Event()

    async def attempt() -> None:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context, ssl_shutdown_timeout=2)
        writer.write(failing_login(0))
        await asyncio.sleep(0.5)  # the broker answers late, on purpose
        writer.close()
        await writer.wait_closed()

    async def storm() -> None:
        while not is_ended.is_set():
            await asyncio.gather(*(attempt() for _ in range(5)), return_exceptions=True)

    with watching(admins(cluster), tmp_path / "prometheus", **settings) as watched:
        storming = threading.Thread(target=lambda: asyncio.run(storm()))
        storming.start()
        try:
            watched.wait_for("LoginsFail")
        finally:
            is_ended.set()
            storming.join()


def test_a_bundle_has_the_metrics_of_admin_ports_with_tls(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    words = [sys.executable, "-m", "barnabas", "doctor", "--bundle", str(path), "--timeout", "30", *login(cluster)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=clean_environment(), check=False)
    assert ended.returncode == 0, ended
    with tarfile.open(path) as tar:
        parts = {item.name.partition("/")[2]: tar.extractfile(item).read().decode() for item in tar}  # type: ignore[union-attr]
    assert json.loads(parts["unanswered.json"]) == {}
    for node in range(3):
        assert "barnabas_request_seconds_bucket" in parts[f"metrics/broker-{node}.txt"]
    password = cluster.login["sasl_plain_password"]
    encoded = base64.b64encode(f"admin:{password}".encode()).decode()
    assert not [name for name, text in parts.items() if password in text or encoded in text]


def test_a_certificate_that_expires_soon(cluster: Cluster) -> None:
    """The broker takes new files while it runs."""
    wait_for_no_finding(cluster)
    own = Path(cluster.nodes[1].property("ssl.keystore.location"))
    usual = own.read_bytes()
    authority = read_authority(cluster.folder.absolute() / SECURITY)
    now = datetime.datetime.now(datetime.UTC)
    try:
        for days, told in (
            (20, "risk: a certificate of broker 1 expires in 19"),
            (3, "problem: a certificate of broker 1"),
        ):
            write_secret(own, broker_certificate(authority, 1, ("127.0.0.1", "localhost"), now=now, days=days))
            wait_for_finding("", told, options=login(cluster))
    finally:
        write_secret(own, usual)
    wait_for_no_finding(cluster)


def wait_for_no_finding(cluster: Cluster) -> None:
    until(lambda: findings("", *login(cluster)) == [], lambda: str(findings("", *login(cluster))))


def test_a_client_whose_version_has_a_known_fault(cluster: Cluster) -> None:
    """It greets as librdkafka 1.4.0 does, in an ApiVersions request of version 3."""
    host, _, port = cluster.logins.partition(",")[0].rpartition(":")
    context = ssl.create_default_context(cafile=cluster.login["ssl_cafile"])

    async def greet() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, ssl_shutdown_timeout=2)
        text = b"".join(bytes([len(item) + 1]) + item for item in (b"librdkafka", b"1.4.0"))
        head = struct.pack(">hhih", 18, 3, 1, 3) + b"old\0"
        body = head + text + b"\0"
        writer.write(struct.pack(">i", len(body)) + body)
        assert len(await reader.read(4)) == 4
        writer.close()
        await writer.wait_closed()

    asyncio.run(greet())
    wait_for_finding("", "risk: clients use librdkafka 1.4.0, which has a known fault: ", options=login(cluster))
