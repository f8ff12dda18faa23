"""Detects conditions that an operator should know of: partitions that no member reads although the group has members, and
groups that rebalance continuously. Pure: `tick` returns the alerts; the shell logs them, and `/metrics` shows `unowned_counts`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from barnabas.log.vocabulary.group_messages import UnownedPartition

from ..model.deadlines import Deadlines
from ..subscriptions.topic_changes import listed_names
from .explain import is_silent, unowned_now
from .group_view import GroupView

WATCH_INTERVAL_MS: Final = 2_000  # the interval of the checks of a group with members; each visits every member once
UNOWNED_ALERT_MS: Final = 10_000  # a usual rebalance takes less time; partitions unread for longer deserve an alert
REPEAT_ALERT_MS: Final = 60_000  # the minimum time before the same alert is repeated
REBALANCES_ALERT: Final = 20  # this number of rebalances
REBALANCES_ALERT_WITHIN_MS: Final = 600_000  # within this time is too many: members restart, or are too slow


class AlertKind(StrEnum):
    UNOWNED = "unowned"
    OWNED_AGAIN = "owned_again"
    REBALANCES_TOO_OFTEN = "rebalances_too_often"
    PATTERN_REFUSED = "pattern_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAlert:
    group_id: str
    kind: AlertKind
    text: str  # why, in one line


@dataclass(slots=True, kw_only=True)
class _Watched:
    """Which alerts were raised for a group, and when."""

    told: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    unowned_at_ms: int = -REPEAT_ALERT_MS
    often_at_ms: int = -REBALANCES_ALERT_WITHIN_MS
    refused: frozenset[str] = field(default_factory=frozenset)  # members


class Watch:
    def __init__(self, *, view: GroupView) -> None:
        self.due = Deadlines()  # exactly the groups that have members
        self._view = view
        self._watched: dict[str, _Watched] = {}
        self._counts: dict[str, int] = {}

    @property
    def unowned_counts(self) -> Mapping[str, int]:
        """Group -> number of unread partitions at its last check; groups without any are left out."""
        return self._counts

    def begin(self, group_id: str, now_ms: int) -> None:
        """Something happened to the group."""
        if (group_id, "") not in self.due and self._has_members(group_id):
            self.due.set((group_id, ""), now_ms + WATCH_INTERVAL_MS)

    def tick(self, now_ms: int) -> tuple[GroupAlert, ...]:
        alerts: list[GroupAlert] = []
        for group_id, _ in self.due.take_expired(now_ms):
            if self._has_members(group_id):
                self.due.set((group_id, ""), now_ms + WATCH_INTERVAL_MS)
                alerts += self._look_at(group_id, now_ms)
            else:
                self._counts.pop(group_id, None)
                self._watched.pop(group_id, None)
        return tuple(alerts)

    def _has_members(self, group_id: str) -> bool:
        group = self._view.state.groups.get(group_id)
        return self._view.classic.has_members(group_id) or (group is not None and bool(group.members))

    def _look_at(self, group_id: str, now_ms: int) -> list[GroupAlert]:
        watched = self._watched.setdefault(group_id, _Watched())
        unowned = self._long_unowned(group_id, now_ms)
        alerts = []
        if unowned:
            self._counts[group_id] = len(unowned)
            alerts += self._tell_unowned(group_id, watched, unowned, now_ms)
        elif self._counts.pop(group_id, 0):
            watched.told = frozenset()
            alerts.append(
                GroupAlert(group_id=group_id, kind=AlertKind.OWNED_AGAIN, text="every partition is read again")
            )
        alerts += self._tell_often(group_id, watched, now_ms)
        alerts += self._tell_refused(group_id, watched)
        return alerts

    def _tell_refused(self, group_id: str, watched: _Watched) -> list[GroupAlert]:
        """One alert per member: the condition lasts until the member's pattern is changed."""
        group = self._view.group_of(group_id)
        refused = [] if group is None else self._view.targets.subscriptions.refusals(group)
        before, watched.refused = watched.refused, frozenset(member.member_id for member, _ in refused)
        return [
            GroupAlert(
                group_id=group_id,
                kind=AlertKind.PATTERN_REFUSED,
                text=f"the pattern of member {member.member_id} is invalid and matches no topic: {reason}",
            )
            for member, reason in refused
            if member.member_id not in before
        ]

    def _long_unowned(self, group_id: str, now_ms: int) -> list[UnownedPartition]:
        """In nearly all cases, checking the members' heartbeats is sufficient."""
        view = self._view
        presence = view.presence(group_id)
        is_calm = not view.log.gaps_of(group_id) and not view.log.is_under_way(group_id)
        if is_calm and not any(is_silent(member, now_ms) for member in presence.values()):
            return []
        found = unowned_now(group_id, view, presence, now_ms)
        return [item for item in found if item.since_ms > UNOWNED_ALERT_MS]

    def _tell_unowned(
        self, group_id: str, watched: _Watched, unowned: list[UnownedPartition], now_ms: int
    ) -> list[GroupAlert]:
        reasons = frozenset((item.reason, item.member_id) for item in unowned)
        if reasons <= watched.told and now_ms - watched.unowned_at_ms < REPEAT_ALERT_MS:
            return []
        watched.told, watched.unowned_at_ms = reasons, now_ms
        names = listed_names(f"{item.topic}-{item.partition}" for item in unowned)
        whys = listed_names(_why(item) for item in _one_of_each(unowned))
        return [GroupAlert(group_id=group_id, kind=AlertKind.UNOWNED, text=f"no member reads {names}: {whys}")]

    def _tell_often(self, group_id: str, watched: _Watched, now_ms: int) -> list[GroupAlert]:
        if now_ms - watched.often_at_ms < REBALANCES_ALERT_WITHIN_MS:
            return []
        recent = self._view.log.count_since(group_id, now_ms - REBALANCES_ALERT_WITHIN_MS)
        if recent < REBALANCES_ALERT:
            return []
        watched.often_at_ms = now_ms
        causes = Counter(reason.cause for item in self._view.log.of(group_id) for reason in item.reasons)
        ((worst, count),) = causes.most_common(1)
        text = f"{recent} rebalances within {REBALANCES_ALERT_WITHIN_MS} ms, most often {worst} ({count} times)"
        return [GroupAlert(group_id=group_id, kind=AlertKind.REBALANCES_TOO_OFTEN, text=text)]


def _why(item: UnownedPartition) -> str:
    until = f", for at most another {item.ends_in_ms} ms" if item.ends_in_ms > 0 else ""
    member = f" (member {item.member_id})" if item.member_id else ""
    return f"{item.reason} for {item.since_ms} ms{until}{member}: {item.text}"


def _one_of_each(unowned: list[UnownedPartition]) -> list[UnownedPartition]:
    """For each reason and member, the partition that has waited longest."""
    found: dict[tuple[str, str], UnownedPartition] = {}
    for item in sorted(unowned, key=lambda item: -item.since_ms):
        found.setdefault((item.reason, item.member_id), item)
    return list(found.values())
