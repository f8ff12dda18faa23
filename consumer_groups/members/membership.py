"""Members: they join, send heartbeats, converge to their targets, leave and expire. Only `Decision.add` changes the state.

`timers` keeps their sessions, `records` makes what the quorum stores of them, `parked_heartbeats` those that wait for a change.
"""

import dataclasses
import random

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import GroupState, SlotState
from barnabas.kraft.metadata.records import CurrentAssignmentRecord, MemberRecord
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from ..model.classic_messages import Answer, Ticket
from ..model.decision import Decision
from ..model.group_limits import check_new_group
from ..model.messages import MemberEpoch
from ..model.partitions import NO_PARTITIONS, PartitionSet, to_set
from ..model.rebalance_causes import RebalanceCause, cause_of_leaving
from ..model.settings import GroupSettings
from ..model.states import AWAY_EPOCH, MemberState
from ..subscriptions.topic_changes import listed_names
from .assigned_offsets import assigned_offsets
from .heartbeat_checks import check_epoch, check_join, check_member, check_request, holder_of
from .parked_heartbeats import MAX_ANSWERS_PER_WAKE, ParkedHeartbeat, ParkedHeartbeats
from .reconciliation import NO_EPOCH, Holding, advance
from .records import blank_member, current_record, group_record, remove_record, returned_record, updated_member
from .targets import Targets
from .timers import MemberTimers

MEMBER_ID_BITS = 128  # as random as a UUID: never given twice
USUAL_INTERVAL = -1  # the group's configuration sets no interval
HEARTBEATS_PER_SESSION = 3  # at least: a single lost or late heartbeat must not end a membership


class Membership:
    def __init__(
        self, *, state: SlotState, settings: GroupSettings, targets: Targets, rng: random.Random, now_ms: int
    ) -> None:
        self.timers = MemberTimers()
        self.parked = ParkedHeartbeats()
        self._state = state
        self._settings = settings
        self._targets = targets
        self._rng = rng
        for group in state.groups.values():
            if group.is_classic:
                continue
            for member in group.members.values():
                self.timers.start(group, member, now_ms)

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, decision: Decision, interval_ms: int = USUAL_INTERVAL
    ) -> ConsumerGroupHeartbeatResponse:
        """`interval_ms`: between heartbeats, if the group's configuration sets it."""
        check_request(request, self._settings)
        if request.member_epoch < MemberEpoch.JOIN:
            return self._leave(request, decision)
        if request.member_epoch == MemberEpoch.JOIN:
            member_id, owned = self._join(request, decision)
        else:
            member_id, owned = self._stay(request, decision)
        self.parked.supersede(request.group_id, member_id, decision)
        self._targets.settle(decision)
        return self._reconcile(request, member_id, owned, decision, interval_ms)

    def poll(
        self, request: ConsumerGroupHeartbeatRequest, ticket: Ticket, decision: Decision, interval_ms: int
    ) -> None:
        """A heartbeat whose answer waits for a change, for `max_wait_ms` and at most for the heartbeat interval."""
        response = self.heartbeat(request, decision, interval_ms)
        if request.max_wait_ms > 0 and request.member_epoch > MemberEpoch.JOIN and _says_nothing(response, request):
            member = self._state.groups[request.group_id].members[response.member_id]
            wait_ms = min(request.max_wait_ms, self._interval_ms(member, interval_ms))
            parked = ParkedHeartbeat(request=replace(request, owned=None), ticket=ticket, interval_ms=interval_ms)
            self.parked.park(response.member_id, parked, decision.now_ms + wait_ms)
        else:
            decision.answers.append(Answer(ticket=ticket, value=response))

    def wake(self, decision: Decision) -> None:
        """Answer the parked heartbeats of members that have something to do, and those whose wait has ended."""
        for group_id, _ in self.parked.wakes.take_expired(decision.now_ms):
            answers = 0
            for member_id, parked in self.parked.of_group(group_id):
                answers += self._wake_member(member_id, parked, decision)
                if answers == MAX_ANSWERS_PER_WAKE:
                    self.parked.changed(group_id, decision.now_ms)
                    break
        for group_id, member_id in self.parked.ends.take_expired(decision.now_ms):
            self._end_wait(group_id, member_id, decision)

    def _end_wait(self, group_id: str, member_id: str, decision: Decision) -> None:
        parked = self.parked.take(group_id, member_id)
        assert parked is not None
        if self._wake_member(member_id, parked, decision):
            return
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=parked.request.member_epoch,
            heartbeat_interval_ms=self._interval_ms(
                self._state.groups[group_id].members[member_id], parked.interval_ms
            ),
        )
        decision.answers.append(Answer(ticket=parked.ticket, value=response))

    def _wake_member(self, member_id: str, parked: ParkedHeartbeat, decision: Decision) -> bool:
        """Process the parked request again, without its list of owned partitions. Returns whether it was answered."""
        request = parked.request
        group = self._state.groups.get(request.group_id)
        value: ConsumerGroupHeartbeatResponse | BarnabasError
        try:
            member = check_member(group, request)
            assert group is not None
            check_epoch(group.currents[member.member_id], request)
            value = self._reconcile(request, member.member_id, None, decision, parked.interval_ms, is_heard=False)
            if _says_nothing(value, request):
                return False
        except BarnabasError as error:
            value = error
        self.parked.take(request.group_id, member_id)
        decision.answers.append(Answer(ticket=parked.ticket, value=value))
        return True

    def _join(self, request: ConsumerGroupHeartbeatRequest, decision: Decision) -> tuple[str, PartitionSet | None]:
        """Return the member's id and an upper bound of what it owns; None: unknown."""
        group = self._state.groups.get(request.group_id)
        member_id = request.member_id or f"{self._rng.getrandbits(MEMBER_ID_BITS):032x}"
        holder = None if group is None else holder_of(group, request.instance_id)
        if group is not None and member_id in group.members and (holder is None or holder.member_id == member_id):
            return member_id, self._rejoin(group, member_id, request, decision)
        check_join(group, request, self._settings)
        check_new_group(request.group_id, self._state.groups, self._settings)
        if group is not None and holder is not None:
            self._take_over(group, holder, member_id, request, decision)
        else:
            self._enter(member_id, request, decision)
        return member_id, NO_PARTITIONS

    def _enter(self, member_id: str, request: ConsumerGroupHeartbeatRequest, decision: Decision) -> None:
        group = self._state.groups.get(request.group_id)
        if group is None or group.group.protocol != "consumer":
            decision.add(group_record(self._state, self._settings, request.group_id, group))
        blank = blank_member(self._state, self._settings, member_id, request)
        decision.add(updated_member(self._state, blank, request, decision.client_host))
        newcomer = Holding(member_epoch=MemberEpoch.JOIN, previous_member_epoch=NO_EPOCH, state=MemberState.STABLE)
        decision.add(current_record(self._state, request.group_id, member_id, newcomer))
        member = self._state.groups[request.group_id].members[member_id]
        decision.change(request.group_id, RebalanceCause.MEMBER_JOINED, member, _wish(member))

    def _rejoin(
        self, group: GroupState, member_id: str, request: ConsumerGroupHeartbeatRequest, decision: Decision
    ) -> PartitionSet | None:
        """An existing member joins: its answer was lost, it was fenced, or it was away.

        It keeps its partitions. The coordinator does not conclude that it owns nothing, because a duplicate of its first
        request would look the same; its next heartbeat releases what it must give up.
        """
        current = group.currents[member_id]
        member = group.members[member_id]
        was_away = current.member_epoch == AWAY_EPOCH
        if was_away:
            self._note_return(member, decision)
            decision.add(returned_record(self._state, current, member_id))
        self._update(member, request, decision)
        return NO_PARTITIONS if was_away else None

    def _take_over(
        self,
        group: GroupState,
        away: MemberRecord,
        member_id: str,
        request: ConsumerGroupHeartbeatRequest,
        decision: Decision,
    ) -> None:
        """A static member returns with a new member id: it gets the partitions that it had; other members are not affected."""
        current, target = group.currents[away.member_id], group.targets.get(away.member_id)
        self._note_return(replace(away, member_id=member_id), decision)
        decision.add(remove_record(self._state, request.group_id, away.member_id))
        self.timers.cancel(request.group_id, away.member_id)
        decision.add(replace(away, coordinator_epoch=self._state.coordinator_epoch, member_id=member_id))
        if target is not None:
            decision.add(replace(target, coordinator_epoch=self._state.coordinator_epoch, member_id=member_id))
        decision.add(returned_record(self._state, current, member_id))
        self._update(group.members[member_id], request, decision)

    def _note_return(self, member: MemberRecord, decision: Decision) -> None:
        cause = RebalanceCause.STATIC_MEMBER_RETURNED
        self._targets.note(member.group_id, cause, member, "", decision.now_ms)

    def _stay(self, request: ConsumerGroupHeartbeatRequest, decision: Decision) -> tuple[str, PartitionSet | None]:
        group = self._state.groups.get(request.group_id)
        member = check_member(group, request)
        assert group is not None
        check_epoch(group.currents[member.member_id], request)
        self._update(member, request, decision)
        return member.member_id, None if request.owned is None else to_set(request.owned)

    def _update(self, member: MemberRecord, request: ConsumerGroupHeartbeatRequest, decision: Decision) -> None:
        updated = updated_member(self._state, member, request, decision.client_host)
        if replace(updated, coordinator_epoch=member.coordinator_epoch) == member:
            return
        decision.add(updated)
        if _subscription(updated) != _subscription(member):
            decision.change(member.group_id, RebalanceCause.SUBSCRIPTION_CHANGED, updated, _wish(updated))
        elif updated.assignor != member.assignor:
            detail = f"it requests {updated.assignor or 'the default'} instead of {member.assignor or 'the default'}"
            decision.change(member.group_id, RebalanceCause.ASSIGNOR_CHANGED, updated, detail)

    def _reconcile(
        self,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: PartitionSet | None,
        decision: Decision,
        interval_ms: int,
        *,
        is_heard: bool = True,
    ) -> ConsumerGroupHeartbeatResponse:
        """One step towards the target. `is_heard` False: the answer to a parked heartbeat, which does not renew the session."""
        group = self._state.groups[request.group_id]
        before = group.currents[member_id]
        after = self._advanced(group, before, owned)
        if after != before:
            decision.add(replace(after, coordinator_epoch=self._state.coordinator_epoch))
            self.timers.revocations.cancel((request.group_id, member_id))  # each step has a full rebalance timeout
        if is_heard:
            self.timers.start(group, group.members[member_id], decision.now_ms)
        else:
            self.timers.time_revocation(group, group.members[member_id], decision.now_ms)
        assert after.member_epoch > 0
        in_step = request.member_epoch == after.member_epoch and before.assigned == after.assigned
        self._time_obedience(request, member_id, before, after, decision.now_ms)
        if request.owned is not None and to_set(request.owned) != to_set(after.assigned):
            in_step = False  # the assignment is repeated until the member has applied it: lost answers do no harm
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self._interval_ms(
                group.members[member_id],
                interval_ms,
                is_waiting=after.state == MemberState.UNRELEASED_PARTITIONS or self._targets.is_put_off(group),
            ),
            assignment=None if in_step else after.assigned,
            offsets=() if in_step else assigned_offsets(request, before, after, decision),
        )

    def _time_obedience(
        self,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        before: CurrentAssignmentRecord,
        after: CurrentAssignmentRecord,
        now_ms: int,
    ) -> None:
        """Track since when its assignment differs from what it reads; a member reports what it owns when that changes."""
        if request.owned is None:
            is_told = before.assigned != after.assigned
        else:
            is_told = to_set(request.owned) != to_set(after.assigned)
            if not is_told:
                self.timers.obeyed(request.group_id, member_id)
        if is_told:
            self.timers.told(request.group_id, member_id, now_ms)

    def _advanced(
        self, group: GroupState, before: CurrentAssignmentRecord, owned: PartitionSet | None
    ) -> CurrentAssignmentRecord:
        target_epoch = group.group.assignment_epoch
        if before.state == MemberState.STABLE and before.member_epoch == target_epoch:
            return before  # the steady state: nothing to compute
        holding = Holding.of(before)
        after = advance(
            holding,
            member_id=before.member_id,
            target=self._targets.target_of(group, before.member_id),
            target_epoch=target_epoch,
            owned=owned,
            owners=group.owners,
        )
        if after == holding:
            return before
        record = current_record(self._state, before.group_id, before.member_id, after)
        return replace(record, coordinator_epoch=before.coordinator_epoch)

    def _interval_ms(self, member: MemberRecord, interval_ms: int, *, is_waiting: bool = False) -> int:
        """A member may ask for a session shorter than the usual interval: it needs several heartbeats within one session."""
        settings = self._settings
        if interval_ms == USUAL_INTERVAL:
            interval_ms = settings.heartbeat_interval_ms
        if is_waiting:
            interval_ms = min(interval_ms, settings.waiting_heartbeat_interval_ms)
        return max(1, min(interval_ms, member.session_timeout_ms // HEARTBEATS_PER_SESSION))

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerGroupHeartbeatRequest, decision: Decision) -> ConsumerGroupHeartbeatResponse:
        group = self._state.groups.get(request.group_id)
        member = check_member(group, request)
        assert group is not None
        self.parked.supersede(request.group_id, member.member_id, decision)
        cause = cause_of_leaving(request.reason)
        detail = "" if cause == request.reason else request.reason
        if request.member_epoch == MemberEpoch.LEAVE_STATIC:
            self._go_away(group, member, cause, detail, decision)
        else:
            self._remove(member, cause, detail, decision)
            self._targets.settle(decision)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
        )

    def _go_away(
        self, group: GroupState, member: MemberRecord, cause: RebalanceCause, detail: str, decision: Decision
    ) -> None:
        """Its partitions stay reserved until its session ends; it reads nothing, so pending revocations are complete."""
        away = dataclasses.replace(
            Holding.of(group.currents[member.member_id]),
            member_epoch=AWAY_EPOCH,
            previous_member_epoch=NO_EPOCH,
            state=MemberState.STABLE,
            pending_revocation=NO_PARTITIONS,
        )
        decision.add(current_record(self._state, member.group_id, member.member_id, away))
        self.timers.start(group, member, decision.now_ms)
        if cause is RebalanceCause.MEMBER_LEFT:
            cause = RebalanceCause.STATIC_MEMBER_AWAY
        waits = f"its partitions stay reserved for {member.session_timeout_ms} ms"
        self._targets.note(member.group_id, cause, member, f"{detail}; {waits}" if detail else waits, decision.now_ms)

    def expire(self, decision: Decision) -> None:
        """Remove members without a heartbeat for a whole session, and those that missed their rebalance timeout."""
        for (group_id, member_id), deadline_ms in self.timers.sessions.take_expired_at(decision.now_ms):
            member = self._state.groups[group_id].members[member_id]
            detail = f"no heartbeat for {member.session_timeout_ms} ms"
            heard_ms = deadline_ms - member.session_timeout_ms
            self._remove(member, RebalanceCause.MEMBER_EXPIRED, detail, decision, since_ms=heard_ms)
        for group_id, member_id in self.timers.revocations.take_expired(decision.now_ms):
            group = self._state.groups[group_id]
            member = group.members[member_id]
            held = _pending(group.currents[member_id])
            detail = f"it did not release {held} within {member.rebalance_timeout_ms} ms"
            self._remove(member, RebalanceCause.REBALANCE_TIMEOUT, detail, decision)
        self._targets.settle(decision)

    def _remove(
        self,
        member: MemberRecord,
        cause: RebalanceCause,
        detail: str,
        decision: Decision,
        *,
        since_ms: int | None = None,
    ) -> None:
        decision.add(remove_record(self._state, member.group_id, member.member_id), since_ms=since_ms)
        self.timers.cancel(member.group_id, member.member_id)
        decision.change(member.group_id, cause, member, detail)

    def fence_all(self, group: GroupState, decision: Decision) -> None:
        """Make all members rejoin without revoking any partition: their epochs advance, and older epochs become invalid.

        So commits in flight fail, every member drops its positions, and when it rejoins (with the same member id) it gets its
        partitions, which no other member could get in between. A member that is away is not changed.
        """
        group_id = group.group.group_id
        decision.change(group_id, RebalanceCause.OFFSETS_RESET)
        self._targets.settle(decision, at_once=True)
        for member_id, current in list(group.currents.items()):
            if current.member_epoch == AWAY_EPOCH:
                continue
            state = MemberState(current.state)
            if state is MemberState.STABLE and to_set(current.assigned) != self._targets.target_of(group, member_id):
                state = MemberState.UNRELEASED_PARTITIONS  # its epoch no longer shows that it is behind its target
            fenced = dataclasses.replace(
                Holding.of(current),
                member_epoch=group.group.group_epoch,
                previous_member_epoch=NO_EPOCH,
                state=state,
            )
            decision.add(current_record(self._state, group_id, member_id, fenced))


def _says_nothing(response: ConsumerGroupHeartbeatResponse, request: ConsumerGroupHeartbeatRequest) -> bool:
    return response.assignment is None and response.member_epoch == request.member_epoch


def _subscription(member: MemberRecord) -> tuple[tuple[str, ...], str | None]:
    return (member.subscribed_topics, member.subscribed_pattern)


def _wish(member: MemberRecord) -> str:
    pattern = [f"the pattern {member.subscribed_pattern}"] if member.subscribed_pattern else []
    return f"it subscribes to {listed_names([*member.subscribed_topics, *pattern])}"


def _pending(current: CurrentAssignmentRecord) -> str:
    return listed_names(f"{topic}-{number}" for topic, number in sorted(to_set(current.pending_revocation)))
