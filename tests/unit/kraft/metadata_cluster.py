"""Several metadata nodes over a small quorum in memory, whose every step the test decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from unit.kraft.group_state_fake import FakeGroupState

from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.group_state.group_state import GroupState
from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.kraft.node.metadata_node import MetadataNode, MetadataPublication
from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership
from barnabas.log.vocabulary.quorum import CommittedCommand


@dataclass(eq=False)
class Entry:
    term: int
    command: bytes
    owner: FakeQuorum
    done: Callable[[AppendOutcome], None]
    told: bool = False

    def tell(self, outcome: AppendOutcome) -> None:
        if not self.told and self.owner.alive:
            self.told = True
            self.done(outcome)


@dataclass(eq=False)
class FakeQuorum:
    """The quorum of one node's life: a restart gets a new one."""

    cluster: MetadataCluster
    node_id: int
    leadership: Leadership = field(default_factory=lambda: Leadership(leader_id=None, term=0, is_self=False))
    alive: bool = True
    delivered: int = 0  # of the cluster's log
    undone: list[tuple[Entry, AppendOutcome]] = field(default_factory=list)

    def append(
        self, command: bytes, *, term: int, done: Callable[[AppendOutcome], None], others_wait: bool = True
    ) -> None:
        entry = Entry(term, command, self, done)
        if not self.leadership.is_self or self.leadership.term != term:
            self.undone.append((entry, AppendOutcome.NOT_APPENDED))
        elif self.cluster.leader is self:
            self.cluster.tail.append(entry)
        else:  # a deposed leader that does not know it yet
            self.undone.append((entry, self.cluster.rng.choice([AppendOutcome.DISCARDED, AppendOutcome.UNKNOWN])))

    @property
    def committed_index(self) -> int:
        return self.cluster.log[self.delivered - 1][0].index if self.delivered else 0


class MetadataCluster:
    def __init__(
        self,
        size: int = 1,
        *,
        seed: int = 0,
        settings: ControllerSettings | None = None,
        new_groups: Callable[[], GroupState] = FakeGroupState,
    ) -> None:
        self.new_groups = new_groups
        self.rng = random.Random(seed)
        self.settings = settings or ControllerSettings()
        self.term = 0
        self.log: list[tuple[CommittedCommand, Entry]] = []
        self.tail: list[Entry] = []
        self.leader: FakeQuorum | None = None
        self.quorums: list[FakeQuorum] = []
        self.nodes: list[MetadataNode] = []
        self.fatal: list[str] = []
        self.publications: list[list[MetadataPublication]] = [[] for _ in range(size)]
        self.on_publication: Callable[[int, MetadataPublication], None] = lambda node_id, publication: None
        for node_id in range(size):
            quorum, node = self._start(node_id)
            self.quorums.append(quorum)
            self.nodes.append(node)

    def new_node(self, node_id: int) -> MetadataNode:
        def publish(publication: MetadataPublication) -> None:
            self.publications[node_id].append(publication)
            del self.publications[node_id][:-50]
            self.on_publication(node_id, publication)

        controller = Controller(settings=self.settings, rng=random.Random(self.rng.getrandbits(64)))
        return MetadataNode(
            node_id=node_id,
            controller=controller,
            new_groups=self.new_groups,
            publish=publish,
            fatal=self.fatal.append,
            rng=random.Random(self.rng.getrandbits(64)),
        )

    def _start(self, node_id: int) -> tuple[FakeQuorum, MetadataNode]:
        quorum, node = FakeQuorum(self, node_id), self.new_node(node_id)
        node.attach(quorum)
        return quorum, node

    def restart(self, node_id: int, *, from_snapshot: bool) -> None:
        """A crash: the node's open appends are told to nobody; it replays the log, or a snapshot and the rest."""
        old, old_node = self.quorums[node_id], self.nodes[node_id]
        old.alive = False
        quorum, node = self._start(node_id)
        if from_snapshot and old.delivered:
            node.restore(old.committed_index, list(old_node.snapshot()()))
            quorum.delivered = old.delivered
        self.quorums[node_id], self.nodes[node_id] = quorum, node
        if self.leader is old:
            self._lose_tail()
            self.leader = None

    def elect(self, node_id: int) -> None:
        """A new term. Some of the old leader's uncommitted entries survive, in front."""
        self._lose_tail()
        self.term += 1
        self.leader = self.quorums[node_id]
        self.notify(node_id)

    def _lose_tail(self) -> None:
        kept = self.rng.randint(0, len(self.tail))
        for entry in self.tail[kept:]:
            outcome = self.rng.choice([AppendOutcome.DISCARDED, AppendOutcome.UNKNOWN])
            entry.owner.undone.append((entry, outcome))
        for entry in self.tail[:kept]:
            if self.rng.random() < 0.3:
                entry.owner.undone.append((entry, AppendOutcome.UNKNOWN))
        self.tail = self.tail[:kept]

    def notify(self, node_id: int) -> None:
        """The node learns who leads."""
        quorum = self.quorums[node_id]
        leader_id = None if self.leader is None else self.leader.node_id
        believed = Leadership(leader_id=leader_id, term=self.term, is_self=self.leader is quorum)
        if believed != quorum.leadership:
            quorum.leadership = believed
            self.nodes[node_id].leadership_changed(believed)

    def commit(self, count: int | None = None) -> None:
        """A majority has the first `count` entries of the leader's tail."""
        taken = self.tail[:count]
        del self.tail[: len(taken)]
        for entry in taken:
            index = (self.log[-1][0].index if self.log else 0) + self.rng.randint(1, 3)
            self.log.append((CommittedCommand(index=index, term=entry.term, command=entry.command), entry))

    def deliver(self, node_id: int, count: int | None = None) -> None:
        """The node applies the next `count` committed commands, then hears of what became of its appends."""
        quorum, node = self.quorums[node_id], self.nodes[node_id]
        end = len(self.log) if count is None else min(len(self.log), quorum.delivered + count)
        news = self.log[quorum.delivered : end]
        quorum.delivered = end
        node.committed([command for command, _ in news])
        for _, entry in news:
            if entry.owner is quorum:
                entry.tell(AppendOutcome.COMMITTED)

    def tell_outcomes(self, node_id: int) -> None:
        """Failures are told only after the node knows of its fall: the port tells the truth about the past, not sooner."""
        quorum = self.quorums[node_id]
        undone, quorum.undone = quorum.undone, []
        for entry, outcome in undone:
            entry.tell(outcome)

    def run(self) -> None:
        """Until nothing moves."""
        for _ in range(100):
            self.commit()
            for node_id in range(len(self.nodes)):
                self.notify(node_id)
                self.tell_outcomes(node_id)
                self.deliver(node_id)
            if not self.tail and not any(quorum.undone for quorum in self.quorums):
                return
        raise AssertionError("the quorum does not come to rest")

    def tick(self, now_ms: int) -> None:
        for node in self.nodes:
            node.tick(now_ms)

    def ask(self, request: ControllerRequest, now_ms: int, node_id: int = 0) -> object:
        """Submit, let everything happen, return the answer (a value or a BarnabasError)."""
        answers: list[object] = []
        self.nodes[node_id].submit(request, now_ms, answers.append)
        self.run()
        assert len(answers) == 1
        return answers[0]
