"""Three real brokers that can be hurt: each on a host, a disk and a preloaded library of its own where the machine allows.

Each is a process of `barnabas.testing`, with the program that users start. What a test asks for and the machine cannot do is in
`lacking`; faults that need it are then left out, and said so.
"""

import shutil
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lifeline import hold_all

from barnabas.net.base.local.local_cluster import LAUNCHER, free_node_ports, write_properties
from barnabas.net.base.settings.endpoints import read_endpoints, remove_endpoints
from barnabas.net.client.admin.admin import Admin
from barnabas.net.testing.brokers.processes import BrokerProcess

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


class FaultBroker(BrokerProcess):
    """One broker: its machine, and its process once it was started."""

    def __init__(
        self,
        node_id: int,
        folder: Path,
        address: str,
        *,
        launcher: tuple[str, ...],
        disk: disks.LoopDisk | None,
        injected: shim.Shim | None,
    ) -> None:
        environment = injected.environment if injected is not None else None
        super().__init__(node_id, folder, address, launcher=launcher, environment=environment)
        self.disk = disk
        self.shim = injected
        self.peak_rss_mib = 0.0
        self.frozen = False

    @property
    def has_started(self) -> bool:
        """Whether the process that runs now has bound its ports."""
        return self.is_running and read_endpoints(str(self.data / "logs")) is not None

    def wipe(self) -> None:
        """Its disk is empty. Only while it does not run."""
        assert not self.is_running
        for entry in self.data.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def launch(self) -> None:
        remove_endpoints(str(self.data / "logs"))  # of a process that was killed
        super().launch()

    def kill(self) -> None:
        super().kill()
        self.frozen = False

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self.frozen = False

    def rss_mib(self) -> float:
        """Resident memory now; 0 when it does not run."""
        if not self.is_running:
            return 0.0
        try:
            rss_mib = super().rss_mib()
        except OSError:
            return 0.0
        self.peak_rss_mib = max(self.peak_rss_mib, rss_mib)
        return rss_mib


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
        hold_all()
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
        write_properties(folder / "server.properties", values)
        on_disk = disk.launcher() if disk is not None else ()
        on_host = self.network.launcher(node_id) if self.network is not None else ()
        launcher = (*on_disk, *on_host, *self._program)
        return FaultBroker(node_id, folder, address, launcher=launcher, disk=disk, injected=injected)

    def start(self) -> None:
        for broker in self.brokers:
            if not broker.is_running:
                broker.launch()

    def kill_all(self) -> None:
        """All at the same moment."""
        for broker in self.brokers:
            if broker.is_running:
                broker.signal(signal.SIGKILL)
        for broker in self.brokers:
            broker.kill()

    def _stop_all(self) -> None:
        for broker in self.brokers:
            if broker.was_started:
                broker.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def admin(self) -> Admin:
        return Admin(self.bootstrap, timeout_ms=15_000, request_timeout_ms=3_000, client_id="campaign")
