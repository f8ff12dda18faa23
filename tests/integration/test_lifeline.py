"""What tests start in the background ends with them, also after kill -9 of pytest."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lifeline import PREFIX, held

TESTS = Path(__file__).resolve().parents[1]
END_S = 60
# As `barnabas up --detach`: the daemon has a session of its own, and its parent is gone. It holds the fifo open until it ends.
DAEMON = """
import subprocess, sys
with open(sys.argv[1], "w") as fifo:
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"], stdout=fifo, start_new_session=True)
print("started")
"""
HANGS = """
def hang(*pids):
    with open("ready", "w") as ready:
        print(*pids, file=ready)
    with open("for-ever") as never:
        never.read()
"""
# One broker is frozen, and one that was killed runs again.
REAL_CLUSTER = """
import signal
from integration.cluster import Cluster

def test_that_hangs(tmp_path):
    with Cluster(tmp_path / "cluster", 3) as cluster:
        cluster.kill(1)
        cluster.start(1)
        cluster.nodes[2].signal(signal.SIGSTOP)
        hang(*(node.process.pid for node in cluster.nodes))
"""
FAULT_CLUSTER = """
from faults.cluster import FaultCluster

def test_that_hangs(tmp_path):
    with FaultCluster(tmp_path / "cluster", needs=frozenset()) as cluster:
        cluster.start()
        cluster.brokers[1].freeze()
        hang(*(broker.process.pid for broker in cluster.brokers))
"""
# As the commands of the documents: a script that waits for its jobs.
SCRIPT = """
import os, subprocess
from lifeline import PREFIX, held

def test_that_hangs(tmp_path):
    with held() as mark, open("pids", "w+") as pids:
        script = ["bash", "-c", 'sleep 3600 & echo $! $$ > pids; wait']
        process = subprocess.Popen(script, env={**os.environ, **mark})
        while not (found := pids.readline()):
            assert process.poll() is None
        hang(*found.split())
"""
FORKS = """
import os, signal, subprocess
from lifeline import hold_all

hold_all()
process = subprocess.Popen(["sleep", "3600"])
fork = os.fork()
if fork:
    print(process.pid, fork, flush=True)
signal.pause()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes are found by /proc")


def test_all_that_integration_tests_start_is_marked() -> None:
    assert any(key.startswith(PREFIX) for key in os.environ)


def test_daemons_end_with_the_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with held() as mark:
            command = [sys.executable, "-c", DAEMON, str(fifo)]
            assert subprocess.run(command, env={**os.environ, **mark}, stdout=subprocess.PIPE, check=True).stdout
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)  # it runs
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


@contextmanager
def watched(pids: list[int]) -> Iterator[list[int]]:
    """Descriptors that become readable when the processes end; they do not survive this block."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            if not select.select([descriptor], [], [], 0)[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


def said(ready: Path, inner: "subprocess.Popen[bytes]", output: Path) -> str:
    """What the inner test writes when it hangs. One that has ended before says why in its output."""
    reader, end = os.open(ready, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(inner.pid)
    try:
        found = select.select([reader, end], [], [], END_S)[0]
        assert reader in found, output.read_text()
        os.set_blocking(reader, True)
        with open(reader, closefd=False, encoding="utf-8") as fifo:
            return fifo.read()
    finally:
        os.close(reader)
        os.close(end)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("text", [REAL_CLUSTER, FAULT_CLUSTER, SCRIPT], ids=["cluster", "faults", "script"])
def test_they_end_with_a_pytest_that_is_killed(tmp_path: Path, text: str) -> None:
    ready = tmp_path / "ready"
    for path in (ready, tmp_path / "for-ever"):
        os.mkfifo(path)
    (tmp_path / "test_inner.py").write_text(HANGS + text)
    words = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with (tmp_path / "inner.txt").open("w") as output:
        inner = subprocess.Popen([*words, "test_inner.py"], cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        pids = said(ready, inner, tmp_path / "inner.txt").split()
        with watched([int(pid) for pid in pids]) as descriptors:
            assert len(descriptors) >= 2
            inner.send_signal(signal.SIGKILL)
            inner.wait(END_S)
            for descriptor in descriptors:
                assert select.select([descriptor], [], [], END_S)[0], "a process survives its pytest"
    finally:
        inner.kill()
        inner.wait()


def test_a_fork_that_stays_keeps_nothing_alive() -> None:
    """It has all descriptors of the test process."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, env=environment) as inner:
        assert inner.stdout is not None
        with watched([int(pid) for pid in inner.stdout.readline().split()]) as (process, fork):
            inner.kill()
            assert select.select([process], [], [], END_S)[0]
            assert not select.select([fork], [], [], 0)[0]
