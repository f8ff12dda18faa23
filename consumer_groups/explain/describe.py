"""Summaries and descriptions of groups of both protocols. Read-only."""

from barnabas.kraft.group_state.group_slots import GroupState, SlotState
from barnabas.log.vocabulary.group_protocol import PROTOCOL_TYPE, decode_assignment

from ..classic.group import ClassicGroup, ClassicMember
from ..model.messages import DescribedMember, GroupDescription, ListedGroup
from ..model.partitions import from_set
from ..model.rebalance_log import RebalanceLog
from ..model.states import GroupPhase, MemberState, phase_of


def listed(state: SlotState, classic: dict[str, ClassicGroup]) -> tuple[ListedGroup, ...]:
    found = {
        group_id: ListedGroup(
            group_id=group_id,
            phase=phase_of(group),
            protocol=group.group.protocol,
            protocol_type=group.group.protocol_type,
            member_count=len(group.members),
        )
        for group_id, group in state.groups.items()
    }
    for group_id, live in classic.items():
        found[group_id] = ListedGroup(
            group_id=group_id,
            phase=live.phase,
            protocol="classic",
            protocol_type=live.protocol_type,
            member_count=len(live.members),
        )
    return tuple(found[group_id] for group_id in sorted(found))


def described(
    group_id: str, group: GroupState | None, classic: ClassicGroup | None, log: RebalanceLog
) -> GroupDescription:
    if classic is not None:
        return GroupDescription(
            group_id=group_id,
            phase=classic.phase,
            group_epoch=classic.generation,
            assignment_epoch=classic.assigned_generation,
            protocol="classic",
            protocol_type=classic.protocol_type,
            assignor=classic.protocol_name,
            members=tuple(_classic_member(classic, member) for _, member in sorted(classic.members.items())),
            rebalances=log.of(group_id),
        )
    if group is None:
        return GroupDescription(group_id=group_id, phase=GroupPhase.DEAD)
    return GroupDescription(
        group_id=group_id,
        phase=phase_of(group),
        group_epoch=group.group.group_epoch,
        assignment_epoch=group.group.assignment_epoch,
        protocol=group.group.protocol,
        protocol_type=group.group.protocol_type,
        assignor=group.group.protocol_name,
        members=tuple(_member(group, member_id) for member_id in sorted(group.members)),
        rebalances=log.of(group_id),
    )


def _member(group: GroupState, member_id: str) -> DescribedMember:
    member, current, target = group.members[member_id], group.currents[member_id], group.targets.get(member_id)
    return DescribedMember(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_epoch=current.member_epoch,
        state=MemberState(current.state),
        subscribed_topics=member.subscribed_topics,
        subscribed_pattern=member.subscribed_pattern,
        assigned=current.assigned,
        pending_revocation=current.pending_revocation,
        target=() if target is None else target.partitions,
    )


def _classic_member(group: ClassicGroup, member: ClassicMember) -> DescribedMember:
    """Its partitions are known only if it uses Kafka's own format."""
    decoded = decode_assignment(member.assignment) if group.protocol_type == PROTOCOL_TYPE else None
    assigned = from_set(decoded or ())
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.record.instance_id,
        client_id=member.record.client_id,
        client_host=member.record.client_host,
        member_epoch=group.generation,
        state=MemberState.STABLE,
        subscribed_topics=member.record.subscribed_topics,
        subscribed_pattern=None,
        assigned=assigned,
        pending_revocation=(),
        target=assigned,
        classic_metadata=member.metadata.get(group.protocol_name, b""),
        classic_assignment=member.assignment,
    )
