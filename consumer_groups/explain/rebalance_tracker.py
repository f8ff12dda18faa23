"""Keeps the rebalance log in step with the groups of a slot: it starts the log after a move of the slot, closes rebalances that
have completed, and notes clients that were fenced. The log serves explanations, never decisions.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.kraft.group_state.group_slots import GroupState
from barnabas.log.vocabulary.errors import FencedInstanceIdError
from barnabas.log.vocabulary.group_messages import RebalanceReason

from ..model.partitions import to_set
from ..model.rebalance_causes import RebalanceCause
from ..model.states import AWAY_EPOCH, GroupPhase
from .group_view import GroupView
from .watch import Watch


class RebalanceTracker:
    def __init__(self, *, view: GroupView, watch: Watch) -> None:
        self._view = view
        self._watch = watch

    def take_over(self, moved_from: str, now_ms: int) -> None:
        """The slot has moved to this coordinator; `moved_from`: the previous one, as text, if it is known."""
        for group_id, group in self._view.state.groups.items():
            if group.members:
                self._take_over_group(group_id, group, moved_from, now_ms)

    def _take_over_group(self, group_id: str, group: GroupState, moved_from: str, now_ms: int) -> None:
        """Start the log again: partitions that no member reads now count as unread since now; earlier times are not known."""
        log, targets = self._view.log, self._view.targets
        for member_id, current in group.currents.items():
            if current.member_epoch == AWAY_EPOCH:
                log.let_go(group_id, member_id, to_set(current.assigned), now_ms)
        log.wanted(group_id, targets.targeted(group) - group.owners.keys(), now_ms)
        targets.note(group_id, RebalanceCause.COORDINATOR_MOVED, None, moved_from, now_ms)
        self.settle(group_id, now_ms)

    def settle(self, group_id: str, now_ms: int) -> None:
        """Something happened to the group: close the rebalance under way if it has completed."""
        view = self._view
        self._watch.begin(group_id, now_ms)
        if not view.log.is_under_way(group_id):
            return
        if view.phase_of(group_id) in (GroupPhase.STABLE, GroupPhase.EMPTY):
            view.log.settled(group_id, view.wanted(group_id), now_ms)

    @contextmanager
    def noting_the_fenced(self, group_id: str, member_id: str, instance_id: str | None, now_ms: int) -> Iterator[None]:
        """A fenced client retries again and again; log the fencing once."""
        try:
            yield
        except FencedInstanceIdError as error:
            newest = self._view.log.newest_reason(group_id)
            code = RebalanceCause.STATIC_MEMBER_FENCED
            if newest is None or (newest.cause, newest.member_id) != (code, member_id):
                reason = RebalanceReason(
                    at_ms=now_ms,
                    cause=code,
                    member_id=member_id,
                    instance_id=instance_id,
                    detail=error.message,
                    group_epoch=self._view.epoch_of(group_id),
                )
                self._view.log.note(group_id, reason)
                self.settle(group_id, now_ms)
            raise
