"""Brokers that are forked behave as processes that were started for themselves: output, end, environment, owner."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from barnabas.net.base.local.local_cluster import LAUNCHER, Spawn, clean_environment, spawn_process
from barnabas.net.testing.brokers import forked_brokers
from barnabas.net.testing.brokers.fork_server import MAX_ORDER_BYTES
from barnabas.net.testing.brokers.forked_brokers import ForkedProcess, fork_broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="brokers are forked on Linux")
LIMIT_S = 60.0
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
    # Nothing of the server is open in it but standard input, which is nothing, and the log.
    links = {name: os.readlink(f"/proc/{broker.pid}/fd/{name}") for name in os.listdir(f"/proc/{broker.pid}/fd")}
    log = str(tmp_path / "broker.log")
    assert [links[name] for name in "012"] == ["/dev/null", log, log]
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
