"""The quorum's records of a classic group: the state that survives its coordinator."""

from barnabas.kraft.group_state.group_slots import CLASSIC_PROTOCOL, SlotState
from barnabas.kraft.metadata.records import CurrentAssignmentRecord, GroupRecord, MemberRecord
from barnabas.log.vocabulary.group_messages import JoinGroupRequest
from barnabas.log.vocabulary.group_protocol import PROTOCOL_TYPE, decode_subscription

from ..members.reconciliation import NO_EPOCH
from ..model.states import MemberState
from .group import ClassicGroup, ClassicMember


def group_record(state: SlotState, group: ClassicGroup) -> GroupRecord:
    return GroupRecord(
        slot=state.slot,
        coordinator_epoch=state.coordinator_epoch,
        group_id=group.group_id,
        group_epoch=group.generation,
        assignment_epoch=group.assigned_generation,
        protocol=CLASSIC_PROTOCOL,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id,
    )


def member_record(state: SlotState, member_id: str, request: JoinGroupRequest, client_host: str) -> MemberRecord:
    topics: tuple[str, ...] = ()
    if request.protocol_type == PROTOCOL_TYPE:
        subscription = decode_subscription(request.protocols[0].metadata)
        topics = () if subscription is None else tuple(sorted(subscription.topics))
    return MemberRecord(
        slot=state.slot,
        coordinator_epoch=state.coordinator_epoch,
        group_id=request.group_id,
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=client_host,
        rack=None,
        subscribed_topics=topics,
        subscribed_pattern=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        classic_metadata={item.name: item.metadata for item in request.protocols},
    )


def current_record(state: SlotState, group: ClassicGroup, member: ClassicMember) -> CurrentAssignmentRecord:
    return CurrentAssignmentRecord(
        slot=state.slot,
        coordinator_epoch=state.coordinator_epoch,
        group_id=group.group_id,
        member_id=member.member_id,
        member_epoch=group.generation,
        previous_member_epoch=NO_EPOCH,
        state=MemberState.STABLE.value,
        assigned=(),  # only the members define what the bytes of the assignment below mean
        pending_revocation=(),
        classic_assignment=member.assignment,
    )
