"""A whole quorum on virtual time: real `RaftQuorum`s, fake network and disks, faults from one seed, and the oracles.

`run_seed(seed)` is one history. Safety is checked while it runs: one leader per term, equal commands at equal indexes,
nothing acknowledged is lost, no outcome told twice or wrongly. Liveness at its end: all nodes reach the same index.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgpack
from simulation.raft_disk import FakeDisk
from simulation.raft_loop import VirtualLoop
from simulation.raft_net import FakeNet
from simulation.raft_stranger import speak_in_the_name_of_a_voter

from barnabas.kraft.quorum.config import RaftTiming, SnapshotPolicy
from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership
from barnabas.kraft.raft.consensus.core import RaftCore
from barnabas.kraft.raft.disk.journal import DurableJournal
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.quorum import CommittedCommand
from barnabas.net.testing.simulation.executor import DelayedExecutor

DIRECTORY = "/quorum"
TIMING = RaftTiming(election_min_s=0.3, election_max_s=0.6, heartbeat_s=0.06, leader_fallback_s=0.27)
NEVER_COMPACT = SnapshotPolicy(entries=10**9, interval_s=10**9)


class Oracle:
    """What must hold over all nodes and all restarts."""

    def __init__(self) -> None:
        self.log: dict[int, bytes] = {}
        self.leaders: dict[int, int] = {}
        self.acked: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.violations: list[str] = []
        self.trace = hashlib.sha256()

    def note(self, *facts: object) -> None:
        self.trace.update(repr(facts).encode())

    def leads(self, node_id: int, term: int) -> None:
        other = self.leaders.setdefault(term, node_id)
        if other != node_id:
            self.violations.append(f"term {term} has two leaders: {other} and {node_id}")

    def applied(self, node_id: int, command: CommittedCommand) -> None:
        known = self.log.setdefault(command.index, command.command)
        if known != command.command:
            self.violations.append(f"node {node_id} applied {command.command!r} at {command.index}, others {known!r}")
        if command.command in self.refused:
            self.violations.append(f"{command.command!r} was applied although it was refused for good")

    def stepped(self, node_id: int, core: RaftCore) -> None:
        """A step leaves no entry that is not being written, and no configuration that nothing needs any more."""
        assert isinstance(core.journal, DurableJournal)
        if core.halted:
            return
        if core.journal.durable_index > core.journal.last_index:
            self.violations.append(f"node {node_id} holds {core.journal.durable_index} for durable, and has it no more")
        if core.journal._writer._unwritten:
            self.violations.append(f"node {node_id} left entries up to {core.journal.last_index} to the next step")
        kept, applied_index = core.electorate.membership._sets, core.applier.applied_index
        if len(kept) > 1 and kept[1].index <= applied_index:
            self.violations.append(
                f"node {node_id} has applied {applied_index} and keeps voters before {kept[1].index}"
            )


class RecordingListener:
    """The state machine: a list of (index, command), and the checks of the port's promises."""

    def __init__(self, node_id: int, oracle: Oracle) -> None:
        self.node_id = node_id
        self.oracle = oracle
        self.state: list[tuple[int, bytes]] = []
        self.leadership = Leadership(leader_id=None, term=0, is_self=False)
        self.restored = 0
        self.snapshots = 0

    def committed(self, commands: list[CommittedCommand]) -> None:
        for command in commands:
            if self.state and command.index <= self.state[-1][0]:
                self.oracle.violations.append(f"node {self.node_id} was given {command.index} twice")
            self.oracle.applied(self.node_id, command)
            self.state.append((command.index, command.command))
            self.oracle.note("commit", self.node_id, command.index)

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        self.state = [(int(i), bytes(c)) for chunk in chunks for i, c in msgpack.unpackb(chunk)]
        self.restored += 1
        for at, command in self.state:
            if at > index or self.oracle.log.get(at) != command:
                self.oracle.violations.append(f"node {self.node_id} restored {command!r} at {at}")
        self.oracle.note("restore", self.node_id, index)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        view = list(self.state)
        self.snapshots += 1
        return lambda: [msgpack.packb(view[start : start + 50]) for start in range(0, len(view), 50)]

    def leadership_changed(self, leadership: Leadership) -> None:
        assert leadership != self.leadership, "nothing has changed"
        self.leadership = leadership
        if leadership.is_self:
            self.oracle.leads(self.node_id, leadership.term)
        self.oracle.note("leadership", self.node_id, leadership.leader_id, leadership.term)


@dataclass
class Node:
    quorum: RaftQuorum
    listener: RecordingListener
    executor: DelayedExecutor
    fatal: list[str] = field(default_factory=list)


class SimulatedQuorum:
    """`nodes` are those that run."""

    loop_type: type[VirtualLoop] = VirtualLoop
    net_type: type[FakeNet] = FakeNet
    timing = TIMING

    def __init__(
        self,
        seed: int,
        voters: int = 3,
        policy: SnapshotPolicy = NEVER_COMPACT,
        *,
        others: int = 0,
        quorum_type: type[RaftQuorum] = RaftQuorum,
    ) -> None:
        """`others` are nodes beyond the first voters, which may be added."""
        self.rng = random.Random(seed)
        self.loop = self.loop_type()
        self.oracle = Oracle()
        self.net = self.net_type(self.loop, self.rng)
        self.bootstrap = list(range(voters))
        self.ids = list(range(voters + others))
        self.quorum_type = quorum_type
        self.disks = {node_id: FakeDisk(self.rng) for node_id in self.ids}
        self.nodes: dict[int, Node] = {}
        self.policy = policy
        self.fsync_s = 0.004
        self.sent = 0

    def start(self, node_id: int, cluster_id: str = "") -> Node:
        listener = RecordingListener(node_id, self.oracle)
        executor = DelayedExecutor(self.loop, lambda: self.rng.uniform(0.0003, self.fsync_s))
        fatal: list[str] = []
        quorum = self.quorum_type(
            node_id=node_id,
            voters={peer: ("sim", peer) for peer in self.contacts(node_id)},
            listen=("sim", node_id),
            directory=DIRECTORY,
            storage=self.disks[node_id],
            network=self.net.of(node_id),
            executor=executor,
            loop=self.loop,
            rng=random.Random(self.rng.getrandbits(64)),
            clock=self.clock_of(node_id),
            listener=listener,
            fatal=fatal.append,
            cluster_id=cluster_id,
            timing=self.timing,
            snapshot_policy=self.policy,
        )
        node = Node(quorum=quorum, listener=listener, executor=executor, fatal=fatal)
        self.loop.run_until_complete(quorum.start())
        self._watch_steps(node_id, quorum._started)
        self.nodes[node_id] = node
        return node

    def _watch_steps(self, node_id: int, core: RaftCore) -> None:
        step = core._step

        def watched() -> None:
            step()
            self.oracle.stepped(node_id, core)

        core._step = watched  # type: ignore[method-assign]

    def clock_of(self, node_id: int) -> Callable[[], float]:
        return self.loop.time

    def contacts(self, node_id: int) -> list[int]:
        """What its server.properties say: the first voters, for ever, also where this node is one of them no more."""
        return self.bootstrap

    def start_all(self) -> None:
        for node_id in self.ids:
            self.start(node_id)

    def kill(self, node_id: int, *, power: bool = False) -> None:
        """End a process without a word; with `power` its disk loses what was not flushed."""
        node = self.nodes.pop(node_id)
        node.executor.stop()
        node.quorum._halt("killed by the simulation")
        self.net.kill(node_id)
        if power:
            self.disks[node_id].power_failure()

    def close(self) -> None:
        for node_id in list(self.nodes):
            self.kill(node_id)
        self.loop.run_for(5.0)
        self.loop.close()

    @property
    def leader(self) -> int | None:
        leading = [(n.quorum.leadership.term, i) for i, n in self.nodes.items() if n.quorum.leadership.is_self]
        return max(leading)[1] if leading else None

    def wait_for_leader(self, limit_s: float = 10.0) -> int:
        assert self.loop.run_until(lambda: self.leader is not None, limit_s), "no leader"
        assert self.leader is not None
        return self.leader

    def append(
        self,
        node_id: int,
        outcomes: dict[bytes, AppendOutcome] | None = None,
        size_bytes: int = 0,
        *,
        others_wait: bool = True,
    ) -> bytes:
        self.sent += 1
        command = b"%d:%d" % (node_id, self.sent) + b"x" * size_bytes
        node = self.nodes[node_id]

        def done(outcome: AppendOutcome) -> None:
            if outcomes is not None:
                outcomes[command] = outcome
            self._outcome(node, command, outcome)

        node.quorum.append(command, term=node.quorum.leadership.term, done=done, others_wait=others_wait)
        return command

    def commit(self, limit_s: float = 10.0, size_bytes: int = 0) -> bytes:
        """Append until one is committed."""
        outcomes: dict[bytes, AppendOutcome] = {}
        deadline = self.loop.time() + limit_s
        while self.loop.time() < deadline:
            command = self.append(self.wait_for_leader(limit_s), outcomes, size_bytes)
            self.loop.run_until(lambda command=command: command in outcomes, 1.0)  # type: ignore[misc]
            if outcomes.get(command) is AppendOutcome.COMMITTED:
                return command
        raise AssertionError("nothing was committed")

    def wait_until_equal(self, limit_s: float = 10.0) -> bool:
        return self.loop.run_until(self._is_equal, limit_s)

    def _is_equal(self) -> bool:
        states = [node.listener.state for node in self.nodes.values()]
        indexes = {node.quorum.committed_index for node in self.nodes.values()}
        return all(state == states[0] for state in states) and len(indexes) == 1

    def _outcome(self, node: Node, command: bytes, outcome: AppendOutcome) -> None:
        self.oracle.note("outcome", command, outcome.value)
        if outcome is AppendOutcome.COMMITTED:
            self.oracle.acked[command] = 1
            if not any(known == command for _, known in reversed(node.listener.state)):
                self.oracle.violations.append(f"{command!r} acknowledged before it was applied")
        elif outcome in (AppendOutcome.NOT_APPENDED, AppendOutcome.DISCARDED):
            self.oracle.refused.add(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seed: int
    violations: list[str]
    acked: int
    terms: int
    snapshots: int
    restores: int
    converged: bool
    trace: str


def run_seed(
    seed: int,
    *,
    faults_s: float = 6.0,
    power: bool = True,
    wipes: bool = True,
    voters: int | None = None,
    stranger: bool = False,
) -> Result:
    """One history: faults for a while, then quiet; with snapshots every few commands."""
    choice = random.Random(seed)
    count = voters or choice.choice([1, 3, 3, 3, 5])
    policy = choice.choice([NEVER_COMPACT, SnapshotPolicy(entries=20), SnapshotPolicy(entries=100)])
    cluster = SimulatedQuorum(seed, count, policy)
    cluster.start_all()
    faults = _Faults(cluster, power=power, wipes=wipes, stranger=stranger)
    end = cluster.loop.time() + faults_s
    while cluster.loop.time() < end:
        faults.step()
        cluster.loop.run_for(0.02)
    faults.heal()
    converged = _settle(cluster)
    return _result(seed, cluster, faults, converged)


def _settle(cluster: SimulatedQuorum) -> bool:
    try:
        cluster.commit(limit_s=8.0)
    except AssertionError:
        return False
    return cluster.wait_until_equal(8.0)


def _result(seed: int, cluster: SimulatedQuorum, faults: "_Faults", converged: bool) -> Result:
    oracle = cluster.oracle
    final = {command for _, command in max((n.listener.state for n in cluster.nodes.values()), key=len)}
    lost = [command for command in oracle.acked if command not in final]
    if lost and converged:
        oracle.violations.append(f"{len(lost)} acknowledged commands are lost, the first is {lost[0]!r}")
    for node_id, node in cluster.nodes.items():
        if node.fatal:
            oracle.violations.append(f"node {node_id} stopped: {node.fatal}")
    oracle.violations += [f"loop: {failure}" for failure in cluster.loop.failures]
    listeners = [node.listener for node in cluster.nodes.values()] + faults.former
    result = Result(
        seed=seed,
        violations=oracle.violations,
        acked=len(oracle.acked),
        terms=len(oracle.leaders),
        snapshots=sum(listener.snapshots for listener in listeners),
        restores=sum(listener.restored for listener in listeners),
        converged=converged,
        trace=oracle.trace.hexdigest(),
    )
    cluster.close()
    return result


class _Faults:
    def __init__(self, cluster: SimulatedQuorum, *, power: bool, wipes: bool, stranger: bool = False) -> None:
        self.cluster = cluster
        self.stranger = stranger and len(cluster.ids) > 1
        self.rng = random.Random(cluster.rng.getrandbits(64))
        self.power = power
        self.wipes = wipes and len(cluster.ids) > 1
        self.wiped: int | None = None  # one at a time: a majority that forgets is beyond any promise
        self.down: dict[int, float] = {}
        self.cuts: dict[tuple[int, int], float] = {}
        self.former: list[RecordingListener] = []

    def step(self) -> None:
        now = self.cluster.loop.time()
        for node_id in [n for n, until in self.down.items() if until <= now]:
            del self.down[node_id]
            self.cluster.start(node_id)
        for pair in [p for p, until in self.cuts.items() if until <= now]:
            del self.cuts[pair]
            self.cluster.net.heal(*pair)
        self._fault(now)
        if self.stranger and self.cluster.nodes and self.rng.random() < 0.1:
            speak_in_the_name_of_a_voter(self.cluster, self.rng)
        self._load()

    def heal(self) -> None:
        for pair in self.cuts:
            self.cluster.net.heal(*pair)
        for node_id in self.down:
            self.cluster.start(node_id)
        self.cluster.net.slow_s.clear()
        self.cluster.fsync_s = 0.004

    def _fault(self, now: float) -> None:
        dice, ids = self.rng.random(), self.cluster.ids
        if dice < 0.03 and len(ids) > 1:
            a, b = sorted(self.rng.sample(ids, 2))
            self.cluster.net.cut(a, b, silent=self.rng.random() < 0.5)
            self.cuts[(a, b)] = now + self.rng.uniform(0.02, 1.5)
        elif dice < 0.045:
            self._kill(self.rng.choice(ids), now)
        elif dice < 0.05:
            for node_id in ids:  # all at once
                self._kill(node_id, now)
        elif dice < 0.07 and len(ids) > 1:
            a, b = self.rng.sample(ids, 2)
            self.cluster.net.slow_s[(a, b)] = self.rng.choice([0.0, 0.0, 0.05, 0.3])
        elif dice < 0.08:
            self.cluster.fsync_s = self.rng.choice([0.001, 0.004, 0.05])

    def _kill(self, node_id: int, now: float) -> None:
        node = self.cluster.nodes.get(node_id)
        if node is not None:
            self.former.append(node.listener)
            self.cluster.kill(node_id, power=self.power and self.rng.random() < 0.5)
            if self._may_wipe(node_id) and self.rng.random() < 0.3:
                self.cluster.disks[node_id].wipe()
                self.wiped = node_id
            self.down[node_id] = now + self.rng.uniform(0.01, 1.0)

    def _may_wipe(self, node_id: int) -> bool:
        if self.wiped is not None and self.wiped != node_id:
            node = self.cluster.nodes.get(self.wiped)
            if node is not None and not node.quorum.is_blank:
                self.wiped = None
        return self.wipes and self.wiped in (None, node_id) and bool(self.cluster.oracle.leaders)

    def _load(self) -> None:
        for node_id, node in self.cluster.nodes.items():
            if node.quorum.leadership.is_self and self.rng.random() < 0.7:
                for _ in range(self.rng.randint(1, 5)):
                    self.cluster.append(node_id, others_wait=self.cluster.sent % 2 == 0)


def run_after_formation(seed: int) -> None:
    """The first leader of a new cluster dies. The others count each other, so the first candidate of them leads and stays."""
    cluster = SimulatedQuorum(seed)
    try:
        cluster.start_all()
        cluster.commit()
        before = len(cluster.oracle.leaders)
        cluster.kill(cluster.wait_for_leader())
        cluster.commit()
        assert len(cluster.oracle.leaders) == before + 1, "a leader that was elected could not commit anything"
    finally:
        cluster.close()


def checked_seed(seed: int, *, stranger: bool = False) -> Result:
    """Raises what went wrong."""
    result = run_seed(seed, stranger=stranger)
    assert not result.violations, result.violations[0]
    assert result.converged, "no progress after the last fault"
    return result


def run_seeds(first: int, count: int, **options: float) -> list[Result]:
    """Many histories; the ones that went wrong are returned."""
    results = (run_seed(seed, **options) for seed in range(first, first + count))  # type: ignore[arg-type]
    return [result for result in results if result.violations or not result.converged]
