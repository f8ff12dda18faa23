"""pysyncobj's private parts under typed names. The only file that imports pysyncobj, and the fence for its `Any`.

We override what is private to version 0.3.17: private methods are called as `self._SyncObj__name`, so a method of
that literal name in a subclass wins. What that leans on is asserted here at start: the version and every name that is
touched.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

import pysyncobj.syncobj as syncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from ..quorum.config import RaftTiming
from ..quorum.journal_format import Entry
from .disk.journal import DurableJournal
from .disk.snapshot import SnapshotSender
from .net.messages import AppendEntries, InstallSnapshot, Message, RequestVote, TimeoutNow, Vote

PINNED_VERSION = "0.3.17"
MAX_BATCH_ENTRIES = 4096  # of one message; larger batches gain nothing, and a heartbeat must not wait for one
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
REGULAR, NO_OP = (
    b"\x00",
    b"\x01",
)  # (and raft_voters.MEMBERSHIP) the first byte of every entry's command, as pysyncobj writes it

_OVERRIDDEN = (
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__getEntries",
    "_SyncObj__loadDumpFile",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__tryLogCompaction",
    "_applyCommand",
    "_onTick",
)
_CALLED = (
    "_SyncObj__onBecomeLeader",
    "_SyncObj__onMessageReceived",
    "_SyncObj__onNodeConnected",
    "_SyncObj__onNodeDisconnected",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "transferLeadership",
)
_ATTRIBUTES = (
    "_SyncObj__connectedNodes",
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__otherNodes",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
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
TOUCHED_NAMES = frozenset((*_OVERRIDDEN, *_CALLED, *_ATTRIBUTES))
_GLOBALS = ("createJournal", "monotonicTime")


class UnsupportedPysyncobj(Exception):
    """The installed pysyncobj is not the one that was studied: running on it could lose data."""


def _check_class() -> None:
    if VERSION != PINNED_VERSION:
        raise UnsupportedPysyncobj(f"pysyncobj is {VERSION}, this quorum is written for {PINNED_VERSION} only")
    missing = [name for name in (*_OVERRIDDEN, *_CALLED) if not callable(getattr(syncobj.SyncObj, name, None))]
    missing += [name for name in _GLOBALS if not hasattr(syncobj, name)]
    if missing:
        raise UnsupportedPysyncobj(f"pysyncobj {VERSION} lacks {missing}")


def _check_instance(core: object) -> None:
    missing = [name for name in _ATTRIBUTES if not hasattr(core, name)]
    if missing:
        raise UnsupportedPysyncobj(f"pysyncobj {VERSION} lacks {missing}")


_check_class()
# The configuration carries the journal itself where stock has a file name.
syncobj.createJournal = lambda journal: journal
# Its own log lines speak of things that we have replaced.
logging.getLogger("pysyncobj").setLevel(logging.ERROR)


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


class MessageTransport(Protocol):
    def set_peers(self, peers: dict[int, tuple[str, int]]) -> None:
        """Keep links to these, at these addresses, and to nobody else."""

    def send(self, peer_id: int, message: Message) -> bool: ...

    def backlog_bytes(self, peer_id: int) -> int: ...


class _TransportAdapter(Transport):  # type: ignore[misc]
    """What pysyncobj calls to send. What arrives goes to the core directly, through its own checks."""

    def __init__(self, transport: MessageTransport) -> None:
        super().__init__(None, None, ())
        self._port = transport

    def send(self, node: RaftNode, message: dict[str, Any]) -> bool:
        return self._port.send(node.id, _typed(message))


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
    assert kind == "timeout_now", "nothing else is sent by what is left of pysyncobj"
    return TimeoutNow(term=term)


class RaftInternals(syncobj.SyncObj):  # type: ignore[misc]
    """SyncObj with our journal, transport and clock; its dangerous paths are closed, its private state has types."""

    def __init__(
        self,
        *,
        node_id: int,
        other_ids: list[int],
        journal: DurableJournal,
        transport: MessageTransport,
        sender: SnapshotSender,
        clock: Callable[[], float],
        timing: RaftTiming,
        batch_bytes: int,
    ) -> None:
        # The one place where pysyncobj's clock is set. There is one for the process: loop.time, or the time that
        # all simulated nodes share.
        syncobj.monotonicTime = clock
        self.journal = journal
        self.port = transport
        self.node_of = _Nodes()
        conf = syncobj.SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesBatchSizeBytes=batch_bytes,
            appendEntriesPeriod=timing.heartbeat_s,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.leader_fallback_s,
            connectionTimeout=10 * timing.election_max_s,  # of the stock transport; only its validation sees it
            dynamicMembershipChange=False,
            journalFile=journal,
        )
        super().__init__(
            RaftNode(node_id),
            [self.node_of[other] for other in other_ids],
            conf=conf,
            transport=_TransportAdapter(transport),
        )
        _check_instance(self)
        self._SyncObj__serializer = sender

    # State

    @property
    def is_leader(self) -> bool:
        return bool(self._SyncObj__raftState == LEADER)

    @property
    def is_candidate(self) -> bool:
        return bool(self._SyncObj__raftState == CANDIDATE)

    @property
    def term(self) -> int:
        return cast(int, self._SyncObj__raftCurrentTerm)

    @property
    def voted_for(self) -> int | None:
        return cast("int | None", self._SyncObj__votedForNodeId)

    @property
    def leader_id(self) -> int | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else cast(int, leader.id)

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index
        self.journal.setRaftCommitIndex(index)

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    @property
    def election_deadline(self) -> float:
        return self._SyncObj__raftElectionDeadline

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    @property
    def transfer_in_progress(self) -> bool:
        return bool(self._SyncObj__transferInProgress)

    @transfer_in_progress.setter
    def transfer_in_progress(self, value: bool) -> None:
        self._SyncObj__transferInProgress = value

    # Of each peer, as leader. Invariant: 0 <= match < next.

    def match_of(self, peer_id: int) -> int:
        return int(self._SyncObj__raftMatchIndex.get(self.node_of[peer_id], 0))

    def set_match(self, peer_id: int, index: int) -> None:
        self._SyncObj__raftMatchIndex[self.node_of[peer_id]] = index

    def next_of(self, peer_id: int) -> int:
        return int(self._SyncObj__raftNextIndex.get(self.node_of[peer_id], 1))

    def set_next(self, peer_id: int, index: int) -> None:
        self._SyncObj__raftNextIndex[self.node_of[peer_id]] = index

    def heard_at(self, peer_id: int) -> float:
        return float(self._SyncObj__lastResponseTime.get(self.node_of[peer_id], 0.0))

    def set_heard(self, peer_id: int, now: float) -> None:
        self._SyncObj__lastResponseTime[self.node_of[peer_id]] = now

    # Who takes part

    def set_recipients(self, voter_ids: list[int], learner_ids: list[int]) -> None:
        """Whom a leader sends entries: the other voters, and those that only learn. New ones begin at the log's end."""
        self._SyncObj__otherNodes = {self.node_of[peer_id] for peer_id in voter_ids}
        self._SyncObj__readonlyNodes = {self.node_of[peer_id] for peer_id in learner_ids}
        for peer_id in (*voter_ids, *learner_ids):
            node = self.node_of[peer_id]
            self._SyncObj__raftNextIndex.setdefault(node, self.journal.last_index + 1)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__lastResponseTime.setdefault(node, syncobj.monotonicTime())

    def forget_peer(self, peer_id: int) -> None:
        """What it had on disk is not known any more, should it come back."""
        for known in (
            self._SyncObj__raftNextIndex,
            self._SyncObj__raftMatchIndex,
            self._SyncObj__lastResponseTime,
        ):
            known.pop(self.node_of[peer_id], None)

    # Transitions

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Durable on return."""
        self._SyncObj__setCurrentTerm(term, voted_for)

    def follow(self, leader_id: int | None) -> None:
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None if leader_id is None else self.node_of[leader_id]

    def start_candidacy(self) -> None:
        """A new term with a vote for ourselves, durable on return."""
        self.transfer_in_progress = False
        self._SyncObj__raftLeader = None
        self._SyncObj__setState(CANDIDATE)
        self.set_term(self.term + 1, self.selfNode.id)

    def become_leader(self) -> None:
        self._SyncObj__onBecomeLeader()

    def heartbeat_is_due(self, now: float) -> bool:
        return bool(now > self._SyncObj__newAppendEntriesTime)

    def send_entries(self) -> None:
        self._SyncObj__sendAppendEntries()

    def decide_vote(self, peer_id: int, request: RequestVote) -> None:
        """Vote or not, by the paper's rules; a vote is durable before it is sent."""
        asked = {"last_log_index": request.last_log_index, "last_log_term": request.last_log_term}
        self._stock_message(peer_id, {"type": "request_vote", "term": request.term, **asked})

    def take_over(self, peer_id: int, request: TimeoutNow) -> None:
        """The election is due at once, if it is the leader who asks."""
        self._stock_message(peer_id, {"type": "timeout_now", "term": request.term})

    def _stock_message(self, peer_id: int, message: dict[str, Any]) -> None:
        self._SyncObj__onMessageReceived(self.node_of[peer_id], message)

    def set_connected(self, peer_id: int, connected: bool) -> None:
        node = self.node_of[peer_id]
        (self._SyncObj__onNodeConnected if connected else self._SyncObj__onNodeDisconnected)(node)

    def ask_transfer(self, target_id: int) -> bool:
        """Whether the target was asked to take over: it must hold the whole log."""
        outcome: list[int] = []
        self.transferLeadership(self.node_of[target_id], lambda _result, error: outcome.append(error))
        return outcome == [syncobj.FAIL_REASON.SUCCESS]

    # Stock paths that are closed

    def _onTick(self, timeToWait: float = 0.0) -> None:
        raise AssertionError("the core has a step of its own")

    def _applyCommand(self, command: bytes, callback: object, commandType: object = None) -> None:
        raise AssertionError("commands come through append only")

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        raise AssertionError("nothing is unpickled")

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        return None

    def _SyncObj__tryLogCompaction(self) -> None:
        raise AssertionError("the core compacts by itself")

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise AssertionError("snapshots are loaded by the core")

    def _SyncObj__getEntries(
        self, fromIDx: int | None, count: int | None = None, maxSizeBytes: int | None = None
    ) -> list[Entry]:
        """As stock, but never copying the whole rest of the log for one batch."""
        if fromIDx is None or fromIDx < self.journal.first_index:
            return []
        entries = self.journal.entries_from(fromIDx, MAX_BATCH_ENTRIES if count is None else count)
        if maxSizeBytes is None:
            return entries
        size_bytes = 0
        for position, entry in enumerate(entries):
            size_bytes += len(entry[0])
            if size_bytes >= maxSizeBytes:
                return entries[: position + 1]
        return entries
