"""The lag of groups, queried from coordinators and leaders: one group for the API, all groups of this broker for metrics.

A scrape costs one description and one fetch of offsets per group (both from this broker itself), and one request to each leader
for all groups together. Scrapes within the next second share the result.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.protocol.group_responses import (
    DescribeGroupResponse,
    GroupMember,
    ListGroupsResponse,
    OffsetFetchResponse,
    UnreadPartitionResponse,
)
from barnabas.net.protocol.lag import NOTHING_COMMITTED, Lag, lag_behind
from barnabas.net.protocol.requests import DescribeGroupRequest, ListGroupsRequest, OffsetFetchRequest

from .call import Call

CACHE_S: Final = 1.0  # the reported lag must be at most one second old


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group in one partition, and the member that reads it."""

    place: TopicPartition
    lag: Lag
    member: GroupMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingGroup:
    group: DescribeGroupResponse
    lags: Sequence[GroupLag]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """The positions of a group: partitions with a committed offset, and partitions that its members own."""

    group: DescribeGroupResponse
    offsets: Mapping[TopicPartition, int]


async def lags_of(call: Call, group: DescribeGroupResponse) -> list[GroupLag]:
    """The lag of one group in each of its partitions. Partitions that cannot be queried now (no leader) are left out, and those
    of topics that the caller may not describe."""
    found = await call.ask(lambda admin: admin.group_offsets(group.group_id, only_reachable=True))
    owners = _owners(group)
    return [
        GroupLag(place=place, lag=lag, member=owners.get(place))
        for place, lag in sorted(found.items())
        if call.shows_topic(place.topic)
    ]


class LagsOfGroups:
    """The lags of all groups that this broker coordinates, computed at most once per CACHE_S."""

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
    listed: ListGroupsResponse = await call.ask_here(ListGroupsRequest())
    standings: list[_Standing] = []
    for group in listed.groups:
        try:
            standings.append(await _standing(call, group.group_id))
        except BarnabasError:
            continue  # the group was deleted or moved since it was listed: the next scrape corrects it
    places = {
        item for standing in standings for item in standing.offsets.items()
    }  # Groups at the same offset share an answer.
    answers = await call.ask(lambda admin: admin.unread_now(places)) if places else {}
    return [LaggingGroup(group=standing.group, lags=_lags(standing, answers)) for standing in standings]


async def _standing(call: Call, group_id: str) -> _Standing:
    group: DescribeGroupResponse = await call.ask_here(DescribeGroupRequest(group_id=group_id))
    fetched: OffsetFetchResponse = await call.ask_here(OffsetFetchRequest(group_id=group_id))
    offsets = dict.fromkeys(_owners(group), NOTHING_COMMITTED)
    offsets |= {
        TopicPartition(item.topic, item.partition): item.offset for item in fetched.partitions if item.offset >= 0
    }
    return _Standing(group=group, offsets=offsets)


def _owners(group: DescribeGroupResponse) -> dict[TopicPartition, GroupMember]:
    return {
        TopicPartition(owned.topic, partition): member
        for member in group.members
        for owned in member.assigned
        for partition in owned.partitions
    }


def _lags(standing: _Standing, answers: Mapping[tuple[TopicPartition, int], UnreadPartitionResponse]) -> list[GroupLag]:
    owners = _owners(standing.group)
    return [
        GroupLag(place=place, lag=lag_behind(offset, answers[place, offset]), member=owners.get(place))
        for place, offset in sorted(standing.offsets.items())
        if (place, offset) in answers
    ]
