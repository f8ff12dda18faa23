"""Quorums whose disks are slow on all voters that are left: a controller must be elected, and stay.

A voter's thread waits for its disk when it votes (two flushes and a rename) and when it writes entries, and hears nothing
meanwhile; the flushes of its journal run beside it. `raft_cluster` makes only the latter take time, and little of it.
"""

import random
from collections.abc import Callable
from typing import Any, Final

from barnabas.kraft.quorum.config import RaftTiming
from barnabas.net.testing.simulation.observed_loop import ObservedLoop
from barnabas.net.testing.simulation.process import NOBODY, SimulatedProcess

from .raft_cluster import Node, SimulatedQuorum
from .raft_loop import VirtualLoop
from .raft_net import AFTER_S, FakeNet, FakeTransport

SLOWEST_FLUSH_S: Final = 0.6  # twice the shortest election timeout
SLOW_WRITE_S: Final = 0.02
ELECTED_S: Final = 9.0  # until the first commit: lost campaigns with their timeouts, two votes, and two flushes
STABLE_S: Final = 6.0
HEALTHY_S: Final = 1.5  # the same on healthy disks
PATIENT_FLUSH_S: Final = (1.8, 2.3)
PATIENT_ELECTED_S: Final = 30.0
FLUSHES_OF: Final = {"append": 0, "write_atomically": 2, "rename": 0, "sync_dir": 1}


class BlockingLoop(VirtualLoop, ObservedLoop):
    """The events of a voter whose thread waits for its disk happen afterwards."""


class BlockedNet(FakeNet):
    """What a voter sends leaves after the writes before it; what it receives waits in its socket."""

    def __init__(self, loop: BlockingLoop, rng: random.Random) -> None:
        super().__init__(loop, rng)
        self.processes: dict[int, SimulatedProcess] = {}

    def hand(self, node_id: int, callback: Callable[..., None], *arguments: object) -> None:
        self.loop.call_soon(callback, *arguments, context=self.processes[node_id].context.copy())

    def carry(self, source: FakeTransport, data: bytes) -> None:
        sent_s = max(self.loop.time(), self.processes[source.own].stalled_until)
        assert source.other is not None
        source.arrives_at = max(sent_s + self.delay_s(source.own, source.peer), source.arrives_at + AFTER_S)
        self.loop.call_at(source.arrives_at, self._deliver, source, source.other, data, context=NOBODY)

    def _deliver(self, source: FakeTransport, target: FakeTransport, data: bytes) -> None:
        source.in_flight_bytes -= len(data)
        if target.closed or self.is_cut(source.own, source.peer):
            return
        if data:
            self.hand(target.own, _receive, target, data)
        else:
            target.drop()

    def meet(self, transport: FakeTransport) -> None:
        self.hand(transport.own, transport.protocol.connection_made, transport)


def _receive(target: FakeTransport, data: bytes) -> None:
    if not target.closed:
        target.protocol.data_received(data)


class SlowQuorum(SimulatedQuorum):
    """`flush_s` is what a flush takes on each disk."""

    loop_type = BlockingLoop
    net_type = BlockedNet
    loop: BlockingLoop
    net: BlockedNet

    def __init__(self, seed: int, voters: int) -> None:
        super().__init__(seed, voters)
        self.flush_s = 0.0
        self.write_s = 0.0
        for node_id, disk in self.disks.items():
            disk.took_time = lambda action, node_id=node_id: self._took_time(node_id, action)  # type: ignore[misc]

    def start(self, node_id: int, cluster_id: str = "") -> Node:
        process = self.net.processes[node_id] = SimulatedProcess(f"voter-{node_id}", 1)
        return process.context.run(super().start, node_id, cluster_id)

    def clock_of(self, node_id: int) -> Callable[[], float]:
        process = self.net.processes[node_id]
        return lambda: max(self.loop.time(), process.stalled_until)

    def slow_down(self, flush_s: float, write_s: float) -> None:
        self.flush_s, self.write_s, self.fsync_s = flush_s, write_s, max(flush_s * 1.2, 0.004)

    def _took_time(self, node_id: int, action: str) -> None:
        process: Any = self.net.processes.get(node_id)
        if self.flush_s and process is not None:
            flushes_s = FLUSHES_OF[action] * self.flush_s
            self.loop.block(process, self.rng.uniform(0.8, 1.2) * (flushes_s + self.write_s))


class PatientQuorum(SlowQuorum):
    """The election timeout is raised, as the documents say for voters with slow disks."""

    timing = RaftTiming.of_election_timeout(5_000)


class NoController(AssertionError):
    """No voter could lead, or none could stay."""


def run_slow_election(seed: int) -> float:
    """The seconds from the death of the leader to the first commit of the next one. Raises NoController."""
    choice = random.Random(seed)
    cluster = SlowQuorum(seed, choice.choice([3, 3, 5]))
    try:
        took_s = _history(cluster, choice)
    finally:
        cluster.close()
    assert not cluster.oracle.violations, cluster.oracle.violations[0]
    assert not cluster.loop.failures, cluster.loop.failures[0]
    return took_s


def run_patient_election(seed: int) -> float:
    """As above, where a vote takes longer than three seconds, and less than the election timeout."""
    choice = random.Random(seed)
    cluster = PatientQuorum(seed, 3)
    try:
        cluster.start_all()
        cluster.commit()
        flush_s = choice.uniform(*PATIENT_FLUSH_S)
        cluster.slow_down(flush_s, SLOW_WRITE_S)
        cluster.kill(cluster.wait_for_leader())
        return _first_of_all(cluster, PATIENT_ELECTED_S, f"flushes of {flush_s:.3f} s")
    finally:
        cluster.close()


def _first_of_all(cluster: SlowQuorum, limit_s: float, what: str) -> float:
    """The seconds until any command is committed: one alone may take longer than `SimulatedQuorum.commit` waits for it."""
    began_s, acked = cluster.loop.time(), len(cluster.oracle.acked)
    while len(cluster.oracle.acked) == acked:
        if cluster.leader is not None:
            cluster.append(cluster.leader)
        cluster.loop.run_for(0.1)
        if cluster.loop.time() > began_s + limit_s:
            raise NoController(f"no controller within {limit_s:g} s with {what}")
    return cluster.loop.time() - began_s


def _history(cluster: SlowQuorum, choice: random.Random) -> float:
    cluster.start_all()
    cluster.commit()
    flush_s, write_s = choice.uniform(0.01, SLOWEST_FLUSH_S), choice.uniform(0.001, SLOW_WRITE_S)
    cluster.loop.run_for(choice.uniform(0.0, 0.5))
    cluster.slow_down(flush_s, write_s)
    killed = [cluster.wait_for_leader()]
    if len(cluster.ids) == 5 and choice.random() < 0.5:
        killed.append(choice.choice([node_id for node_id in cluster.ids if node_id not in killed]))
    for node_id in killed:
        cluster.kill(node_id)
    took_s = _first_commit(cluster, ELECTED_S, f"flushes of {flush_s:.3f} s")
    _stays(cluster, choice, f"flushes take {flush_s:.3f} s")
    cluster.slow_down(0.0, 0.0)
    for node_id in killed:
        cluster.start(node_id)
    cluster.commit()
    cluster.loop.run_for(2.0)
    cluster.kill(cluster.wait_for_leader())
    _first_commit(cluster, HEALTHY_S, "disks that are healthy again")
    return took_s


def _stays(cluster: SlowQuorum, choice: random.Random, why: str) -> None:
    leader = cluster.wait_for_leader()
    term = cluster.nodes[leader].quorum.leadership.term
    for _ in range(int(STABLE_S / 0.1)):
        if choice.random() < 0.5:
            cluster.append(leader)
        cluster.loop.run_for(0.1)
        now = cluster.nodes[leader].quorum.leadership
        if not now.is_self or now.term != term:
            raise NoController(f"the leader of term {term} gave up because {why}")


def _first_commit(cluster: SlowQuorum, limit_s: float, what: str) -> float:
    began_s = cluster.loop.time()
    terms = len(cluster.oracle.leaders)
    try:
        cluster.commit(limit_s)
    except AssertionError as error:
        term = max(node.quorum.leadership.term for node in cluster.nodes.values())
        raise NoController(f"no controller within {limit_s:g} s with {what}; {terms} terms led, term {term}") from error
    took_s = cluster.loop.time() - began_s
    if took_s > limit_s:
        raise NoController(f"a controller only after {took_s:.1f} s with {what}")
    return took_s
