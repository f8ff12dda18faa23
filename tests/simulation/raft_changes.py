"""Histories in which voters are added and removed under crashes, cuts, power loss and wiped disks.

`run_changes(seed)` is one. Beyond the oracles of `raft_cluster` it checks leader completeness (a leader of the newest term
holds what was acknowledged) and, at the end, that all voters that are left agree and go on.
"""

import random
from dataclasses import dataclass
from typing import Any

from simulation.raft_cluster import NEVER_COMPACT, Result, SimulatedQuorum, _Faults, _result

from barnabas.kraft.quorum.config import SnapshotPolicy
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.node_address import NodeAddress

OTHERS = 2
MAX_OPERATIONS = 2  # asked for at a time: the second one must be refused, or wait


@dataclass
class ChangeResult:
    result: Result
    added: int
    removed: int
    refused: int


class ChangingQuorum(SimulatedQuorum):
    """Nodes beyond the first voters know the voters of the moment at which they start, as brokers do by their metadata."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._at_rest: dict[int, int] = {}

    def contacts(self, node_id: int) -> list[int]:
        if node_id in self.bootstrap:
            return self.bootstrap
        return [peer for peer in self.newest_voters() if peer != node_id] or self.bootstrap

    def newest_voters(self) -> list[int]:
        """Of the newest configuration that anybody who runs holds for committed."""
        known = [node.quorum.voters for node in self.nodes.values()]
        newest = max(known, key=lambda item: item.index, default=None)
        return sorted(newest.ids) if newest is not None else self.bootstrap

    def kill(self, node_id: int, *, power: bool = False) -> None:
        self._at_rest[node_id] = self._size_at(node_id)
        super().kill(node_id, power=power)

    def introduce(self) -> None:
        """As brokers do that hear no leader: they ask around who votes."""
        known = [node.quorum.voters for node in self.nodes.values()]
        for node in self.nodes.values():
            if node.quorum.leadership.leader_id is None:
                node.quorum.meet(max(known, key=lambda item: item.index))

    def smallest_configuration(self) -> int:
        """In force anywhere, committed or not, also on nodes that are down."""
        return min(self._size_at(node_id) if node_id in self.nodes else self._at_rest[node_id] for node_id in self.ids)

    def _size_at(self, node_id: int) -> int:
        return min(len(item.voters) for item in self.nodes[node_id].quorum._started.electorate.membership._sets)


class Changes:
    """Asks the leader for changes, again and again until they are done or it loses interest."""

    def __init__(self, cluster: ChangingQuorum, rate: float) -> None:
        self.cluster = cluster
        self.rng = random.Random(cluster.rng.getrandbits(64))
        self.rate = rate
        self.under_way: list[tuple[str, int]] = []
        self.counts = {"add": 0, "remove": 0, "refused": 0}

    def step(self) -> None:
        leader = self.cluster.leader
        if leader is None:
            return
        if len(self.under_way) < MAX_OPERATIONS and self.rng.random() < self.rate:
            self.under_way.append((self.rng.choice(["add", "remove"]), self.rng.choice(self.cluster.ids)))
        for operation in list(self.under_way):
            if self._ask(leader, *operation) or self.rng.random() < 0.01:
                self.under_way.remove(operation)

    def _ask(self, leader: int, what: str, node_id: int) -> bool:
        quorum = self.cluster.nodes[leader].quorum
        was_voter = node_id in quorum.voters.ids
        try:
            if what == "add":
                if node_id not in self.cluster.nodes:
                    return True
                done = quorum.add_voter(NodeAddress(node_id=node_id, host="sim", port=node_id)).done
            else:
                done = quorum.remove_voter(node_id).done
        except BarnabasError:
            self.counts["refused"] += 1
            return True
        if done and was_voter == (what == "add"):
            self.counts[what] += 1
        return done


class ChangeFaults(_Faults):
    """No disk is wiped while a configuration of two is in force: a quorum of two cannot lose one by design. The disk of a voter
    whose server.properties name no other voter is not wiped either: it would look like a new one (see docs/operations.md).
    """

    cluster: ChangingQuorum

    def _may_wipe(self, node_id: int) -> bool:
        alone = self.cluster.bootstrap == [node_id]
        small = alone or self.cluster.smallest_configuration() < 3
        return not small and super()._may_wipe(node_id)


def run_changes(
    seed: int,
    *,
    faults_s: float = 6.0,
    rate: float = 0.1,
    voters: int | None = None,
    quorum_type: type[RaftQuorum] = RaftQuorum,
    wipes: bool = True,
) -> ChangeResult:
    choice = random.Random(seed)
    count = voters or choice.choice([1, 2, 3, 3, 4])
    policy = choice.choice([NEVER_COMPACT, SnapshotPolicy(entries=20), SnapshotPolicy(entries=100)])
    cluster = ChangingQuorum(seed, count, policy, others=OTHERS, quorum_type=quorum_type)
    cluster.start_all()
    faults = ChangeFaults(cluster, power=True, wipes=wipes)
    changes = Changes(cluster, rate)
    end = cluster.loop.time() + faults_s
    while cluster.loop.time() < end:
        faults.step()
        changes.step()
        cluster.introduce()
        cluster.loop.run_for(0.02)
        _check_leader(cluster)
    faults.heal()
    converged = _settle(cluster)
    result = _result(seed, cluster, faults, converged)
    return ChangeResult(
        result=result, added=changes.counts["add"], removed=changes.counts["remove"], refused=changes.counts["refused"]
    )


def _check_leader(cluster: ChangingQuorum) -> None:
    """Leader completeness: the leader of the newest term has the newest acknowledged command."""
    oracle = cluster.oracle
    leader = cluster.leader
    if leader is None or not oracle.acked:
        return
    core = cluster.nodes[leader].quorum._started
    if core.engine.term < max(oracle.leaders) or not core.engine.is_leader:
        return
    newest = next(reversed(oracle.acked))
    index = next((at for at, command in reversed(oracle.log.items()) if command == newest), 0)
    if core.journal.last_index < index:
        oracle.violations.append(
            f"leader {leader} of term {core.engine.term} lacks {newest!r}, acknowledged at {index}"
        )


def _settle(cluster: ChangingQuorum) -> bool:
    """The voters that are left make progress and agree; who was removed may stand still."""
    try:
        cluster.commit(limit_s=10.0)
    except AssertionError:
        return False
    cluster.introduce()
    return cluster.loop.run_until(lambda: _voters_agree(cluster), 10.0)


def _voters_agree(cluster: ChangingQuorum) -> bool:
    nodes = [cluster.nodes[voter] for voter in cluster.newest_voters()]
    states = [node.listener.state for node in nodes]
    indexes = {node.quorum.committed_index for node in nodes}
    return all(state == states[0] for state in states) and len(indexes) == 1


def run_changes_of(first: int, count: int) -> list[ChangeResult]:
    """Many histories; the ones that went wrong are returned."""
    found = (run_changes(seed) for seed in range(first, first + count))
    return [item for item in found if item.result.violations or not item.result.converged]
