"""`InMemoryQuorum`: the in-memory replacement of the real quorum for tests of the layers above. Pure, deterministic, explicit.

Several nodes share one ordered log. Nothing happens by itself: `step` commits appended commands and notifies all nodes,
`elect` and `lose_leadership` change the leader, `inject` decides the outcome of the next commands.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.quorum import CommittedCommand

from .quorum import AppendOutcome, Leadership, QuorumListener

MAX_COMMAND_BYTES = 1024 * 1024  # as raft_config has it; this module does not import the raft


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The outcome of the next command. With UNKNOWN, `committed` says whether it was really committed."""

    outcome: AppendOutcome
    committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    node_id: int
    term: int
    command: bytes
    done: Callable[[AppendOutcome], None]


class InMemoryNode:
    """The quorum port as one node has it."""

    def __init__(self, quorum: "InMemoryQuorum", node_id: int, listener: QuorumListener) -> None:
        self._quorum = quorum
        self.node_id = node_id
        self.listener = listener
        self.position = 0  # commands of the log that were handed to the listener
        self.connected = True
        self._committed_index = 0

    def append(
        self, command: bytes, *, term: int, done: Callable[[AppendOutcome], None], others_wait: bool = True
    ) -> None:
        if len(command) > MAX_COMMAND_BYTES:
            raise InvalidRequestError(f"a command has {len(command)} bytes; at most {MAX_COMMAND_BYTES} are allowed")
        self._quorum.pending.append(_Pending(node_id=self.node_id, term=term, command=command, done=done))

    @property
    def leadership(self) -> Leadership:
        leader_id = self._quorum.leader_id
        return Leadership(leader_id=leader_id, term=self._quorum.term, is_self=leader_id == self.node_id)

    @property
    def committed_index(self) -> int:
        return self._committed_index

    def catch_up(self) -> None:
        """Hand over what the listener lacks, as one batch."""
        commands = self._quorum.log[self.position :]
        if commands:
            self.position += len(commands)
            self.listener.committed(commands)
            self._committed_index = commands[-1].index

    def restore_from(self, source: "InMemoryNode") -> None:
        """Replace this listener's state by a snapshot of another one's."""
        self.listener.restore(source.committed_index, source.listener.snapshot()())
        self.position = source.position
        self._committed_index = source.committed_index


class InMemoryQuorum:
    """One ordered log. Nodes are notified in the order in which they were added."""

    def __init__(self) -> None:
        self.log: list[CommittedCommand] = []
        self.nodes: dict[int, InMemoryNode] = {}
        self.leader_id: int | None = None
        self.term = 0
        self.pending: deque[_Pending] = deque()
        self._injections: deque[Injection] = deque()
        self._next_index = 2  # the real log begins with an entry of its own, too

    def add_node(self, node_id: int, listener: QuorumListener) -> InMemoryNode:
        """It hears the whole log at the next step, unless it is restored from another node before."""
        node = self.nodes[node_id] = InMemoryNode(self, node_id, listener)
        return node

    def elect(self, node_id: int) -> None:
        """A new term. What the former leader had not committed is refused or discarded."""
        assert node_id in self.nodes
        self._drop_pending(AppendOutcome.DISCARDED)
        self.term += 1
        self.leader_id = node_id
        self._next_index += 1  # a leader's first entry is its own
        self._tell_leadership()

    def lose_leadership(self) -> None:
        """No node leads; commands that were appended and not committed have an unknown outcome."""
        self._drop_pending(AppendOutcome.UNKNOWN)
        self.leader_id = None
        self._tell_leadership()

    def inject(self, outcome: AppendOutcome, *, committed: bool = False) -> None:
        """The next command that would be committed gets this outcome instead."""
        assert outcome is AppendOutcome.UNKNOWN or not committed
        self._injections.append(Injection(outcome=outcome, committed=committed))

    def step(self) -> int:
        """Commit the pending commands, notify every connected node, then the appenders. Return how many were pending."""
        batch = [self.pending.popleft() for _ in range(len(self.pending))]
        outcomes = [(pending.done, self._decide(pending)) for pending in batch]
        for node in list(self.nodes.values()):
            if node.connected:
                node.catch_up()
        for done, outcome in outcomes:
            done(outcome)
        return len(batch)

    def run(self, limit: int = 1000) -> None:
        """Step until no more commands are appended."""
        for _ in range(limit):
            if self.step() == 0:
                return
        raise AssertionError(f"still busy after {limit} steps")

    def _decide(self, pending: _Pending) -> AppendOutcome:
        if pending.node_id != self.leader_id or pending.term != self.term:
            return AppendOutcome.NOT_APPENDED
        injection = self._injections.popleft() if self._injections else None
        if injection is None or injection.committed or injection.outcome is AppendOutcome.COMMITTED:
            self.log.append(CommittedCommand(index=self._next_index, term=self.term, command=pending.command))
            self._next_index += 1
        return AppendOutcome.COMMITTED if injection is None else injection.outcome

    def _drop_pending(self, outcome: AppendOutcome) -> None:
        batch = [self.pending.popleft() for _ in range(len(self.pending))]
        for pending in batch:
            was_appended = pending.node_id == self.leader_id and pending.term == self.term
            pending.done(outcome if was_appended else AppendOutcome.NOT_APPENDED)

    def _tell_leadership(self) -> None:
        for node in list(self.nodes.values()):
            if node.connected:
                node.listener.leadership_changed(node.leadership)
