"""Replicas: never two on one broker, apart by racks, leaders and replicas balanced."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.kraft.controller.placement import PlacementBroker, Site, place_replicas
from barnabas.log.vocabulary.errors import InvalidReplicationFactorError


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[PlacementBroker], int, int, int]:
    racks, machines = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    count = draw(st.integers(1, 8))
    brokers = [
        PlacementBroker(
            node_id=node_id * 3,
            site=Site(
                rack=None if racks == 0 else f"rack {draw(st.integers(0, racks))}",
                machine=node_id if machines == 0 else f"machine {draw(st.integers(1, machines))}",
            ),
            active=node_id == 0 or draw(st.booleans()),
        )
        for node_id in range(count)
    ]
    return (
        brokers,
        draw(st.integers(1, len({broker.site.machine for broker in brokers}))),
        draw(st.integers(1, 40)),
        draw(st.integers(0, 1000)),
    )


@given(requests())
def test_rules_of_placement(request: tuple[list[PlacementBroker], int, int, int]) -> None:
    brokers, factor, count, seed = request
    placed = place_replicas(
        brokers, partition_count=count, replication_factor=factor, leader_counts={}, rng=random.Random(seed)
    )
    active = {broker.node_id for broker in brokers if broker.active}
    rack_of = {broker.node_id: broker.site.rack for broker in brokers}
    machine_of = {broker.node_id: broker.site.machine for broker in brokers}
    active_machines = {machine_of[node_id] for node_id in active}
    shares = len(set(machine_of.values())) < len(brokers)
    leaders = Counter(replicas[0] for replicas in placed)
    assert len(placed) == count
    assert set(leaders) <= active
    assert max(leaders.values()) - min(leaders[node_id] for node_id in active) <= 1
    for replicas in placed:
        assert len({machine_of[node_id] for node_id in replicas}) == factor
        assert len(active.intersection(replicas)) == min(factor, len(active_machines))
        if active == set(rack_of) and not shares:
            assert len({rack_of[node_id] for node_id in replicas}) == min(factor, len(set(rack_of.values())))


def test_replicas_are_balanced_and_leaders_have_different_followers() -> None:
    brokers = [
        PlacementBroker(node_id=node_id, site=Site(rack=None, machine=node_id), active=True) for node_id in range(5)
    ]
    placed = place_replicas(brokers, partition_count=50, replication_factor=3, leader_counts={}, rng=random.Random(1))
    held = Counter(node_id for replicas in placed for node_id in replicas)
    assert max(held.values()) - min(held.values()) <= 2
    for leader in range(5):
        heirs = {replicas[1] for replicas in placed if replicas[0] == leader}
        assert len(heirs) >= 3, "the partitions of a broker that dies find leaders on several others"


def test_topics_of_one_partition_are_led_by_everybody() -> None:
    brokers = [
        PlacementBroker(node_id=node_id, site=Site(rack=None, machine=node_id), active=True) for node_id in range(3)
    ]
    rng = random.Random(7)
    leaders: Counter[int] = Counter()
    for _ in range(30):
        placed = place_replicas(brokers, partition_count=1, replication_factor=2, leader_counts=leaders, rng=rng)
        leaders[placed[0][0]] += 1
    assert set(leaders.values()) == {10}


def test_too_few_brokers() -> None:
    fenced = [PlacementBroker(node_id=0, site=Site(rack=None, machine=0), active=False)]
    for factor in (1, 2):
        with pytest.raises(InvalidReplicationFactorError):
            place_replicas(fenced, partition_count=1, replication_factor=factor, leader_counts={}, rng=random.Random(0))


def test_more_replicas_than_machines_are_refused_with_the_reason() -> None:
    brokers = [
        PlacementBroker(node_id=node_id, site=Site(rack=None, machine=f"m{node_id % 2}"), active=True)
        for node_id in range(4)
    ]
    with pytest.raises(
        InvalidReplicationFactorError, match=r"larger than the number of machines, 2: the 4 brokers share"
    ):
        place_replicas(brokers, partition_count=1, replication_factor=3, leader_counts={}, rng=random.Random(0))


def test_brokers_of_one_machine_share_its_load_evenly() -> None:
    brokers = [
        PlacementBroker(node_id=node_id, site=Site(rack=None, machine=f"m{node_id % 3}"), active=True)
        for node_id in range(6)
    ]
    placed = place_replicas(brokers, partition_count=60, replication_factor=3, leader_counts={}, rng=random.Random(1))
    assert set(Counter(replicas[0] for replicas in placed).values()) == {10}
    held = Counter(node_id for replicas in placed for node_id in replicas)
    assert max(held.values()) - min(held.values()) <= 2
