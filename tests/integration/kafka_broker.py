"""One broker of Apache Kafka, as a process, from the libraries of its tools."""

import asyncio
import subprocess
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from integration import java_client
from integration.cluster import clean_environment, until
from integration.programs import QUICK_JAVA

from barnabas.net.base.local.ports import free_ports

START_LIMIT_S = 120.0  # of a JVM on two cores that others use, too
STOP_LIMIT_S = 30.0


class KafkaBroker:
    """Started by `start`; a context manager that leaves nothing running."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self._libraries = libraries
        self._folder = folder
        self._file = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
        folder.mkdir(parents=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "log.dirs": str(folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "3",
            "group.initial.rebalance.delay.ms": "0",
        }
        self._file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")

    def __enter__(self) -> "KafkaBroker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    async def start(self) -> None:
        format_it = java_client.tool(
            self._libraries, "kafka.tools.StorageTool", "format", "-t", "YmFybmFiYXMtbWlycm9ycw", "-c", str(self._file)
        )
        await asyncio.to_thread(
            subprocess.run, format_it, check=True, capture_output=True, timeout=START_LIMIT_S, env=clean_environment()
        )
        self._process = self._launched()
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        async def answers() -> bool:
            try:
                return bool(admin.list_topics(timeout=1).brokers)
            except KafkaException:  # not yet
                return False

        await until(answers, "Kafka answers", timeout_s=START_LIMIT_S)

    def _launched(self) -> "subprocess.Popen[bytes]":
        command = ["java", *QUICK_JAVA, "-Xmx512m", f"-Dkafka.logs.dir={self._folder}", "-cp", f"{self._libraries}/*"]
        with (self._folder / "broker.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "kafka.Kafka", str(self._file)], stdout=log, stderr=log, env=clean_environment()
            )
