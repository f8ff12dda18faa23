"""pysyncobj 0.3.17 behind typed methods. The only file that imports it, and the fence for its `Any`.

`PysyncobjEngine` holds a `SyncObj`. pysyncobj keeps term, vote, state, log positions of the peers and commit index; it decides
about votes, becomes leader, sends entries and asks a voter to take over. Its persistence, its transport, its own tick and its
handling of appended entries do not run: other parts replace them.

Private members are reached by their mangled names (`_SyncObj__name`). The version and every such name are asserted at start.
Nothing in pysyncobj's modules or classes is changed: what is replaced is replaced on the one instance, and the methods that read
the time run with the clock of this engine. So engines with different clocks live in one process.
"""

from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any, Final

from .. import late_encryptor  # noqa: F401  # Before pysyncobj, which would import the other one.

# isort: split
import pysyncobj.syncobj as syncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from ...quorum.config import BATCH_BYTES
from ...quorum.journal_format import NO_OP, Entry
from ..protocol.messages import AppendEntries, Chunk, InstallSnapshot, Message, RequestVote, TimeoutNow, Vote
from ..protocol.snapshot_transfer import SnapshotSender
from .ports import HardState, Journal, MessageTransport, Ports

PINNED_VERSION: Final = "0.3.17"
MAX_BATCH_ENTRIES: Final = 4096  # of one message; larger batches gain nothing, and a heartbeat must not wait for one
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2

_CLOSED = (
    "_SyncObj__doApplyCommand",
    "_SyncObj__loadDumpFile",
    "_SyncObj__tryLogCompaction",
    "_applyCommand",
    "_onTick",
)
_REPLACED = ("_SyncObj__generateRaftTimeout", "_SyncObj__getEntries", "_SyncObj__parseChangeClusterRequest")
_TIMED = ("_SyncObj__onBecomeLeader", "_SyncObj__onMessageReceived", "_SyncObj__sendAppendEntries")
_CALLED = (
    "_SyncObj__onNodeConnected",
    "_SyncObj__onNodeDisconnected",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "transferLeadership",
)
_ATTRIBUTES = (
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__otherNodes",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftLeader",
    "_SyncObj__raftLog",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftNextIndex",
    "_SyncObj__raftState",
    "_SyncObj__readonlyNodes",
    "_SyncObj__serializer",
    "_SyncObj__transferInProgress",
    "_SyncObj__votedForNodeId",
)
_METHODS = (*_CLOSED, *_REPLACED, *_TIMED, *_CALLED)
TOUCHED_NAMES: Final = frozenset((*_METHODS, *_ATTRIBUTES))
_CLOCK = "monotonicTime"  # what pysyncobj's methods call to read the time


class UnsupportedPysyncobj(Exception):
    """The installed pysyncobj is not the one that was studied: running on it could lose data."""


def _check_class() -> None:
    if VERSION != PINNED_VERSION:
        raise UnsupportedPysyncobj(f"pysyncobj is {VERSION}, this quorum is written for {PINNED_VERSION} only")
    missing = [name for name in _METHODS if not callable(getattr(syncobj.SyncObj, name, None))]
    missing += [name for name in (_CLOCK,) if not hasattr(syncobj, name)]
    if missing:
        raise UnsupportedPysyncobj(f"pysyncobj {VERSION} lacks {missing}")


def _check_instance(core: object) -> None:
    missing = [name for name in _ATTRIBUTES if not hasattr(core, name)]
    if missing:
        raise UnsupportedPysyncobj(f"pysyncobj {VERSION} lacks {missing}")


_check_class()


class RaftNode(Node):  # type: ignore[misc]  # pysyncobj has no annotations
    """A voter. Ids are ints: their hash, and so the order in which pysyncobj sends, is the same in every process."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)

    def __str__(self) -> str:
        return f"node-{self.id}"

    def __repr__(self) -> str:
        return str(self)


class _Nodes(dict[int, RaftNode]):
    """Peers by their id, made when they are first named: voters come and go."""

    def __missing__(self, node_id: int) -> RaftNode:
        node = self[node_id] = RaftNode(node_id)
        return node


class _TransportAdapter(Transport):  # type: ignore[misc]
    """What pysyncobj calls to send. What arrives goes to the parts directly, through their own checks."""

    def __init__(self, transport: MessageTransport) -> None:
        super().__init__(None, None, ())
        self._port = transport

    def send(self, node: RaftNode, message: dict[str, Any]) -> bool:
        return self._port.send(node.id, _typed(message))


class _JournalAdapter:
    """pysyncobj's Journal interface under its names, as far as what runs of pysyncobj calls it."""

    def __init__(self, journal: Journal, hard_state: HardState) -> None:
        self._journal = journal
        self._hard_state = hard_state
        self.decides_vote = False  # in the term that comes first: one write for both, because each takes two flushes
        self._unwritten_term: int | None = None

    def __getitem__(self, position: int) -> Entry:
        return self._journal.at_position(position)

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._journal.add(command, idx, term)

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        if self.decides_vote and votedForNodeId is None:
            self._unwritten_term = term
        else:
            self._unwritten_term = None
            self._hard_state.set_term(term, votedForNodeId)

    def vote_is_decided(self) -> None:
        """Durable on return: the term of a candidate that was refused, too."""
        self.decides_vote = False
        if self._unwritten_term is not None:
            self._hard_state.set_term(self._unwritten_term, None)
            self._unwritten_term = None


class _SerializerAdapter:
    """pysyncobj's Serializer under its names, as far as its sending loop calls it."""

    def __init__(self, sender: SnapshotSender) -> None:
        self._sender = sender

    def getTransmissionData(self, node: RaftNode) -> Chunk | None:
        return self._sender.next_chunk(node.id)

    def cancelTransmisstion(self, node: RaftNode) -> None:
        self._sender.cancel(node.id)


def _typed(message: dict[str, Any]) -> Message:
    """What pysyncobj sends, by a leader and by a voter that is asked."""
    kind, term = message["type"], message["term"]
    if kind == "append_entries" and "entries" in message:
        return AppendEntries(
            term=term,
            commit_index=message["commit_index"],
            prev_index=message["prevLogIdx"],
            prev_term=message["prevLogTerm"],
            entries=tuple(message["entries"]),
        )
    if kind == "append_entries":
        return InstallSnapshot(term=term, commit_index=message["commit_index"], chunk=message["serialized"])
    if kind == "response_vote":
        return Vote(term=term)
    assert kind == "timeout_now", "nothing else is sent by what runs of pysyncobj"
    return TimeoutNow(term=term)


class PysyncobjEngine:
    """Invariants: the state below is that of pysyncobj, but within a transition; of each peer, as leader: 0 <= match < next."""

    is_leader: bool
    is_candidate: bool
    term: int
    voted_for: int | None
    leader_id: int | None
    commit_index: int

    def __init__(
        self,
        node_id: int,
        other_ids: list[int],
        journal: Journal,
        hard_state: HardState,
        sender: SnapshotSender,
        ports: Ports,
    ) -> None:
        self._node_id = node_id
        self._journal = journal
        self._hard_state = hard_state
        self._clock = ports.clock
        self._nodes = _Nodes()
        conf = syncobj.SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesBatchSizeBytes=BATCH_BYTES,
            appendEntriesPeriod=ports.timing.heartbeat_s,
            raftMinTimeout=ports.timing.election_min_s,
            raftMaxTimeout=ports.timing.election_max_s,
            leaderFallbackTimeout=ports.timing.leader_fallback_s,
            connectionTimeout=10 * ports.timing.election_max_s,  # of the stock transport; only its validation sees it
            dynamicMembershipChange=False,
        )
        others = [self._nodes[other] for other in other_ids]
        self._core: Any = syncobj.SyncObj(
            RaftNode(node_id), others, conf=conf, transport=_TransportAdapter(ports.transport)
        )
        _check_instance(self._core)
        self._core._SyncObj__serializer = _SerializerAdapter(sender)
        self._adopt_journal()
        self._replace_methods()
        self._note_state()

    def _adopt_journal(self) -> None:
        """As pysyncobj's constructor does with a journal that it has opened by itself."""
        core, journal, hard_state = self._core, self._journal, self._hard_state
        if len(journal) == 0:
            journal.add(NO_OP, 1, 0)
        self._log = core._SyncObj__raftLog = _JournalAdapter(journal, hard_state)
        core._SyncObj__raftCurrentTerm = max(hard_state.term, journal.last_term)
        core._SyncObj__votedForNodeId = hard_state.voted_for
        # Never beyond the end of the journal: new entries there would count as committed without a quorum.
        self.commit_index = max(1, min(hard_state.commit_index, journal.last_index))
        core._SyncObj__raftCommitIndex = self.commit_index

    def _replace_methods(self) -> None:
        core = self._core
        for name in _CLOSED:
            setattr(core, name, _closed)
        core._SyncObj__generateRaftTimeout = lambda: 0.0  # the elections have a timer of their own
        core._SyncObj__parseChangeClusterRequest = lambda _command: None
        core._SyncObj__getEntries = self._entries
        namespace = {**vars(syncobj), _CLOCK: self._clock}
        for name in _TIMED:
            stock = getattr(syncobj.SyncObj, name)
            timed = FunctionType(stock.__code__, namespace, name, stock.__defaults__)
            setattr(core, name, MethodType(timed, core))

    # State

    def _note_state(self) -> None:
        """Ends each transition: the parts ask for the state many times in a step."""
        core = self._core
        leader = core._SyncObj__raftLeader
        self.is_leader = core._SyncObj__raftState == LEADER
        self.is_candidate = core._SyncObj__raftState == CANDIDATE
        self.term = core._SyncObj__raftCurrentTerm
        self.voted_for = core._SyncObj__votedForNodeId
        self.leader_id = None if leader is None else leader.id

    def advance_commit(self, index: int) -> bool:
        """Whether it has moved; it never moves back."""
        if index <= self.commit_index:
            return False
        self.commit_index = self._core._SyncObj__raftCommitIndex = index
        self._hard_state.note_commit(index)
        return True

    # Of each peer, as leader

    def match_of(self, peer_id: int) -> int:
        return int(self._core._SyncObj__raftMatchIndex.get(self._nodes[peer_id], 0))

    def matches_of(self, peer_ids: Iterable[int]) -> list[int]:
        known, nodes = self._core._SyncObj__raftMatchIndex, self._nodes
        return [known.get(nodes[peer_id], 0) for peer_id in peer_ids]

    def set_match(self, peer_id: int, index: int) -> None:
        self._core._SyncObj__raftMatchIndex[self._nodes[peer_id]] = index

    def next_of(self, peer_id: int) -> int:
        return int(self._core._SyncObj__raftNextIndex.get(self._nodes[peer_id], 1))

    def set_next(self, peer_id: int, index: int) -> None:
        self._core._SyncObj__raftNextIndex[self._nodes[peer_id]] = index

    def heard_at(self, peer_id: int) -> float:
        return float(self._core._SyncObj__lastResponseTime.get(self._nodes[peer_id], 0.0))

    def heard_since(self, peer_ids: Iterable[int], since: float) -> int:
        """How many of these peers have answered after `since`."""
        known, nodes = self._core._SyncObj__lastResponseTime, self._nodes
        return len([peer_id for peer_id in peer_ids if known.get(nodes[peer_id], 0.0) > since])

    def set_heard(self, peer_id: int, now: float) -> None:
        self._core._SyncObj__lastResponseTime[self._nodes[peer_id]] = now

    def set_recipients(self, voter_ids: list[int], learner_ids: list[int]) -> None:
        """The nodes to which a leader sends entries: the other voters and the learners. New ones begin at the end of the log."""
        core = self._core
        core._SyncObj__otherNodes = {self._nodes[peer_id] for peer_id in voter_ids}
        core._SyncObj__readonlyNodes = {self._nodes[peer_id] for peer_id in learner_ids}
        for peer_id in (*voter_ids, *learner_ids):
            node = self._nodes[peer_id]
            core._SyncObj__raftNextIndex.setdefault(node, self._journal.last_index + 1)
            core._SyncObj__raftMatchIndex.setdefault(node, 0)
            core._SyncObj__lastResponseTime.setdefault(node, self._clock())

    def forget_peer(self, peer_id: int) -> None:
        """What it had on disk is not known any more, should it come back."""
        core, node = self._core, self._nodes[peer_id]
        for known in (
            core._SyncObj__raftNextIndex,
            core._SyncObj__raftMatchIndex,
            core._SyncObj__lastResponseTime,
        ):
            known.pop(node, None)

    def set_connected(self, peer_id: int, connected: bool) -> None:
        core, node = self._core, self._nodes[peer_id]
        (core._SyncObj__onNodeConnected if connected else core._SyncObj__onNodeDisconnected)(node)

    # Transitions

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Durable on return."""
        self._core._SyncObj__setCurrentTerm(term, voted_for)
        self._note_state()

    def follow(self, leader_id: int | None) -> None:
        self._core._SyncObj__setState(FOLLOWER)
        self._core._SyncObj__raftLeader = None if leader_id is None else self._nodes[leader_id]
        self._note_state()

    def start_candidacy(self) -> None:
        """A new term with a vote for ourselves, durable on return."""
        self._core._SyncObj__raftLeader = None
        self._core._SyncObj__setState(CANDIDATE)
        self.set_term(self.term + 1, self._node_id)

    def become_leader(self) -> None:
        """Append a no-op in the new term, and send it."""
        self._core._SyncObj__onBecomeLeader()
        self._note_state()

    def decide_vote(self, peer_id: int, request: RequestVote) -> bool:
        """Whether we have voted now, by the paper's rules (5.4.1); a vote is durable before it is sent."""
        before = (self.term, self.voted_for)
        asked = {"last_log_index": request.last_log_index, "last_log_term": request.last_log_term}
        message = {"type": "request_vote", "term": request.term, **asked}
        self._log.decides_vote = True
        self._core._SyncObj__onMessageReceived(self._nodes[peer_id], message)
        self._log.vote_is_decided()
        self._note_state()
        return before != (self.term, self.voted_for) and self.voted_for == peer_id

    def is_asked_to_take_over(self, peer_id: int, request: TimeoutNow) -> bool:
        """Whether the request to campaign comes from the leader."""
        self._core._SyncObj__transferInProgress = False
        message = {"type": "timeout_now", "term": request.term}
        self._core._SyncObj__onMessageReceived(self._nodes[peer_id], message)
        return bool(self._core._SyncObj__transferInProgress)

    def ask_transfer(self, target_id: int) -> bool:
        """Whether the target was asked to take over: it must hold the whole log."""
        outcome: list[int] = []
        self._core.transferLeadership(self._nodes[target_id], lambda _result, error: outcome.append(error))
        return outcome == [syncobj.FAIL_REASON.SUCCESS]

    # Sending

    def heartbeat_is_due(self, now: float) -> bool:
        return bool(now > self._core._SyncObj__newAppendEntriesTime)

    def send_entries(self) -> None:
        self._core._SyncObj__sendAppendEntries()

    def _entries(self, index: int | None, count: int | None = None, maxSizeBytes: int | None = None) -> list[Entry]:
        """Like the pysyncobj method, but copies at most one batch of entries."""
        journal = self._journal
        if index is None or index < journal.first_index:
            return []
        entries = journal.entries_from(index, MAX_BATCH_ENTRIES if count is None else count)
        if maxSizeBytes is None:
            return entries
        size_bytes = 0
        for position, entry in enumerate(entries):
            size_bytes += len(entry[0])
            if size_bytes >= maxSizeBytes:
                return entries[: position + 1]
        return entries


def _closed(*_arguments: object, **_named: object) -> None:
    raise AssertionError("this path of pysyncobj is closed: the parts of consensus do it by themselves")
