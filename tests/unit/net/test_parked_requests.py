"""Requests that wait for other members: how a slot's room is shared out among its groups."""

import pytest

from barnabas.consumer_groups.model.classic_messages import Answer
from barnabas.log.settings.broker_keys import MAX_GROUP_SIZE
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, RebalanceInProgressError
from barnabas.net.server.parked_requests import ParkedRequests


def fill(parked: ParkedRequests, group_id: str, first_ticket: int) -> int:
    """Park as many requests of the group as are taken."""
    count = 0
    while parked.has_room(group_id):
        parked.add(group_id, first_ticket + count)
        count += 1
    return count


async def test_a_group_that_floods_the_slot_leaves_room_for_the_others() -> None:
    parked = ParkedRequests(limit=1_000)
    assert fill(parked, "flood", 0) == 500
    assert fill(parked, "second", 1_000) == 250
    assert parked.has_room("honest")
    for number in range(50):
        assert parked.has_room("honest"), number
        parked.add("honest", 2_000 + number)
    assert not parked.has_room("flood")


async def test_room_comes_back_when_requests_end() -> None:
    parked = ParkedRequests(limit=10)
    fill(parked, "flood", 0)
    for ticket in range(5):
        parked.remove(ticket)
    assert len(parked) == 0 and fill(parked, "other", 100) == 5


async def test_answers_and_refusals_reach_those_who_wait() -> None:
    parked = ParkedRequests()
    first, second, third, gone = (parked.add("g", ticket) for ticket in range(4))
    gone.cancel()
    parked.deliver((Answer(ticket=0, value="yes"), Answer(ticket=1, value=RebalanceInProgressError("again"))))
    parked.deliver((Answer(ticket=3, value="late"), Answer(ticket=9, value="nobody")))
    parked.refuse_all(CoordinatorNotAvailableError("moved"))
    assert await first == "yes"
    with pytest.raises(RebalanceInProgressError):
        await second
    with pytest.raises(CoordinatorNotAvailableError):
        await third


async def test_three_groups_of_the_largest_size_rebalance_at_the_same_time() -> None:
    parked = ParkedRequests()
    for group in range(3):
        for number in range(MAX_GROUP_SIZE):
            assert parked.has_room(f"g{group}"), (group, number)
            parked.add(f"g{group}", group * MAX_GROUP_SIZE + number)


async def test_a_flood_of_one_group_is_bounded_by_the_size_of_a_group() -> None:
    assert fill(ParkedRequests(), "flood", 0) == 2 * MAX_GROUP_SIZE
