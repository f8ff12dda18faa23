"""Brokers of Apache Kafka, as processes: libraries from Maven Central, KRaft, loopback only.

`python kafka_brokers.py --brokers 3 --port 36100` runs a cluster in the foreground until Ctrl-C: for experiments, and for
tests that compare the two. The libraries are fetched once, by mvn, into a cache outside of the repository.
"""

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from measure import HERE, Skipped

from barnabas.net.base.local import local_cluster
from barnabas.net.base.local.ports import free_ports

KAFKA_VERSION = "4.3.1"
POM = HERE / "kafka_broker.xml"
FETCH_TIMEOUT_S = 300.0  # of 45 MB, once
FORMAT_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0  # of three JVMs on two cores that others use, too
STOP_TIMEOUT_S = 20.0
CLUSTER_ID = "YmFybmFiYXMtYmVuY2htYQ"  # any 16 bytes in base64
HEAP = "-Xmx1g"  # Kafka's own script gives a broker as much
# As Kafka's own script starts a broker (kafka-run-class.sh, KAFKA_JVM_PERFORMANCE_OPTS).
JVM_OPTIONS = (
    HEAP,
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def cache_folder() -> Path:
    """`BARNABAS_BENCHMARK_CACHE`, or a folder of the user's cache."""
    chosen = os.environ.get("BARNABAS_BENCHMARK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "barnabas-benchmark"


def libraries(version: str = KAFKA_VERSION) -> Path:
    """The folder of a broker's libraries. Raises Skipped where they cannot be fetched."""
    target = cache_folder() / f"kafka-{version}"
    if target.exists():
        return target
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        raise Skipped(f"Kafka needs {' and '.join(missing)}: apt-get install openjdk-17-jre-headless maven")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(
        tempfile.mkdtemp(prefix="kafka-", dir=target.parent)
    )  # A fetch that was cut short is not taken for a whole one.
    command = ("mvn", "-q", "-B", "-f", str(POM), f"-Dkafka.version={version}", "dependency:copy-dependencies")
    fetched = subprocess.run(
        [*command, f"-DoutputDirectory={partial}"], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    if fetched.returncode:
        shutil.rmtree(partial)
        raise Skipped(f"mvn could not fetch Kafka {version}: {fetched.stdout.strip()[-300:]}")
    partial.rename(target)
    return target


def properties(node_id: int, ports: list[tuple[int, int]], folder: Path) -> dict[str, str]:
    """A broker that is a controller too; `ports` are those of brokers and controllers, by node. All else is Kafka's default."""
    port, controller_port = ports[node_id]
    replicas = str(min(3, len(ports)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{voter}" for node, (_, voter) in enumerate(ports)),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "log.dirs": str(folder / "data"),
        "min.insync.replicas": str(min(2, len(ports))),
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, len(ports))),
        "offsets.topic.num.partitions": "3",  # Fifty of each would only make the start longer.
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


class KafkaCluster:
    """`brokers` processes, in a folder that goes with them."""

    def __init__(self, brokers: int, *, version: str = KAFKA_VERSION, base_port: int = 0, **overrides: str) -> None:
        """`overrides` are keys of the configuration, with underscores for dots. Without `base_port`, free ports are taken."""
        self.size = brokers
        self._version = version
        self._base_port = base_port
        self._overrides = {key.replace("_", "."): value for key, value in overrides.items()}
        self._numbers = itertools.count()
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._classpath = f"{libraries(self._version)}/*"
        self.folder = Path(tempfile.mkdtemp(prefix="barnabas-kafka-"))
        base = self._base_port
        numbers = list(range(base, base + 2 * self.size)) if base else free_ports(2 * self.size)
        ports = list(zip(numbers[: self.size], numbers[self.size :], strict=True))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in ports)
        try:
            for node_id in range(self.size):
                self._format(node_id, ports)
            for node_id in range(self.size):
                self._running.append(self._start(node_id))
            self._wait_until_formed()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for broker in self._running:
            broker.terminate()
        for broker in self._running:
            try:
                broker.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pids(self) -> list[int]:
        return [broker.pid for broker in self._running]

    def create(
        self, name: str, *, partitions: int, replicas: int = 0, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, on all brokers unless `replicas` says on how many."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=replicas or self.size, config=dict(configs or {})
        )
        admin = self._admin()  # It must outlive the answer.
        admin.create_topics([topic], operation_timeout=30)[name].result(timeout=60)

    def delete(self, name: str) -> None:
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=30)[name].result(timeout=60)

    def _admin(self):  # type: ignore[no-untyped-def]
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError:
            raise Skipped("pip install confluent-kafka") from None
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _format(self, node_id: int, ports: list[tuple[int, int]]) -> None:
        folder = self.folder / str(node_id)
        folder.mkdir()
        file = folder / "server.properties"
        settings = {**properties(node_id, ports, folder), **self._overrides}
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            [*command, "-t", CLUSTER_ID, "-c", str(file)],
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"Kafka did not format {folder}: {(done.stderr or done.stdout).strip()[-300:]}")

    def _start(self, node_id: int) -> subprocess.Popen[bytes]:
        folder = self.folder / str(node_id)
        quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Dkafka.logs.dir={folder}")
        with (folder / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [
                    "java",
                    *JVM_OPTIONS,
                    *quiet,
                    "-cp",
                    self._classpath,
                    "kafka.Kafka",
                    str(folder / "server.properties"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=local_cluster.end_with_parent if sys.platform == "linux" else None,
            )

    def _wait_until_formed(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            for node_id, broker in enumerate(self._running):
                if broker.poll() is not None:
                    log = (self.folder / str(node_id) / "broker.log").read_text(encoding="utf-8", errors="replace")
                    raise RuntimeError(f"Kafka's broker {node_id} ended with {broker.returncode}: {log.strip()[-500:]}")
            try:
                if len(self._admin().list_topics(timeout=2).brokers) == self.size:
                    self.create("ready", partitions=1)
                    return
            except Skipped:
                raise
            except Exception as error:  # librdkafka's errors, until the cluster is there
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka did not form a cluster in {START_TIMEOUT_S:.0f} s: {error}") from error
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="kafka_brokers.py", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument(
        "--port", type=int, default=0, help="of the first broker; the others follow. Default: free ports"
    )
    parser.add_argument("--version", default=KAFKA_VERSION)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Stops the brokers, as Ctrl-C does.
    try:
        with KafkaCluster(options.brokers, version=options.version, base_port=options.port) as cluster:
            print(
                f"bootstrap {cluster.bootstrap}\nfolder {cluster.folder}\npids {' '.join(map(str, cluster.pids()))}",
                flush=True,
            )
            signal.pause()
    except KeyboardInterrupt:
        pass
    except Skipped as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
