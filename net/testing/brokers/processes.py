"""Clusters of broker processes under test: `Processes`, and each broker as a `BrokerProcess`.

They are started as `barnabas up` starts them, by `net/base/local/local_cluster`. The program is `broker_main`, which takes
orders of faults, or any other one that takes the path of a configuration: the broker that users start, or that of another
version.
"""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from barnabas.net.base.local.local_cluster import (
    LAST_LINES,
    LAUNCHER,
    STOP_TIMEOUT_S,
    ClusterError,
    Plan,
    addresses_of,
    free_node_ports,
    last_lines,
    launch,
    start,
    stop,
    write_properties,
)
from barnabas.net.base.local.secure_layout import PLAIN_TEXT

from ..faults.orders import Order, decode_answer, encode
from .forked_brokers import fork_broker
from .lasting_thread import in_lasting_thread

Address = tuple[str, int]
ORDER_TIMEOUT_S: Final = 30.0  # a loop that is blocked by a slow disk is still faster
_LOOPBACK: Final = "127.0.0.1"


def addresses_in(properties: Mapping[str, str]) -> list[Address]:
    """All addresses at which other brokers reach a broker, the quorum's last."""
    found = [item.partition("://")[2] for item in properties["listeners"].split(",")]
    return [(item.rpartition(":")[0], int(item.rpartition(":")[2])) for item in (*found, properties["quorum.listener"])]


class BrokerProcess:
    """One broker: its folder, and its process once it was started."""

    def __init__(
        self,
        node_id: int,
        folder: Path,
        address: str,
        *,
        launcher: tuple[str, ...] = LAUNCHER,
        die_with_parent: bool = False,
        environment: Mapping[str, str] | None = None,
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """`environment`: variables beside those of this process."""
        self.node_id = node_id
        self.folder = folder
        self.address = address
        self.launcher = launcher  # of the next start; the path of the configuration is appended
        self.environment = dict(environment or {})  # likewise
        self._die_with_parent = die_with_parent
        self._process = process
        self._log_start = 0  # of the process: earlier ones wrote what is before it

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Of its last start. Raises ClusterError if there was none."""
        if self._process is None:
            raise ClusterError(f"broker {self.node_id} was not started")
        return self._process

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

    # --- its process --------------------------------------------------------------------------------------------------

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it, or start it again on the same folder and ports."""
        assert not self.is_running, f"broker {self.node_id} runs"
        self._log_start = self.log_size() if self.log_path.exists() else 0
        self._process = in_lasting_thread(
            lambda: launch(
                self.launcher,
                self.folder,
                die_with_parent=self._die_with_parent,
                environment=self.environment,
                spawn=fork_broker,
            )
        )

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9; returns when it has ended."""
        self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float | None = None) -> int:
        """Return its exit code when it has ended."""
        return self.process.wait(timeout_s)

    def rss_mib(self) -> float:
        """Resident memory. Raises OSError if it does not run."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        found = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
        if not found:
            raise ProcessLookupError(f"broker {self.node_id} does not run")
        return int(found[0]) / 1024

    # --- its configuration --------------------------------------------------------------------------------------------

    def properties(self) -> dict[str, str]:
        """What its configuration file says."""
        lines = self.config.read_text(encoding="utf-8").splitlines()
        return {key: value for key, equals, value in (line.partition("=") for line in lines) if equals}

    def property(self, key: str) -> str:
        return self.properties()[key]

    def set(self, key: str, value: str) -> None:
        """In its file: it holds from the next start on."""
        write_properties(self.config, {**self.properties(), key: value})

    # --- its log ------------------------------------------------------------------------------------------------------

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def log_since(self, size: int) -> list[str]:
        with self.log_path.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace").splitlines()

    def log_of_process(self) -> list[str]:
        """What the process of its last start wrote."""
        return self.log_since(self._log_start)

    def tail(self, lines: int = LAST_LINES) -> str:
        """Whether it runs, and the last lines of its log, for a person who asks why a test failed."""
        state = (
            "running"
            if self.is_running
            else f"ended with {self.process.returncode}"
            if self._process
            else "not started"
        )
        return "\n".join([f"--- broker {self.node_id} ({state})", *(last_lines(self, lines) or ["no log"])])


class Processes:
    """A process for each broker, as `barnabas up` starts them."""

    name = "processes"

    def __init__(
        self,
        folder: Path,
        brokers: int,
        voters: int | None,
        config: Mapping[str, str],
        *,
        program: tuple[str, ...] | None = None,
        machines: int | None = None,
        client_protocol: str = PLAIN_TEXT,
        own_keys: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        die_with_parent: bool = True,
    ) -> None:
        """`program`: starts a broker; the path of its configuration is appended. The default one takes orders of faults, and
        serves the HTTP API only if `config` sets `admin.listener`; others take no orders. `machines`: as `barnabas up` has
        them. `client_protocol`: anything but plain text makes a cluster as `barnabas up --secure` does. `own_keys`: of single
        brokers."""
        self._control = Path(tempfile.mkdtemp(prefix="barnabas-"))  # short: the path of a socket has 107 bytes at most
        under_orders = (sys.executable, "-P", "-m", "barnabas.net.testing.brokers.broker_main")
        self._plan = Plan(
            folder=folder,
            broker_count=brokers,
            base_port=0,
            voter_count=voters,
            machine_count=machines,
            overrides=config if program else {"admin.listener": "none", **config},
            die_with_parent=die_with_parent,
            secure=client_protocol != PLAIN_TEXT,
            client_protocol=client_protocol,
            own_keys=own_keys,
            launcher=program or (*under_orders, "--control", str(self._control), "--config"),
            spawn=fork_broker,
        )
        self.brokers: list[BrokerProcess] = []

    def start(self) -> None:
        """Raises ClusterError."""
        self.brokers = [
            BrokerProcess(
                item.node_id,
                item.folder,
                item.address,
                launcher=self._plan.launcher,
                die_with_parent=self._plan.die_with_parent,
                process=item.process,
            )
            for item in in_lasting_thread(lambda: start(self._plan))
        ]

    def add(self, node_id: int, config: Mapping[str, str]) -> BrokerProcess:
        """Start one more broker of the running cluster: with folder and ports of its own, and the voters of the others."""
        folder = self._plan.folder / str(node_id)
        (folder / "data").mkdir(parents=True)
        (ports,) = free_node_ports(1)
        values = {
            "node.id": str(node_id),
            **addresses_of(self._plan.folder, node_id, ports, self._plan.client_protocol),
            "controller.quorum.voters": self.brokers[0].property("controller.quorum.voters"),
            "log.dirs": str(folder / "data"),
            **self._plan.overrides,
            **config,
        }
        write_properties(folder / "server.properties", values)
        broker = BrokerProcess(
            node_id,
            folder,
            f"{_LOOPBACK}:{ports.client}",
            launcher=self._plan.launcher,
            die_with_parent=self._plan.die_with_parent,
        )
        broker.launch()
        self.brokers.append(broker)
        return broker

    def remove(self, node_id: int) -> None:
        """Shut a broker of the running cluster down for good; returns when it has ended. Its folder stays."""
        broker = self._broker(node_id)
        if broker.is_running:
            broker.signal(signal.SIGTERM)
            try:
                broker.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                broker.kill()
        self.brokers.remove(broker)

    def _broker(self, node_id: int) -> BrokerProcess:
        return next(broker for broker in self.brokers if broker.node_id == node_id)

    def address(self, node_id: int) -> str:
        return self._broker(node_id).address

    def addresses(self, node_id: int) -> Sequence[Address]:
        return addresses_in(self._broker(node_id).properties())

    def is_running(self, node_id: int) -> bool:
        return self._broker(node_id).is_running

    def why_ended(self, node_id: int) -> str:
        broker = self._broker(node_id)
        lines = "\n    ".join(last_lines(broker))
        return f"it ended with {broker.process.poll()}, and its log with:\n    {lines}"

    def order(self, node_id: int, order: Order) -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ORDER_TIMEOUT_S)
            connection.connect(str(self._control / f"{node_id}.sock"))
            connection.sendall(encode(order))
            answer = decode_answer(connection.makefile("rb").readline())
        if answer.failed:
            raise OSError(f"broker {node_id}: {answer.failed}")
        return answer.result

    def kill(self, node_id: int) -> None:
        self._broker(node_id).kill()
        with suppress(OSError):
            (self._control / f"{node_id}.sock").unlink()

    def restart(self, node_id: int) -> None:
        self._broker(node_id).launch()

    def pause(self, node_id: int) -> None:
        self._broker(node_id).signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self._broker(node_id).signal(signal.SIGCONT)

    def logs(self, lines: int) -> str:
        return "\n".join(broker.tail(lines) for broker in self.brokers)

    def close(self, *, graceful: bool) -> None:
        for broker in self.brokers:
            broker.signal(signal.SIGCONT)  # a paused process does not stop
        if graceful:
            stop(self.brokers)
        for broker in self.brokers:
            broker.process.kill()
        for broker in self.brokers:
            broker.process.wait()
        shutil.rmtree(self._control, ignore_errors=True)
