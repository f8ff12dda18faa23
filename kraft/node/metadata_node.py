"""`MetadataNode`: one node's view of the metadata, above the quorum: the image, the group slots, and the controller.

It is the quorum's listener and the controller's shell, and synchronous like both: its owner calls it only from the quorum's loop.
Its steps, per run of committed commands:

    replay (`metadata_state`) -> publish once -> answer waiting requests

While this node leads, its controller decides on an overlay of the appended records (see `controller`). It is activated only when
the ControllerRecord of its own term is committed, because then everything before it in the log is committed, too. As soon as an
append fails, the overlay is invalid: the controller is deactivated and, if this node still leads, claims the term again with
another ControllerRecord.
"""

import base64
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from barnabas.log.vocabulary.errors import BarnabasError, BrokerNotAvailableError, NotControllerError
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.quorum import CommittedCommand

from ..controller.controller import Controller
from ..group_state.group_state import GROUP_RECORDS, GroupState
from ..metadata.controller_errors import DivergentMetadataError
from ..metadata.controller_result import ControllerResult, Respond
from ..metadata.controller_settings import MAX_RECORDS_PER_COMMAND
from ..metadata.image import MetadataChanges, MetadataImage
from ..metadata.metadata_history import check_follower
from ..metadata.pending_appends import Answer, PendingAppend, PendingAppends, Waiter
from ..metadata.records import (
    ClusterRecord,
    ControllerRecord,
    Record,
    RecordBatch,
    UnknownRecordError,
    VotersRecord,
    encode_batch,
)
from ..metadata.requests import ControllerRequest
from ..quorum.quorum import AppendOutcome, Leadership, Quorum
from .metadata_feed import FeedRing, MetadataFeed
from .metadata_state import MetadataState
from .quarantine import MAX_SHOWN_LENGTH
from .snapshot import SnapshotError

logger = logging.getLogger("barnabas.quorum")

MAX_PENDING_RECORDS = 50_000  # appended and not committed: about 5 MB; more would only increase the waiting time
_MAX_WORK_PER_TICK = 100  # pieces of maintenance; the rest is done at the next tick
_CLAIM_BITS = 62  # of msgpack's and Kafka's 64
# Other brokers do not wait for them: a coordinator answers when the controller does, and the next coordinator of a slot reads its
# state at the record that moves it. Other brokers do wait for a claim.
_ONLY_ASKED = (*GROUP_RECORDS, ControllerRecord)
_NO_CHANGES = MetadataChanges()
_NOBODY = Leadership(leader_id=None, term=0, is_self=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPublication:
    """A publication to the broker: a new image and its changes."""

    image: MetadataImage
    changes: MetadataChanges
    group_records: tuple[tuple[int, Record], ...]  # with the index of their command, without void ones
    leader: Leadership
    is_active_controller: bool
    restored: bool = False  # from a snapshot: group state must be read again with `slot_snapshot`
    records: tuple[tuple[int, Record], ...] = ()  # of the image, with the index of their command, without void ones
    quarantined: tuple[str, ...] = ()  # committed records that could not be applied, since the start of this process
    keeps_image: bool = field(init=False)  # it differs from the one published before by its offset alone

    def __post_init__(self) -> None:
        keeps_image = not (self.records or self.restored) and self.changes == _NO_CHANGES
        object.__setattr__(self, "keeps_image", keeps_image)


class MetadataNode:
    """Composes the replayed state and the controller over a quorum; without one (an observer) it lives on the feed of another."""

    def __init__(
        self,
        *,
        node_id: int,
        controller: Controller,
        new_groups: Callable[[], GroupState],
        publish: Callable[[MetadataPublication], None],
        fatal: Callable[[str], None],
        rng: random.Random,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._publish_to = publish
        self._fatal = fatal
        self._rng = rng
        self._quorum: Quorum | None = None
        self.state = MetadataState(node_id=node_id, new_groups=new_groups)
        self._leadership = _NOBODY
        self._must_claim = False
        self._claims = 0
        self._pending = PendingAppends()
        self._feed = FeedRing()

    def attach(self, quorum: Quorum) -> None:
        """Connect to the quorum whose listener this is; once, before anything else. An observer is never attached."""
        assert self._quorum is None
        self._quorum = quorum

    @property
    def image(self) -> MetadataImage:
        return self.state.image

    @property
    def controller(self) -> Controller:
        return self._controller

    @property
    def is_active_controller(self) -> bool:
        return self._controller.is_active

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: ControllerRequest, now_ms: int, answer: Answer) -> None:
        """Decide. `answer` gets the response or a BarnabasError when everything that it is based on is committed."""
        if not self._controller.is_active:
            answer(NotControllerError(f"this broker is not the active controller{self._leader_hint()}"))
            return
        if self._pending.record_count >= MAX_PENDING_RECORDS:
            answer(BrokerNotAvailableError("the controller has too many changes waiting for the quorum; try again"))
            return
        self._prepare()
        try:
            result = self._controller.decide(request, now_ms)
        except BarnabasError as error:
            # A broker that knows more than this controller stops when it is refused; but a deposed controller also knows less.
            is_divergent = isinstance(error, DivergentMetadataError)
            if is_divergent:
                logger.error("node=%d event=broker_refused %s", self._node_id, error.message)
            result = ControllerResult(respond=_refuse(error), must_confirm=is_divergent)
        except Exception as error:  # noqa: BLE001 - a bug about one request must not end the quorum's thread
            result = ControllerResult(respond=_refuse(self._own_fault(f"no decision on {request!r}", error)))
        self._perform(result, answer)

    def tick(self, now_ms: int) -> None:
        """Maintenance: claim the term if that is due, and let the controller do work without requests."""
        if self._must_claim:
            self._claim()
        if self._controller.is_active:
            self._prepare()
        count = 0
        for _ in range(_MAX_WORK_PER_TICK):
            if not self._controller.is_active or self._pending.record_count >= MAX_PENDING_RECORDS:
                return
            if self._pending.has_open_piece(self._leadership.term, self._claims):
                return
            records = self._controller.tick(now_ms, occupied_slots=self.state.occupied_slots)
            if not records:
                return
            self._perform(ControllerResult(records=records, atomic=False), _nobody_waits)
            count += len(records)
            if count >= MAX_RECORDS_PER_COMMAND or self._controller.has_more_pieces:
                self._pending.note_piece(self._leadership.term)

    def _prepare(self) -> None:
        """Before any decision, so that every decision is based on the cluster's values and not on this node's file, and on
        brokers that have registered since a recovery."""
        records = self._controller.unset_cluster_settings()
        if records:
            self._perform(ControllerResult(records=records), _nobody_waits)
        former = self._controller.fence_former_processes(
            lambda: self._pending.has_open_piece(self._leadership.term, self._claims)
        )
        if former:
            self._perform(ControllerResult(records=former, atomic=False), _nobody_waits)
            self._pending.note_piece(self._leadership.term)

    def note_voters(self, voters: tuple[NodeAddress, ...], index: int) -> None:
        """The quorum has committed another configuration: publish it, unless that is in progress."""
        if self._controller.is_active and index > self._controller.overlay.voters_index:
            records = (VotersRecord(index=index, voters=voters),)
            self._perform(ControllerResult(records=records), _nobody_waits)

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When `tick` is due; None while this node has nothing to do by itself."""
        if self._must_claim:
            return now_ms
        return self._controller.next_deadline_ms(now_ms) if self._controller.is_active else None

    def _perform(self, result: ControllerResult, answer: Answer) -> None:
        term = self._leadership.term
        waiter = Waiter(answer=answer, respond=result.respond, wrote=bool(result.records))
        if result.must_confirm and not result.records:
            result = replace(result, records=self._proof())
        if not result.records:
            newest = self._pending.newest(term)
            if newest is None:
                waiter.committed(self.image.offset, self.image)
            else:
                newest.waiters.append(waiter)
            return
        pending = None
        for records in _commands(result):
            try:
                pending = PendingAppend(term=term, claim=self._claims, command=self._encode(records), records=records)
                self._controller.appended(records)  # first: a record that cannot be replayed must never be committed
                self._append(pending)
            except BarnabasError as error:  # too large for a command: nothing of it was appended
                self._forget_decision()
                answer(error)
                return
            except Exception as error:
                self._forget_decision()
                if answer is _nobody_waits:
                    raise  # maintenance would decide the same again and again
                answer(self._own_fault(f"its decision cannot be replayed: {records!r}", error))
                return
        assert pending is not None
        pending.waiters.append(waiter)

    def _forget_decision(self) -> None:
        """The overlay may contain records that were not appended: build it again."""
        if self._controller.is_active:
            pending = self._pending.since(self._leadership.term, self._claims)
            self._controller.committed(self.image, (), (item.records for item in pending))

    def _proof(self) -> tuple[Record, ...]:
        """Changes nothing, and only a controller that is not deposed can commit it. To have been the leader a moment ago is no
        proof: a process that was stopped reads messages that arrived before others elected its successor."""
        return (ControllerRecord(controller_id=self._node_id, controller_epoch=self._leadership.term),)

    def _own_fault(self, what: str, error: Exception) -> BarnabasError:
        shown = what[:MAX_SHOWN_LENGTH]
        logger.critical(
            "node=%d request refused by a bug of the controller, %s; report it", self._node_id, shown, exc_info=error
        )
        return BarnabasError(
            "the controller failed with an internal error, and changed nothing; its log has the details"
        )

    def _encode(self, records: tuple[Record, ...]) -> bytes:
        return encode_batch(RecordBatch(controller_epoch=self._leadership.term, records=records))

    def _append(self, pending: PendingAppend) -> None:
        assert self._quorum is not None, "an observer decides nothing"
        self._quorum.append(
            pending.command,
            term=pending.term,
            done=lambda outcome: self._append_done(pending, outcome),
            others_wait=pending.is_claim or any(not isinstance(record, _ONLY_ASKED) for record in pending.records),
        )
        self._pending.add(pending)

    def _append_done(self, pending: PendingAppend, outcome: AppendOutcome) -> None:
        if pending.settled:
            return  # settled by its commit already
        self._pending.remove(pending)
        if outcome is AppendOutcome.COMMITTED:
            # The same command was appended twice and only one was committed: which one makes no difference.
            for waiter in pending.waiters:
                waiter.committed(self.image.offset, self.image)
        if pending.term == self._leadership.term and self._leadership.is_self:
            self._controller.deactivate()
            self._must_claim = True
            self._publish()
        if outcome is not AppendOutcome.COMMITTED:
            for waiter in pending.waiters:
                waiter.failed(outcome, self._leader_hint())

    # --- leadership --------------------------------------------------------------------------------------------------

    def leadership_changed(self, leadership: Leadership) -> None:
        """See QuorumListener. A new leader claims its term; a former leader discards its uncommitted decisions."""
        continues = leadership.is_self and self._leadership.is_self and leadership.term == self._leadership.term
        self._leadership = leadership
        if not continues:
            self._controller.deactivate()
            self._must_claim = False
            if leadership.is_self:
                self._claim()
        self._publish()

    def _claim(self) -> None:
        """Append the first record of the term (and the cluster's name, if it has none): see `_activate`."""
        self._must_claim = False
        self._claims += 1
        term = self._leadership.term
        claim = self._rng.getrandbits(_CLAIM_BITS) or 1
        records: tuple[Record, ...] = (
            ControllerRecord(controller_id=self._node_id, controller_epoch=term, claim=claim),
        )
        if not self.image.cluster_id:
            # If an earlier leader's name is in the log but not committed yet, it will be replayed first, and this is void.
            records = (ClusterRecord(cluster_id=_fresh_cluster_id(self._rng)), *records)
        command = self._encode(records)
        self._append(PendingAppend(term=term, claim=self._claims, command=command, records=records, is_claim=True))

    def _leader_hint(self) -> str:
        leader_id = self._leadership.leader_id
        if leader_id is None:
            return "; no leader of the quorum is known"
        return f"; broker {leader_id} leads the quorum" + (" and is taking over" if self._leadership.is_self else "")

    # --- the listener of the quorum ----------------------------------------------------------------------------------

    def committed(self, commands: list[CommittedCommand]) -> None:
        """Replay, publish, answer. See QuorumListener."""
        if not commands:
            return
        try:
            replayed = self.state.apply(commands)
        except UnknownRecordError as error:
            self._fatal(str(error))
            return
        settled: list[tuple[int, PendingAppend]] = []
        for command in commands:
            self._feed.append(command)
            pending = self._pending.match(command)
            if pending is not None:
                settled.append((command.index, pending))
        self._follow_controller()
        self._advance_controller(replayed.records, settled)
        self._publish(
            changes=replayed.changes,
            records=tuple(replayed.records),
            group_records=tuple(replayed.group_records),
        )
        for index, pending in settled:
            for waiter in pending.waiters:
                waiter.committed(index, self.image)

    def _advance_controller(self, replayed: list[tuple[int, Record]], settled: list[tuple[int, PendingAppend]]) -> None:
        """Activate the controller when its claim is committed; else rebase its overlay onto the new image."""
        if self._controller.is_active:
            if replayed:
                pending = self._pending.since(self._leadership.term, self._claims)
                self._controller.committed(self.image, replayed, (item.records for item in pending))
            return
        now = (self._leadership.term, self._claims)
        claimed = any(pending.is_claim and (pending.term, pending.claim) == now for _, pending in settled)
        if claimed and self._leadership.is_self and not self._must_claim:
            self._controller.activate(self.image)

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        """Replace everything by a snapshot. See QuorumListener."""
        try:
            changes = self.state.restore(index, chunks)
        except SnapshotError as error:
            self._fatal(f"the snapshot at index {index} cannot be read: {error}")
            return
        self._controller.deactivate()
        self._must_claim = self._leadership.is_self
        self._follow_controller()
        self._feed.restart(self.image.offset)
        self._publish(changes=changes, restored=True)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """See QuorumListener."""
        return self.state.snapshot()

    # --- observers ---------------------------------------------------------------------------------------------------

    def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed | Callable[[], MetadataFeed]:
        """The next data for an observer at `after_offset`: about `max_bytes` of commands, or a snapshot if it is too old. The
        caller packs the snapshot by iterating over the result, in any thread: that takes longer than an election timeout.

        Commands of this quorum on top of the metadata of another history would make a third history, so an observer whose
        `applied` position contradicts gets none. Raises DivergentMetadataError.
        """
        if applied is not None:
            check_follower(self.image, node_id, applied)
        commands = self._feed.after(after_offset, max_bytes)
        if commands is not None:
            return MetadataFeed(commands=commands)
        offset, pack = self.image.offset, self.snapshot()
        return lambda: MetadataFeed(snapshot_index=offset, snapshot=tuple(pack()))

    def apply_feed(self, feed: MetadataFeed, leader: Leadership | None = None) -> None:
        """Follow another node's feed. Commands that were applied already are skipped, so a repeated answer does no harm.

        `leader` is the leader that the node follows. It is adopted without commands, too: nothing of a quorum that was restored
        from the past may be applied here, but its controller must learn of this broker to refuse it.
        """
        assert self._quorum is None, "a voter learns from its quorum only"
        if feed.snapshot_index is not None and feed.snapshot_index > self.image.offset:
            self.restore(feed.snapshot_index, feed.snapshot)
        self.committed([command for command in feed.commands if command.index > self.image.offset])
        if leader is not None and leader != self._leadership and self._is_news(leader, feed):
            self._leadership = leader
            self._publish()

    def _is_news(self, leader: Leadership, feed: MetadataFeed) -> bool:
        """An answer with commands may have been assembled just before its sender learned of the leader of their term. But where
        every answer has commands, an observer that has lost its leader must learn of it from one of them."""
        known = self._leadership
        is_empty = not feed.commands and feed.snapshot_index is None
        return is_empty or leader.term > known.term or (known.leader_id is None and leader.term == known.term)

    def leader_lost(self) -> None:
        """No voter that this observer can reach knows a leader. A shutdown, for example, must not wait for the last one."""
        assert self._quorum is None, "a voter learns from its quorum only"
        if self._leadership.leader_id is not None:
            self._leadership = Leadership(leader_id=None, term=self._leadership.term, is_self=False)
            self._publish()

    def _follow_controller(self) -> None:
        """An observer learns the leader from the record of a new controller, if not earlier from the voter that it follows."""
        if self._quorum is None and self.image.controller_epoch > self._leadership.term:
            self._leadership = Leadership(
                leader_id=self.image.controller_id, term=self.image.controller_epoch, is_self=False
            )

    def _publish(
        self,
        changes: MetadataChanges | None = None,
        records: tuple[tuple[int, Record], ...] = (),
        group_records: tuple[tuple[int, Record], ...] = (),
        restored: bool = False,
    ) -> None:
        self._publish_to(
            MetadataPublication(
                image=self.image,
                changes=changes or MetadataChanges(),
                records=records,
                group_records=group_records,
                leader=self._leadership,
                is_active_controller=self._controller.is_active,
                restored=restored,
                quarantined=self.state.quarantine.listed,
            )
        )


def _commands(result: ControllerResult) -> Iterable[tuple[Record, ...]]:
    if result.atomic:
        return (result.records,)
    starts = range(0, len(result.records), MAX_RECORDS_PER_COMMAND)
    return tuple(result.records[start : start + MAX_RECORDS_PER_COMMAND] for start in starts)


def _refuse(error: BarnabasError) -> Respond:
    return lambda index, image: error


def _nobody_waits(answer: object) -> None:
    """The answer to maintenance."""


def _fresh_cluster_id(rng: random.Random) -> str:
    """As Kafka's: 128 random bits in 22 letters, which do not begin like an option of a command line."""
    while True:  # ends: one in 64 begins with a dash
        cluster_id = base64.urlsafe_b64encode(rng.randbytes(16)).decode("ascii").rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id
