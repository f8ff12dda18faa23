"""Descriptions and explanations of groups, translated from the coordinator's values into the protocol's. Times become ages."""

from msgspec.structs import replace

from barnabas.consumer_groups.explain.explain import GroupExplanation
from barnabas.consumer_groups.explain.group_view import Presence
from barnabas.consumer_groups.model.messages import DescribedMember, GroupDescription
from barnabas.net.wire.protocol import group_responses


def group_description(
    found: GroupDescription, told: GroupExplanation | None, node_id: int
) -> group_responses.DescribeGroupResponse:
    """`told` None: the request did not ask for an explanation."""
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
        rebalances=tuple(
            item if told is not None else replace(item, reasons=(), moves=()) for item in found.rebalances
        ),
        unowned=() if told is None else told.unowned,
        protocol=found.protocol,
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
