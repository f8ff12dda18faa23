"""Brokers of Barnabas, as processes, during one phase."""

import asyncio
import itertools
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from measure import HERE, Metrics, child, cpu_of, process, rss_mib

from barnabas import Admin, BarnabasError
from barnabas.net.base.local import local_cluster
from barnabas.net.base.local.local_cluster import Plan

START_TIMEOUT_S = 30.0
LOAD_RECORDS = 8_000_000  # more than are sent before it is ended
LOAD_BEGINS_S = 3.0
CLIENT = HERE / "client.py"


class Cluster:
    """`brokers` processes on free ports, in a folder that goes with them."""

    def __init__(self, brokers: int, *, secure: bool = False, **overrides: str) -> None:
        """`overrides` are keys of the configuration, with underscores for dots. `secure` as in `barnabas up`."""
        self.size = brokers
        self._secure = secure
        self._overrides = {key.replace("_", "."): value for key, value in overrides.items()}
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="barnabas-benchmark-"))
        began = time.perf_counter()
        self.brokers = local_cluster.start(
            Plan(
                folder=self._folder / "cluster",
                broker_count=self.size,
                base_port=0,
                die_with_parent=True,
                secure=self._secure,
                overrides={
                    "min.insync.replicas": str(min(2, self.size)),
                    "log.segment.delete.delay.ms": "1000",
                    **self._overrides,
                },
            )
        )
        self.bootstrap = ",".join(broker.address for broker in self.brokers)
        try:
            self.create("ready", partitions=1)
            child(
                CLIENT,
                "one-at-a-time",
                "--bootstrap",
                self.bootstrap,
                "--topic",
                "ready",
                "--acks",
                "all",
                "--count",
                50,
            )
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        local_cluster.stop(self.brokers, timeout_s=10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def pids(self) -> list[int]:
        return [broker.process.pid for broker in self.brokers]

    def create(
        self, name: str, *, partitions: int, replicas: int = 0, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, on all brokers unless `replicas` says on how many; the cluster may still be forming."""

        async def attempt() -> None:
            async with Admin(self.bootstrap) as admin:
                await admin.create_topic(
                    name, partitions=partitions, replication_factor=replicas or self.size, configs=configs
                )

        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return asyncio.run(attempt())
            except BarnabasError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def delete(self, name: str) -> None:
        async def attempt() -> None:
            async with Admin(self.bootstrap) as admin:
                await admin.delete_topic(name)

        asyncio.run(attempt())

    def on_new_topic(
        self, role: str, *, partitions: int, configs: dict[str, str] | None = None, **options: object
    ) -> Metrics:
        """Run a client on a topic of its own."""
        topic = f"bench-{next(self._numbers)}"
        self.create(topic, partitions=partitions, configs=configs)
        try:
            return self.on_topic(topic, role, partitions=partitions, **options)
        finally:
            self.delete(topic)

    def beside_load(self, configs: Mapping[str, str], round_trips: int) -> Metrics:
        """How long an acknowledgement takes while another client sends to a topic of these settings without a pause."""
        loaded = f"loaded-{next(self._numbers)}"
        self.create(loaded, partitions=1, configs=configs)
        load = (
            "produce",
            "--bootstrap",
            self.bootstrap,
            "--topic",
            loaded,
            "--api",
            "send_key",
            "--count",
            LOAD_RECORDS,
        )
        try:
            cleanings = self._cleanings()
            with process(sys.executable, CLIENT, *load) as client:
                time.sleep(LOAD_BEGINS_S)
                found = self.on_new_topic("one-at-a-time", partitions=1, acks="1", count=round_trips)
                if client.poll() is not None:
                    raise RuntimeError("the load ended before what it was to load was measured")
            return {**found, "cleanings": float(self._cleanings() - cleanings)}
        finally:
            self.delete(loaded)

    def metrics(self) -> str:
        """The pages of all brokers."""
        pages = []
        for broker in self.brokers:
            lines = (broker.folder / "server.properties").read_text(encoding="utf-8").splitlines()
            address = dict(line.split("=", 1) for line in lines)["admin.listener"]
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
                pages.append(page.read().decode())
        return "".join(pages)

    def _cleanings(self) -> int:
        """How often a log was compacted since the start."""
        logs = (self._folder / "cluster").rglob("broker.log")
        return sum(log.read_text(encoding="utf-8").count("event=cleaned") for log in logs)

    def on_topic(self, topic: str, role: str, **options: object) -> Metrics:
        named = itertools.chain.from_iterable((f"--{name}", value) for name, value in options.items())
        return child(CLIENT, role, "--bootstrap", self.bootstrap, "--topic", topic, *named)

    def idle(self, seconds: float = 5.0) -> Metrics:
        """What brokers cost that have nothing to do: the largest of them."""
        time.sleep(2.0)
        before = [cpu_of(pid) for pid in self.pids()]
        time.sleep(seconds)
        used = [100 * (cpu_of(pid) - spent) / seconds for pid, spent in zip(self.pids(), before, strict=True)]
        return {"cpu_percent": max(used), "rss_MB": max(map(rss_mib, self.pids()))}
