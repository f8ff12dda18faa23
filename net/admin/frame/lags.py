"""The lag of groups, queried from coordinators and leaders: one group for the API, all groups of this broker for metrics.

A scrape costs one description and one fetch of offsets per group (both from this broker itself), and one request to each leader
for all groups together. Scrapes within the next second share the result.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.positions.offset_lookup import unread_now
from barnabas.net.wire.protocol.group_responses import (
    DescribeGroupResponse,
    GroupMember,
    ListGroupsResponse,
    OffsetFetchResponse,
    UnreadPartitionResponse,
)
from barnabas.net.wire.protocol.lag import NOTHING_COMMITTED, Lag, lag_behind
from barnabas.net.wire.protocol.requests import DescribeGroupRequest, ListGroupsRequest, OffsetFetchRequest, Request

from .call import Call

log = logging.getLogger("barnabas.admin")
_Place = tuple[TopicPartition, int]  # and an offset there

CACHE_S: Final = 1.0  # While all leaders answer, the reported lag is at most so old.
WAIT_S: Final = 0.5  # of a scrape for the lags; Prometheus gives up after ten seconds by default
FIRST_WAIT_S: Final = 5.0  # of the first scrape, which has no older ones to tell
MAX_AGE_S: Final = 60.0  # older lags are not told


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group in one partition, and the member that reads it."""

    place: TopicPartition
    lag: Lag
    member: GroupMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingGroup:
    """`unanswered`: partitions whose leader did not answer."""

    group: DescribeGroupResponse
    lags: Sequence[GroupLag]
    unanswered: Sequence[TopicPartition] = ()


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
    """The lags of all groups that this broker coordinates, computed at most once per CACHE_S, and by one task at a time.

    A scrape waits for them at most WAIT_S: leaders that stand still must not take the other metrics of this broker away, which
    are needed just then. It gets the last ones meanwhile, until they are too old.
    """

    def __init__(
        self,
        find: Callable[[Call], Awaitable[list[LaggingGroup]]] | None = None,
        *,
        cache_s: float = CACHE_S,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        self._find = find or _lags_of_groups_here
        self._cache_s, self._max_age_s = cache_s, max_age_s
        self._found: list[LaggingGroup] = []
        self._found_at_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._wait_s = FIRST_WAIT_S

    async def get(self, call: Call) -> tuple[list[LaggingGroup], float]:
        """The lags, and their age in seconds; none, and -1, if they are not known."""
        loop = asyncio.get_running_loop()
        if self._looking is None and loop.time() - self._found_at_s >= self._cache_s:
            self._looking = loop.create_task(self._look(call))
        if (looking := self._looking) is not None:
            wait_s, self._wait_s = self._wait_s, WAIT_S
            await asyncio.wait({looking}, timeout=wait_s)
            if looking.done() and not looking.cancelled():
                looking.result()  # a bug is not hidden
        age_s = loop.time() - self._found_at_s
        return (self._found, age_s) if age_s <= self._max_age_s else ([], -1.0)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            self._found = await self._find(call)
            self._found_at_s = began_s
        except BarnabasError as error:
            log.debug("no lags of groups error=%s", error)
        finally:
            self._looking = None


async def _lags_of_groups_here(call: Call) -> list[LaggingGroup]:
    listed: ListGroupsResponse = await call.ask_here(ListGroupsRequest())
    return await lags_of_groups(
        call.ask_here,
        lambda places: call.ask(lambda admin: unread_now(admin.client, places)),
        [group.group_id for group in listed.groups],
    )


async def lags_of_groups(
    ask_here: Callable[[Request], Awaitable[Any]],
    unread: Callable[[set[_Place]], Awaitable[Mapping[_Place, UnreadPartitionResponse]]],
    names: Sequence[str],
    *,
    max_partitions: int = sys.maxsize,
) -> list[LaggingGroup]:
    """The lag of these groups, which this broker coordinates; those with which there are more partitions are left out."""
    standings: list[_Standing] = []
    left = max_partitions
    for name in names:
        try:
            standing = await _standing(ask_here, name)
        except BarnabasError:
            continue  # the group was deleted or moved since it was listed: the next look corrects it
        if len(standing.offsets) <= left:
            left -= len(standing.offsets)
            standings.append(standing)
    places = {
        item for standing in standings for item in standing.offsets.items()
    }  # Groups at the same offset share an answer.
    answers = await unread(places) if places else {}
    found = []
    for standing in standings:
        unanswered = [place for place, offset in standing.offsets.items() if (place, offset) not in answers]
        found.append(LaggingGroup(group=standing.group, lags=_lags(standing, answers), unanswered=unanswered))
        await asyncio.sleep(0)  # 2 ms for each 1,000 partitions: others are served between groups
    return found


async def _standing(ask_here: Callable[[Request], Awaitable[Any]], group_id: str) -> _Standing:
    group: DescribeGroupResponse = await ask_here(DescribeGroupRequest(group_id=group_id))
    fetched: OffsetFetchResponse = await ask_here(OffsetFetchRequest(group_id=group_id))
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
