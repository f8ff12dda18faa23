"""How entries get to followers and count: AppendEntries as in the paper (5.3), acknowledgements only of what is
durable.

Stock truncates everything behind prevLogIdx (also what matches and was acknowledged), backs up one entry per
heartbeat, moves the commit index over entries that it has not compared, and does not tag acknowledgements with their
term.
"""

import logging
import random
from collections.abc import Callable

from ..quorum.config import RaftTiming
from ..quorum.quorum import QuorumListener
from ..quorum.voters import Membership
from .disk.journal import DurableJournal
from .disk.snapshot import Snapshot, SnapshotReceiver, SnapshotSender, SnapshotStore
from .elections import RaftElections
from .internals import NO_OP, MessageTransport
from .net.messages import AppendEntries, AppendReply, InstallSnapshot, StaleTerm, Welcome
from .net.wire import Hello

_log = logging.getLogger("barnabas.quorum")


class LogDiverged(Exception):
    """A leader wants committed entries replaced: somebody has lost what was acknowledged. Never go on."""


class RaftReplication(RaftElections):
    """Invariant: match index of a peer <= what it has on disk, in this term."""

    def __init__(
        self,
        *,
        node_id: int,
        membership: Membership,
        journal: DurableJournal,
        snapshots: SnapshotStore,
        transport: MessageTransport,
        listener: QuorumListener,
        clock: Callable[[], float],
        rng: random.Random,
        timing: RaftTiming,
        wake: Callable[[], None],
        wake_later: Callable[[float], None],
        batch_bytes: int,
    ) -> None:
        self.snapshots = snapshots
        self.listener = listener
        self._receiver = SnapshotReceiver()
        self._sender = SnapshotSender(snapshots.read, transport.backlog_bytes)
        self._unacknowledged: tuple[int, int, int] | None = None  # (leader, term, match index) that waits for the disk
        self._resend = False
        self._learned: dict[int, int] = {}  # what blank peers have on disk; it does not count
        self._led_term: int | None = None
        super().__init__(
            node_id=node_id,
            membership=membership,
            journal=journal,
            transport=transport,
            sender=self._sender,
            clock=clock,
            rng=rng,
            timing=timing,
            wake=wake,
            wake_later=wake_later,
            batch_bytes=batch_bytes,
        )

    # Links

    def on_connected(self, peer_id: int, hello: Hello) -> None:
        self.set_connected(peer_id, True)
        self.formation.peer_connected(peer_id, hello.state)
        if not self.formation.counts(peer_id):
            self._learned[peer_id] = 0
            self.set_match(peer_id, 0)  # what it had acknowledged it may have forgotten
        if self.formation.peers.keys() >= set(self.other_ids):
            self.campaign_at_once_if_first()
        self._resend = True

    def on_disconnected(self, peer_id: int) -> None:
        was_leader = self.leader_id == peer_id and not self.is_leader
        self.set_connected(peer_id, False)
        self.formation.peer_disconnected(peer_id)
        self._sender.cancelTransmisstion(self.node_of[peer_id])
        if was_leader:
            self.leader_link_lost()

    # As follower

    def on_append_entries(self, peer_id: int, message: AppendEntries) -> None:
        if not self._follows(peer_id, message.term):
            return
        restart_at = self._conflict(message.prev_index, message.prev_term)
        if restart_at is not None:
            self._reply(peer_id, restart_at, reset=True, success=False)
            return
        match_index = self._store(message)
        self._acknowledge_when_durable(peer_id, match_index)
        self.advance_commit(min(message.commit_index, match_index))

    def on_install_snapshot(self, peer_id: int, message: InstallSnapshot) -> None:
        if self._follows(peer_id, message.term):
            self._take_chunk(peer_id, message)

    def _follows(self, peer_id: int, term: int) -> bool:
        """Whether the sender leads; one of an earlier term is told."""
        if term < self.term:
            self.tell(peer_id, StaleTerm(term=self.term))
            return False
        assert not (term == self.term and self.is_leader), "refused before"
        self.note_leader(peer_id, term)
        return True

    def _conflict(self, prev_index: int, prev_term: int) -> int | None:
        """Where the leader should go on instead, or None where our log matches its own at `prev_index`.

        On a conflict we go back by a whole term: one round trip per term, not one per entry (the paper's 5.3, end).
        """
        journal = self.journal
        if prev_index > journal.last_index or prev_index < journal.first_index:
            return journal.last_index + 1
        bad_term = journal.term_at(prev_index)
        if bad_term == prev_term:
            return None
        floor = max(journal.first_index, self.commit_index)
        index = prev_index
        while index - 1 > floor and journal.term_at(index - 1) == bad_term:
            index -= 1
        return index

    def _store(self, message: AppendEntries) -> int:
        """Append what is new; remove only what conflicts. Return the last index that now matches the leader's log."""
        journal = self.journal
        entries = message.entries
        known = 0
        while known < len(entries) and entries[known][1] <= journal.last_index:
            if journal.term_at(entries[known][1]) != entries[known][2]:
                self._truncate(entries[known][1], entries[known][2])
                break
            known += 1
        changed = False
        for entry in entries[known:]:
            journal.add(*entry)
            changed |= self.membership.appended(entry)
        if changed:
            self.voters_changed()
        return entries[-1][1] if entries else message.prev_index

    def _truncate(self, index: int, term: int) -> None:
        if index <= self.commit_index:
            raise LogDiverged(
                f"the quorum has lost committed metadata: its leader, voter {self.leader_id}, replaces entry {index} of term "
                f"{self.journal.term_at(index)} by one of term {term}, and this voter {self.node_id} saw everything up to "
                f"{self.commit_index} committed. So a majority of the voters ({sorted(self.other_ids)} without this one) runs on "
                "older copies of __cluster_metadata: restored from a backup, from a snapshot of the machine, or emptied. Stop "
                "those voters, compare the folders with `barnabas cluster recover --config FILE` (it changes nothing), and make "
                "the newest one, probably this one, the quorum with `--accept-loss`; then empty __cluster_metadata of the others"
            )
        _log.info("entries overwritten node=%d from=%d to=%d", self.node_id, index, self.journal.last_index)
        self.journal.deleteEntriesFrom(index - self.journal.first_index)
        if self.membership.truncated(index):
            self.voters_changed()

    def voters_changed(self) -> None:
        """Another configuration is in force, by an entry that came or went."""
        self._take_voters()
        self.formation.set_voters(self.membership.current.ids)
        self.links_changed()
        current = self.membership.current
        _log.info("voters node=%d index=%d voters=%s", self.node_id, current.index, sorted(current.ids))

    def links_changed(self) -> None:
        """Whom we send to and listen to follows from the configurations."""
        raise NotImplementedError

    def _acknowledge_when_durable(self, leader_id: int, match_index: int) -> None:
        if match_index <= self.journal.durable_index:
            self._reply(leader_id, match_index + 1, reset=False, success=True)
            return
        waiting = self._unacknowledged
        if waiting is None or waiting[1] != self.term or waiting[2] < match_index:
            self._unacknowledged = (leader_id, self.term, match_index)

    def on_durable(self) -> None:
        """A flush is done: acknowledge what it covers (under load something newer always waits for the next one)."""
        self._wake()
        if self._unacknowledged is None:
            return
        leader_id, term, match_index = self._unacknowledged
        if term != self.term or match_index <= self.journal.durable_index:
            self._unacknowledged = None
        if term == self.term:
            covered = min(match_index, self.journal.durable_index)
            self._reply(leader_id, covered + 1, reset=False, success=True)

    def _reply(self, leader_id: int, next_index: int, *, reset: bool, success: bool) -> None:
        self.tell(leader_id, AppendReply(term=self.term, next_index=next_index, is_reset=reset, is_success=success))

    def _take_chunk(self, peer_id: int, message: InstallSnapshot) -> None:
        chunk = message.chunk
        snapshot = self._receiver.receive(chunk) if chunk is not None else None
        if snapshot is None:
            # Neither success nor reset: it says that we are here, or a leader that sends to us alone would give up.
            self._reply(peer_id, self.journal.last_index + 1, reset=False, success=False)
            return
        self.install(snapshot)
        self._acknowledge_when_durable(peer_id, snapshot.last_index)

    def install(self, snapshot: Snapshot) -> None:
        """Replace the state by the leader's. A snapshot behind our own state is only acknowledged."""
        if snapshot.last_index <= self.applied_index:
            return
        self.snapshots.install(snapshot)
        _, last_index, last_term = snapshot.last
        self.journal.reconcile(last_index, last_term, snapshot.prev, snapshot.last)
        behind = self.journal.entries_from(snapshot.last_index + 1, len(self.journal))
        self.membership.restored(snapshot.voters, behind)
        self.voters_changed()
        self.restore(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        _log.info("snapshot restored node=%d index=%d bytes=%d", self.node_id, snapshot.last_index, len(snapshot.data))
        self.listener.restore(snapshot.last_index, snapshot.chunks())
        self.applied_index = snapshot.last_index
        self.commit_index = max(self.commit_index, snapshot.last_index)

    # As leader

    def on_append_reply(self, peer_id: int, message: AppendReply) -> None:
        if message.term > self.term and not self.formation.blank:
            self.step_down(message.term)
        if message.term != self.term or not self.is_leader:
            return
        if message.is_reset:
            upper = self.journal.last_index + 1
            self.set_next(peer_id, max(self.match_of(peer_id) + 1, min(message.next_index, upper)))
            self._resend = True
        if self._sender.is_sending_to(peer_id):
            self._resend = True
        if not self.formation.counts(peer_id):
            self._learner_progressed(peer_id, message)
            return
        self.set_heard(peer_id, self._clock())
        if message.is_success:
            match_index = min(message.next_index - 1, self.journal.last_index)
            self.set_match(peer_id, max(match_index, self.match_of(peer_id)))
            self.set_next(peer_id, max(self.next_of(peer_id), match_index + 1))

    def _learner_progressed(self, peer_id: int, message: AppendReply) -> None:
        """A blank peer's acknowledgement: it moves the sending, never the commit, and not our right to lead."""
        if message.is_success:
            self._learned[peer_id] = max(self._learned.get(peer_id, 0), message.next_index - 1)
            self.set_next(peer_id, max(self.next_of(peer_id), message.next_index))
        barrier = self.formation.may_welcome(peer_id, self._learned.get(peer_id, 0), self.commit_index)
        if barrier is not None:
            self.tell(peer_id, Welcome(term=self.term, index=barrier))

    def raise_barriers(self) -> None:
        """Give every blank peer an entry to learn that is committed without it."""
        if self._led_term != self.term:
            self._led_term = self.term
            self.formation.barriers.clear()
            self._learned.clear()
        blank = self.formation.peers_without_barrier()
        if blank:
            self.append_no_op()
            for peer_id in blank:
                self.formation.barriers[peer_id] = self.journal.last_index

    def append_no_op(self) -> int:
        index = self.journal.last_index + 1
        self.journal.add(NO_OP, index, self.term)
        return index

    def commit_what_a_majority_has(self) -> None:
        """The median of what is on disk, ours included; by counting only entries of this term (paper, 5.4.2)."""
        durable = [self.match_of(peer) if self.formation.counts(peer) else 0 for peer in self.other_ids]
        if self.is_voter:
            durable.append(self.journal.durable_index)
        durable.sort(reverse=True)
        index = durable[self.majority - 1]
        if index > self.commit_index and self.journal.term_at(index) == self.term:
            self.advance_commit(index)

    def advance_commit(self, index: int) -> None:
        if index > self.commit_index:
            self.commit_index = index
            self._wake()

    def take_resend(self) -> bool:
        resend, self._resend = self._resend, False
        return resend
