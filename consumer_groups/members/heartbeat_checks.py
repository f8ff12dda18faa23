"""Validation of heartbeats, without changes of state. All functions raise on an invalid request."""

from barnabas.kraft.group_state.group_slots import GroupState
from barnabas.kraft.metadata.records import CurrentAssignmentRecord, MemberRecord
from barnabas.log.vocabulary.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest
from barnabas.log.vocabulary.name_pattern import name_pattern

from ..model.group_limits import check_group_id, check_ids
from ..model.messages import MemberEpoch
from ..model.partitions import to_set
from ..model.settings import GroupSettings
from ..model.states import AWAY_EPOCH


def check_request(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """Check the request by itself. If it leaves the group, only its ids and its epoch are checked, as in Kafka."""
    _check_ids(request, settings)
    if request.member_epoch < MemberEpoch.LEAVE_STATIC:
        raise InvalidRequestError(f"member epoch {request.member_epoch} is invalid: use -2 or more")
    if request.member_epoch == MemberEpoch.LEAVE_STATIC and request.instance_id is None:
        raise InvalidRequestError("only a member with an instance id can leave temporarily")
    if request.member_epoch < MemberEpoch.JOIN:
        return
    if (
        request.member_epoch == MemberEpoch.JOIN
        and request.subscribed_topics is None
        and request.subscribed_pattern is None
    ):
        raise InvalidRequestError("a member that joins must subscribe to topics or to a pattern")
    _check_subscription(request, settings)
    low, high = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if request.session_timeout_ms != -1 and not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeoutError(
            f"session timeout {request.session_timeout_ms} ms is out of range; allowed: {low} to {high} ms"
        )
    if request.rebalance_timeout_ms != -1 and request.rebalance_timeout_ms <= 0:
        raise InvalidRequestError(f"rebalance timeout {request.rebalance_timeout_ms} ms must be positive")


def _check_ids(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    check_group_id(request.group_id, settings)
    if not request.member_id and request.member_epoch != MemberEpoch.JOIN:
        raise InvalidRequestError("the member id is empty; only a member that joins may omit it")
    if request.instance_id == "":
        raise InvalidRequestError("the instance id is empty; omit it for a dynamic member")
    check_ids((request.member_id, request.instance_id or "", request.client_id), settings)


def _check_subscription(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    if request.subscribed_topics is not None and len(request.subscribed_topics) > settings.max_subscribed_topics:
        raise InvalidRequestError(f"more than {settings.max_subscribed_topics} topics; subscribe with a pattern")
    if request.subscribed_pattern:
        name_pattern(request.subscribed_pattern)
    if request.assignor and request.assignor not in settings.assignors:
        known = ", ".join(settings.assignors)
        raise UnsupportedAssignorError(f"assignor {request.assignor!r} is not supported; supported: {known}")


def check_join(group: GroupState | None, request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """Check whether this new member may join."""
    if group is None:
        return
    if group.group.protocol != "consumer" and group.members:
        raise InvalidRequestError(f"the members of group {request.group_id} use the {group.group.protocol} protocol")
    holder = holder_of(group, request.instance_id)
    if holder is not None:
        if group.currents[holder.member_id].member_epoch != AWAY_EPOCH:
            raise UnreleasedInstanceIdError(
                f"instance id {request.instance_id} is in use by member {holder.member_id}: stop it first"
            )
    elif len(group.members) >= settings.max_group_size:
        raise GroupMaxSizeReachedError(
            f"group {request.group_id} already has {len(group.members)} members, the maximum"
        )


def check_member(group: GroupState | None, request: ConsumerGroupHeartbeatRequest) -> MemberRecord:
    """Return the member that sent the request."""
    holder = None if group is None else holder_of(group, request.instance_id)
    if holder is not None and holder.member_id != request.member_id:
        raise FencedInstanceIdError(f"instance id {request.instance_id} now belongs to member {holder.member_id}")
    member = None if group is None else group.members.get(request.member_id)
    if member is None:
        raise UnknownMemberIdError(f"no member {request.member_id} in group {request.group_id}: rejoin")
    return member


def check_epoch(current: CurrentAssignmentRecord, request: ConsumerGroupHeartbeatRequest) -> None:
    """Accept the current epoch, or the previous one if the answer that raised it was lost.

    A member at the previous epoch that owns partitions which it was never assigned has missed more than one answer. A member
    that does not report what it owns may have missed more, too. After a lost answer a client sends a full heartbeat, so a
    member that reports nothing is fenced as well, as in Kafka.
    """
    if request.member_epoch == current.member_epoch:
        return
    is_tolerated = (
        request.member_epoch == current.previous_member_epoch
        and request.owned is not None
        and to_set(request.owned) <= to_set(current.assigned) | to_set(current.pending_revocation)
    )
    if not is_tolerated:
        raise FencedMemberEpochError(
            f"member epoch {request.member_epoch}, but {request.member_id} is at epoch {current.member_epoch}: "
            "release all partitions and rejoin"
        )


def holder_of(group: GroupState, instance_id: str | None) -> MemberRecord | None:
    member_id = None if instance_id is None else group.holders.get(instance_id)
    return None if member_id is None else group.members[member_id]
