"""What a cluster under test runs on: brokers in this process, or a process each. Faults are the same values for both."""

import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from ...local_cluster import LAST_LINES, Broker, ClusterError, Plan, free_node_ports, last_lines, restart, start, stop
from ..faults.orders import Order, decode_answer, encode

Address = tuple[str, int]
ORDER_TIMEOUT_S: Final = 30.0  # a loop that is blocked by a slow disk is still faster
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


class Processes:
    """A process for each broker, as `barnabas up` starts them."""

    name = "processes"

    def __init__(self, folder: Path, brokers: int, voters: int, config: Mapping[str, str]) -> None:
        self._control = Path(tempfile.mkdtemp(prefix="barnabas-"))  # short: the path of a socket has 107 bytes at most
        self._plan = Plan(
            folder=folder,
            broker_count=brokers,
            base_port=0,
            voter_count=voters,
            overrides={"admin.listener": "none", **config},
            die_with_parent=True,
            launcher=(
                *(sys.executable, "-P", "-m", "barnabas.net.testing.brokers.broker_main"),
                *("--control", str(self._control), "--config"),
            ),
        )
        self._brokers: list[Broker] = []

    def start(self) -> None:
        self._brokers = start(self._plan)

    def address(self, node_id: int) -> str:
        return self._brokers[node_id].address

    def addresses(self, node_id: int) -> Sequence[Address]:
        text = (self._brokers[node_id].folder / "server.properties").read_text(encoding="utf-8")
        values = dict(line.split("=", 1) for line in text.splitlines())
        found = (values["listeners"].partition("://")[2], values["quorum.listener"])
        return [(item.rpartition(":")[0], int(item.rpartition(":")[2])) for item in found]

    def is_running(self, node_id: int) -> bool:
        return self._brokers[node_id].process.poll() is None

    def why_ended(self, node_id: int) -> str:
        broker = self._brokers[node_id]
        lines = "\n    ".join(last_lines(broker)[-LAST_LINES:])
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
        process = self._brokers[node_id].process
        process.kill()
        process.wait()
        with suppress(OSError):
            (self._control / f"{node_id}.sock").unlink()

    def restart(self, node_id: int) -> None:
        broker = self._brokers[node_id]
        self._brokers[node_id] = restart(broker, die_with_parent=True, launcher=self._plan.launcher)

    def pause(self, node_id: int) -> None:
        self._brokers[node_id].process.send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self._brokers[node_id].process.send_signal(signal.SIGCONT)

    def close(self, *, graceful: bool) -> None:
        for broker in self._brokers:
            broker.process.send_signal(signal.SIGCONT)  # a paused process does not stop
        if graceful:
            stop(self._brokers)
        for broker in self._brokers:
            broker.process.kill()
        for broker in self._brokers:
            broker.process.wait()
        shutil.rmtree(self._control, ignore_errors=True)


BACKENDS: Final[Mapping[str, type[InProcess] | type[Processes]]] = {
    backend.name: backend for backend in (InProcess, Processes)
}
