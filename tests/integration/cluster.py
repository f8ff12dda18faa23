"""A cluster of real broker processes for tests: start, kill, freeze, start again, and look at what it says of itself.

It stands on the processes of `barnabas.testing`, with the program that users start, which takes no orders of faults: tests harm
its processes, disks and network themselves. Nothing here sleeps for a fixed time: `until` asks again and again until a deadline
that even a loaded machine keeps.
"""

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lifeline import hold_all

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.base.local.local_cluster import LAUNCHER
from barnabas.net.base.local.local_cluster import clean_environment as clean_environment
from barnabas.net.base.local.local_cluster import write_properties as write_properties
from barnabas.net.base.local.secure_layout import CLIENT_PROPERTIES, PLAIN_TEXT, SECURITY, USUAL_PROTOCOL
from barnabas.net.cli.frame.client_file import read_client_file
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.client import Client, Home
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.testing.brokers.processes import BrokerProcess, Processes
from barnabas.net.wire.protocol.requests import DescribeClusterRequest
from barnabas.net.wire.protocol.responses import DescribeClusterResponse, PartitionMetadata

DEADLINE_S = 60.0  # for whatever should take a second: two cores are shared with much else
POLL_S = 0.02
LOG_TAIL_LINES = 40
REGISTERED = re.compile(r"registered node=\d+ broker_epoch=(\d+)")
# Brokers that are dead are noticed within this; small enough for tests, and still some heartbeats long.
SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
# Of clusters that tests share: none of their brokers dies, and one that a busy machine holds up for seconds keeps its partitions.
SHARED_SESSION = {**SESSION, "broker.session.timeout.ms": "30000"}


Node = BrokerProcess
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
        own_keys: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        launcher: tuple[str, ...] = LAUNCHER,
        secure: bool = False,
    ) -> None:
        """`own_keys`: of single brokers, beside `overrides`."""
        hold_all()
        self.folder = folder
        self.started_s = time.monotonic()
        self._processes = Processes(
            folder,
            brokers,
            voters,
            dict(overrides or {}),
            program=launcher,
            machines=machines,
            client_protocol=USUAL_PROTOCOL if secure else PLAIN_TEXT,
            own_keys=own_keys,
            die_with_parent=False,  # a thread may start it, and would end it; the signal ends no frozen broker
        )
        self._processes.start()
        # Of an administrator with a certificate, as the listener of `nodes` demands it.
        self.security = SecurityOptions()
        self.login = SecurityOptions()  # of an administrator with a password, for `logins`
        self.logins = ""  # of a secure cluster: the addresses where clients log in
        self.nodes = self._processes.brokers
        if secure:
            self._secure()

    def _secure(self) -> None:
        home = self.folder.absolute() / SECURITY
        certificate, authority = str(home / "admin.pem"), str(home / "ca.pem")
        self.security = SecurityOptions(security_protocol="SSL", ssl_cafile=authority, ssl_certfile=certificate)
        told = read_client_file(self.folder / CLIENT_PROPERTIES)
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
        """All processes that run are registered and unfenced, there is a controller, and each of them knows all of this.

        The registration of a process that was killed is listed as active until its session ends, also after the next start:
        so the epoch must be the one that the running process says that it has. Whichever broker a test asks next, it has the
        same answer.
        """
        running = [node for node in self.nodes if node.is_running]

        async def all_active() -> bool:
            dead = [node for node in running if not node.is_running]
            assert not dead, f"broker {dead[0].node_id} ended: {dead[0].log()[-600:]}"
            epochs = {node.node_id: registered_epoch(node) for node in running}
            if None in epochs.values():
                return False
            for node in running:
                found = await self._described_by(node)
                active = {item.node_id: item.broker_epoch for item in found.brokers if not item.fenced}
                if found.controller_id < 0 or not active.items() >= epochs.items():
                    return False
            return True

        await until(all_active, f"brokers {[node.node_id for node in running]} are active")
        return self

    async def _described_by(self, node: Node) -> DescribeClusterResponse:
        """As this broker knows the cluster. It is asked where it listens, which need not be where clients are sent to."""
        client = Client(
            node.address, home=Home(node.node_id, (node.host, node.port)), request_timeout_ms=10_000, **self.security
        )
        try:
            await client.start()
            response: DescribeClusterResponse = await client.call(node.node_id, DescribeClusterRequest())
            return response
        finally:
            await client.close()

    def add(self, node_id: int, **overrides: str) -> Node:
        """One more broker for the running cluster: only its own folder and ports, and the voters of the others."""
        return self._processes.add(node_id, {key.replace("_", "."): value for key, value in overrides.items()})

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
        self._processes.close(graceful=False)

    def tails(self) -> str:
        """The last lines of every broker's log, for whoever reads why a test failed."""
        return self._processes.logs(LOG_TAIL_LINES)


async def describe_cluster(cluster: Cluster) -> DescribeClusterResponse:
    async with cluster.admin() as admin:
        return await admin.describe_cluster()


def registered_epoch(node: Node) -> int | None:
    """The epoch of the last registration of the process that runs; None before the first one."""
    found = [REGISTERED.search(line) for line in node.log_of_process()]
    return next((int(match[1]) for match in reversed(found) if match), None)


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
