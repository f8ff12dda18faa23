"""The consensus core: pysyncobj 0.3.17 with the rules that make it safe (research/pysyncobj.md), driven by `step`.

No I/O, no asyncio, no threads here. Messages come in by `receive`, everything else happens in `step`: campaign,
count, apply, append, send once for all of it, compact, flush. Whatever goes wrong in between is a reason to stop the
process.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVarTuple

from barnabas.log.vocabulary.errors import InvalidRequestError

from ..quorum.config import (
    BATCH_BYTES,
    MAX_APPENDS_PER_STEP,
    MAX_APPLIED_PER_STEP,
    MAX_COMMAND_BYTES,
    MAX_PENDING_BYTES,
    MAX_PENDING_COMMANDS,
    RaftTiming,
    SnapshotPolicy,
)
from ..quorum.journal_format import Entry
from ..quorum.quorum import AppendOutcome, CommittedCommand, Leadership, QuorumListener
from ..quorum.voters import BOOTSTRAP_INDEX, MEMBERSHIP, Membership
from .disk.journal import DurableJournal
from .disk.snapshot import Snapshot, SnapshotStore
from .disk.storage import FatalHandler
from .internals import NO_OP, REGULAR, MessageTransport
from .membership import RaftMembership
from .net import messages
from .net.messages import Message
from .net.wire import Hello

_log = logging.getLogger("barnabas.quorum")

Arguments = TypeVarTuple("Arguments")
Done = Callable[[AppendOutcome], None]
_OF_THE_CORE = (NO_OP, MEMBERSHIP)  # entries that the listener does not hear of
_Queued = tuple[bytes | None, int, Done]  # command (None: a no-op), term, done


class RaftCore(RaftMembership):
    """Invariant: every `done` is in exactly one of `_queue`, `_waiting` and `_outcomes`, or was called."""

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
        policy: SnapshotPolicy,
        wake: Callable[[], None],
        wake_later: Callable[[float], None],
        fatal: FatalHandler,
    ) -> None:
        self._fatal = fatal
        self._policy = policy
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._waiting: dict[int, list[tuple[int, Done]]] = {}  # by index: the term it was appended in
        self._waiting_count = 0
        self._outcomes: deque[tuple[Done, AppendOutcome]] = deque()
        self._reported = Leadership(leader_id=None, term=0, is_self=False)
        self._snapshot_asked = False
        self.halted = False
        super().__init__(
            node_id=node_id,
            membership=membership,
            journal=journal,
            snapshots=snapshots,
            transport=transport,
            listener=listener,
            clock=clock,
            rng=rng,
            timing=timing,
            wake=wake,
            wake_later=wake_later,
            batch_bytes=BATCH_BYTES,
        )
        self._compact_after_entries = max(2, int(policy.entries * rng.uniform(0.8, 1.2)))
        self._compacted_at = clock()
        self._handlers: dict[type[Message], Callable[[int, Any], None]] = {
            messages.AppendEntries: self.on_append_entries,
            messages.InstallSnapshot: self.on_install_snapshot,
            messages.AppendReply: self.on_append_reply,
            messages.RequestVote: self.on_request_vote,
            messages.Vote: self.on_response_vote,
            messages.RequestPreVote: self.on_pre_vote,
            messages.PreVote: self.on_pre_vote_ok,
            messages.StaleTerm: self.on_stale_term,
            messages.TimeoutNow: self.on_timeout_now,
            messages.FormQuery: self.on_form_query,
            messages.FormState: self.on_form_state,
            messages.Formed: self.on_formed,
            messages.Joined: self.on_joined,
            messages.Welcome: self.on_welcome,
        }
        journal.on_durable = lambda: self._guarded(self.on_durable)
        self.links_changed()

    # From outside

    def append(self, command: bytes | None, term: int, done: Done) -> None:
        """`None` appends a no-op. Raises InvalidRequestError for a command that is too long."""
        size_bytes = len(command) if command is not None else 0
        if size_bytes > MAX_COMMAND_BYTES:
            raise InvalidRequestError(
                f"a metadata command of {size_bytes} bytes, allowed are {MAX_COMMAND_BYTES}: split it"
            )
        pending = len(self._queue) + self._waiting_count
        if self.halted or pending >= MAX_PENDING_COMMANDS or self._queued_bytes + size_bytes > MAX_PENDING_BYTES:
            self._outcomes.append((done, AppendOutcome.NOT_APPENDED))
        else:
            self._queue.append((command, term, done))
            self._queued_bytes += size_bytes
        self._wake()

    @property
    def leadership(self) -> Leadership:
        return Leadership(leader_id=self.leader_id, term=self.term, is_self=self.is_leader)

    def request_snapshot(self) -> None:
        self._snapshot_asked = True
        self._wake()

    def connected(self, peer_id: int, hello: Hello) -> None:
        self._guarded(self.on_connected, peer_id, hello)
        self._wake()

    def disconnected(self, peer_id: int) -> None:
        self._guarded(self.on_disconnected, peer_id)
        self._wake()

    def receive(self, peer_id: int, message: Message) -> None:
        self._guarded(self._take, peer_id, message)
        self._wake()

    def _take(self, peer_id: int, message: Message) -> None:
        if self.believes(peer_id, message):
            self._handlers[type(message)](peer_id, message)

    def load(self, snapshot: Snapshot | None) -> None:
        """Restore what was found on disk, before the first step. Raises what the listener raises."""
        if snapshot is not None:
            self.restore(snapshot)

    def step(self) -> None:
        self._guarded(self._step)

    def tidy(self) -> None:
        """Now and then: mark in the journal what is durable."""
        self._guarded(self.journal.onOneSecondTimer)

    def abandon(self) -> None:
        """The end: nobody will hear of what is still open."""
        self.halted = True
        while self._queue:
            self._outcomes.append((self._queue.popleft()[2], AppendOutcome.NOT_APPENDED))
        for index in sorted(self._waiting):
            self._settle(index, None)
        self._deliver_outcomes()

    def halt(self, reason: str) -> None:
        """Fail-stop: take no further step, and say why."""
        if not self.halted:
            self.halted = True
            self.journal.halt()
            _log.critical("quorum stopped node=%d reason=%s", self.node_id, reason)
            self._fatal(reason)

    def _guarded(self, work: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """The core's boundary. A failed disk, a listener that cannot apply, a bug of ours: all end in fail-stop."""
        if self.halted:
            return
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it was, half a transition has happened
            _log.critical("quorum failed node=%d", self.node_id, exc_info=error)
            self.halt(f"{type(error).__name__}: {error}")

    # The step

    def _step(self) -> None:
        now = self._clock()
        self.form_if_possible(now)
        self.campaign_if_due(now)
        before = (self.journal.last_index, self.commit_index)
        if self.is_leader:
            self.commit_what_a_majority_has()
            self.give_up_if_isolated(now)
        self._apply_committed()
        self._report_leadership()
        if not self.is_handing_over:
            self._append_queued()
        self.advance_membership(now)
        if self.is_leader:
            self.raise_barriers()
            moved = before != (self.journal.last_index, self.commit_index)
            if self.take_resend() or moved or self.heartbeat_is_due(now):
                self.send_entries()
        self._deliver_outcomes()
        self._compact_if_due(now)
        self.journal.sync_soon()

    def _apply_committed(self) -> None:
        first, count = self.applied_index + 1, self.commit_index - self.applied_index
        if count <= 0:
            return
        entries = self.journal.entries_from(first, min(count, MAX_APPLIED_PER_STEP))
        commands = [self._committed(entry) for entry in entries if entry[0][:1] not in _OF_THE_CORE]
        if commands:
            self.listener.committed(commands)
        self.applied_index = entries[-1][1]
        if self._waiting:
            for _, index, term in entries:
                self._settle(index, term)
        if self.applied_index < self.commit_index:
            self._wake()

    @staticmethod
    def _committed(entry: Entry) -> CommittedCommand:
        command, index, term = entry
        if command[:1] != REGULAR:
            raise ValueError(f"entry {index} is of kind {command[:1]!r}, which this version does not know")
        return CommittedCommand(index=index, term=term, command=command[1:])

    def _settle(self, index: int, committed_term: int | None) -> None:
        """Tell those who appended at `index` what became of it; a term of None: nobody knows."""
        waiting = self._waiting.pop(index, ())
        self._waiting_count -= len(waiting)
        for term, done in waiting:
            if committed_term is None:
                outcome = AppendOutcome.UNKNOWN
            else:
                outcome = AppendOutcome.COMMITTED if term == committed_term else AppendOutcome.DISCARDED
            self._outcomes.append((done, outcome))

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        for index in sorted(index for index in self._waiting if index <= snapshot.last_index):
            self._settle(index, None)

    def _append_queued(self) -> None:
        for _ in range(min(len(self._queue), MAX_APPENDS_PER_STEP)):
            command, term, done = self._queue.popleft()
            self._queued_bytes -= len(command) if command is not None else 0
            if not self.is_leader or term != self.term:
                self._outcomes.append((done, AppendOutcome.NOT_APPENDED))
                continue
            index = self.append_no_op() if command is None else self._append_command(command)
            self._waiting.setdefault(index, []).append((term, done))
            self._waiting_count += 1
        if self._queue:
            self._wake()

    def _append_command(self, command: bytes) -> int:
        index = self.journal.last_index + 1
        self.journal.add(REGULAR + command, index, self.term)
        return index

    def _deliver_outcomes(self) -> None:
        for _ in range(len(self._outcomes)):
            done, outcome = self._outcomes.popleft()
            done(outcome)
        if self._outcomes:
            self._wake()

    def _report_leadership(self) -> None:
        leadership = self.leadership
        if leadership != self._reported:
            self._reported = leadership
            _log.info("leadership node=%d leader=%s term=%d", self.node_id, leadership.leader_id, leadership.term)
            self.listener.leadership_changed(leadership)

    # Compaction

    def _compact_if_due(self, now: float) -> None:
        prev_index = self.snapshots.take_finished()
        if prev_index is not None and prev_index > self.journal.first_index:
            self.journal.deleteEntriesTo(prev_index - self.journal.first_index)
        if self.snapshots.may_begin and self._snapshot_is_due(now):
            self._snapshot_asked = False
            self._compacted_at = now
            prev, last = self.journal.entries_from(self.applied_index - 1, 2)
            voters = self.membership.at(self.applied_index)
            stored = voters if voters.index != BOOTSTRAP_INDEX else None
            self.snapshots.begin(last, prev, self.listener.snapshot(), stored)

    def _snapshot_is_due(self, now: float) -> bool:
        fresh = self.applied_index - self.journal.first_index - 1  # entries that a snapshot would replace
        if self.applied_index < 2 or fresh < 1:
            self._snapshot_asked = False
            return False
        old = now - self._compacted_at >= self._policy.interval_s and fresh >= self._policy.interval_entries
        return self._snapshot_asked or old or fresh >= self._compact_after_entries
