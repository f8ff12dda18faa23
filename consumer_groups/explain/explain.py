"""What a group is waiting for now: partitions that no member reads and why, members that are silent or slow. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from barnabas.kraft.group_state.group_slots import GroupState, PartitionKey
from barnabas.log.vocabulary.group_messages import NOBODY, UnownedPartition

from ..classic.group import ClassicGroup
from ..model.partitions import to_set
from ..model.states import GroupPhase
from .group_view import GroupView, Presence

UNKNOWN_MS = -1  # the start is not known, or no timer ends it


class UnownedReason(StrEnum):
    """Stable codes: scripts match on them."""

    WAITING_FOR_REVOCATION = "waiting_for_revocation"
    WAITING_FOR_HEARTBEAT = "waiting_for_heartbeat"
    WAITING_FOR_JOIN = "waiting_for_join"
    WAITING_FOR_LEADER = "waiting_for_leader"
    MEMBER_AWAY = "member_away"
    MEMBER_SILENT = "member_silent"
    NOT_ASSIGNED_YET = "not_assigned_yet"
    LEFT_OUT_BY_LEADER = "left_out_by_leader"
    NOT_SUBSCRIBED = "not_subscribed"


REASON_TEXTS: dict[UnownedReason, str] = {
    UnownedReason.WAITING_FOR_REVOCATION: "its owner was asked to release it and has not confirmed that yet",
    UnownedReason.WAITING_FOR_HEARTBEAT: "it is free; its new owner takes it with its next heartbeat",
    UnownedReason.WAITING_FOR_JOIN: "the group is rebalancing and waits for this member to rejoin",
    UnownedReason.WAITING_FOR_LEADER: "the group is rebalancing and waits for the leader's assignment",
    UnownedReason.MEMBER_AWAY: "its static owner is away; the partition stays reserved until the owner's session ends",
    UnownedReason.MEMBER_SILENT: "its owner sends no heartbeats; other members take over when its session ends",
    UnownedReason.NOT_ASSIGNED_YET: "the next assignment is delayed, because the previous one was made only recently",
    UnownedReason.LEFT_OUT_BY_LEADER: "the leader's assignment gives it to no member",
    UnownedReason.NOT_SUBSCRIBED: "the group has committed offsets for it, but no member subscribes to the topic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplanation:
    """If the group has no members, `unowned` is empty: no member is expected to read."""

    group_id: str
    at_ms: int
    unowned: tuple[UnownedPartition, ...] = ()
    members: tuple[Presence, ...] = ()


def explained(group_id: str, view: GroupView, now_ms: int) -> GroupExplanation:
    presence = view.presence(group_id)
    found = {(item.topic, item.partition): item for item in not_assigned(group_id, view, now_ms)}
    found.update({(item.topic, item.partition): item for item in unowned_now(group_id, view, presence, now_ms)})
    return GroupExplanation(
        group_id=group_id,
        at_ms=now_ms,
        unowned=tuple(item for _, item in sorted(found.items())),
        members=tuple(item for _, item in sorted(presence.items())),
    )


def unowned_now(
    group_id: str, view: GroupView, presence: dict[str, Presence], now_ms: int
) -> Iterator[UnownedPartition]:
    """Partitions that a member should read but none does, and those whose owner must release them or is silent."""
    live = view.classic.members.groups.get(group_id)
    group = view.group_of(group_id)
    if live is not None:
        yield from _of_classic(live, view, presence, now_ms)
    elif group is not None:
        yield from _free(group, view, presence, now_ms)
        yield from _held(group, view, presence, now_ms)


def not_assigned(group_id: str, view: GroupView, now_ms: int) -> Iterator[UnownedPartition]:
    """Partitions in no assignment: the assignment is delayed, or offsets are committed but no member subscribes any more."""
    if view.phase_of(group_id) in (GroupPhase.EMPTY, GroupPhase.DEAD):
        return
    group = view.group_of(group_id)
    subscribed = view.subscribed(group_id)
    if group is not None:
        due_ms = view.targets.due.deadline_of((group_id, ""))
        for key in sorted(subscribed - view.targets.targeted(group)):
            yield _unowned(key, UnownedReason.NOT_ASSIGNED_YET, now_ms, until_ms=due_ms)
    topics = {topic for topic, _ in subscribed}
    for key in view.state.offsets.get(group_id, {}):
        if key[0] not in topics:
            yield _unowned(key, UnownedReason.NOT_SUBSCRIBED, now_ms)


def _free(group: GroupState, view: GroupView, presence: dict[str, Presence], now_ms: int) -> Iterator[UnownedPartition]:
    """Partitions that no member holds, or that a static member holds while it is away."""
    gaps = view.log.gaps_of(group.group.group_id)
    if not gaps:
        return
    target_of = {key: member_id for member_id in group.members for key in view.targets.target_of(group, member_id)}
    for key in sorted(gaps.keys() & target_of.keys()):
        member_id = group.owners.get(key, target_of[key])
        reason = UnownedReason.WAITING_FOR_HEARTBEAT
        until_ms: int | None = None
        if presence[member_id].is_away:
            reason, until_ms = UnownedReason.MEMBER_AWAY, presence[member_id].session_ends_ms
        yield _unowned(key, reason, now_ms, member_id, since_ms=gaps[key].since_ms, until_ms=until_ms)


def _held(group: GroupState, view: GroupView, presence: dict[str, Presence], now_ms: int) -> Iterator[UnownedPartition]:
    """Partitions held by members that must release them, or that are silent."""
    for member_id, current in group.currents.items():
        member = presence[member_id]
        if member.is_away:
            continue
        key = (group.group.group_id, member_id)
        if current.pending_revocation:
            until_ms = view.membership.timers.revocations.deadline_of(key)
            assert until_ms is not None, "a member with partitions to release has a rebalance timeout"
            since_ms = until_ms - group.members[member_id].rebalance_timeout_ms
            for place in sorted(to_set(current.pending_revocation)):
                yield _unowned(
                    place, UnownedReason.WAITING_FOR_REVOCATION, now_ms, member_id, since_ms=since_ms, until_ms=until_ms
                )
        if is_silent(member, now_ms):
            for place in sorted(to_set(current.assigned)):
                yield _silent(place, member, now_ms)


def _of_classic(
    live: ClassicGroup, view: GroupView, presence: dict[str, Presence], now_ms: int
) -> Iterator[UnownedPartition]:
    gaps = view.log.gaps_of(live.group_id)
    reason, member_id = UnownedReason.LEFT_OUT_BY_LEADER, live.leader_id
    until_ms = view.classic.rebalancing.steps.deadline_of((live.group_id, ""))
    if live.phase is GroupPhase.PREPARING_REBALANCE:
        late = sorted(member.member_id for member in live.members.values() if member.join is None)
        reason, member_id = UnownedReason.WAITING_FOR_JOIN, late[0] if late else NOBODY
    elif live.phase is GroupPhase.COMPLETING_REBALANCE:
        reason = UnownedReason.WAITING_FOR_LEADER
    for key in sorted(view.wanted(live.group_id)):
        yield _unowned(key, reason, now_ms, member_id, since_ms=gaps[key].since_ms, until_ms=until_ms)
    for member in live.members.values():
        found = presence.get(member.member_id)
        if found is not None and is_silent(found, now_ms):
            for place in sorted(member.holds):
                yield _silent(place, found, now_ms)


def is_silent(member: Presence, now_ms: int) -> bool:
    return not member.is_away and now_ms - member.heard_ms > member.silent_after_ms


def _silent(key: PartitionKey, member: Presence, now_ms: int) -> UnownedPartition:
    return _unowned(
        key,
        UnownedReason.MEMBER_SILENT,
        now_ms,
        member.member_id,
        since_ms=member.heard_ms,
        until_ms=member.session_ends_ms,
    )


def _unowned(
    key: PartitionKey,
    reason: UnownedReason,
    now_ms: int,
    member_id: str = NOBODY,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> UnownedPartition:
    """Both times are by the coordinator's clock; None: not known."""
    topic, partition = key
    return UnownedPartition(
        topic=topic,
        partition=partition,
        reason=reason,
        text=REASON_TEXTS[reason],
        member_id=member_id,
        since_ms=UNKNOWN_MS if since_ms is None else max(0, now_ms - since_ms),
        ends_in_ms=UNKNOWN_MS if until_ms is None else max(0, until_ms - now_ms),
    )
