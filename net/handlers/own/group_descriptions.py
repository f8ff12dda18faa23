"""Descriptions and explanations of groups, from the coordinator's words into the protocol's. Times become ages."""

from barnabas.consumer_groups.explain.explain import REASON_TEXTS, GroupExplanation, UnownedPartition
from barnabas.consumer_groups.explain.group_view import Presence
from barnabas.consumer_groups.model.messages import DescribedMember, GroupDescription
from barnabas.consumer_groups.model.rebalance_record import Cause, Move, Rebalance
from barnabas.net.protocol import group_responses


def group_description(
    found: GroupDescription, told: GroupExplanation | None, node_id: int
) -> group_responses.DescribeGroupResponse:
    """`told` None: nobody asked for an explanation."""
    presence = {} if told is None else {member.member_id: member for member in told.members}
    return group_responses.DescribeGroupResponse(
        group_id=found.group_id,
        state=found.phase.value,
        group_epoch=found.group_epoch,
        assignment_epoch=found.assignment_epoch,
        assignor=found.assignor,
        coordinator=node_id,
        members=tuple(
            _member(member, presence.get(member.member_id), -1 if told is None else told.at_ms)
            for member in found.members
        ),
        rebalances=tuple(_event(item, in_full=told is not None) for item in found.rebalances),
        unowned=() if told is None else tuple(_unowned(item, told.at_ms) for item in told.unowned),
    )


def _member(member: DescribedMember, presence: Presence | None, now_ms: int) -> group_responses.GroupMember:
    slow_since_ms = None if presence is None else presence.slow_since_ms
    return group_responses.GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_epoch=member.member_epoch,
        subscribed_topics=member.subscribed_topics,
        assigned=member.assigned,
        target=member.target,
        silent_ms=-1 if presence is None else max(0, now_ms - presence.heard_ms),
        session_left_ms=-1 if presence is None else max(0, presence.session_ends_ms - now_ms),
        slow_ms=-1 if slow_since_ms is None else max(0, now_ms - slow_since_ms),
        is_away=presence is not None and presence.is_away,
    )


def _event(item: Rebalance, *, in_full: bool) -> group_responses.RebalanceEvent:
    return group_responses.RebalanceEvent(
        at_ms=item.began_ms,
        cause=item.cause.value,
        member_id=item.member_id,
        group_epoch=item.group_epoch,
        rebalance_id=item.rebalance_id,
        reasons=tuple(_reason(cause) for cause in item.causes) if in_full else (),
        moves=tuple(_move(move) for move in item.moves) if in_full else (),
        moved_count=item.moved_count,
        longest_pause_ms=item.longest_pause_ms,
        stable_after_ms=item.stable_after_ms,
        is_superseded=item.is_superseded,
    )


def _reason(cause: Cause) -> group_responses.RebalanceReason:
    return group_responses.RebalanceReason(
        at_ms=cause.at_ms,
        cause=cause.code.value,
        member_id=cause.member_id,
        client_id=cause.client_id,
        client_host=cause.client_host,
        instance_id=cause.instance_id,
        detail=cause.detail,
        group_epoch=cause.group_epoch,
    )


def _move(move: Move) -> group_responses.OwnerChange:
    return group_responses.OwnerChange(
        topic=move.topic,
        partition=move.partition,
        from_member=move.from_member,
        to_member=move.to_member,
        at_ms=move.at_ms,
        pause_ms=move.pause_ms,
    )


def _unowned(item: UnownedPartition, now_ms: int) -> group_responses.UnownedPartition:
    return group_responses.UnownedPartition(
        topic=item.topic,
        partition=item.partition,
        reason=item.reason.value,
        text=REASON_TEXTS[item.reason],
        member_id=item.member_id,
        since_ms=-1 if item.since_ms < 0 else max(0, now_ms - item.since_ms),
        ends_in_ms=-1 if item.until_ms < 0 else max(0, item.until_ms - now_ms),
    )
