"""Three real brokers that can be hurt: each on a host, a disk and a preloaded library of its own where the machine allows.

What a test asks for and the machine cannot do is in `lacking`; faults that need it are then left out, and said so.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from barnabas.net.client.admin.admin import Admin
from barnabas.net.local_cluster import LAUNCHER, free_node_ports
from barnabas.net.settings.endpoints import read_endpoints, remove_endpoints

from . import disks, network, shim

BROKERS: Final = 3
CLIENT_PORT: Final = 9092
QUORUM_PORT: Final = 9093
CONFIG: Final[Mapping[str, str]] = {
    "admin.listener": "none",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.create.topics.enable": "false",
    # A follower that hears nothing, but is heard, leaves the ISR after this; the default of 30 s would hide all else.
    "replica.lag.time.max.ms": "5000",
    # Small, so that a campaign sees segments roll and the quorum take snapshots.
    "log.segment.bytes": str(1 << 20),
    "metadata.log.max.record.bytes.between.snapshots": str(128 << 10),
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "leader.imbalance.check.interval.seconds": "20",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "3000",
}
NETWORK_NEED: Final = "network"
LINKS_NEED: Final = "links"  # bad ones; a network comes with them
DISK_NEED: Final = "disk"
SHIM_NEED: Final = "shim"


@dataclass(slots=True)
class FaultBroker:
    """One broker: its machine, and its process while there is one."""

    node_id: int
    folder: Path
    address: str
    launcher: tuple[str, ...]
    disk: disks.LoopDisk | None
    shim: shim.Shim | None
    process: subprocess.Popen[bytes] | None = None
    peak_rss_mib: float = 0.0
    frozen: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = LAUNCHER  # the path of the configuration is appended

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log_path(self) -> Path:
        return self.folder / "broker.log"

    @property
    def has_started(self) -> bool:
        """Whether the process that runs now has bound its ports."""
        return self.is_running and read_endpoints(str(self.data / "logs")) is not None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def config_path(self) -> Path:
        return self.folder / "server.properties"

    def set(self, key: str, value: str) -> None:
        """In its file: it holds from the next start on."""
        lines = self.config_path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.partition("=")[0] != key]
        self.config_path.write_text("".join(f"{line}\n" for line in [*kept, f"{key}={value}"]), encoding="utf-8")

    def wipe(self) -> None:
        """Its disk is empty. Only while it does not run."""
        assert not self.is_running
        for entry in self.data.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def start(self) -> None:
        assert not self.is_running
        remove_endpoints(str(self.data / "logs"))  # of a process that was killed
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, *self.program, str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self.is_running:
            self.signal(signal.SIGKILL)
        self.wait()
        self.frozen = False

    def wait(self, timeout_s: float | None = None) -> int:
        """Until it has ended; its exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.is_running:
            self.signal(signal.SIGCONT)
        self.frozen = False

    def rss_mib(self) -> float:
        """Resident memory now; 0 when it does not run."""
        if not self.is_running or self.process is None:
            return 0.0
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return 0.0
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
        rss_mib = int(found[0]) / 1024 if found else 0.0
        self.peak_rss_mib = max(self.peak_rss_mib, rss_mib)
        return rss_mib

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")


class FaultCluster:
    """Started by `start`. A context manager that leaves neither processes nor mounts nor namespaces."""

    def __init__(
        self,
        folder: Path,
        *,
        needs: frozenset[str],
        config: Mapping[str, str] = CONFIG,
        program: tuple[str, ...] = LAUNCHER,
    ) -> None:
        self.folder = folder
        self.needs = needs
        self.network: network.NamespaceNetwork | None = None
        self.brokers: list[FaultBroker] = []
        self.lacking: dict[str, str] = {}  # need -> why this machine cannot do it
        self._config = config
        self._program = program
        self._stack = ExitStack()

    def __enter__(self) -> "FaultCluster":
        with ExitStack() as stack:
            stack.callback(self._stop_all)
            library = self._build(stack)
            voters, addresses = self._addresses()
            for node_id in range(BROKERS):
                self.brokers.append(self._broker(stack, node_id, addresses[node_id], voters, library))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> Path | None:
        """What this machine can do of what is asked for."""
        checks = {
            NETWORK_NEED: network.why_not,
            LINKS_NEED: network.why_no_bad_links,
            DISK_NEED: disks.why_not,
            SHIM_NEED: shim.why_not,
        }
        self.lacking = {need: why for need in sorted(self.needs) if (why := checks[need]())}
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.has & {NETWORK_NEED, LINKS_NEED}:
            self.network = stack.enter_context(network.NamespaceNetwork(BROKERS))
            stack.enter_context(self.network.entered())
        return shim.build(self.folder) if SHIM_NEED in self.has else None

    @property
    def has(self) -> frozenset[str]:
        return self.needs - set(self.lacking)

    def _addresses(self) -> tuple[str, list[str]]:
        """The quorum, and each broker's address for clients."""
        if self.network is not None:
            hosts = [self.network.address(node_id) for node_id in range(BROKERS)]
            voters = [f"{node_id}@{host}:{QUORUM_PORT}" for node_id, host in enumerate(hosts)]
            return ",".join(voters), [f"{host}:{CLIENT_PORT}" for host in hosts]
        ports = free_node_ports(BROKERS)
        voters = [f"{node_id}@127.0.0.1:{item.quorum}" for node_id, item in enumerate(ports)]
        return ",".join(voters), [f"127.0.0.1:{item.client}" for item in ports]

    def _broker(self, stack: ExitStack, node_id: int, address: str, voters: str, library: Path | None) -> FaultBroker:
        folder = self.folder / str(node_id)
        (folder / "data").mkdir(parents=True)
        disk = None
        if DISK_NEED in self.has:
            disk = disks.LoopDisk(self.folder / f"disk{node_id}.img", folder / "data")
            stack.callback(disk.destroy)
            stack.callback(self._stop_all)
        injected = shim.Shim(library, folder / "orders", folder / "data") if library is not None else None
        values = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{address}",
            "controller.quorum.voters": voters,
            "allow.plaintext.listeners": "true",  # hosts of a campaign have networks of their own
            "log.dirs": str(folder / "data" / "logs"),
            **self._config,
        }
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        (folder / "server.properties").write_text(text, encoding="utf-8")
        on_disk = disk.launcher() if disk is not None else ()
        on_host = self.network.launcher(node_id) if self.network is not None else ()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}
        if injected is not None:
            environment |= injected.environment
        return FaultBroker(
            node_id=node_id,
            folder=folder,
            address=address,
            launcher=(*on_disk, *on_host),
            disk=disk,
            shim=injected,
            environment=environment,
            program=self._program,
        )

    def start(self) -> None:
        for broker in self.brokers:
            if not broker.is_running:
                broker.start()

    def kill_all(self) -> None:
        """All at the same moment."""
        for broker in self.brokers:
            if broker.is_running:
                broker.signal(signal.SIGKILL)
        for broker in self.brokers:
            broker.kill()

    def _stop_all(self) -> None:
        for broker in self.brokers:
            if broker.process is not None:
                broker.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def admin(self) -> Admin:
        return Admin(self.bootstrap, timeout_ms=15_000, request_timeout_ms=3_000, client_id="campaign")
