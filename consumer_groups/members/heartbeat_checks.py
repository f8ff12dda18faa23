"""What is wrong with a heartbeat, as far as it can be told without changing anything. All of these raise."""

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
    """The request by itself. Of one that leaves, only what says who leaves and how is looked at, as in Kafka."""
    _check_ids(request, settings)
    if request.member_epoch < MemberEpoch.LEAVE_STATIC:
        raise InvalidRequestError(f"member epoch {request.member_epoch} has no meaning")
    if request.member_epoch == MemberEpoch.LEAVE_STATIC and request.instance_id is None:
        raise InvalidRequestError("only a member with an instance id can leave for a while")
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
            f"session timeout {request.session_timeout_ms} ms; allowed: {low} to {high} ms"
        )
    if request.rebalance_timeout_ms != -1 and request.rebalance_timeout_ms <= 0:
        raise InvalidRequestError(f"rebalance timeout {request.rebalance_timeout_ms} ms; it must be positive")


def _check_ids(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    check_group_id(request.group_id, settings)
    if not request.member_id and request.member_epoch != MemberEpoch.JOIN:
        raise InvalidRequestError("the member id is empty; only a member that joins may leave it so")
    if request.instance_id == "":
        raise InvalidRequestError("the instance id is empty; leave it out for a dynamic member")
    check_ids((request.member_id, request.instance_id or "", request.client_id), settings)


def _check_subscription(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    if request.subscribed_topics is not None and len(request.subscribed_topics) > settings.max_subscribed_topics:
        raise InvalidRequestError(f"more than {settings.max_subscribed_topics} topics; subscribe by a pattern")
    if request.subscribed_pattern:
        name_pattern(request.subscribed_pattern)
    if request.assignor and request.assignor not in settings.assignors:
        known = ", ".join(settings.assignors)
        raise UnsupportedAssignorError(f"no assignor {request.assignor!r} here; there are: {known}")


def check_join(group: GroupState | None, request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """May this member, not one yet, come in?"""
    if group is None:
        return
    if group.group.protocol != "consumer" and group.members:
        raise InvalidRequestError(f"group {request.group_id} is run by the {group.group.protocol} protocol now")
    holder = holder_of(group, request.instance_id)
    if holder is not None:
        if group.currents[holder.member_id].member_epoch != AWAY_EPOCH:
            raise UnreleasedInstanceIdError(
                f"instance id {request.instance_id} is in use by member {holder.member_id}: stop it first"
            )
    elif len(group.members) >= settings.max_group_size:
        raise GroupMaxSizeReachedError(f"group {request.group_id} has {len(group.members)} members already")


def check_member(group: GroupState | None, request: ConsumerGroupHeartbeatRequest) -> MemberRecord:
    """Return the member that the request is from."""
    holder = None if group is None else holder_of(group, request.instance_id)
    if holder is not None and holder.member_id != request.member_id:
        raise FencedInstanceIdError(f"instance id {request.instance_id} belongs to member {holder.member_id} now")
    member = None if group is None else group.members.get(request.member_id)
    if member is None:
        raise UnknownMemberIdError(f"no member {request.member_id} in group {request.group_id}: join again")
    return member


def check_epoch(current: CurrentAssignmentRecord, request: ConsumerGroupHeartbeatRequest) -> None:
    """The current epoch; or the one before it, when the answer that raised it was lost.

    A member of the previous epoch that owns what it was never given has been away for longer than one answer; one that does not
    say what it owns might. After a lost answer a member says everything, so it is fenced like the other, as in Kafka.
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
            f"member epoch {request.member_epoch}, but {request.member_id} is at {current.member_epoch}: "
            "let go of all partitions and join again"
        )


def holder_of(group: GroupState, instance_id: str | None) -> MemberRecord | None:
    member_id = None if instance_id is None else group.holders.get(instance_id)
    return None if member_id is None else group.members[member_id]
