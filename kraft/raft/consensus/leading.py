"""The leader's view: which entries followers have on disk, and the commit index that follows.

Stock pysyncobj does not tag acknowledgements with their term, resets next_index for each acknowledgement, and counts entries
that are not on disk.
"""

from ...quorum.formation import Formation
from ...quorum.journal_format import NO_OP
from ..protocol.messages import AppendReply, Welcome
from ..protocol.snapshot_transfer import SnapshotSender
from .applying import Applier
from .commands import Commands
from .elections import Elections
from .electorate import Electorate
from .engine import PysyncobjEngine
from .ports import Journal, Ports

LATER = float("inf")
# At the first tick after such a part of it, the others learn of commits for which they do not wait.
TELLS_PER_HEARTBEAT = 8


class Leader:
    """Invariant: match index of a peer <= what it has on disk, in this term."""

    def __init__(
        self,
        electorate: Electorate,
        formation: Formation,
        engine: PysyncobjEngine,
        journal: Journal,
        elections: Elections,
        sender: SnapshotSender,
        applier: Applier,
        commands: Commands,
        ports: Ports,
    ) -> None:
        self._electorate = electorate
        self._formation = formation
        self._engine = engine
        self._journal = journal
        self._elections = elections
        self._transport = ports.transport
        self._sender = sender
        self._applier = applier
        self._commands = commands
        self._clock = ports.clock
        self._quiet_s = ports.timing.heartbeat_s / TELLS_PER_HEARTBEAT
        self._learned: dict[int, int] = {}  # what blank peers have on disk; it does not count
        self._led_term: int | None = None
        self._tell_at = LATER  # of commits that the others do not know
        self.must_send = False  # at the next step, whatever has moved
        self.is_told_news = False  # by the last answer: it may change what is committed, sent, or who leads

    def peer_connected(self, peer_id: int) -> None:
        if not self._formation.counts(peer_id):
            self._learned[peer_id] = 0
            self._engine.set_match(peer_id, 0)  # what it had acknowledged it may have forgotten

    def peer_disconnected(self, peer_id: int) -> None:
        self._sender.cancel(peer_id)

    def on_append_reply(self, peer_id: int, message: AppendReply) -> None:
        engine = self._engine
        self.is_told_news = not message.is_success or message.is_reset
        if message.term > engine.term and not self._formation.blank:
            self.is_told_news = True
            self._elections.step_down(message.term)
        if message.term != engine.term or not engine.is_leader:
            return
        if message.is_reset:
            upper = self._journal.last_index + 1
            engine.set_next(peer_id, max(engine.match_of(peer_id) + 1, min(message.next_index, upper)))
            self.must_send = True
        if self._sender.is_sending_to(peer_id):
            self.must_send = True
        self.is_told_news |= self.must_send or not self._formation.counts(peer_id)
        if not self._formation.counts(peer_id):
            self._learner_progressed(peer_id, message)
            return
        engine.set_heard(peer_id, self._clock())
        if message.is_success:
            match_index = min(message.next_index - 1, self._journal.last_index)
            engine.set_match(peer_id, max(match_index, engine.match_of(peer_id)))
            engine.set_next(peer_id, max(engine.next_of(peer_id), match_index + 1))
            self.is_told_news |= self.may_commit

    def _learner_progressed(self, peer_id: int, message: AppendReply) -> None:
        """The acknowledgement of a blank peer: it advances next_index only; it counts for neither commit nor leadership."""
        if message.is_success:
            self._learned[peer_id] = max(self._learned.get(peer_id, 0), message.next_index - 1)
            self._engine.set_next(peer_id, max(self._engine.next_of(peer_id), message.next_index))
        learned = self._learned.get(peer_id, 0)
        barrier = self._formation.may_welcome(peer_id, learned, self._engine.commit_index)
        if barrier is not None:
            self._transport.send(peer_id, Welcome(term=self._engine.term, index=barrier))

    def commit_what_a_majority_has(self) -> None:
        """The median of what is on disk, ours included; by counting only entries of this term (paper, 5.4.2)."""
        engine = self._engine
        index = self._majority_index()
        if index > engine.commit_index and self._journal.term_at(index) == engine.term:
            self.must_send |= self._commands.do_others_wait(engine.commit_index + 1, index)
            self._tell_at = min(self._tell_at, self._clock() + self._quiet_s)
            self._applier.commit(index)

    @property
    def may_commit(self) -> bool:
        """Whether the next step would commit something."""
        return self._majority_index() > self._engine.commit_index

    def _majority_index(self) -> int:
        engine, electorate = self._engine, self._electorate
        durable = engine.matches_of(self._formation.counting(electorate.other_ids))
        durable += [0] * (len(electorate.other_ids) - len(durable))
        if electorate.is_voter:
            durable.append(self._journal.durable_index)
        durable.sort(reverse=True)
        return durable[electorate.majority - 1]

    def raise_barriers(self) -> None:
        """Give every blank peer an entry to learn that is committed without it."""
        term = self._engine.term
        if self._led_term != term:
            self._led_term = term
            self._formation.barriers.clear()
            self._learned.clear()
        blank = self._formation.peers_without_barrier()
        if blank:
            index = self._journal.last_index + 1
            self._journal.add(NO_OP, index, term)
            for peer_id in blank:
                self._formation.barriers[peer_id] = index

    def send_if_due(self, now: float, *, has_grown: bool) -> None:
        """`has_grown`: the log, in this step. Each message tells the commit index, too."""
        must_send, self.must_send = self.must_send, False
        if must_send or has_grown or now >= self._tell_at or self._engine.heartbeat_is_due(now):
            self._tell_at = LATER
            self._engine.send_entries()
            self._transport.flush()  # the others write to their disks while this node writes to its own
