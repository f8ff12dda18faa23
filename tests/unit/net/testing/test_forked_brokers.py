"""Brokers that are forked behave as processes that were started for themselves: output, end, environment, owner."""

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from lifeline import PREFIX, hold_all

from barnabas.net.base.local.local_cluster import LAUNCHER, ClusterError, Spawn, clean_environment, spawn_process
from barnabas.net.testing.brokers import forked_brokers
from barnabas.net.testing.brokers.fork_server import MAX_ORDER_BYTES, ForkOrder, decoded_pid
from barnabas.net.testing.brokers.forked_brokers import ForkedProcess, fork_broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="brokers are forked on Linux")
LIMIT_S = 60.0
Servers = dict[frozenset[tuple[str, str]], forked_brokers._ForkServer]
FD_SETSIZE = 1_024  # of select
BROKER = """node.id=0
listeners=PLAINTEXT://127.0.0.1:{port}
admin.listener=none
quorum.listener=127.0.0.1:{quorum}
controller.quorum.voters=0@127.0.0.1:{quorum}
log.dirs={folder}/data
"""


def started(
    spawn: Spawn, folder: Path, text: str, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    hold_all()  # the server outlives this test, and the brokers that it forks have the marks that it began with
    (folder / "server.properties").write_text(text)
    with (folder / "broker.log").open("ab") as log:
        return spawn(
            [*LAUNCHER, str(folder / "server.properties")],
            log,
            clean_environment() if environment is None else environment,
            die_with_parent=False,
        )


def running(folder: Path, ports: list[int]) -> ForkedProcess:
    """A broker that has registered itself."""
    text = BROKER.format(folder=folder, port=ports[0], quorum=ports[1])
    broker = started(fork_broker, folder, text)
    assert isinstance(broker, ForkedProcess)
    while b"broker unfenced" not in (folder / "broker.log").read_bytes():
        assert broker.poll() is None, (folder / "broker.log").read_text()
    return broker


@pytest.fixture
def ports() -> list[int]:
    from barnabas.net.base.local.ports import free_ports

    return list(free_ports(2))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Those of this test alone: brokers of other tests end with their server."""
    own: Servers = {}
    monkeypatch.setattr(forked_brokers, "_SERVERS", own)
    yield own
    for server in own.values():
        server.end()


@pytest.mark.parametrize("spawn", [fork_broker, spawn_process])
def test_a_broker_that_cannot_start_says_why_and_ends(tmp_path: Path, spawn: Spawn) -> None:
    broker = started(spawn, tmp_path, "node.id=none\n")
    assert broker.wait(LIMIT_S) == broker.poll() == broker.returncode == 1
    told = (tmp_path / "broker.log").read_text()
    assert "node.id" in told and "Traceback" not in told and told.count("\n") == 1, told


def test_a_forked_broker_is_signalled_and_awaited_as_any_process(tmp_path: Path, ports: list[int]) -> None:
    broker = running(tmp_path, ports)
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0)
    assert os.getsid(broker.pid) == broker.pid, "a session of its own"
    log = str(tmp_path / "broker.log")
    assert [os.readlink(f"/proc/{broker.pid}/fd/{number}") for number in range(3)] == ["/dev/null", log, log]
    assert os.readlink(f"/proc/{broker.pid}/cwd") == os.getcwd()
    assert PREFIX.encode() in Path(f"/proc/{broker.pid}/environ").read_bytes(), "it ends with this process (`lifeline`)"
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(LIMIT_S) == 0
    broker.send_signal(signal.SIGKILL)  # of one that has ended: nothing
    assert broker.poll() == 0 and broker.communicate() == (None, None)

    again = running(tmp_path, ports)
    again.kill()
    assert again.wait(LIMIT_S) == -signal.SIGKILL


def test_another_program_environment_or_a_long_one_starts_a_process_of_its_own(tmp_path: Path) -> None:
    plain = clean_environment()
    found = [
        started(fork_broker, tmp_path, "x", {**plain, key: value})
        for key, value in (("BARNABAS_PURE", "1"), ("PYTHONHASHSEED", "5"), ("LD_PRELOAD", ""))
    ]
    long = {f"KEY_{number}": "x" * 1_000 for number in range(MAX_ORDER_BYTES // 1_000)}
    found.append(started(fork_broker, tmp_path, "x", plain | long))
    assert {type(process) for process in found} == {subprocess.Popen}
    assert [process.wait(LIMIT_S) for process in found] == [1, 1, 1, 1]
    with (tmp_path / "other.log").open("wb") as log:
        other = fork_broker([sys.executable, "-c", "print('other')"], log, plain, die_with_parent=False)
    assert type(other) is subprocess.Popen and other.wait(LIMIT_S) == 0
    assert (tmp_path / "other.log").read_text() == "other\n"


def test_a_module_that_makes_a_broker_of_its_own_is_forked_too(tmp_path: Path) -> None:
    """As those of tests that plant a bug in the broker before it starts."""
    hold_all()
    with (tmp_path / "other.log").open("wb") as log:
        other = fork_broker([*LAUNCHER[:3], "this"], log, clean_environment(), die_with_parent=False)
    assert isinstance(other, ForkedProcess) and other.wait(LIMIT_S) == 0
    assert "Zen of Python" in (tmp_path / "other.log").read_text()


@pytest.mark.parametrize("dies", [True, False])
def test_a_broker_dies_with_the_process_that_has_started_it_if_it_is_to(
    tmp_path: Path, ports: list[int], dies: bool
) -> None:
    text = BROKER.format(folder=tmp_path, port=ports[0], quorum=ports[1])
    (tmp_path / "server.properties").write_text(text)
    code = (
        "import sys; from barnabas.net.testing.brokers.forked_brokers import fork_broker;"
        "from barnabas.net.base.local.local_cluster import LAUNCHER, clean_environment;"
        f"log = open({str(tmp_path / 'broker.log')!r}, 'ab');"
        f"broker = fork_broker([*LAUNCHER, {str(tmp_path / 'server.properties')!r}], log, clean_environment(),"
        f" die_with_parent={dies}); print(type(broker).__name__, broker.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    kind, pid = owner.stdout.readline().split()
    assert kind == b"ForkedProcess"
    broker = os.pidfd_open(int(pid))
    try:
        while b"broker unfenced" not in (tmp_path / "broker.log").read_bytes():
            assert not select.select([broker], [], [], 0)[0], (tmp_path / "broker.log").read_text()
        owner.kill()
        owner.communicate()
        if not dies:
            # The server is gone when a signal reaches the broker that another process sends: it has lived on.
            signal.pidfd_send_signal(broker, signal.SIGTERM)
        assert select.select([broker], [], [], LIMIT_S)[0]
        assert ("stopped" in (tmp_path / "broker.log").read_text()) or dies
    finally:
        os.close(broker)


def test_a_fork_of_the_owner_does_not_share_its_server(tmp_path: Path) -> None:
    broker = started(fork_broker, tmp_path, "x")
    assert isinstance(broker, ForkedProcess) and broker.wait(LIMIT_S) == 1
    pid = os.fork()
    if pid == 0:
        os._exit(len(forked_brokers._SERVERS))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert forked_brokers._SERVERS


def server_of_this_process() -> "forked_brokers._ForkServer":
    return next(iter(forked_brokers._SERVERS.values()))


def test_a_process_with_many_open_files_starts_brokers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        assert started(fork_broker, tmp_path, "x").wait(LIMIT_S) == 1
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_answer_to_an_order_that_was_given_up_is_not_taken_for_that_to_the_next(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("before", "given-up", "next")]
    for folder in folders:
        folder.mkdir()
    assert started(fork_broker, folders[0], "x").wait(LIMIT_S) == 1
    late = server_of_this_process()
    late._process.send_signal(signal.SIGSTOP)
    late._orders.settimeout(0.01)
    with pytest.raises(ClusterError, match="does not answer"):
        started(fork_broker, folders[1], "x")
    late._process.send_signal(signal.SIGCONT)
    assert select.select([late._orders], [], [], LIMIT_S)[0]
    assert decoded_pid(late._orders.recv(16)) == -errno.ECANCELED, "no broker is started that has no owner"
    with (folders[1] / "broker.log").open("ab") as log, pytest.raises(ClusterError, match="earlier order"):
        late.fork([], log, b"")
    assert started(fork_broker, folders[2], "x").wait(LIMIT_S) == 1
    assert server_of_this_process() is not late and (folders[2] / "broker.log").read_text()
    forked_brokers._LOST.remove(late)
    late.end()


def test_a_broker_whose_server_was_killed_runs_until_it_ends(tmp_path: Path, ports: list[int]) -> None:
    broker = running(tmp_path, ports)
    server = server_of_this_process()
    server._process.kill()
    server._process.wait()
    assert broker.poll() is None, "it is not to die with the server"
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0.01)
    again = tmp_path / "again"
    again.mkdir()
    assert started(fork_broker, again, "x").wait(LIMIT_S) == 1, "another server starts it"
    broker.kill()
    assert broker.wait(LIMIT_S) == broker.poll() == -signal.SIGKILL
    forked_brokers._LOST.remove(server)
    server.end()


def server_of(orders_end: socket.socket, before: str = "") -> "subprocess.Popen[bytes]":
    """A server that runs `before` first."""
    code = f"{before}\nfrom barnabas.net.testing.brokers.fork_server import main\nmain()"
    with orders_end:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdin=orders_end.fileno(), stderr=subprocess.PIPE, cwd="/"
        )


ORDER = ForkOrder(module="barnabas", arguments=[], environment={}, folder="/", die_with_parent=True).encoded()
CANNOT_FORK = "import errno, os\ndef refuse():\n    raise OSError(errno.EAGAIN, 'too many')\nos.fork = refuse"


def test_a_server_that_cannot_fork_says_why_and_goes_on(tmp_path: Path) -> None:
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = server_of(theirs, CANNOT_FORK)
    orders.settimeout(LIMIT_S)
    with orders, (tmp_path / "log").open("wb") as log:
        for _ in range(2):
            ours, end = socket.socketpair()
            with ours, end:
                socket.send_fds(orders, [ORDER], [log.fileno(), end.fileno()])
                assert decoded_pid(orders.recv(16)) == -errno.EAGAIN
    assert server.communicate(timeout=LIMIT_S) == (None, b"") and server.returncode == 0


def test_a_server_whose_owner_has_gone_since_the_order_starts_no_broker(tmp_path: Path) -> None:
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, end = socket.socketpair()
    with orders, (tmp_path / "log").open("wb") as log, ours, end:
        socket.send_fds(orders, [ORDER], [log.fileno(), end.fileno()])
    server = server_of(theirs)
    assert server.communicate(timeout=LIMIT_S) == (None, b"") and server.returncode == 0
    assert (tmp_path / "log").read_bytes() == b""


def test_a_broker_has_the_environment_that_it_is_given_and_nothing_of_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    """A key of the configuration in the environment would be that of all brokers."""
    monkeypatch.setenv("BARNABAS_NODE_ID", "7")
    broker = started(fork_broker, tmp_path, "node.id=none\n")
    assert isinstance(broker, ForkedProcess) and broker.wait(LIMIT_S) == 1
    assert "none" in (tmp_path / "broker.log").read_text() and len(servers) == 1


def test_the_server_leaves_no_broker_behind_that_has_ended(tmp_path: Path) -> None:
    first = started(fork_broker, tmp_path, "x")
    assert isinstance(first, ForkedProcess) and first.wait(LIMIT_S) == 1
    second = started(fork_broker, tmp_path, "x")
    assert not Path(f"/proc/{first.pid}").exists()
    assert second.wait(LIMIT_S) == 1
