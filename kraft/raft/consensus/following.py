"""As follower: AppendEntries as in the paper (5.3), acknowledgements only of what is durable.

Stock pysyncobj truncates everything behind prevLogIdx (also what matches and was acknowledged), backs up one entry per
heartbeat, and moves the commit index over entries that it has not compared.
"""

from ...quorum.formation import Formation
from ...quorum.snapshot_format import DamagedSnapshot, Snapshot
from ..protocol.messages import AppendEntries, AppendReply, Chunk, InstallSnapshot, StaleTerm
from ..protocol.snapshot_transfer import SnapshotReceiver
from .applying import Applier
from .elections import NEVER, Elections
from .electorate import Electorate
from .engine import PysyncobjEngine
from .links import Links
from .ports import Journal, Ports, Snapshots, error, info


class LogDiverged(Exception):
    """A leader tries to replace committed entries: a voter has lost acknowledged entries. The process must stop."""


class Follower:
    """Invariant: what was acknowledged is on disk, and is never truncated in the term of the acknowledgement."""

    def __init__(
        self,
        electorate: Electorate,
        formation: Formation,
        engine: PysyncobjEngine,
        journal: Journal,
        snapshots: Snapshots,
        elections: Elections,
        links: Links,
        applier: Applier,
        ports: Ports,
    ) -> None:
        self._electorate = electorate
        self._formation = formation
        self._engine = engine
        self._journal = journal
        self._snapshots = snapshots
        self._elections = elections
        self._links = links
        self._applier = applier
        self._transport = ports.transport
        self._clock = ports.clock
        self._heartbeat_s = ports.timing.heartbeat_s
        self._report = ports.report
        self._receiver = SnapshotReceiver()
        self._unacknowledged: tuple[int, int, int] | None = None  # (leader, term, match index) that waits for the disk
        self._replied_at = NEVER
        self._acknowledged: tuple[int, int, int] | None = None  # (leader, term, match index) of the last success

    def peer_disconnected(self) -> None:
        """The last acknowledgement may be lost with the link."""
        self._acknowledged = None

    def on_append_entries(self, peer_id: int, message: AppendEntries) -> None:
        if not self._follows(peer_id, message.term):
            return
        restart_at = self._conflict(message.prev_index, message.prev_term)
        if restart_at is not None:
            self._reply(peer_id, restart_at, reset=True, success=False)
            return
        match_index = self._store(message)
        if message.entries or not self._is_acknowledged(peer_id, match_index):
            self._acknowledge_when_durable(peer_id, match_index)
        self._applier.commit(min(message.commit_index, match_index))

    def on_install_snapshot(self, peer_id: int, message: InstallSnapshot) -> None:
        if self._follows(peer_id, message.term):
            self._take_chunk(peer_id, message)

    def _follows(self, peer_id: int, term: int) -> bool:
        """Whether the sender leads. A sender of an earlier term receives our term."""
        if term < self._engine.term:
            self._transport.send(peer_id, StaleTerm(term=self._engine.term))
            return False
        assert not (term == self._engine.term and self._engine.is_leader), "refused before"
        self._elections.note_leader(peer_id, term)
        return True

    def _conflict(self, prev_index: int, prev_term: int) -> int | None:
        """Where the leader should go on instead, or None where our log matches its own at `prev_index`.

        On a conflict we go back by a whole term: one round trip per term, not one per entry (the paper's 5.3, end).
        """
        journal = self._journal
        if prev_index > journal.last_index or prev_index < journal.first_index:
            return journal.last_index + 1
        bad_term = journal.term_at(prev_index)
        if bad_term == prev_term:
            return None
        floor = max(journal.first_index, self._engine.commit_index)
        index = prev_index
        while index - 1 > floor and journal.term_at(index - 1) == bad_term:
            index -= 1
        return index

    def _store(self, message: AppendEntries) -> int:
        """Append what is new; remove only what conflicts. Return the last index that now matches the leader's log."""
        journal = self._journal
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
            changed |= self._electorate.membership.appended(entry)
        if changed:
            self._links.voters_changed()
        return entries[-1][1] if entries else message.prev_index

    def _truncate(self, index: int, term: int) -> None:
        if index <= self._engine.commit_index:
            raise LogDiverged(self._divergence(index, term))
        self._report(
            info(f"entries overwritten node={self._electorate.node_id} from={index} to={self._journal.last_index}")
        )
        self._journal.truncate_from(index)
        if self._electorate.membership.truncated(index):
            self._links.voters_changed()

    def _divergence(self, index: int, term: int) -> str:
        engine, electorate = self._engine, self._electorate
        return (
            f"the quorum has lost committed metadata: its leader, voter {engine.leader_id}, replaces entry {index} of term "
            f"{self._journal.term_at(index)} by one of term {term}, and this voter {electorate.node_id} saw everything up to "
            f"{engine.commit_index} committed. So a majority of the voters ({sorted(electorate.other_ids)} without this one) "
            "runs on older copies of __cluster_metadata: restored from a backup, from a snapshot of the machine, or emptied. "
            "Stop those voters, compare the folders with `barnabas cluster recover --config FILE` (it changes nothing), and make "
            "the newest one, probably this one, the quorum with `--accept-loss`; then empty __cluster_metadata of the others"
        )

    def _is_acknowledged(self, leader_id: int, match_index: int) -> bool:
        """Whether the leader has this acknowledgement, and a recent sign of life. Most messages without entries only tell a new
        commit index. A blank voter answers all of them: that is when the leader welcomes it."""
        return (
            self._acknowledged == (leader_id, self._engine.term, match_index)
            and self._clock() - self._replied_at < self._heartbeat_s / 2
            and not self._formation.blank
        )

    def _acknowledge_when_durable(self, leader_id: int, match_index: int) -> None:
        if match_index <= self._journal.durable_index:
            self._reply(leader_id, match_index + 1, reset=False, success=True)
            return
        waiting = self._unacknowledged
        if waiting is None or waiting[1] != self._engine.term or waiting[2] < match_index:
            self._unacknowledged = (leader_id, self._engine.term, match_index)
        if waiting is not None and self._clock() - self._replied_at >= self._heartbeat_s:
            self._give_sign_of_life(leader_id)

    def on_durable(self) -> None:
        """A flush is done: acknowledge what it covers (under load something newer always waits for the next one)."""
        if self._unacknowledged is None:
            return
        leader_id, term, match_index = self._unacknowledged
        if term != self._engine.term or match_index <= self._journal.durable_index:
            self._unacknowledged = None
        if term == self._engine.term:
            covered = min(match_index, self._journal.durable_index)
            self._reply(leader_id, covered + 1, reset=False, success=True)
            self._transport.flush()

    def _give_sign_of_life(self, leader_id: int) -> None:
        """Neither success nor reset. A leader resigns without it, if a flush or a snapshot takes its only follower longer."""
        self._reply(leader_id, self._journal.durable_index + 1, reset=False, success=False)

    def _reply(self, leader_id: int, next_index: int, *, reset: bool, success: bool) -> None:
        self._replied_at = self._clock()
        self._acknowledged = (leader_id, self._engine.term, next_index - 1) if success else None
        self._transport.send(
            leader_id, AppendReply(term=self._engine.term, next_index=next_index, is_reset=reset, is_success=success)
        )

    def _take_chunk(self, peer_id: int, message: InstallSnapshot) -> None:
        snapshot = self._received(message.chunk) if message.chunk is not None else None
        if snapshot is None:
            self._give_sign_of_life(peer_id)
            return
        self.install(snapshot)
        self._acknowledge_when_durable(peer_id, snapshot.last_index)

    def _received(self, chunk: Chunk) -> Snapshot | None:
        """The whole snapshot, when `chunk` was the last one of it."""
        try:
            return self._receiver.receive(chunk)
        except DamagedSnapshot as damage:
            self._report(error(f"snapshot from the leader refused: {damage}"))
            return None

    def install(self, snapshot: Snapshot) -> None:
        """Replace the state by the leader's. A snapshot behind our own state is only acknowledged."""
        if snapshot.last_index <= self._applier.applied_index:
            return
        self._snapshots.install(snapshot)
        _, last_index, last_term = snapshot.last
        self._journal.reconcile(last_index, last_term, snapshot.prev, snapshot.last)
        behind = self._journal.entries_from(snapshot.last_index + 1, len(self._journal))
        self._electorate.membership.restored(snapshot.voters, behind)
        self._links.voters_changed()
        self._applier.restore(snapshot)
