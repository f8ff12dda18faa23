"""The coordinator of one slot: all groups whose id hashes to it. A pure machine; a broker hosts several.

The shell around it (net) has these duties:

- append the records of each result to the quorum, as one atomic batch, in the order of the results. Only results that do
  nothing but commit and forget offsets (and a group after its last offset) may be cut where they are too long;
- send an answer only when its records and those of all earlier results are committed, even if it has no records itself;
- send no answer of a result whose append failed: drop this object, with all answers that wait, and build a new one
  from the committed state (the records were already replayed here, and there is no way back). Where the outcome of an
  append is *unknown*, its records may still come: build the new one only with a newer coordinator epoch from the
  controller, which makes the old records void;
- answer a ticket (a parked join, sync or heartbeat) when the result that names it in `answers` is committed; when this object is
  dropped, refuse all tickets that are left with a retriable error: their clients ask again;
- drop it likewise when a handler raises anything but a BarnabasError. A BarnabasError is raised before any record is
  made; it is the answer, and waits for earlier results like any other;
- call `tick` at `next_deadline_ms`, and `topics_changed` when an image brings other partitions (`take_topics` while nothing in
  the slot follows topics). The first tick after construction finishes what the last coordinator left undone.
"""

import random
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from barnabas.kraft.group_state.group_slots import PartitionKey, SlotState, slot_of
from barnabas.kraft.metadata.records import Record
from barnabas.log.vocabulary.errors import GroupIdNotFoundError, InconsistentGroupProtocolError, NotCoordinatorError
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetToCommit,
    PartitionOutcome,
    SyncGroupRequest,
    UndoOffsetResetResponse,
)

from .classic.membership import ClassicMembership
from .explain.describe import described, listed
from .explain.explain import GroupExplanation, explained
from .explain.group_view import GroupView
from .explain.rebalance_tracker import RebalanceTracker
from .explain.watch import GroupAlert, Watch
from .members.membership import USUAL_INTERVAL, Membership
from .members.targets import Targets
from .model.classic_messages import LeaveOutcome, Ticket
from .model.deadlines import Deadlines, earliest_ms
from .model.decision import Decision
from .model.messages import CommitPlace, CoordinatorResult, GroupDescription, ListedGroup
from .model.rebalance_log import RebalanceLog, RebalanceNews
from .model.settings import GroupSettings
from .offsets.offset_expiry import OffsetExpiry
from .offsets.offset_resets import OffsetResets
from .offsets.offsets import NO_IDS, Offsets
from .subscriptions.match_budget import MatchBudget
from .subscriptions.subscriptions import TopicsView

R = TypeVar("R")


class GroupCoordinator:
    """`records` rebuild the slot (`GroupSlots.view`); `topics` is not copied, so it must never be changed."""

    def __init__(
        self,
        *,
        slot: int,
        coordinator_epoch: int,
        records: Iterable[Record],
        rng: random.Random,
        topics: TopicsView,
        now_ms: int,
        settings: GroupSettings | None = None,
        moved_from: str = "",
        match_budget: MatchBudget | None = None,
    ) -> None:
        """`moved_from`: the previous coordinator, as text, if it is known. `match_budget` belongs to the event loop; all its
        coordinators share it."""
        settings = self.settings = settings or GroupSettings()
        self.rng = rng
        if isinstance(records, SlotState):
            self.state = records.copy()  # the same, in a hundredth of the time
        else:
            self.state = SlotState(slot=slot)
            for record in records:
                self.replay(record)
        if not self.state.moved(coordinator_epoch):
            raise NotCoordinatorError(f"slot {slot} has moved on to coordinator epoch {self.state.coordinator_epoch}")
        self._log = RebalanceLog()
        self._targets = Targets(
            state=self.state,
            settings=settings,
            topics=topics,
            log=self._log,
            budget=match_budget or MatchBudget(now_ms),
            now_ms=now_ms,
        )
        self._membership = Membership(
            state=self.state, settings=settings, targets=self._targets, rng=rng, now_ms=now_ms
        )
        self._classic = ClassicMembership(state=self.state, settings=settings, log=self._log, rng=rng, now_ms=now_ms)
        self.offsets = Offsets(
            state=self.state,
            settings=settings,
            targets=self._targets,
            classic=self._classic,
        )
        self._resets = OffsetResets(
            state=self.state, offsets=self.offsets, membership=self._membership, classic=self._classic
        )
        self._expiry = OffsetExpiry(
            state=self.state,
            settings=settings,
            targets=self._targets,
            classic=self._classic,
            offsets=self.offsets,
            now_ms=now_ms,
        )
        self.view = GroupView(
            state=self.state,
            settings=settings,
            log=self._log,
            targets=self._targets,
            membership=self._membership,
            classic=self._classic,
        )
        self._watch = Watch(view=self.view)
        self._timers = _timers_of(self._membership, self._targets, self._classic, self._watch)
        self._tracker = RebalanceTracker(view=self.view, watch=self._watch)
        self._tracker.take_over(moved_from, now_ms)

    @property
    def slot(self) -> int:
        return self.state.slot

    @property
    def coordinator_epoch(self) -> int:
        return self.state.coordinator_epoch

    def replay(self, record: Record) -> None:
        """Change the state and nothing else. The coordinator replays its own records when it decides; the shell does not."""
        self.state.replay(record)

    # --- members ------------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        now_ms: int,
        *,
        client_host: str = "",
        interval_ms: int = USUAL_INTERVAL,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """Join, stay, leave (KIP-848). `interval_ms`: between heartbeats, as the group's configuration says. `topic_ids`: topic
        name -> id in the current view. Raises among others UnknownMemberIdError, FencedMemberEpochError."""
        self._check_slot(request.group_id)
        self._check_not_classic(request.group_id)
        decision = self._decision(now_ms, client_host, topic_ids)
        with self._tracker.noting_the_fenced(request.group_id, request.member_id, request.instance_id, now_ms):
            response = self._membership.heartbeat(request, decision, interval_ms)
        return self._result(decision, response)

    def poll_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        ticket: Ticket,
        now_ms: int,
        *,
        client_host: str = "",
        interval_ms: int = USUAL_INTERVAL,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> CoordinatorResult[None]:
        """A heartbeat as a long poll: the ticket is answered when the member has something to do, or after `max_wait_ms`."""
        self._check_slot(request.group_id)
        self._check_not_classic(request.group_id)
        decision = self._decision(now_ms, client_host, topic_ids)
        with self._tracker.noting_the_fenced(request.group_id, request.member_id, request.instance_id, now_ms):
            self._membership.poll(request, ticket, decision, interval_ms)
        return self._result(decision, None)

    def join_group(
        self,
        request: JoinGroupRequest,
        ticket: Ticket,
        now_ms: int,
        *,
        client_host: str = "",
        needs_known_id: bool = True,
    ) -> CoordinatorResult[None]:
        """The classic protocol. The ticket is answered by this result or by a later one, with a JoinGroupResponse or an error.
        `needs_known_id` False: the client is too old to join a second time with the id that it receives (KIP-394)."""
        if request.group_id in self.state.shares.groups:
            raise InconsistentGroupProtocolError(f"group {request.group_id} is a share group: choose another name")
        self._check_slot(request.group_id)
        decision = self._decision(now_ms, client_host)
        with self._tracker.noting_the_fenced(request.group_id, request.member_id, request.instance_id, now_ms):
            self._classic.join(request, ticket, decision, needs_known_id=needs_known_id)
        return self._result(decision, None)

    def withdraw(self, *, group_id: str, ticket: Ticket, now_ms: int) -> CoordinatorResult[None]:
        """The client of this parked request has disconnected, so no answer is needed."""
        decision = self._decision(now_ms)
        self._classic.withdraw(group_id, ticket, decision)
        return self._result(decision, None)

    def sync_group(self, request: SyncGroupRequest, ticket: Ticket, now_ms: int) -> CoordinatorResult[None]:
        """Classic. The ticket is answered by this result or by a later one, with a SyncGroupResponse or an error."""
        self._check_slot(request.group_id)
        decision = self._decision(now_ms)
        with self._tracker.noting_the_fenced(request.group_id, request.member_id, request.instance_id, now_ms):
            self._classic.sync(request, ticket, decision)
        return self._result(decision, None)

    def heartbeat_classic(self, request: HeartbeatRequest, now_ms: int) -> CoordinatorResult[None]:
        """Raises RebalanceInProgressError (rejoin), IllegalGenerationError, UnknownMemberIdError."""
        self._check_slot(request.group_id)
        with self._tracker.noting_the_fenced(request.group_id, request.member_id, request.instance_id, now_ms):
            self._classic.heartbeat(request, now_ms)
        return CoordinatorResult(records=(), response=None)

    def leave_group(
        self, *, group_id: str, leaving: tuple[LeaveGroupRequest, ...], now_ms: int
    ) -> CoordinatorResult[tuple[LeaveOutcome, ...]]:
        """Classic. Each member has its own outcome."""
        self._check_slot(group_id)
        decision = self._decision(now_ms)
        outcomes = self._classic.leave(group_id, leaving, decision)
        return self._result(decision, outcomes)

    @property
    def follows_topics(self) -> bool:
        """Whether anything in the slot may depend on a topic; an empty slot, as most are, has nothing to decide about them."""
        state = self.state
        return bool(state.groups or state.offsets or state.resets) or self._targets.subscriptions.has_patterns

    def take_topics(self, topics: TopicsView) -> None:
        """The new view of the topics, for a coordinator that does not follow them."""
        self._targets.subscriptions.take_topics(topics)

    def topics_changed(
        self,
        topics: TopicsView,
        now_ms: int,
        *,
        recreated: AbstractSet[str] = frozenset(),
        changed: AbstractSet[str] | None = None,
    ) -> CoordinatorResult[None]:
        """Take a new view of the topics. `recreated`: deleted and created again since the last view (other topic id). `changed`:
        all other topics are unchanged; None: compare the views."""
        decision = self._decision(now_ms)
        self._targets.topics_changed(topics, recreated, changed, decision)
        return self._result(decision, None)

    def tick(
        self, now_ms: int, *, topic_ids: Mapping[str, str] = NO_IDS, ended: tuple[str, str] | None = None
    ) -> CoordinatorResult[tuple[GroupAlert, ...]]:
        """Process deadlines: expire sessions and revocations, compute postponed assignments, answer parked heartbeats.

        The response holds the alerts for operators; the shell logs them. `topic_ids`: topic name -> id in the current view.
        `ended`: a group and a member whose session ends now.
        """
        for sessions in (self._membership.timers.sessions, self._classic.members.sessions):
            if ended is not None and ended in sessions:
                sessions.set(ended, now_ms)
        decision = self._decision(now_ms, topic_ids=topic_ids)
        self._membership.expire(decision)
        self._classic.expire(decision)
        self._targets.assign_due(decision)
        self._membership.wake(decision)
        self._expiry.expire(decision)
        return self._result(decision, self._watch.tick(now_ms))

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: no timer is running."""
        deadlines_ms = (
            earliest_ms(self._timers),
            self._targets.subscriptions.next_deadline_ms(),
            self._expiry.next_deadline_ms(),
        )
        return min([at_ms for at_ms in deadlines_ms if at_ms is not None], default=None)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def commit_offsets(
        self,
        *,
        group_id: str,
        member_id: str,
        member_epoch: int,
        offsets: tuple[OffsetToCommit, ...],
        now_ms: int,
        instance_id: str | None = None,
        place: CommitPlace | None = None,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """`member_epoch` is the generation where the group is classic. Raises UnknownMemberIdError, StaleMemberEpochError,
        IllegalGenerationError, RebalanceInProgressError. Member "" with epoch -1: the client is not a member. `place` None: the
        client does not number its commits. `topic_ids`: topic name -> id in the current view; an offset of an older topic with
        the same name is refused."""
        self._check_slot(group_id)
        decision = self._decision(now_ms)
        outcomes = self.offsets.commit(
            group_id, member_id, member_epoch, offsets, decision, instance_id, place, topic_ids=topic_ids
        )
        return self._result(decision, outcomes)

    def reset_offsets(
        self, *, group_id: str, offsets: tuple[OffsetToCommit, ...], now_ms: int, by: str = ""
    ) -> CoordinatorResult[tuple[CommittedOffset, ...]]:
        """Set offsets, also of a running group: its members rejoin and continue from the new offsets. Returns the old ones."""
        self._check_slot(group_id)
        decision = self._decision(now_ms)
        before = self._resets.reset(group_id, offsets, by, decision)
        return self._result(decision, before)

    def undo_reset(
        self,
        *,
        group_id: str,
        now_ms: int,
        by: str = "",
        validate_only: bool = False,
        topics: Collection[str] | None = None,
    ) -> CoordinatorResult[UndoOffsetResetResponse]:
        """Undo the last reset; an undo is itself a reset. `topics`: those that it may move; None: all. Raises InvalidRequestError
        if no reset is recorded, or if it moved another topic."""
        self._check_slot(group_id)
        decision = self._decision(now_ms)
        undone = self._resets.undo(group_id, by, validate_only, decision, topics=topics)
        return self._result(decision, undone)

    def delete_offsets(
        self, *, group_id: str, partitions: tuple[PartitionKey, ...], now_ms: int
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        self._check_slot(group_id)
        decision = self._decision(now_ms)
        outcomes = self.offsets.delete(group_id, partitions, decision)
        return self._result(decision, outcomes)

    # --- groups -------------------------------------------------------------------------------------------------------

    def list_groups(self) -> CoordinatorResult[tuple[ListedGroup, ...]]:
        return CoordinatorResult(records=(), response=listed(self.state, self._classic.members.groups))

    def describe_group(self, *, group_id: str) -> CoordinatorResult[GroupDescription]:
        """A group that does not exist is described as DEAD."""
        self._check_slot(group_id)
        found = described(
            group_id, self.state.groups.get(group_id), self._classic.members.groups.get(group_id), self._log
        )
        return CoordinatorResult(records=(), response=found)

    def explain_group(self, *, group_id: str, now_ms: int) -> CoordinatorResult[GroupExplanation]:
        """What the group is waiting for now. The explanation of a group that does not exist is empty."""
        self._check_slot(group_id)
        return CoordinatorResult(records=(), response=explained(group_id, self.view, now_ms))

    def take_rebalances(self) -> tuple[RebalanceNews, ...]:
        """The rebalances that have begun or ended since the last call."""
        return self._log.take_news()

    @property
    def unowned_counts(self) -> Mapping[str, int]:
        """Group with members -> number of its partitions that no member has read for longer than UNOWNED_ALERT_MS."""
        return self._watch.unowned_counts

    def delete_group(self, *, group_id: str, now_ms: int) -> CoordinatorResult[None]:
        """Raises NonEmptyGroupError, GroupIdNotFoundError."""
        self._check_slot(group_id)
        decision = self._decision(now_ms)
        self.offsets.delete_group(group_id, decision)
        return self._result(decision, None)

    def _decision(self, now_ms: int, client_host: str = "", topic_ids: Mapping[str, str] = NO_IDS) -> Decision:
        return Decision(state=self.state, now_ms=now_ms, log=self._log, client_host=client_host, topic_ids=topic_ids)

    def _result(self, decision: Decision, response: R) -> CoordinatorResult[R]:
        records = decision.finish()
        for group_id in {**dict.fromkeys(decision.touched), **dict.fromkeys(sorted(decision.noted))}:
            self._membership.parked.changed(group_id, decision.now_ms)
            self._tracker.settle(group_id, decision.now_ms)
        return CoordinatorResult(records=records, response=response, answers=tuple(decision.answers))

    def _check_not_classic(self, group_id: str) -> None:
        """An empty classic group may change to this protocol; one with members may not."""
        if self._classic.has_members(group_id):
            raise GroupIdNotFoundError(
                f"the members of group {group_id} use the classic protocol: stop them, or join with group.protocol=classic"
            )
        self._classic.forget(group_id)

    def _check_slot(self, group_id: str) -> None:
        if slot_of(group_id) != self.state.slot:
            raise NotCoordinatorError(f"group {group_id} belongs to slot {slot_of(group_id)}, not to slot {self.slot}")
        if group_id in self.state.shares.groups:
            raise GroupIdNotFoundError(
                f"group {group_id} is a share group: read it with a share consumer, or choose another name"
            )


def _timers_of(
    membership: Membership, targets: Targets, classic: ClassicMembership, watch: Watch
) -> tuple[Deadlines, ...]:
    """All timers that are sets of deadlines."""
    return (
        membership.timers.sessions,
        membership.timers.revocations,
        membership.parked.ends,
        membership.parked.wakes,
        targets.due,
        classic.members.sessions,
        classic.rebalancing.steps,
        watch.due,
    )
