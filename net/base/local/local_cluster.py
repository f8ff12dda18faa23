"""A cluster of broker processes on one machine: folders, ports, start, supervision and stop.

Layout of the folder: `<n>/server.properties`, `<n>/broker.log`, `<n>/broker.pid`, `<n>/data/` for node n, and `up.pid` of
the process that supervises the brokers. `<n>/decommissioned` says that node n has left permanently: `up` does not start it.
A broker that ends is never restarted: a user who kills a broker wants to see what happens.
This module imports only what it needs to start processes, because its imports delay the start of the cluster.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, Protocol

from .ports import NoFreePorts, free_ports
from .secure_layout import SECURITY, USUAL_PROTOCOL

DECOMMISSIONED: Final = "decommissioned"  # beside the configuration of a broker that has left permanently
DEFAULT_FOLDER: Final = "barnabas-data"
MAX_BROKERS: Final = 100  # on one machine; each is a process of tens of megabytes
USUAL_VOTERS: Final = 3
PORTS_OF_NODE: Final = 4
STOP_TIMEOUT_S: Final = 35.0  # a little more than controlled.shutdown.timeout.ms
# When the whole cluster stops, the last brokers have no quorum to hand their leaderships over to. A second signal tells them.
HAND_OVER_S: Final = 0.5
LAST_LINES: Final = 8  # of the log of a broker that ended; shown to the user
LAST_BYTES: Final = 16 * 1024
POLL_INTERVAL_S: Final = 0.02
# -P: a file in the user's folder must never replace a module of Python.
LAUNCHER: Final = (sys.executable, "-P", "-m", "barnabas", "broker", "start", "--config")
_LOOPBACK: Final = "127.0.0.1"
LOG_LEVEL_VARIABLE: Final = "BARNABAS_LOG_LEVEL"
_MACHINE: Final = "broker.machine"
_DATA_KEYS: Final = ("log.dirs", "log.dir", "metadata.log.dir")
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class ClusterError(OSError):
    """The cluster cannot be started or stopped; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """The ports of a node."""

    client: int
    quorum: int
    admin: int
    brokers: int  # of a secure cluster: brokers connect to each other here, and users with certificates


class Spawn(Protocol):
    """Starts a process in a session of its own, without input. Its output goes to `log`."""

    def __call__(
        self, command: Sequence[str], log: BinaryIO, environment: Mapping[str, str], *, die_with_parent: bool
    ) -> "subprocess.Popen[bytes]": ...


def spawn_process(
    command: Sequence[str], log: BinaryIO, environment: Mapping[str, str], *, die_with_parent: bool
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # only the parent receives Ctrl-C, and then stops the brokers in order
        preexec_fn=end_with_parent if die_with_parent and sys.platform == "linux" else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cluster to start."""

    folder: Path
    broker_count: int
    base_port: int = 9092  # 0: ports that are free now
    voter_count: int | None = None  # None: all brokers, but at most three
    machine_count: int | None = (
        None  # the brokers pretend to share so many machines; None: as before, at first no machine
    )
    overrides: Mapping[str, str] = field(default_factory=dict)
    die_with_parent: bool = False
    secure: bool = False  # TLS on every port, with an authority of its own; a cluster that was secure stays so
    client_protocol: str = USUAL_PROTOCOL  # of a secure cluster: how clients connect, one of CLIENT_PROTOCOLS
    own_keys: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # of single brokers, beside `overrides`
    launcher: tuple[str, ...] = LAUNCHER  # the path of the configuration is appended
    spawn: Spawn = spawn_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker process that this module started."""

    node_id: int
    folder: Path
    address: str
    process: subprocess.Popen[bytes]


def start(plan: Plan) -> list[Broker]:
    """Write the configurations and start all brokers at once. If it raises ClusterError, no broker runs."""
    if not 1 <= plan.broker_count <= MAX_BROKERS:
        raise ClusterError(f"-n {plan.broker_count}: give 1 to {MAX_BROKERS} brokers")
    _refuse_running(plan.folder)
    voter_count = _voter_count(plan)
    members = _members(plan)
    ports = _ports(plan, node_count=max(members[-1] + 1, voter_count))
    voters = ",".join(f"{node}@{_LOOPBACK}:{ports[node].quorum}" for node in range(voter_count))
    machines = {node_id: _machine(plan, node_id) for node_id in members}
    if not _known(
        plan.folder
    ):  # Later, the cluster has its own value, and another one in a file would only be reported.
        factor = min(len({machines[node_id] or node_id for node_id in members}), 3)
        plan = replace(plan, overrides={"default.replication.factor": str(factor), **plan.overrides})
    if plan.secure or is_secure(plan.folder):
        from . import secure_files

        plan = replace(plan, secure=True)
        addresses = [f"{_LOOPBACK}:{ports[node_id].client}" for node_id in members]
        secure_files.prepare(plan.folder, addresses, plan.client_protocol)
    brokers: list[Broker] = []
    try:
        brokers.extend(_start_broker(plan, node_id, ports[node_id], voters, machines[node_id]) for node_id in members)
    except BaseException:
        stop(brokers, timeout_s=0)
        raise
    return brokers


def is_secure(folder: Path) -> bool:
    """Does the cluster of this folder encrypt all its connections?"""
    return (folder / SECURITY).is_dir()


def restart(broker: Broker, *, die_with_parent: bool = False, launcher: tuple[str, ...] = LAUNCHER) -> Broker:
    """Start a broker that has ended again, with the same configuration."""
    assert broker.process.poll() is not None, f"broker {broker.node_id} still runs"
    process = launch(launcher, broker.folder, die_with_parent=die_with_parent)
    return replace(broker, process=process)


def add(folder: Path, overrides: Mapping[str, str], launcher: tuple[str, ...] = LAUNCHER) -> Broker:
    """Start one more broker for the cluster that runs from this folder, configured as its first node. Raises ClusterError.

    The broker is independent of its parent: it continues when the parent ends, and stops with the cluster (`stop_added`,
    `stop_folder`).
    """
    if not any_runs(folder):
        raise ClusterError(f"no cluster runs from {folder}; start one with `barnabas up --dir {folder}`")
    known = _known(folder)
    model = next((node_id for node_id in known if not _has_left(folder, node_id)), known[0])
    node_id = max(known) + 1
    if node_id >= MAX_BROKERS:
        raise ClusterError(f"{folder} holds {MAX_BROKERS} brokers already, the limit on one machine")
    values = _properties(folder / str(model))
    added = folder.absolute() / str(node_id)
    ports = _next_ports(values["listeners"], node_id - model)
    (added / "data").mkdir(parents=True, mode=0o700)
    address = f"{_LOOPBACK}:{ports.client}"
    values |= {
        "node.id": str(node_id),
        **addresses_of(folder, node_id, ports),  # the quorum's is unused until it becomes a voter
        "log.dirs": str(added / "data"),
        **_emptiest_machine(folder, known),
        **overrides,
    }
    write_properties(added / "server.properties", values)
    process = launch(launcher, added, die_with_parent=False)
    return Broker(node_id=node_id, folder=added, address=address, process=process)


def discard(broker: Broker) -> None:
    """Remove the folder of an added broker that holds no data yet; otherwise it would count as a broker of the cluster."""
    assert broker.process.poll() is not None, f"broker {broker.node_id} still runs"
    values = _properties(broker.folder)
    places = [Path(place.strip()) for key in _DATA_KEYS for place in values.get(key, "").split(",") if place.strip()]
    with suppress(OSError):
        if any(place.is_dir() and any(place.iterdir()) for place in places):
            return
        (broker.folder / "data").rmdir()  # first, because it fails if the folder is not empty
        for name in ("server.properties", "broker.log", "broker.pid"):
            (broker.folder / name).unlink(missing_ok=True)
        broker.folder.rmdir()


def _properties(folder: Path) -> dict[str, str]:
    lines = (folder / "server.properties").read_text(encoding="utf-8").splitlines()
    return dict((key, value) for key, equals, value in (line.partition("=") for line in lines) if equals)


def _next_ports(listeners: str, distance: int) -> NodePorts:
    """The ports that follow the cluster's numbering if they are free, else any free ports."""
    base = int(listeners.partition(",")[0].rpartition(":")[2]) + 10 * distance
    try:
        for port in range(base, base + PORTS_OF_NODE):
            _refuse_taken(port)
    except (ClusterError, OverflowError):
        return free_node_ports(1)[0]
    return _ports_from(base)


class HasFolder(Protocol):
    @property
    def folder(self) -> Path: ...


class HasProcess(HasFolder, Protocol):
    @property
    def process(self) -> "subprocess.Popen[bytes]": ...


def stop_added(folder: Path, brokers: Sequence[HasFolder], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Stop the brokers that were added to a cluster after its start with `brokers`, while these can still take over."""
    own = {broker.folder / "broker.pid" for broker in brokers}
    added = _tell(path for path in folder.absolute().glob("*/broker.pid") if path not in own)
    deadline_s = time.monotonic() + timeout_s
    for path, process in added.items():
        _await_end(path, process, max(deadline_s - time.monotonic(), 0))


def stop(brokers: Sequence[HasProcess], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Controlled shutdown of a whole cluster, also of brokers that the user started again. Processes that do not end in time are
    killed."""
    running = [broker.process.pid for broker in brokers if broker.process.poll() is None]
    own = [_Process(pid, _started(pid)) for pid in running]
    for broker in brokers:
        if broker.process.poll() is None:
            broker.process.terminate()
    successors = _tell(broker.folder / "broker.pid" for broker in brokers if broker.process.poll() is not None)
    deadline_s = time.monotonic() + timeout_s
    try:
        _tell_again([*own, *successors.values()], min(HAND_OVER_S, timeout_s))
    except KeyboardInterrupt:
        deadline_s = time.monotonic()
    for broker in brokers:
        try:
            broker.process.wait(max(deadline_s - time.monotonic(), 0))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            deadline_s = time.monotonic()  # a second Ctrl-C: the user does not want to wait for the others either
            broker.process.kill()
            broker.process.wait()
        path = broker.folder / "broker.pid"
        if path in successors:
            _await_end(path, successors[path], max(deadline_s - time.monotonic(), 0))
        path.unlink(missing_ok=True)


def stop_folder(folder: Path, timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
    """Stop all processes that run from this folder, also those of other parents. Returns the ids of the stopped processes."""
    stopped: list[int] = []
    # The supervisor stops its brokers itself, in order; then the remaining ones are stopped.
    for paths in ([folder / "up.pid"], folder.glob("*/broker.pid")):
        told = _tell(sorted(paths))
        deadline_s = time.monotonic() + timeout_s
        if folder / "up.pid" not in told:  # which passes a second signal on by itself
            _tell_again(told.values(), min(HAND_OVER_S, timeout_s))
        for path, process in told.items():
            _await_end(path, process, max(deadline_s - time.monotonic(), 0))
            stopped.append(process.pid)
    return stopped


def any_runs(folder: Path) -> bool:
    """Return whether a broker of this cluster runs, also if another process started it."""
    return any(read_pid_file(path) is not None for path in folder.glob("*/broker.pid"))


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that was asked to stop. It may remove its own pid file before it has ended."""

    pid: int
    started: str

    @property
    def runs(self) -> bool:
        return self.started == _started(self.pid) != "-"


def _tell(pid_files: Iterable[Path]) -> dict[Path, _Process]:
    """Ask the processes to stop. The pid files of processes that have ended already are removed."""
    told: dict[Path, _Process] = {}
    for path in pid_files:
        pid = read_pid_file(path)
        if pid is None:
            path.unlink(missing_ok=True)
            continue
        with suppress(ProcessLookupError):
            told[path] = _Process(pid, _started(pid))
            os.kill(pid, signal.SIGTERM)
    return told


def _tell_again(processes: Iterable[_Process], after_s: float) -> None:
    """Ask brokers a second time that have not ended by themselves: they end without waiting for a quorum or for clients."""
    deadline_s = time.monotonic() + after_s
    left = [process for process in processes if process.runs]
    while left and time.monotonic() < deadline_s:
        time.sleep(POLL_INTERVAL_S)
        left = [process for process in left if process.runs]
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def _await_end(pid_file: Path, process: _Process, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while process.runs:
        if time.monotonic() >= deadline_s:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(POLL_INTERVAL_S)
    pid_file.unlink(missing_ok=True)


def last_lines(broker: HasFolder, count: int = LAST_LINES) -> list[str]:
    """The end of a broker's log."""
    try:
        with (broker.folder / "broker.log").open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LAST_BYTES, 0))
            return log.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def write_pid_file(path: Path, pid: int) -> None:
    """Record a process by its id and its start time: the system reuses ids, but not such pairs."""
    path.write_text(f"{pid} {_started(pid)}\n", encoding="utf-8")


@contextmanager
def own_pid_file(config: str | None, node_id: int) -> Iterator[Callable[[], None]]:
    """While this process is a broker of a local cluster, `down` finds it, also if a user started it.

    The configuration of such a broker is `<n>/server.properties`. The pid file of another running broker stays unchanged: then
    this broker will fail. Yields a function that marks the broker as decommissioned; starting it manually removes the mark.
    """
    folder = Path(config or "").absolute().parent
    path = folder / "broker.pid"
    if config is None or Path(config).name != "server.properties" or folder.name != str(node_id):
        yield lambda: None
        return
    marker = folder / DECOMMISSIONED

    def mark() -> None:
        with suppress(OSError):
            marker.touch()

    if read_pid_file(path) is None:
        with suppress(OSError):  # a read-only folder does not belong to a local cluster
            marker.unlink(missing_ok=True)
            write_pid_file(path, os.getpid())
    try:
        yield mark
    finally:
        if read_pid_file(path) == os.getpid():
            with suppress(OSError):
                path.unlink(missing_ok=True)


def read_pid_file(path: Path) -> int | None:
    """The process id, if the same process still runs; otherwise None. Never the id of an unrelated process."""
    try:
        pid_text, started = path.read_text(encoding="utf-8").split()
        pid = int(pid_text)
    except (OSError, ValueError):
        return None
    return pid if started == _started(pid) != "-" else None


def _started(pid: int) -> str:
    """The start time of the process, in the system's own unit; "-" if no such process runs."""
    try:
        # The name may contain any character, so fields are counted from the last parenthesis: state is 3, starttime 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return "-" if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return "-"
    asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "_".join(asked.stdout.split()) or "-"


def _refuse_running(folder: Path) -> None:
    for path in (folder / "up.pid", *folder.glob("*/broker.pid")):
        pid = read_pid_file(path)
        if pid is not None:
            raise ClusterError(
                f"a cluster runs from {folder} already (process {pid}); stop it with `barnabas down --dir {folder}`"
            )


def _known(folder: Path) -> list[int]:
    """The nodes that have a folder, in order, including decommissioned ones."""
    return sorted(int(path.parent.name) for path in folder.glob("[0-9]*/server.properties"))


def _has_left(folder: Path, node_id: int) -> bool:
    return (folder / str(node_id) / DECOMMISSIONED).exists()


def _members(plan: Plan) -> list[int]:
    """The lowest node ids. The ids of decommissioned brokers are never used again."""
    nodes = (node_id for node_id in count() if not _has_left(plan.folder, node_id))
    return list(islice(nodes, plan.broker_count))


def _voter_count(plan: Plan) -> int:
    """The number of voters. It is fixed at the first start, so an existing cluster keeps its number."""
    known = [node_id for node_id in _known(plan.folder) if not _has_left(plan.folder, node_id)]
    if known and len(known) > plan.broker_count:
        raise ClusterError(
            f"{plan.folder} holds a cluster of {len(known)} brokers; start it with -n {len(known)}, or use another --dir"
        )
    before = _voters_before(plan.folder)
    wanted = plan.voter_count if plan.voter_count is not None else before or min(plan.broker_count, USUAL_VOTERS)
    if not before and not 1 <= wanted <= plan.broker_count:
        raise ClusterError(f"--voters {wanted}: give 1 to {plan.broker_count}, the number of brokers")
    if before and wanted != before:
        raise ClusterError(
            f"{plan.folder} holds a cluster with {before} voters; leave --voters out, or use another --dir"
        )
    return wanted


def _voters_before(folder: Path) -> int:
    try:
        lines = (folder / "0" / "server.properties").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((line.count("@") for line in lines if line.startswith("controller.quorum.voters=")), 0)


def _machine(plan: Plan, node_id: int) -> str | None:
    """The machine of a broker. It is fixed at its first start: replicas are placed by it."""
    before = _properties(plan.folder / str(node_id)).get(_MACHINE) if node_id in _known(plan.folder) else None
    if plan.machine_count is None:
        return before
    if not 1 <= plan.machine_count <= plan.broker_count:
        raise ClusterError(f"--machines {plan.machine_count}: give 1 to {plan.broker_count}, the number of brokers")
    machine = f"machine-{node_id % plan.machine_count}"
    if before not in (None, machine):
        raise ClusterError(
            f"{plan.folder} has broker {node_id} on {before}; leave --machines out, or use another --dir"
        )
    return machine


def _emptiest_machine(folder: Path, known: Iterable[int]) -> dict[str, str]:
    """Where a broker is added, if the others name their machines."""
    used = Counter(
        machine
        for node_id in known
        if not _has_left(folder, node_id) and (machine := _properties(folder / str(node_id)).get(_MACHINE))
    )
    return {_MACHINE: min(used, key=lambda machine: (used[machine], machine))} if used else {}


def _ports(plan: Plan, node_count: int) -> list[NodePorts]:
    if plan.base_port == 0:
        return free_node_ports(node_count)
    last = plan.base_port + 10 * (node_count - 1) + PORTS_OF_NODE - 1
    if not 0 < plan.base_port <= last <= 65_535:
        raise ClusterError(
            f"--port {plan.base_port}: the ports {plan.base_port} to {last} must lie between 1 and 65535"
        )
    ports = [_ports_from(plan.base_port + 10 * node) for node in range(node_count)]
    for port in (number for item in ports for number in (item.client, item.quorum, item.admin, item.brokers)):
        _refuse_taken(port)
    return ports


def _ports_from(base: int) -> NodePorts:
    return NodePorts(client=base, quorum=base + 1, admin=base + 2, brokers=base + 3)


def free_node_ports(broker_count: int) -> list[NodePorts]:
    """Ports of brokers that are free now, and that no other process takes while this one lives."""
    try:
        numbers = free_ports(PORTS_OF_NODE * broker_count)
    except NoFreePorts as error:
        raise ClusterError(f"{error}; choose ports with --port PORT") from error
    found = [numbers[first : first + PORTS_OF_NODE] for first in range(0, len(numbers), PORTS_OF_NODE)]
    return [NodePorts(client=a, quorum=b, admin=c, brokers=d) for a, b, c, d in found]


def _refuse_taken(port: int) -> None:
    """Fail with one clear message here, instead of in the log of a broker."""
    try:
        socket.create_server((_LOOPBACK, port)).close()
    except OSError as error:
        raise ClusterError(
            f"port {port} cannot be used ({error.strerror}); choose others with --port PORT, 0 for free ones"
        ) from error


def _start_broker(plan: Plan, node_id: int, ports: NodePorts, voters: str, machine: str | None) -> Broker:
    folder = plan.folder.absolute() / str(node_id)
    (folder / "data").mkdir(parents=True, exist_ok=True, mode=0o700)
    address = f"{_LOOPBACK}:{ports.client}"
    values = {
        "node.id": str(node_id),
        **addresses_of(plan.folder, node_id, ports, plan.client_protocol),
        "controller.quorum.voters": voters,
        "log.dirs": str(folder / "data"),
        **({_MACHINE: machine} if machine else {}),
        **plan.overrides,
        **plan.own_keys.get(node_id, {}),
    }
    write_properties(folder / "server.properties", values)
    process = launch(plan.launcher, folder, die_with_parent=plan.die_with_parent, spawn=plan.spawn)
    return Broker(node_id=node_id, folder=folder, address=address, process=process)


def addresses_of(folder: Path, node_id: int, ports: NodePorts, client_protocol: str = USUAL_PROTOCOL) -> dict[str, str]:
    """The keys of a broker that depend on its ports; of a secure cluster, also those of its certificate, which is made."""
    client, admin = f"{_LOOPBACK}:{ports.client}", f"{_LOOPBACK}:{ports.admin}"
    quorum = {"quorum.listener": f"{_LOOPBACK}:{ports.quorum}"}
    if not is_secure(folder):
        return {"listeners": f"PLAINTEXT://{client}", "admin.listener": admin, **quorum}
    from . import secure_files

    return {
        "listeners": f"{client_protocol}://{client},{secure_files.BROKERS}://{_LOOPBACK}:{ports.brokers}",
        "admin.listener": f"HTTPS://{admin}",
        **quorum,
        **secure_files.broker_keys(folder, node_id, _LOOPBACK, client_protocol),
    }


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")


def launch(
    launcher: tuple[str, ...],
    folder: Path,
    *,
    die_with_parent: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
    spawn: Spawn = spawn_process,
) -> "subprocess.Popen[bytes]":
    """Start the broker of this folder; its output is added to its log. `environment`: beside `clean_environment`."""
    with (folder / "broker.log").open("ab") as log:
        process = spawn(
            [*launcher, str(folder / "server.properties")],
            log,
            {**clean_environment(), **environment},
            die_with_parent=die_with_parent,
        )
    write_pid_file(folder / "broker.pid", process.pid)
    return process


def clean_environment() -> dict[str, str]:
    """The environment of this process without configuration keys: BARNABAS_LOG_DIRS would put all brokers into one folder."""
    return {
        key: value for key, value in os.environ.items() if key == LOG_LEVEL_VARIABLE or not key.startswith("BARNABAS_")
    }


def end_with_parent() -> None:
    """Runs in the child: if the parent is killed with -9, the kernel sends SIGTERM to the child."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
