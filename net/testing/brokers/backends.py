"""What a cluster under test runs on: brokers in this process, or a process each. Faults are the same values for both."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from ...local_cluster import ClusterError, free_node_ports
from ..faults.orders import Order
from .processes import Address, Processes

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

    def __init__(self, folder: Path, brokers: int, voters: int, config: Mapping[str, str]) -> None:
        from .thread_broker import ThreadBroker  # the broker itself, which the other backend does not need here

        self._make = ThreadBroker
        self._ports = free_node_ports(brokers)
        named = ",".join(f"{n}@{_LOOPBACK}:{ports.quorum}" for n, ports in enumerate(self._ports[:voters]))
        self._properties = [
            {
                "node.id": str(node_id),
                "listeners": f"PLAINTEXT://{_LOOPBACK}:{ports.client}",
                "quorum.listener": f"{_LOOPBACK}:{ports.quorum}",
                "controller.quorum.voters": named,
                "log.dirs": str(folder / str(node_id) / "data"),
                **config,
                "admin.listener": "none",
            }
            for node_id, ports in enumerate(self._ports)
        ]
        for node_id in range(brokers):
            (folder / str(node_id)).mkdir(exist_ok=True)
        self._brokers: list[ThreadBroker] = []

    def start(self) -> None:
        self._brokers = [self._make(node_id, found) for node_id, found in enumerate(self._properties)]
        try:
            for broker in self._brokers:
                broker.started.result()
        except Exception as error:
            self.close(graceful=False)
            raise ClusterError(f"a broker cannot start: {error}") from error

    def address(self, node_id: int) -> str:
        return f"{_LOOPBACK}:{self._ports[node_id].client}"

    def addresses(self, node_id: int) -> Sequence[Address]:
        ports = self._ports[node_id]
        return [(_LOOPBACK, ports.client), (_LOOPBACK, ports.quorum)]

    def is_running(self, node_id: int) -> bool:
        return self._brokers[node_id].is_running

    def why_ended(self, node_id: int) -> str:
        return self._brokers[node_id].death or "it was killed"

    def logs(self, lines: int) -> str:
        """Their logs are those of this process."""
        states = {True: "running", False: "ended"}
        return "\n".join(f"--- broker {n} ({states[broker.is_running]})" for n, broker in enumerate(self._brokers))

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
        for broker in self._brokers:
            broker.stop() if graceful else broker.kill()


BACKENDS: Final[Mapping[str, type[InProcess] | type[Processes]]] = {
    backend.name: backend for backend in (InProcess, Processes)
}
