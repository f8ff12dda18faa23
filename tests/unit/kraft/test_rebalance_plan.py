"""Plans for brokers that leave or come: rules that hold for every cluster."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from barnabas.kraft.controller.placement import Site
from barnabas.kraft.controller.rebalance_plan import PlacedPartition, plan_drain, plan_fill
from barnabas.log.vocabulary.topic_partition import TopicPartition


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PlacedPartition], dict[int, Site]]:
    """No partition has two replicas on one machine."""
    count = draw(st.integers(2, 7))
    has_racks, has_machines = draw(st.booleans()), draw(st.booleans())
    sites = {
        node_id: Site(
            rack=draw(st.sampled_from("abc")) if has_racks else None,
            machine=draw(st.sampled_from("mnop")) if has_machines else node_id,
        )
        for node_id in range(count)
    }
    factor = draw(st.integers(1, min(len({site.machine for site in sites.values()}), 4)))
    partitions = []
    for number, order in enumerate(draw(st.lists(st.permutations(range(count)), max_size=30))):
        one_of_each = {sites[node_id].machine: node_id for node_id in order}
        replicas = tuple(one_of_each.values())[:factor]
        partitions.append(PlacedPartition(topic_partition=TopicPartition("t", number), replicas=replicas))
    return partitions, sites


def own_machines(count: int) -> dict[int, Site]:
    return {node_id: Site(rack=None, machine=node_id) for node_id in range(count)}


def machines_of(replicas: tuple[int, ...], sites: dict[int, Site]) -> list[str | int]:
    return [sites[node_id].machine for node_id in replicas]


def after(partitions: list[PlacedPartition], moves: Any) -> list[tuple[int, ...]]:
    moved = {move.topic_partition: move.replicas for move in moves}
    assert len(moved) == len(moves)
    return [moved.get(item.topic_partition, item.replicas) for item in partitions]


def held(replicas: list[tuple[int, ...]]) -> Counter[int]:
    return Counter(replica for item in replicas for replica in item)


@given(clusters(), st.integers(1, 40))
def test_a_drain_leaves_no_replica_that_another_broker_can_take(cluster: Any, limit: int) -> None:
    partitions, sites = cluster
    others = [node_id for node_id in sites if node_id != 0]
    moves = plan_drain(partitions, sites, others, leaving=0, limit=limit)
    assert len(moves) <= limit
    result = after(partitions, moves)
    for before, now in zip(partitions, result, strict=True):
        assert len(set(now)) == len(now) == len(before.replicas)
        if now != before.replicas:
            (place,) = [place for place, (a, b) in enumerate(zip(before.replicas, now, strict=True)) if a != b]
            assert before.replicas[place] == 0  # nobody but who leaves is moved, and at its own place
        assert len(set(machines_of(now, sites))) == len(now)
    stuck = [now for now in result if 0 in now]
    if len(moves) < limit:
        for now in stuck:
            used = {sites[node_id].machine for node_id in now if node_id != 0}
            assert used.issuperset(sites[node_id].machine for node_id in others)


@given(clusters())
def test_a_drain_keeps_racks_as_far_apart_as_it_can(cluster: Any) -> None:
    partitions, sites = cluster
    others = [node_id for node_id in sites if node_id != 0]
    for move in plan_drain(partitions, sites, others, leaving=0, limit=100):
        (heir,) = set(move.replicas) - set(partitions[move.topic_partition.partition].replicas)
        rest = [sites[node_id] for node_id in move.replicas if node_id != heir]
        racks, used = [site.rack for site in rest], {site.machine for site in rest}
        free = [node_id for node_id in others if sites[node_id].machine not in used]
        assert racks.count(sites[heir].rack) == min(racks.count(sites[node_id].rack) for node_id in free)


def test_a_drain_spreads_what_it_moves() -> None:
    partitions = [
        PlacedPartition(topic_partition=TopicPartition("t", number), replicas=(0, 1 + number % 4))
        for number in range(40)
    ]
    result = after(partitions, plan_drain(partitions, own_machines(5), range(1, 5), leaving=0, limit=100))
    assert set(held(result).values()) == {20}
    assert set(Counter(item[0] for item in result).values()) == {10}


@given(clusters(), st.sampled_from(["m", "another"]))
def test_a_newcomer_gets_its_share_and_no_more(cluster: Any, machine: str) -> None:
    partitions, sites = cluster
    newcomer = len(sites)
    sites = {**sites, newcomer: Site(rack=sites[0].rack, machine=machine)}
    result = after(partitions, plan_fill(partitions, sites, sites, newcomer=newcomer, limit=10_000))
    assert all(len(set(machines_of(item, sites))) == len(item) for item in result)
    before, now = held([item.replicas for item in partitions]), held(result)
    assert now[newcomer] <= sum(before.values()) // len(sites)
    assert all(now[node_id] <= before[node_id] for node_id in sites if node_id != newcomer)
    led_before = sum(item.replicas[0] == newcomer for item in partitions)
    assert sum(item[0] == newcomer for item in result) <= max(led_before, len(partitions) // len(sites))
    for old, new in zip(partitions, result, strict=True):
        worst = max(Counter(sites[node_id].rack for node_id in old.replicas).values())
        assert max(Counter(sites[node_id].rack for node_id in new).values()) <= worst
    assert not plan_fill(
        [
            PlacedPartition(topic_partition=item.topic_partition, replicas=new)
            for item, new in zip(partitions, result, strict=True)
        ],
        sites,
        sites,
        newcomer=newcomer,
        limit=10_000,
    ) or now[newcomer] < sum(before.values()) // len(sites)


def test_a_newcomer_gets_leaderships_too() -> None:
    partitions = [
        PlacedPartition(topic_partition=TopicPartition("t", n), replicas=(n % 3, (n + 1) % 3, (n + 2) % 3))
        for n in range(24)
    ]
    result = after(partitions, plan_fill(partitions, own_machines(4), range(4), newcomer=3, limit=10_000))
    assert set(held(result).values()) == {18}
    assert Counter(item[0] for item in result) == {0: 6, 1: 6, 2: 6, 3: 6}


def test_a_plan_to_fill_a_broker_ends_with_the_moves_of_one_request() -> None:
    """The plan of all moves at 200,000 partitions held the quorum's thread for 3 s, and all but 10,000 were thrown away."""
    partitions = [
        PlacedPartition(topic_partition=TopicPartition("t", n), replicas=(n % 3, (n + 1) % 3, (n + 2) % 3))
        for n in range(24)
    ]
    asked: dict[int, int] = {}
    planned: dict[int, list[PlacedPartition]] = {}
    for limit in (0, 1, 5, 8, 24):
        seen = _Counted({node_id: Site(rack=None, machine=node_id) for node_id in range(4)})
        moves = plan_fill(partitions, seen, range(4), newcomer=3, limit=limit)
        asked[limit] = seen.reads
        planned[limit] = [PlacedPartition(move.topic_partition, move.replicas) for move in moves]
    assert [len(planned[limit]) for limit in (0, 1, 5, 8, 24)] == [0, 1, 5, 8, 18]
    assert all(planned[24][:limit] == planned[limit] for limit in (1, 5, 8)), "the same moves in the same order"
    assert asked[0] == asked[24] < 100, "no move costs a look at other partitions"


def test_a_plan_to_fill_a_broker_that_most_replicas_cannot_move_to_looks_at_each_list_of_replicas_once() -> None:
    """A new broker in one of three racks: only two of six brokers can give it replicas. The plan read all
    partitions for each move, and held the quorum's thread for minutes at 20,000 partitions."""
    partitions = [
        PlacedPartition(topic_partition=TopicPartition("t", n), replicas=(n % 6, (n + 1) % 6, (n + 2) % 6))
        for n in range(2_000)
    ]
    sites = _Counted({node_id: Site(rack="abcabca"[node_id], machine=node_id) for node_id in range(7)})
    moves = plan_fill(partitions, sites, sites, newcomer=6, limit=100)
    before = {item.topic_partition: item.replicas for item in partitions}
    assert len({move.topic_partition for move in moves}) == 100
    assert all(set(before[move.topic_partition]) - set(move.replicas) <= {0, 3} for move in moves)
    assert sites.reads < 200


def test_a_drain_that_finds_no_heir_looks_at_each_list_of_replicas_once() -> None:
    """It is planned every half second: of 200,000 partitions without an heir, each plan held the quorum's thread for 0.6 s."""
    partitions = [
        PlacedPartition(topic_partition=TopicPartition("t", number), replicas=(0, 1, 2)) for number in range(2_000)
    ]
    sites = _Counted({node_id: Site(rack=None, machine=node_id) for node_id in range(3)})
    assert plan_drain(partitions, sites, [1, 2], leaving=0, limit=20) == ()
    assert sites.reads < 20


class _Counted(dict[int, Site]):
    """How often it was read."""

    reads = 0

    def __getitem__(self, node_id: int) -> Site:
        self.reads += 1
        return super().__getitem__(node_id)


def test_a_plan_of_few_moves_makes_no_call_for_each_partition_of_the_cluster() -> None:
    """It is made every half second while a broker leaves: of 200,000 partitions, it held the quorum's thread for 330 ms."""
    partitions = [
        PlacedPartition(topic_partition=TopicPartition("t", number), replicas=(0, 1 + number % 4))
        for number in range(2_000)
    ]
    sites = own_machines(5)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        moves = plan_drain(partitions, sites, [1, 2, 3, 4], leaving=0, limit=1)
    finally:
        sys.setprofile(None)
    assert len(moves) == 1 and calls < 100
