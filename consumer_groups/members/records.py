"""The quorum's records of a group of the consumer protocol and its members: the state that survives its coordinator."""

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import GroupState, SlotState
from barnabas.kraft.metadata.records import CurrentAssignmentRecord, GroupRecord, MemberRecord, RemoveMemberRecord
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest

from ..model.messages import MemberEpoch
from ..model.partitions import from_set
from ..model.settings import GroupSettings
from .reconciliation import NO_EPOCH, Holding


def group_record(state: SlotState, settings: GroupSettings, group_id: str, before: GroupState | None) -> GroupRecord:
    """A new group, or an empty one that changes to this protocol. Epochs never go back."""
    return GroupRecord(
        slot=state.slot,
        coordinator_epoch=state.coordinator_epoch,
        group_id=group_id,
        group_epoch=0 if before is None else before.group.group_epoch,
        assignment_epoch=0 if before is None else before.group.assignment_epoch,
        protocol_name=settings.default_assignor,
    )


def blank_member(
    state: SlotState, settings: GroupSettings, member_id: str, request: ConsumerGroupHeartbeatRequest
) -> MemberRecord:
    return MemberRecord(
        slot=state.slot,
        coordinator_epoch=state.coordinator_epoch,
        group_id=request.group_id,
        member_id=member_id,
        instance_id=request.instance_id,
        client_id="",
        client_host="",
        rack=None,
        subscribed_topics=(),
        subscribed_pattern=None,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        session_timeout_ms=settings.session_timeout_ms,
    )


def updated_member(
    state: SlotState, before: MemberRecord, request: ConsumerGroupHeartbeatRequest, client_host: str
) -> MemberRecord:
    """The member's previous record, updated with the fields of the request."""
    topics = request.subscribed_topics
    pattern = request.subscribed_pattern
    return replace(
        before,
        coordinator_epoch=state.coordinator_epoch,
        rack=before.rack if request.rack is None else request.rack,
        client_id=request.client_id or before.client_id,
        client_host=client_host or before.client_host,
        subscribed_topics=before.subscribed_topics if topics is None else tuple(sorted(set(topics))),
        subscribed_pattern=before.subscribed_pattern if pattern is None else pattern or None,
        rebalance_timeout_ms=_given(request.rebalance_timeout_ms, before.rebalance_timeout_ms),
        session_timeout_ms=_given(request.session_timeout_ms, before.session_timeout_ms),
        assignor=before.assignor if request.assignor is None else request.assignor,
    )


def current_record(state: SlotState, group_id: str, member_id: str, holding: Holding) -> CurrentAssignmentRecord:
    return CurrentAssignmentRecord(
        slot=state.slot,
        coordinator_epoch=state.coordinator_epoch,
        group_id=group_id,
        member_id=member_id,
        member_epoch=holding.member_epoch,
        previous_member_epoch=holding.previous_member_epoch,
        state=holding.state.value,
        assigned=from_set(holding.assigned),
        pending_revocation=from_set(holding.pending_revocation),
    )


def returned_record(state: SlotState, current: CurrentAssignmentRecord, member_id: str) -> CurrentAssignmentRecord:
    """A member that was away holds what it held before, and has joined again."""
    return replace(
        current,
        coordinator_epoch=state.coordinator_epoch,
        member_id=member_id,
        member_epoch=MemberEpoch.JOIN,
        previous_member_epoch=NO_EPOCH,
    )


def remove_record(state: SlotState, group_id: str, member_id: str) -> RemoveMemberRecord:
    return RemoveMemberRecord(
        slot=state.slot, coordinator_epoch=state.coordinator_epoch, group_id=group_id, member_id=member_id
    )


def _given(value: int, otherwise: int) -> int:
    return otherwise if value == -1 else value
