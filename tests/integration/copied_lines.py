"""Two workers of Kafka Connect under harm: files that grow are copied to a topic, and from there to another file.

The source is exactly once: a reader of committed records sees each line once. The sink keeps the promise of Connect's sinks,
at least once, of what is committed.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from integration.cluster import Cluster, until
from integration.harm import Harm
from integration.programs import QUICK_JAVA, TAIL_CHARACTERS, Program

from barnabas.net.base.local import local_cluster
from barnabas.net.client.consumer.consumer import Consumer

GROUP = "connect"
TOPIC = "copied"
SOURCES = ("first", "second")
SINK = "sink"
CONFIGS, OFFSETS, STATUS = "connect-configs", "connect-offsets", "connect-status"
TOPICS = (TOPIC, CONFIGS, OFFSETS, STATUS)
WORKERS = ("a", "b")
PAUSE_S = 0.02  # between lines
MAX_LINES = (
    100_000  # of one poll of a source. The source leaves what is above in its memory until the file grows again.
)
START_LIMIT_S = 120.0
END_LIMIT_S = 180.0
STRING = "org.apache.kafka.connect.storage.StringConverter"


def settings(bootstrap: str, port: int) -> dict[str, object]:
    """Of a worker. The replication factors of the three topics are Connect's defaults: 3."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "exactly.once.source.support": "enabled",
        "config.storage.topic": CONFIGS,
        "offset.storage.topic": OFFSETS,
        "offset.storage.partitions": 5,
        "status.storage.topic": STATUS,
        "status.storage.partitions": 2,
        "key.converter": STRING,
        "value.converter": STRING,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 1_000,
        "scheduled.rebalance.max.delay.ms": 1_000,
        "consumer.isolation.level": "read_committed",
        # Java's admin client remembers the leaders of partitions. While the broker that it remembers is down, its requests wait
        # for that broker; after 3 s, Connect's default, the task of the connector fails for good.
        "worker.sync.timeout.ms": 60_000,
    }


class Workers:
    """The processes, and Connect's HTTP interface of whichever answers. `more`: settings besides those above."""

    def __init__(
        self, folder: Path, libraries: Path, bootstrap: str, more: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        self._ports = [ports.client for ports in local_cluster.free_node_ports(len(WORKERS))]
        self.programs = [
            self._worker(folder, libraries, name, {**settings(bootstrap, port), **more})
            for name, port in zip(WORKERS, self._ports, strict=True)
        ]

    def _worker(self, folder: Path, libraries: Path, name: str, values: dict[str, object]) -> Program:
        file = folder / f"worker-{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        log = "-Dorg.slf4j.simpleLogger"
        quiet = [
            f"{log}.defaultLogLevel=warn",
            f"{log}.log.org.apache.kafka.clients.producer.internals.TransactionManager=debug",
            f"{log}.showDateTime=true",
            f"{log}.dateTimeFormat=HH:mm:ss.SSS",
            *QUICK_JAVA,
        ]
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return Program(name, ["java", *quiet, "-cp", f"{libraries}/*", main, str(file)], folder / "programs")

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Raises OSError where no worker answers with success."""
        data = None if body is None else json.dumps(body).encode()
        for port in self._ports[:-1]:
            try:
                return await asyncio.to_thread(_ask, port, method, path, data)
            except OSError:
                continue
        return await asyncio.to_thread(_ask, self._ports[-1], method, path, data)

    async def is_running(self, connector: str) -> bool:
        found = await self.ask("GET", f"/connectors/{connector}/status")
        states = [found["connector"]["state"], *(task["state"] for task in found["tasks"])]
        return len(states) == 2 and set(states) == {"RUNNING"}

    async def of_task(self, connector: str) -> int:
        """The number of the worker that runs the only task of a connector."""
        found = await self.ask("GET", f"/connectors/{connector}/status")
        return self._ports.index(int(found["tasks"][0]["worker_id"].rpartition(":")[2]))


def _ask(port: int, method: str, path: str, data: bytes | None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, method=method, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


class Lines:
    """Appends numbered lines to the sources' files until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.files = {name: folder / f"{name}.txt" for name in SOURCES}
        self.lines: set[str] = set()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for name, file in self.files.items():
                line = f"{name}-{number}"
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"{line}\n")
                self.lines.add(line)
            number += 1
            await asyncio.sleep(PAUSE_S)

    def stop(self) -> None:
        self._stop.set()


class Reader:
    """Reads committed lines as they come, and checks that each comes once."""

    def __init__(self, bootstrap: str) -> None:
        self.lines: Counter[str] = Counter()
        self.positions: dict[int, int] = {}  # by partition
        self._bootstrap = bootstrap

    async def run(self) -> None:
        async with Consumer(
            TOPIC, bootstrap=self._bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            async for record in consumer:
                assert record.value is not None
                line = record.value.decode()
                self.lines[line] += 1
                self.positions[record.partition] = record.offset + 1
                assert self.lines[line] == 1, f"{line} came again at {record.partition}@{record.offset}"


def connectors(folder: Path, files: dict[str, Path]) -> dict[str, dict[str, object]]:
    sources = {
        name: {
            "connector.class": "FileStreamSource",
            "file": str(file),
            "topic": TOPIC,
            "batch.size": MAX_LINES,
            "tasks.max": 1,
            "exactly.once.support": "required",
        }
        for name, file in files.items()
    }
    sink = {"connector.class": "FileStreamSink", "file": str(folder / "sink.txt"), "topics": TOPIC, "tasks.max": 1}
    return {**sources, SINK: sink}


async def under_harm(folder: Path, cluster: Cluster, libraries: Path, steps: Callable[[Harm], Awaitable[None]]) -> Harm:
    """Copy lines while `steps` does harm; then judge what was copied."""
    async with cluster.admin() as admin:
        await admin.create_topic(TOPIC, partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
    workers = Workers(folder, libraries, cluster.bootstrap)
    lines = Lines(folder)
    reader = Reader(cluster.bootstrap)
    harm = Harm(cluster, workers.programs, TOPICS, done=lambda: len(reader.lines), given=lambda: len(lines.lines))
    try:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(lines.run())
            reading = tasks.create_task(reader.run())
            for program in workers.programs:
                program.start()
            await until(lambda: workers.ask("GET", "/"), "Connect answers", timeout_s=START_LIMIT_S)
            for name, values in connectors(folder, lines.files).items():
                await made(workers, name, values)
            await _all_run(workers)
            await until(lambda: reader.lines, "the first line", timeout_s=START_LIMIT_S)
            await steps(harm)
            lines.stop()
            await writing
            what = f"all {len(lines.lines)} lines"
            await until(lambda: set(reader.lines) >= lines.lines or None, what, timeout_s=END_LIMIT_S)
            await judge(cluster, workers, folder, lines)
            reading.cancel()
        assert set(reader.lines) == lines.lines
    except BaseExceptionGroup as error:
        error.add_note(await _state(cluster, workers, reader, lines))
        raise
    finally:
        for program in workers.programs:
            program.kill()
    return harm


async def _state(cluster: Cluster, workers: Workers, reader: Reader, lines: Lines) -> str:
    """What the parts of a copy that has stopped say of themselves."""
    told = [f"{len(reader.lines)} of {len(lines.lines)} lines were read"]
    missing = sorted(lines.lines - set(reader.lines))
    told.append(f"missing: {missing[:3]} to {missing[-3:]}")
    async with cluster.admin() as admin:
        ends = {place.partition: item.offset for place, item in (await admin.list_offsets(TOPIC)).items()}
        told.append(f"ends of {TOPIC}: {ends}, read by the reader: {reader.positions}")
        told += [str(item) for item in (await admin.transactions.list()).transactions]
    for name in (*SOURCES, SINK):
        with suppress(OSError):
            told.append(str(await workers.ask("GET", f"/connectors/{name}/status")))
    told += [f"--- {program.name}\n{program.printed()[-TAIL_CHARACTERS:]}" for program in workers.programs]
    return "\n".join(told)


async def made(workers: Workers, name: str, values: Mapping[str, object]) -> None:
    """A worker that is joining its group answers 409 or 500."""

    async def accepted() -> bool:
        await workers.ask("PUT", f"/connectors/{name}/config", values)
        return True

    await until(accepted, f"connector {name} is made", timeout_s=START_LIMIT_S)


async def _all_run(workers: Workers) -> None:
    for name in (*SOURCES, SINK):
        await until(partial(workers.is_running, name), f"{name} runs", timeout_s=START_LIMIT_S)


async def judge(cluster: Cluster, workers: Workers, folder: Path, lines: Lines) -> None:
    """The sink has all lines, Connect's own topics are as it wants them, and the offsets are the ends of the files."""
    sink = folder / "sink.txt"
    await until(
        lambda: set(sink.read_text(encoding="utf-8").splitlines()) == lines.lines,
        "the sink's file",
        timeout_s=END_LIMIT_S,
    )
    await _all_run(workers)
    for name, file in lines.files.items():
        end = file.stat().st_size

        async def is_there(name: str = name, end: int = end) -> bool:
            found = await workers.ask("GET", f"/connectors/{name}/offsets")
            return bool([item["offset"]["position"] for item in found["offsets"]] == [end])

        await until(is_there, f"the offset of {name} is {end}")
    async with cluster.admin() as admin:
        for topic, partitions in ((CONFIGS, 1), (OFFSETS, 5), (STATUS, 2)):
            described = await admin.describe_topic(topic)
            assert [len(item.replicas) for item in described.partitions] == [3] * partitions
            entries = {entry.key: entry.value for entry in await admin.describe_configs(topic)}
            assert entries["cleanup.policy"] == "compact"


def transactional_id(source: str) -> str:
    """Of the task of a source; Connect makes it of its group and the connector."""
    return f"{GROUP}-{source}-0"
