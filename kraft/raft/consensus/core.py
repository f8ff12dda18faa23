"""`RaftCore` puts the parts of consensus together and drives them by `step`.

No I/O, no asyncio, no threads, no logger here. Messages arrive by `receive`, everything else happens in `step`: campaign, count,
apply, append, send once for all of it, compact, flush. Any failure in between is a reason to stop the process.
"""

from collections.abc import Callable
from typing import Any, TypeVarTuple

from ...quorum.config import SnapshotPolicy
from ...quorum.formation import Formation, VoterState
from ...quorum.quorum import FatalHandler, Leadership, QuorumListener
from ...quorum.snapshot_format import Snapshot
from ...quorum.voters import Membership, VoterSet
from ..protocol import messages
from ..protocol.messages import Message
from ..protocol.snapshot_transfer import SnapshotSender
from .applying import Applier
from .commands import Commands
from .compaction import Compaction
from .credibility import Credibility
from .elections import Elections
from .electorate import Electorate
from .engine import PysyncobjEngine
from .following import Follower
from .forming import Forming
from .hand_over import HandOver
from .leading import Leader
from .links import Links
from .ports import HardState, Journal, Ports, RaftEvent, Severity, Snapshots, info
from .voter_changes import VoterChanges

Arguments = TypeVarTuple("Arguments")


class RaftCore:
    """A test's subclass names other types of parts, to show what a planted fault does."""

    electorate_type: type[Electorate] = Electorate
    leader_type: type[Leader] = Leader
    follower_type: type[Follower] = Follower
    changes_type: type[VoterChanges] = VoterChanges

    def __init__(
        self,
        *,
        node_id: int,
        membership: Membership,
        journal: Journal,
        hard_state: HardState,
        snapshots: Snapshots,
        listener: QuorumListener,
        policy: SnapshotPolicy,
        fatal: FatalHandler,
        ports: Ports,
    ) -> None:
        self._node_id = node_id
        self._clock = ports.clock
        self._wake = ports.wake
        self._report = ports.report
        self._listener = listener
        self._fatal = fatal
        self._reported = Leadership(leader_id=None, term=0, is_self=False)
        self._has_waited = False  # the last step has left its work to the next one
        self._position = (0, 0)  # committed and applied, at the end of the last step
        self.halted = False
        self.journal = journal
        self.electorate = electorate = self.electorate_type(node_id, membership)
        self.formation = formation = Formation(node_id, membership.current.ids, blank=hard_state.blank)
        sender = SnapshotSender(snapshots.read, ports.transport.backlog_bytes)
        self.engine = engine = PysyncobjEngine(node_id, electorate.other_ids, journal, hard_state, sender, ports)
        self.links = links = Links(electorate, formation, engine, ports)
        self.elections = elections = Elections(electorate, formation, engine, journal, ports)
        self.credibility = Credibility(node_id, engine, formation, elections, ports)
        self.forming = Forming(electorate, formation, engine, journal, hard_state, elections, ports)
        self.commands = Commands(engine, journal, ports)
        self.applier = Applier(node_id, engine, journal, self.commands, listener, ports)
        self.compaction = Compaction(journal, snapshots, membership, self.applier, listener, policy, ports)
        self.follower = self.follower_type(
            electorate, formation, engine, journal, snapshots, elections, links, self.applier, ports
        )
        self.leader = self.leader_type(
            electorate, formation, engine, journal, elections, sender, self.applier, self.commands, ports
        )
        self.hand_over = HandOver(electorate, engine, elections, ports)
        self.changes = self.changes_type(
            electorate, formation, engine, journal, elections, self.leader, links, self.hand_over, ports
        )
        self._handlers = self._table_of_handlers()
        journal.on_durable = lambda: self._guarded(self._flushed)
        links.changed()

    def _table_of_handlers(self) -> dict[type[Message], Callable[[int, Any], None]]:
        return {
            messages.AppendEntries: self.follower.on_append_entries,
            messages.InstallSnapshot: self.follower.on_install_snapshot,
            messages.AppendReply: self.leader.on_append_reply,
            messages.RequestVote: self.elections.on_request_vote,
            messages.Vote: self.elections.on_response_vote,
            messages.RequestPreVote: self.elections.on_pre_vote,
            messages.PreVote: self.elections.on_pre_vote_ok,
            messages.StaleTerm: self.elections.on_stale_term,
            messages.TimeoutNow: self.elections.on_timeout_now,
            messages.FormQuery: self.forming.on_form_query,
            messages.FormState: self.forming.on_form_state,
            messages.Formed: self.forming.on_formed,
            messages.Joined: self.forming.on_joined,
            messages.Welcome: self.forming.on_welcome,
        }

    # From outside

    @property
    def leadership(self) -> Leadership:
        engine = self.engine
        return Leadership(leader_id=engine.leader_id, term=engine.term, is_self=engine.is_leader)

    @property
    def committed_voters(self) -> VoterSet:
        """The configuration that is committed, as far as this node knows."""
        return self.electorate.membership.at(self.engine.commit_index)

    def connected(self, peer_id: int, state: VoterState, told: VoterState = VoterState.VOTER) -> None:
        """`told`: what the peer has been told of this node."""
        self._guarded(self._connected, peer_id, state, told)
        self._wake()

    def _connected(self, peer_id: int, state: VoterState, told: VoterState) -> None:
        self.engine.set_connected(peer_id, True)
        self.formation.peer_connected(peer_id, state)
        self.leader.peer_connected(peer_id)
        self.forming.correct(peer_id, told)
        if self.formation.peers.keys() >= set(self.electorate.other_ids):
            self.elections.campaign_at_once_if_first()
        self.leader.must_send = True

    def disconnected(self, peer_id: int) -> None:
        self._guarded(self._disconnected, peer_id)
        self._wake()

    def _disconnected(self, peer_id: int) -> None:
        was_leader = self.engine.leader_id == peer_id and not self.engine.is_leader
        self.engine.set_connected(peer_id, False)
        self.formation.peer_disconnected(peer_id)
        self.leader.peer_disconnected(peer_id)
        self.follower.peer_disconnected()
        if was_leader:
            self.elections.leader_link_lost()
        elif self.engine.voted_for == peer_id:
            self.elections.candidate_link_lost()

    def receive(self, peer_id: int, message: Message) -> None:
        self._guarded(self._take, peer_id, message)
        if type(message) is not messages.AppendReply or self._reply_needs_a_step:
            self._wake()

    @property
    def _reply_needs_a_step(self) -> bool:
        """Of each entry, the leader hears once more when it is committed already."""
        return self.leader.is_told_news or self.hand_over.is_open or self.changes.has_learner

    def _take(self, peer_id: int, message: Message) -> None:
        if self.credibility.believes(peer_id, message):
            self._handlers[type(message)](peer_id, message)

    def _flushed(self) -> None:
        """A leader's own copy counts; a follower has nothing to do but to answer."""
        if self.engine.is_leader and self.leader.may_commit:
            self._wake()
        self.follower.on_durable()

    def load(self, snapshot: Snapshot | None) -> None:
        """Restore the state on disk, before the first step. Raises what the listener raises."""
        if snapshot is not None:
            self.applier.restore(snapshot)

    def step(self) -> None:
        self._guarded(self._step)

    def tidy(self) -> None:
        """Now and then: mark in the journal what is durable."""
        self._guarded(self.journal.mark_durable)

    def abandon(self) -> None:
        """The end: settle everything that is still open."""
        self.halted = True
        self.commands.abandon()

    def stop(self) -> None:
        """Take no further step."""
        self.halted = True
        self.commands.close()

    def _guarded(self, work: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """The core's boundary. A failed disk, a listener that cannot apply, an internal error: all end in fail-stop."""
        if self.halted:
            return
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it was, half a transition has happened
            self._report(RaftEvent(Severity.CRITICAL, f"quorum failed node={self._node_id}", error))
            self._halt(f"{type(error).__name__}: {error}")

    def _halt(self, reason: str) -> None:
        """Stop for good, and report the reason."""
        if not self.halted:
            self.stop()
            self.journal.halt()
            self._report(RaftEvent(Severity.CRITICAL, f"quorum stopped node={self._node_id} reason={reason}"))
            self._fatal(reason)

    # The step

    def _step(self) -> None:
        if not self.engine.is_leader and self._waits_for_flush():
            return
        now = self._clock()
        engine, journal, leader, hand_over = self.engine, self.journal, self.leader, self.hand_over
        if self.formation.blank:
            self.forming.form_if_possible(now)
        self.elections.excuse_absence(now)
        if not engine.is_leader:
            self.elections.campaign_if_due(now)
        last_index = journal.last_index
        if engine.is_leader:
            leader.commit_what_a_majority_has()
            self.elections.give_up_if_isolated(now)
        self.applier.apply_committed()
        self._report_leadership()
        if self.commands.queue and not hand_over.is_open:
            self.commands.append_queued()
        self.changes.advance(now)
        hand_over.advance(now)
        position = (engine.commit_index, self.applier.applied_index)
        if position != self._position:
            self._position = position
            self.links.follow_commit()
            self.electorate.membership.applied(self.applier.applied_index)
        if engine.is_leader:
            leader.raise_barriers()
            leader.send_if_due(now, has_grown=last_index != journal.last_index)
        if engine.is_leader or last_index != journal.last_index:
            journal.sync_soon()
        if self.commands.outcomes:
            self.commands.deliver_outcomes()
        self.compaction.compact_if_due(now)

    def _waits_for_flush(self) -> bool:
        """The leader waits for the flush, and for nothing else that a follower does. Where entries are to be applied as well,
        that is left to the next step: in the pass of the loop between, the thread that flushes gets the interpreter."""
        journal = self.journal
        journal.sync_soon()
        waits = journal.durable_index < journal.last_index and self.applier.applied_index < self.engine.commit_index
        if waits and not self._has_waited:
            self._has_waited = True
            self._wake()
            return True
        self._has_waited = False
        return False

    def _report_leadership(self) -> None:
        engine, reported = self.engine, self._reported
        leader_id, term = engine.leader_id, engine.term
        if leader_id == reported.leader_id and term == reported.term and engine.is_leader == reported.is_self:
            return
        self._reported = self.leadership
        self._report(info(f"leadership node={self._node_id} leader={leader_id} term={term}"))
        self._listener.leadership_changed(self._reported)
