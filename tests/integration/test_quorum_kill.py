"""Real voters, kill -9: what was acknowledged is there afterwards, also when snapshots are taken all the time."""

import os
import pathlib
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from barnabas.net.base.local.ports import free_ports

TESTS = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = TESTS / "simulation" / "raft_process.py"


class Voter:
    """A child process, and what it has said."""

    def __init__(self, node_id: int, ports: list[int], directory: str, entries: int, window: int) -> None:
        self.node_id = node_id
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                str(node_id),
                ",".join(map(str, ports)),
                directory,
                str(entries),
                str(window),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        self.acked: list[str] = []
        self.latencies_s: list[float] = []
        self.first_ack_at: float | None = None
        self.ready_at: float | None = None
        self.led_at: float | None = None
        self.fatal: str | None = None
        self.states: queue.Queue[set[str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *words = line.decode().split()
            if kind == "ack" and line.endswith(b"\n"):
                self.acked.append(words[2])
                self.latencies_s.append(float(words[1]) - float(words[0]))
                self.first_ack_at = self.first_ack_at or float(words[1])
            elif kind == "ready":
                self.ready_at = float(words[0])
            elif kind == "leader":
                self.led_at = float(words[0])
            elif kind == "fatal":
                self.fatal = " ".join(words)
            elif kind == "state":
                self.states.put(set(words))

    def state(self) -> set[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.states.get(timeout=60)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


class Voters:
    def __init__(self, directory: pathlib.Path, entries: int, window: int, count: int = 3) -> None:
        self.directory, self.entries, self.window = directory, entries, window
        self.ports = free_ports(count)
        self.running: dict[int, Voter] = {}
        self.acked: set[str] = set()

    def start(self, node_id: int) -> Voter:
        directory = str(self.directory / str(node_id))
        voter = Voter(node_id, self.ports, directory, self.entries, self.window)
        self.running[node_id] = voter
        return voter

    def start_all(self) -> None:
        for node_id in range(len(self.ports)):
            self.start(node_id)

    def kill(self, node_id: int) -> Voter:
        voter = self.running.pop(node_id)
        voter.kill()
        self.acked |= set(voter.acked)
        assert voter.fatal is None
        return voter

    def kill_all(self) -> None:
        for voter in self.running.values():
            voter.process.send_signal(signal.SIGKILL)
        for node_id in list(self.running):
            self.kill(node_id)

    def wait(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "nothing happened in time"
            pause.wait(0.005)

    def wait_for_acks(self, count: int) -> Voter:
        self.wait(lambda: any(len(voter.acked) >= count for voter in self.running.values()))
        return max(self.running.values(), key=lambda voter: len(voter.acked))


@pytest.fixture
def make_voters(tmp_path: pathlib.Path) -> Iterator[Callable[[int, int], Voters]]:
    made: list[Voters] = []

    def make(entries: int, window: int) -> Voters:
        made.append(Voters(tmp_path, entries, window))
        return made[-1]

    yield make
    for voters in made:
        voters.kill_all()


def test_rule_1_and_2_kill_9_of_all_with_snapshots_loses_nothing(make_voters: Callable[[int, int], Voters]) -> None:
    voters = make_voters(300, 50)
    rng = random.Random(1)
    for _ in range(4):
        voters.start_all()
        voters.wait_for_acks(rng.randint(400, 1500))
        voters.kill_all()
    voters.start_all()
    voter = voters.wait_for_acks(1)
    lost = voters.acked - voter.state()
    assert len(voters.acked) > 1600
    assert not lost
    assert (voters.directory / "0" / "quorum.snapshot").exists()


@pytest.mark.alone("half of the fail-overs within 0.9 s")
def test_kill_9_of_the_leader_is_noticed_by_its_link(make_voters: Callable[[int, int], Voters]) -> None:
    voters = make_voters(10**6, 1)
    voters.start_all()
    failovers_s = []
    for _ in range(4):
        leader = voters.wait_for_acks(300)  # time for a voter that has come back to be linked
        voters.kill(leader.node_id)
        killed_at = time.monotonic()
        survivors = list(voters.running.values())
        voters.wait(
            lambda survivors=survivors, killed_at=killed_at: any(  # type: ignore[misc]
                (voter.led_at or 0) > killed_at - 0.01 and voter.acked for voter in survivors
            )
        )
        successor = max(voters.running.values(), key=lambda v: v.led_at or 0)
        assert successor.first_ack_at is not None
        failovers_s.append(successor.first_ack_at - killed_at)
        returned = voters.start(leader.node_id)
        voters.wait(lambda returned=returned: returned.ready_at is not None)  # type: ignore[misc]
        successor.acked, acked = [], successor.acked
        voters.acked |= set(acked)
    print("failovers_ms", [round(s * 1000) for s in failovers_s])
    assert sorted(failovers_s)[1] < 0.9, "slower than an election timeout: the broken link was no hint"


@pytest.mark.alone("a quorum forms within 0.9 s")
def test_forming_a_cluster_takes_less_than_an_election_timeout(make_voters: Callable[[int, int], Voters]) -> None:
    voters = make_voters(10**6, 1)
    voters.start_all()
    leader = voters.wait_for_acks(300)
    ready = max(voter.ready_at or 0 for voter in voters.running.values())
    assert leader.led_at is not None
    latencies = sorted(leader.latencies_s)
    print("formation_ms", round((leader.led_at - ready) * 1000), "commit_p50_ms", latencies[150] * 1000)
    assert leader.led_at - ready < 0.9
    assert leader.node_id == 0
