"""How far groups lag: asked of coordinators and leaders, for the API one group at a time, for metrics all of this broker's.

A scrape makes one description and one fetch of offsets a group (both of this broker itself), and one request to each
leader for all groups together. What it found serves all scrapes of the next second.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.protocol.group_responses import (
    DescribeGroupResponse,
    GroupMember,
    ListGroupsResponse,
    OffsetFetchResponse,
    UnreadPartitionResponse,
    UnreadResponse,
)
from barnabas.net.protocol.lag import NOTHING_COMMITTED, Lag, lag_behind
from barnabas.net.protocol.requests import (
    DescribeGroupRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
    UnreadPartition,
    UnreadRequest,
)

from .call import Call
from .errors import ApiError

MAX_PARTITIONS_A_REQUEST: Final = 1_000  # so that no request holds up a leader's loop for more than some milliseconds
CACHE_S: Final = 1.0  # lag is to be right within a second


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group in one partition, and who reads it."""

    place: TopicPartition
    lag: Lag
    member: GroupMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingGroup:
    group: DescribeGroupResponse
    lags: Sequence[GroupLag]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """Where a group stands: in partitions where it has committed (an offset), and those that its members own."""

    group: DescribeGroupResponse
    offsets: Mapping[TopicPartition, int]
    owners: Mapping[TopicPartition, GroupMember]


async def lags_of(call: Call, group: DescribeGroupResponse) -> list[GroupLag]:
    """The lag of one group in each of its partitions. One that cannot be asked now (no leader, say) is left out."""
    standing = await _standing(call, group)
    return _lags(standing, await _unread(call, [standing]))


class LagsOfGroups:
    """The lags of all groups that this broker coordinates, found at most once in CACHE_S however often it is scraped."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._found: list[LaggingGroup] = []
        self._found_at_s = float("-inf")

    async def get(self, call: Call) -> list[LaggingGroup]:
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._found_at_s >= CACHE_S:
                self._found = await _lags_of_groups_here(call)
                self._found_at_s = now_s
            return self._found


async def _lags_of_groups_here(call: Call) -> list[LaggingGroup]:
    listed = await call.backend.handle_here(ListGroupsRequest())
    standings: list[_Standing] = []
    if isinstance(listed, ListGroupsResponse):
        for group in listed.groups:
            try:
                described = await call.ask(DescribeGroupRequest(group_id=group.group_id), DescribeGroupResponse)
                standings.append(await _standing(call, described))
            except ApiError:
                continue  # deleted or moved since it was listed: the next scrape knows more
    answers = await _unread(call, standings)
    return [LaggingGroup(group=standing.group, lags=_lags(standing, answers)) for standing in standings]


async def _standing(call: Call, group: DescribeGroupResponse) -> _Standing:
    fetched = await call.ask(OffsetFetchRequest(group_id=group.group_id), OffsetFetchResponse)
    owners = {
        TopicPartition(owned.topic, partition): member
        for member in group.members
        for owned in member.assigned
        for partition in owned.partitions
    }
    offsets = dict.fromkeys(owners, NOTHING_COMMITTED)
    offsets |= {
        TopicPartition(item.topic, item.partition): item.offset for item in fetched.partitions if item.offset >= 0
    }
    return _Standing(group=group, offsets=offsets, owners=owners)


async def _unread(
    call: Call, standings: Sequence[_Standing]
) -> dict[tuple[TopicPartition, int], UnreadPartitionResponse]:
    """What is unread behind each (partition, offset); groups that stand at the same place share an answer."""
    wanted = sorted({item for standing in standings for item in standing.offsets.items()})
    found: dict[tuple[TopicPartition, int], UnreadPartitionResponse] = {}
    for start in range(0, len(wanted), MAX_PARTITIONS_A_REQUEST):
        part = wanted[start : start + MAX_PARTITIONS_A_REQUEST]
        asked = tuple(
            UnreadPartition(topic=place.topic, partition=place.partition, offset=offset) for place, offset in part
        )
        answer = await call.ask(UnreadRequest(partitions=asked), UnreadResponse)
        found.update((key, item) for key, item in zip(part, answer.partitions, strict=True) if not item.error)
    return found


def _lags(standing: _Standing, answers: Mapping[tuple[TopicPartition, int], UnreadPartitionResponse]) -> list[GroupLag]:
    return [
        GroupLag(place=place, lag=lag_behind(offset, answers[place, offset]), member=standing.owners.get(place))
        for place, offset in sorted(standing.offsets.items())
        if (place, offset) in answers
    ]
