"""A scrape does not wait for leaders that stand still."""

import asyncio
from typing import Any, cast

import pytest

from barnabas.log.vocabulary.errors import GroupIdNotFoundError, LeaderNotAvailableError
from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.net.admin.frame import lags
from barnabas.net.admin.frame.lags import LaggingGroup, LagsOfGroups, lags_of_groups
from barnabas.net.broker.monitoring.group_lags import reading_of
from barnabas.net.broker.monitoring.lag_history import GroupReading
from barnabas.net.wire.protocol.group_responses import (
    DescribeGroupResponse,
    OffsetFetchResponse,
    UnreadPartitionResponse,
)
from barnabas.net.wire.protocol.requests import DescribeGroupRequest

CALL: Any = cast(Any, None)
FOUND: Any = ["a group and its lags"]


class Leaders:
    """They answer while they are let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.let.set()
        self.asked = 0
        self.error: Exception | None = None

    async def find(self, call: Any) -> list[LaggingGroup]:
        self.asked += 1
        await self.let.wait()
        if self.error is not None:
            raise self.error
        found: list[LaggingGroup] = FOUND
        return found


async def test_a_leader_that_stands_still_costs_half_a_second_and_the_last_lags_are_told() -> None:
    leaders = Leaders()
    known = LagsOfGroups(leaders.find, cache_s=0.0)
    assert (await known.get(CALL))[0] == FOUND
    leaders.let.clear()
    began_s = asyncio.get_running_loop().time()
    found, age_s = await known.get(CALL)
    assert found == FOUND and age_s >= lags.WAIT_S * 0.9
    await asyncio.gather(*(known.get(CALL) for _ in range(5)))
    assert asyncio.get_running_loop().time() - began_s < 5 * lags.WAIT_S
    assert leaders.asked == 2, "one question at a time"
    leaders.let.set()
    _, age_s = await known.get(CALL)
    _, age_s = await known.get(CALL)
    assert 0 <= age_s < lags.WAIT_S
    await known.close()


async def test_lags_that_are_too_old_are_not_told() -> None:
    leaders = Leaders()
    known = LagsOfGroups(leaders.find, cache_s=0.0, max_age_s=0.1)
    await known.get(CALL)
    leaders.let.clear()
    assert await known.get(CALL) == ([], -1.0)
    await known.close()


async def test_an_error_of_the_cluster_is_no_error_of_the_scrape() -> None:
    leaders = Leaders()
    leaders.error = LeaderNotAvailableError("it moves")
    known = LagsOfGroups(leaders.find)
    assert await known.get(CALL) == ([], -1.0)
    leaders.error = KeyError("a bug")
    with pytest.raises(KeyError):
        await known.get(CALL)
    await known.close()


async def test_a_sum_without_a_partition_whose_leader_is_away_is_unknown() -> None:
    """Groups beyond the partitions of a look, and groups that are gone, are left out."""
    committed = {"g": {"t": 2, "deleted": 1}, "large": {"t": 9}, "one": {"t": 1}}

    async def ask_here(request: Any) -> Any:
        if request.group_id == "gone":
            raise GroupIdNotFoundError("it was deleted")
        if isinstance(request, DescribeGroupRequest):
            return DescribeGroupResponse(
                group_id=request.group_id,
                state="Stable",
                group_epoch=1,
                assignment_epoch=1,
                assignor="",
                coordinator=1,
                members=(),
            )
        offsets = [
            CommittedOffset(topic=topic, partition=number, offset=5, metadata="")
            for topic, count in committed[request.group_id].items()
            for number in range(count)
        ]
        return OffsetFetchResponse(partitions=tuple(offsets))

    silent: set[int] = set()

    async def unread(places: Any) -> Any:
        return {
            place: UnreadPartitionResponse(
                topic="t",
                partition=place[0].partition,
                log_start_offset=0,
                log_end_offset=8,
                first_unread_ms=10,
                now_ms=60,
            )
            for place in places
            if place[0].topic == "t" and place[0].partition not in silent
        }

    names = ["g", "gone", "large", "one"]
    g, one = await lags_of_groups(ask_here, unread, names, max_partitions=4)
    assert (g.group.group_id, one.group.group_id) == ("g", "one")
    assert reading_of(g, frozenset({"t"})) == GroupReading(unread=6, lag_ms=50, topics=("t",))
    silent.add(1)
    g, one = await lags_of_groups(ask_here, unread, names, max_partitions=4)
    assert reading_of(g, frozenset({"t"})) == GroupReading(unread=-1, lag_ms=-1, topics=("t",))
    assert reading_of(one, frozenset({"t"})).unread == 3
    assert [item.group.group_id for item in await lags_of_groups(ask_here, unread, names, max_partitions=3)] == ["g"]
