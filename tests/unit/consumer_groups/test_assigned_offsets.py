"""Committed offsets that come with an assignment: those that a fetch would answer, and when they are left out."""

from typing import Any

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.members.assigned_offsets import MAX_ASSIGNED_OFFSETS
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from .coordinator_bench import GROUP, Bench, T, settle
from .test_offsets import at, commit, commit_as, reset
from .test_slot_coordinator import slot_of_bench
from .test_transactional_offsets import World

IDS = {"t": "id of t"}
JOIN = ConsumerGroupHeartbeatRequest(
    group_id=GROUP, member_id="a", member_epoch=0, subscribed_topics=("t",), owned=(), wants_offsets=True
)


def beat(
    bench: Bench, request: ConsumerGroupHeartbeatRequest, ids: dict[str, str] | None = None
) -> ConsumerGroupHeartbeatResponse:
    result = bench.coordinator.heartbeat(request, bench.now_ms, topic_ids=IDS if ids is None else ids)
    bench.commit(result.records)
    assert result.records or not result.response.offsets, "no commit would confirm them"
    return result.response


def offsets_in(response: ConsumerGroupHeartbeatResponse) -> dict[int, int]:
    assert {item.topic_id for item in response.offsets} <= set(IDS.values())
    return {item.partition: item.offset for item in response.offsets}


def test_an_assignment_brings_what_a_fetch_would_answer_without_metadata() -> None:
    bench = Bench()
    commit(bench, at(5, metadata="long"), at(7, partition=2))
    told = beat(bench, JOIN)
    fetched = bench.coordinator.offsets.fetch(GROUP, partitions=tuple(("t", n) for n in range(4)), topic_ids=IDS)
    assert told.offsets == tuple(replace(item, metadata="") for item in fetched)
    assert offsets_in(told) == {0: 5, 1: -1, 2: 7, 3: -1}


def test_only_partitions_that_are_new_to_the_member_come_with_offsets() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    had = {number for _, number in first.owned}
    assert 0 < len(had) < len(T)
    second.beat(member_epoch=-1, owned=None)
    told = beat(bench, first.request(owned=None, wants_offsets=True))
    assert told.assignment is not None and offsets_in(told).keys() == {number for _, number in T} - had


def test_a_member_that_says_it_owns_nothing_gets_the_offsets_of_all() -> None:
    """It has not received what the coordinator has assigned to it before."""
    bench = Bench(topics={"t": 4, "u": 1})
    told = beat(bench, JOIN)
    assert offsets_in(told).keys() == {0, 1, 2, 3}
    again = beat(bench, replace(JOIN, member_epoch=told.member_epoch, subscribed_topics=("t", "u")))
    assert offsets_in(again).keys() == {0, 1, 2, 3}


def test_a_member_that_does_not_ask_for_them_gets_none() -> None:
    """As those of Kafka, and older ones."""
    bench = Bench()
    commit(bench, at(5))
    assert beat(bench, replace(JOIN, wants_offsets=False)).offsets == ()


def test_a_repeated_assignment_brings_none() -> None:
    """No commit would show that this coordinator has not been replaced."""
    bench = Bench()
    commit(bench, at(5))
    told = beat(bench, JOIN)
    again = replace(JOIN, member_epoch=told.member_epoch, subscribed_topics=None)
    repeated = beat(bench, again)
    assert repeated.assignment == told.assignment and repeated.offsets == ()


def test_the_offset_of_an_open_transaction_is_left_out_until_it_ends() -> None:
    world = World()
    commit(world.bench, at(5), at(6, partition=1))
    world.commit(9)
    assert offsets_in(beat(world.bench, JOIN)) == {1: 6, 2: -1, 3: -1}
    world.end()
    world.bench.coordinator.tick(world.bench.now_ms)
    left = replace(JOIN, member_epoch=-1, owned=None)
    beat(world.bench, left)
    assert offsets_in(beat(world.bench, JOIN))[0] == 9


def test_topics_whose_id_is_not_known_are_left_out() -> None:
    bench = Bench()
    commit(bench, at(5))
    assert beat(bench, JOIN, ids={"u": "id of u"}).offsets == ()


@pytest.mark.parametrize(
    ("count", "brought"), [(MAX_ASSIGNED_OFFSETS, MAX_ASSIGNED_OFFSETS), (MAX_ASSIGNED_OFFSETS + 1, 0)]
)
def test_many_are_asked_for_at_once(count: int, brought: int) -> None:
    bench = Bench(topics={"t": count})
    told = beat(bench, JOIN)
    assert told.assignment is not None and len(told.offsets) == brought


def test_a_waiting_member_gets_the_last_commit_of_the_owner_before() -> None:
    bench = Bench()
    first = bench.join("b")
    commit_as(bench, first, 3)
    told = beat(bench, JOIN)
    assert told.offsets == () and told.assignment == ()
    waiting: Any = replace(JOIN, member_epoch=told.member_epoch, owned=None, subscribed_topics=None, max_wait_ms=60_000)
    result = bench.coordinator.poll_heartbeat(waiting, 1, bench.now_ms, topic_ids=IDS)
    assert not result.answers
    first.beat()
    for number in range(4):
        commit(bench, at(10 + number, partition=number), member_id=first.member, member_epoch=first.epoch)
    first.beat()  # It has let go of what is not assigned to it.
    bench.now_ms += 1
    woken = slot_of_bench(bench).tick(bench.now_ms, topic_ids=IDS)
    (answer,) = woken.answers
    assert isinstance(answer.value, ConsumerGroupHeartbeatResponse) and answer.value.assignment is not None
    assert woken.records and len(answer.value.offsets) == 2
    assert offsets_in(answer.value) == {item.partition: 10 + item.partition for item in answer.value.offsets}


def test_after_a_reset_the_member_asks() -> None:
    bench = Bench()
    commit(bench, at(5))
    beat(bench, JOIN)
    reset(bench, at(2))
    rejoined = beat(bench, JOIN)
    assert rejoined.assignment is not None and rejoined.offsets == ()
