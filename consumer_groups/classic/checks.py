"""Validation of classic requests, without changes of state. All functions raise on an invalid request."""

from barnabas.log.vocabulary.errors import (
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    RebalanceInProgressError,
)
from barnabas.log.vocabulary.group_messages import JoinGroupRequest, SyncGroupRequest

from ..model.group_limits import check_group_id, check_ids
from ..model.settings import GroupSettings
from ..model.states import GroupPhase
from .group import ClassicGroup


def check_join(request: JoinGroupRequest, settings: GroupSettings) -> None:
    """Check the request by itself, without the group."""
    check_group_id(request.group_id, settings)
    check_ids((request.member_id, request.instance_id or "", request.client_id), settings)
    low, high = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeoutError(
            f"session timeout {request.session_timeout_ms} ms is out of range; allowed: {low} to {high} ms"
        )
    if request.rebalance_timeout_ms <= 0:
        raise InvalidRequestError(f"rebalance timeout {request.rebalance_timeout_ms} ms must be positive")
    if not request.protocol_type or not request.protocols:
        raise InconsistentGroupProtocolError("a member must name a protocol type and at least one protocol")
    if len(request.protocols) > settings.max_protocols:
        raise InvalidRequestError(f"{len(request.protocols)} protocols; at most {settings.max_protocols} are allowed")
    size_bytes = sum(len(item.name) + len(item.metadata) for item in request.protocols)
    if size_bytes > settings.max_subscription_bytes:
        raise InvalidRequestError(
            f"{size_bytes} bytes of subscription metadata; at most {settings.max_subscription_bytes} are allowed per member"
        )


def check_room(group: ClassicGroup, request: JoinGroupRequest, settings: GroupSettings, *, is_new: bool) -> None:
    count = len(group.members) + len(group.pending)
    if is_new and count >= settings.max_classic_group_size:
        raise GroupMaxSizeReachedError(f"group {request.group_id} already has {count} members, the maximum")


def check_sync(group: ClassicGroup, request: SyncGroupRequest) -> None:
    if request.generation != group.generation:
        raise IllegalGenerationError(
            f"generation {request.generation}, but group {request.group_id} is at generation {group.generation}: rejoin"
        )
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        raise InconsistentGroupProtocolError(f"the group's protocol type is {group.protocol_type}")
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        raise InconsistentGroupProtocolError(f"the group's protocol is {group.protocol_name}")
    if group.phase is GroupPhase.PREPARING_REBALANCE:
        raise RebalanceInProgressError(f"group {request.group_id} is rebalancing: rejoin")
