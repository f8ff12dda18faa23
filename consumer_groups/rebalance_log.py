"""Why a group rebalanced: a bounded ring of causes per group, for `group explain` and for people on call.

It is not part of the quorum's state: a new coordinator begins with "coordinator_moved".
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

REBALANCES_KEPT_PER_GROUP: Final = 64  # a day of a calm group, some minutes of a stormy one, a few kB of memory


class RebalanceCause(StrEnum):
    """Stable codes: scripts match on them."""

    MEMBER_JOINED = "member_joined"
    MEMBER_LEFT = "member_left"
    MEMBER_EXPIRED = "member_expired"
    REBALANCE_TIMEOUT = "rebalance_timeout"
    STATIC_MEMBER_AWAY = "static_member_away"
    STATIC_MEMBER_RETURNED = "static_member_returned"
    LEADER_REJOINED = "leader_rejoined"  # classic groups: it wants to assign anew, mostly because partitions were added
    SUBSCRIPTION_CHANGED = "subscription_changed"
    PARTITIONS_CHANGED = "partitions_changed"
    TOPIC_DELETED = "topic_deleted"
    OFFSETS_RESET = "offsets_reset"
    COORDINATOR_MOVED = "coordinator_moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """`member_id` is "" when no single member is the cause; `group_epoch` is the one that the cause led to."""

    at_ms: int
    cause: RebalanceCause
    member_id: str
    group_epoch: int
    assignment_epoch: int


class RebalanceLog:
    def __init__(self, *, kept_per_group: int = REBALANCES_KEPT_PER_GROUP) -> None:
        self._kept_per_group = kept_per_group
        self._by_group: dict[str, deque[Rebalance]] = {}

    def add(self, group_id: str, rebalance: Rebalance) -> None:
        ring = self._by_group.get(group_id)
        if ring is None:
            ring = self._by_group[group_id] = deque(maxlen=self._kept_per_group)
        ring.append(rebalance)

    def of(self, group_id: str) -> tuple[Rebalance, ...]:
        """Oldest first."""
        return tuple(self._by_group.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        self._by_group.pop(group_id, None)
