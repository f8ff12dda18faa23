"""A scrape does not wait for leaders that stand still."""

import asyncio
from typing import Any, cast

import pytest

from barnabas.log.vocabulary.errors import LeaderNotAvailableError
from barnabas.net.admin.frame import lags
from barnabas.net.admin.frame.lags import LaggingGroup, LagsOfGroups

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
