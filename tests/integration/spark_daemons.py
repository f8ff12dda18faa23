"""Spark's own servers as processes of a test: the master and the workers of a standalone cluster, and a Spark Connect server."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.cluster import clean_environment, until
from integration.spark_world import QUICK_JAVA, home_without_python

from barnabas.net.base.local.ports import free_ports

HOST = "127.0.0.1"
START_TIMEOUT_S = 240
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class Daemon:
    """A process of Spark's launcher, and all that it starts."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        self.log = folder / f"{name}.log"
        home = home_without_python(folder)
        environment = {
            **clean_environment(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_DAEMON_MEMORY": "700m",  # at most; a Spark Connect server refuses less than 450 MiB
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "PYSPARK_PYTHON": sys.executable,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [home / "bin" / words[0], *words[1:]],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder,
            )  # fmt: skip

    def has_said(self, words: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return words in self.log.read_text()

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(folder: Path, name: str, *words: str) -> Iterator[Daemon]:
    """`words`: a script of Spark's folder `bin`, and its arguments."""
    own = folder / name
    own.mkdir()
    daemon = Daemon(own, name, *words)
    try:
        yield daemon
    finally:
        daemon.stop()


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[tuple[str, list[Daemon]]]:
    """A master and workers with one core each; gives its address, before anything is ready, and the workers."""
    (port,) = free_ports(1)
    address, common = f"spark://{HOST}:{port}", ("--host", HOST, "--webui-port", "0")
    found: list[Daemon] = []
    own = "org.apache.spark.deploy"
    with running(folder, "master", "spark-class", f"{own}.master.Master", *common, "--port", str(port)) as master:
        try:
            for number in range(workers):
                (folder / f"worker-{number}").mkdir()
                words = (f"{own}.worker.Worker", *common, "--cores", "1", "--memory", "700m", address)
                found.append(Daemon(folder / f"worker-{number}", "worker", "spark-class", *words))
            yield address, [master, *found]
        finally:
            for daemon in found:
                daemon.stop()


@contextmanager
def connect_server(folder: Path) -> Iterator[tuple[str, Daemon]]:
    """A Spark Connect server, which is ready; gives its address."""
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": HOST,
        "spark.driver.host": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    words += ["--master", "local[2]", "--driver-java-options", QUICK_JAVA, "spark-internal"]
    server_class = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with running(folder, "server", "spark-submit", "--class", server_class, *words) as server:
        ready = until(lambda: server.has_said("Spark Connect server started"), "the server", timeout_s=START_TIMEOUT_S)
        asyncio.run(ready)
        yield f"sc://{HOST}:{port}", server


def executors(worker: Daemon) -> list[int]:
    """Their process ids."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, group = (folder / "cmdline").read_bytes(), os.getpgid(int(folder.name))
        except OSError:  # it has ended
            continue
        if _EXECUTOR in words and group == worker.process.pid:
            found.append(int(folder.name))
    return found
