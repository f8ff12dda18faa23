"""What a cluster under test runs on: brokers in this process, or a process each. Faults are the same values for both."""

import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from barnabas.net.base.local.local_cluster import ClusterError, NodePorts, addresses_of, free_node_ports
from barnabas.net.base.local.secure_layout import PLAIN_TEXT

from ..faults.orders import Order
from .forks import keep_from_children
from .processes import Address, Processes, addresses_in

TOGETHER_S: Final = 2.0  # Brokers that are killed at once wait so long for each other: a slow disk may hold up one.
_LOOPBACK: Final = "127.0.0.1"
USUAL_VOTERS: Final = 3


class Backend(Protocol):
    """Node ids count from 0. Calls block, and any thread may make them, one at a time for each broker."""

    name: str

    def start(self) -> None:
        """Returns when all brokers are being started. Raises ClusterError."""

    def address(self, node_id: int) -> str:
        """Where clients reach the broker."""

    def addresses(self, node_id: int) -> Sequence[Address]:
        """All addresses at which other brokers reach it."""

    def add(self, node_id: int, config: Mapping[str, str]) -> object:
        """Start one more broker; returns when it is being started. Raises ClusterError."""

    def remove(self, node_id: int) -> None:
        """Shut a broker down for good; returns when it has ended."""

    def is_running(self, node_id: int) -> bool: ...

    def why_ended(self, node_id: int) -> str:
        """For error messages."""

    def logs(self, lines: int) -> str:
        """Which brokers run, and the last lines of their logs, for a person who asks why a test failed."""

    def order(self, node_id: int, order: Order) -> int:
        """Raises OSError while the broker cannot take orders."""

    def kill(self, node_id: int) -> None: ...

    def restart(self, node_id: int) -> None: ...

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def close(self, *, graceful: bool) -> None:
        """End all brokers; `graceful`: with closed logs."""


class InProcess:
    """Brokers in threads of this process."""

    name = "in-process"

    def __init__(
        self,
        folder: Path,
        brokers: int,
        voters: int,
        config: Mapping[str, str],
        *,
        client_protocol: str = PLAIN_TEXT,
        own_keys: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """`client_protocol`, `own_keys`: as of `Processes`."""
        from .thread_broker import ThreadBroker  # the broker itself, which the other backend does not need here

        self._make = ThreadBroker
        self._folder = folder
        self._config = config
        self._client_protocol = client_protocol
        ports = free_node_ports(brokers)
        if client_protocol != PLAIN_TEXT:
            from barnabas.net.base.local import secure_files

            secure_files.prepare(folder, [f"{_LOOPBACK}:{item.client}" for item in ports], client_protocol)
        self._voters = ",".join(f"{n}@{_LOOPBACK}:{item.quorum}" for n, item in enumerate(ports[:voters]))
        self._properties = {n: self._properties_of(n, item, own_keys.get(n, {})) for n, item in enumerate(ports)}
        self._brokers: dict[int, ThreadBroker] = {}
        keep_from_children(self)

    def held(self) -> tuple[Path, Collection[int]]:
        return self._folder, {port for node_id in self._properties for _, port in self.addresses(node_id)}

    def _properties_of(self, node_id: int, ports: NodePorts, own: Mapping[str, str]) -> dict[str, str]:
        home = self._folder / str(node_id)
        home.mkdir(exist_ok=True)
        return {
            "node.id": str(node_id),
            **addresses_of(self._folder, node_id, ports, self._client_protocol),
            "controller.quorum.voters": self._voters,
            "log.dirs": str(home / "data"),
            **self._config,
            **own,
            "admin.listener": "none",
        }

    def start(self) -> None:
        self._brokers = {node_id: self._make(node_id, found) for node_id, found in self._properties.items()}
        try:
            for broker in self._brokers.values():
                broker.started.result()
        except Exception as error:
            self.close(graceful=False)
            raise ClusterError(f"a broker cannot start: {error}") from error

    def add(self, node_id: int, config: Mapping[str, str]) -> object:
        (ports,) = free_node_ports(1)
        self._properties[node_id] = self._properties_of(node_id, ports, config)
        broker = self._make(node_id, self._properties[node_id])
        try:
            broker.started.result()
        except Exception as error:
            del self._properties[node_id]
            raise ClusterError(f"broker {node_id} cannot start: {error}") from error
        self._brokers[node_id] = broker
        return broker

    def remove(self, node_id: int) -> None:
        self._brokers[node_id].stop(hands_over=True)
        del self._brokers[node_id], self._properties[node_id]

    def address(self, node_id: int) -> str:
        host, port = self.addresses(node_id)[0]
        return f"{host}:{port}"

    def addresses(self, node_id: int) -> Sequence[Address]:
        return addresses_in(self._properties[node_id])

    def is_running(self, node_id: int) -> bool:
        return self._brokers[node_id].is_running

    def why_ended(self, node_id: int) -> str:
        return self._brokers[node_id].death or "it was killed"

    def logs(self, lines: int) -> str:
        """Their logs are those of this process."""
        states = {True: "running", False: "ended"}
        found = self._brokers.items()
        return "\n".join(f"--- broker {node_id} ({states[broker.is_running]})" for node_id, broker in found)

    def order(self, node_id: int, order: Order) -> int:
        return self._brokers[node_id].order(order)

    def kill(self, node_id: int) -> None:
        self._brokers[node_id].kill()

    def restart(self, node_id: int) -> None:
        broker = self._brokers[node_id] = self._make(node_id, self._properties[node_id])
        broker.started.result()

    def pause(self, node_id: int) -> None:
        self._brokers[node_id].pause()

    def resume(self, node_id: int) -> None:
        self._brokers[node_id].resume()

    def close(self, *, graceful: bool) -> None:
        running = [] if graceful else [broker for broker in self._brokers.values() if broker.is_running]
        together = threading.Barrier(max(1, len(running)), timeout=TOGETHER_S)
        for broker in running:
            broker.begin_kill(together)
        for broker in self._brokers.values():
            broker.stop() if graceful else broker.kill()


BACKENDS: Final[Mapping[str, type[InProcess] | type[Processes]]] = {
    backend.name: backend for backend in (InProcess, Processes)
}
