"""A cluster of real broker processes for tests: start, kill, freeze, start again, and look at what it says of itself.

It stands on `net.local_cluster`, as `barnabas up` does, so what is tested is what users start. Nothing here sleeps for a
fixed time: `until` asks again and again until a deadline that even a loaded machine keeps.
"""

import asyncio
import inspect
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net import local_cluster
from barnabas.net.cli.frame.client_file import read_client_file
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.local_cluster import LAUNCHER, Plan
from barnabas.net.protocol.responses import DescribeClusterResponse, PartitionMetadata

DEADLINE_S = 60.0  # for whatever should take a second: two cores are shared with much else
POLL_S = 0.02
LOG_TAIL_LINES = 40
# Brokers that are dead are noticed within this; small enough for tests, and still some heartbeats long.
SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


RUNNING: "list[Cluster]" = []  # whose logs are shown where a test fails


async def until(condition: Callable[[], Any], what: str, *, timeout_s: float = DEADLINE_S) -> Any:
    """Ask until the answer is true; errors that a client may retry count as "not yet". Returns the answer."""
    deadline_s = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            last = condition()
            if inspect.isawaitable(last):
                last = await last
            if last:
                return last
        except (BarnabasError, OSError) as error:
            last = error
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; last seen: {last!r}")
        await asyncio.sleep(POLL_S)


class Node:
    """One broker: its folder, and its process while there is one."""

    def __init__(
        self,
        node_id: int,
        folder: Path,
        address: str,
        process: subprocess.Popen[bytes],
        launcher: tuple[str, ...] = LAUNCHER,
    ) -> None:
        self.node_id = node_id
        self._launcher = launcher
        self.folder = folder
        self.address = address
        self.process = process

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def config(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.folder / "broker.log"

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def property(self, key: str) -> str:
        """What its configuration file says."""
        lines = self.config.read_text(encoding="utf-8").splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith(f"{key}="))

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def log_since(self, size: int) -> list[str]:
        with self.log_path.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace").splitlines()

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def use(self, launcher: tuple[str, ...]) -> None:
        """From the next start on, another version of the broker."""
        self._launcher = launcher

    def launch(self) -> None:
        """Start it again, on the same folder and ports."""
        assert not self.is_running
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._launcher, str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
                start_new_session=True,
            )


class Cluster:
    """Started by the constructor; `ready` waits until all brokers take part. A context manager that leaves nothing running."""

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        *,
        voters: int | None = None,
        machines: int | None = None,
        overrides: Mapping[str, str] | None = None,
        launcher: tuple[str, ...] = LAUNCHER,
        secure: bool = False,
    ) -> None:
        self.folder = folder
        self.started_s = time.monotonic()
        self._overrides = dict(overrides or {})
        started = local_cluster.start(
            Plan(
                folder=folder,
                broker_count=brokers,
                base_port=0,
                voter_count=voters,
                machine_count=machines,
                overrides=self._overrides,
                launcher=launcher,
                secure=secure,
            )
        )
        self.security = (
            SecurityOptions()
        )  # of an administrator with a certificate, as the listener of `nodes` demands it
        self.login = SecurityOptions()  # of an administrator with a password, for `logins`
        self.logins = ""  # of a secure cluster: the addresses where clients log in
        self.nodes = [Node(item.node_id, item.folder, item.address, item.process, launcher) for item in started]
        if secure:
            self._secure()

    def _secure(self) -> None:
        home = self.folder.absolute() / local_cluster.SECURITY
        certificate, authority = str(home / "admin.pem"), str(home / "ca.pem")
        self.security = SecurityOptions(security_protocol="SSL", ssl_cafile=authority, ssl_certfile=certificate)
        told = read_client_file(self.folder / local_cluster.CLIENT_PROPERTIES)
        self.login, self.logins = told.security, told.bootstrap or ""
        for node in self.nodes:
            node.address = node.property("listeners").rpartition("//")[2]  # where brokers meet

    def __enter__(self) -> "Cluster":
        RUNNING.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()
        RUNNING.remove(self)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def admin(self) -> Admin:
        return Admin(self.bootstrap, timeout_ms=30_000, request_timeout_ms=10_000, client_id="test", **self.security)

    async def ready(self) -> "Cluster":
        """All brokers that run are registered and unfenced, and there is a controller."""
        running = {node.node_id for node in self.nodes if node.is_running}

        async def all_active() -> bool:
            dead = [node for node in self.nodes if node.node_id in running and not node.is_running]
            assert not dead, f"broker {dead[0].node_id} ended: {dead[0].log()[-600:]}"
            return await active_brokers(self) >= running

        await until(all_active, f"brokers {sorted(running)} are active")
        return self

    def add(self, node_id: int, **overrides: str) -> Node:
        """One more broker for the running cluster: only its own folder and ports, and the voters of the others."""
        folder = self.folder / str(node_id)
        (folder / "data").mkdir(parents=True)
        (ports,) = local_cluster.free_node_ports(1)
        values = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{ports.client}",
            "admin.listener": f"127.0.0.1:{ports.admin}",
            "quorum.listener": f"127.0.0.1:{ports.quorum}",
            "controller.quorum.voters": self.nodes[0].property("controller.quorum.voters"),
            "log.dirs": str(folder / "data"),
            **self._overrides,
            **{key.replace("_", "."): value for key, value in overrides.items()},
        }
        write_properties(folder / "server.properties", values)
        node = Node(node_id, folder, f"127.0.0.1:{ports.client}", _ended())
        node.launch()
        self.nodes.append(node)
        return node

    def kill(self, *node_ids: int) -> None:
        """kill -9, of all of them at the same time."""
        chosen = [self.nodes[node_id] for node_id in node_ids]
        for node in chosen:
            node.process.kill()
        for node in chosen:
            node.process.wait()

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.nodes[node_id].launch()

    def destroy(self) -> None:
        """A test's end: nothing is kept, so nothing is handed over."""
        for node in self.nodes:
            if node.is_running:
                node.process.send_signal(signal.SIGCONT)
                node.process.kill()
        for node in self.nodes:
            node.process.wait()

    def tails(self) -> str:
        """The last lines of every broker's log, for whoever reads why a test failed."""
        parts = []
        for node in self.nodes:
            state = "running" if node.is_running else f"ended with {node.process.returncode}"
            lines = node.log().splitlines()[-LOG_TAIL_LINES:] if node.log_path.exists() else ["no log"]
            parts.append(f"--- broker {node.node_id} ({state})\n" + "\n".join(lines))
        return "\n".join(parts)


async def describe_cluster(cluster: Cluster) -> DescribeClusterResponse:
    async with cluster.admin() as admin:
        return await admin.describe_cluster()


def limited(descriptors: int) -> tuple[str, ...]:
    """A launcher of brokers that may open so many files, and cannot raise that."""
    return ("/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *LAUNCHER)


async def active_brokers(cluster: Cluster) -> set[int]:
    found = await describe_cluster(cluster)
    return {item.node_id for item in found.brokers if not item.fenced} if found.controller_id >= 0 else set()


async def partitions_of(admin: Admin, topic: str) -> tuple[PartitionMetadata, ...]:
    return (await admin.describe_topic(topic)).partitions


async def full_isr(admin: Admin, topics: Iterable[str], *, timeout_s: float = DEADLINE_S) -> None:
    """Every partition has a leader and all of its replicas in sync."""
    wanted = set(topics)

    async def is_full() -> bool:
        found = [topic for topic in await admin.describe_topics() if topic.name in wanted]
        parts = [item for topic in found for item in topic.partitions]
        return len(found) == len(wanted) and all(
            item.leader >= 0 and len(item.isr) == len(item.replicas) for item in parts
        )

    await until(is_full, f"full ISR of {len(wanted)} topics", timeout_s=timeout_s)


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")


def clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}


def _ended() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["true"])
    process.wait()
    return process
