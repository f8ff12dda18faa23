"""Members and single offsets of consumer groups, seen by an operator: `group remove-member`, `group delete-offsets`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import InconsistentGroupProtocolError, UnknownMemberIdError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, LeaveGroupRequest, TopicPartitions
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.group_responses import GroupMember
from barnabas.net.wire.protocol.requests import DeleteOffsetsRequest

from ...base.limits import OFFSETS_PER_REQUEST
from ..connection.errors import GroupIdNotFoundError

if TYPE_CHECKING:  # commands import this module without importing a client
    from .admin import Admin

REMOVED_BY_OPERATOR: Final = "removed by an operator"  # the reason that `explain` shows
TIMEOUT_MS: Final = 30_000


async def remove_member(admin: "Admin", group_id: str, member: GroupMember, *, timeout_ms: int = TIMEOUT_MS) -> None:
    """Remove a member, as `Admin.describe_group` shows it, from its group. A member that still runs joins again as a new one.

    Raises UnknownMemberIdError: it has left.
    """
    coordinators = admin.client.coordinators
    leaving = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member.member_id,
        member_epoch=-1,
        instance_id=member.instance_id,
        reason=REMOVED_BY_OPERATOR,
    )
    try:
        await coordinators.call(group_id, leaving, timeout_ms=timeout_ms)
    except (UnknownMemberIdError, GroupIdNotFoundError, InconsistentGroupProtocolError):
        classic = LeaveGroupRequest(
            group_id=group_id, member_id=member.member_id, instance_id=member.instance_id, reason=REMOVED_BY_OPERATOR
        )
        await coordinators.call(group_id, classic, timeout_ms=timeout_ms)


async def delete_offsets(
    admin: "Admin", group_id: str, places: Iterable[TopicPartition], *, timeout_ms: int = TIMEOUT_MS
) -> None:
    """Forget committed offsets. Raises GroupSubscribedToTopicError: a member reads the topic; UnstableOffsetCommitError."""
    every = list(places)
    for start in range(0, len(every), OFFSETS_PER_REQUEST):
        by_topic: dict[str, list[int]] = {}
        for topic, number in every[start : start + OFFSETS_PER_REQUEST]:
            by_topic.setdefault(topic, []).append(number)
        partitions = tuple(TopicPartitions(topic=topic, partitions=tuple(some)) for topic, some in by_topic.items())
        request = DeleteOffsetsRequest(group_id=group_id, partitions=partitions)
        await admin.client.coordinators.call(group_id, request, timeout_ms=timeout_ms)
