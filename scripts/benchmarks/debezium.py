"""Debezium's PostgreSQL connector on one worker of Kafka Connect, for `scripts/benchmark capture --debezium`.

Debezium and Connect are at their defaults, but for what `barnabas connect` does as well: three replicas, JSON without schemas,
numbers with all digits, exactly once.
"""

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from integration import copied_lines, java_client
from integration.test_kafka_connect_debezium import CONNECT, DEBEZIUM, WORKER, connector

from barnabas.net.base.local.ports import free_ports

NAME = "debezium"
TOPIC = f"{NAME}.public.t"
START_S = 120
STOPPED_MS = 600_000  # the benchmark stops the process while changes are written


class MissingError(Exception):
    """What Debezium needs and this machine lacks."""


class Debezium:
    def __init__(self, folder: Path, bootstrap: str) -> None:
        """Fetches the programs. Raises MissingError."""
        if reason := java_client.find():
            raise MissingError(reason)
        libraries = java_client.fetch(folder / "libraries", CONNECT, "connect.xml")
        plugin = java_client.fetch(folder / "plugins", DEBEZIUM, "debezium.xml", of="debezium")
        if libraries is None or plugin is None:
            raise MissingError("Maven Central is out of reach")
        (self._port,) = free_ports(1)
        values = {**copied_lines.settings(bootstrap, self._port), **WORKER, "plugin.path": plugin.parent}
        values |= {"session.timeout.ms": STOPPED_MS, "rebalance.timeout.ms": STOPPED_MS}
        file = folder / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._command = ["java", "-Xmx1g", java_client.QUIET, "-cp", f"{libraries}/*", main, str(file)]
        self._log = folder / "worker.log"

    async def start(self, dsn: str, publication: str) -> "subprocess.Popen[bytes]":
        """Returns when the worker has taken the connector."""
        worker = self._worker()
        config = {**connector(dsn), "topic.prefix": NAME, "slot.name": NAME, "publication.name": publication}
        for _ in range(START_S):
            await asyncio.sleep(1)
            assert worker.poll() is None, self._log.read_text()[-3_000:]
            with suppress(OSError):  # it is starting, or joins its group
                await asyncio.to_thread(self._put, f"/connectors/{NAME}/config", config)
                return worker
        raise AssertionError(self._log.read_text()[-3_000:])

    def _put(self, path: str, body: Mapping[str, object]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=json.dumps(body).encode(),
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def _worker(self) -> "subprocess.Popen[bytes]":
        with self._log.open("wb") as log:
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
