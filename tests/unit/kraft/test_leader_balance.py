"""Leaderships go home, and spread when a broker fails."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from unit.kraft.single_controller import SingleController

from barnabas.kraft.metadata.controller_settings import MAX_RETURNED_MOVES_PER_CHECK, ControllerSettings
from barnabas.kraft.metadata.image import PartitionImage
from barnabas.kraft.metadata.partition_change import ElectionRules, elect, without_inactive
from barnabas.kraft.metadata.requests import CreateTopic
from barnabas.log.vocabulary.cluster_changes import ElectLeaderRequest

SOON = ControllerSettings(preferred_leader_check_interval_ms=300_000)


def led_by(controller: SingleController, node_id: int) -> int:
    return sum(item.leader == node_id for item in controller.image.topics["t"].partitions)


def tick_later(controller: SingleController, ms: int = 500) -> None:
    controller.now_ms += ms
    for node_id in controller.epochs:
        if not controller.image.brokers[node_id].fenced:
            controller.beat(node_id)
    controller.tick()


def test_a_broker_that_has_returned_gets_its_leaderships_back_soon_in_batches() -> None:
    controller = SingleController(settings=SOON)
    controller.topic(0, 1, 2)
    controller.beat(0, fence=True)
    assert controller.partition().leader != 0
    controller.beat(0)
    tick_later(controller)
    assert controller.partition().leader != 0  # not in sync yet
    controller.set_isr(0, 1, 2)
    tick_later(controller)
    assert controller.partition().leader == 0


def test_what_an_operator_moved_stays_until_the_ordinary_check() -> None:
    controller = SingleController(settings=SOON)
    controller.topic(0, 1, 2)
    for _ in range(3):
        tick_later(controller)
    controller.ask(ElectLeaderRequest(topic="t", partition=0, target=1))
    for _ in range(10):
        tick_later(controller)
    assert controller.partition().leader == 1
    for _ in range(301):
        tick_later(controller, 1_000)
    assert controller.partition().leader == 0


def test_batches_are_small() -> None:
    controller = SingleController(brokers=2, settings=SOON)
    controller.ask(CreateTopic(name="t", assignment=((0, 1),) * 50))
    for number in range(50):
        controller.ask(ElectLeaderRequest(topic="t", partition=number, target=1))
    assert led_by(controller, 1) == 50
    controller.beat(1)
    # As after a return, with everything in sync.
    controller.cluster.nodes[0].controller._balance._returned = {0: None}
    counts = []
    for _ in range(4):
        tick_later(controller)
        counts.append(led_by(controller, 0))
    assert counts == [MAX_RETURNED_MOVES_PER_CHECK, 2 * MAX_RETURNED_MOVES_PER_CHECK, 50, 50]


def test_a_small_imbalance_is_left_alone() -> None:
    controller = SingleController(settings=ControllerSettings(preferred_leader_check_interval_ms=1_000))
    controller.ask(CreateTopic(name="t", assignment=((0, 1, 2),) * 20))
    for _ in range(3):
        tick_later(controller)
    for number in range(2):  # 10 % of those that prefer broker 0
        controller.ask(ElectLeaderRequest(topic="t", partition=number, target=1))
    for _ in range(5):
        tick_later(controller, 1_000)
    assert led_by(controller, 0) == 18
    controller.ask(ElectLeaderRequest(topic="t", partition=2, target=1))
    for _ in range(2):
        tick_later(controller, 1_000)
    assert led_by(controller, 0) == 20


@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 5))
def test_after_a_failure_its_leaderships_are_spread_evenly_over_the_others(
    others: int, partitions: int, before: int
) -> None:
    """Everybody is in sync everywhere: then no two of those who remain differ by more than one, wherever they began."""
    leaders = Counter({node_id: before for node_id in range(1, others + 1)})
    replicas = tuple(range(others + 1))
    rules = ElectionRules(active=frozenset(range(1, others + 1)))
    for _ in range(partitions):
        partition = PartitionImage(replicas=replicas, isr=replicas, leader=0, leader_epoch=1)
        assert elect(without_inactive(partition, rules), rules, leaders).leader in rules.active
    counts = [leaders[node_id] for node_id in range(1, others + 1)]
    assert max(counts) - min(counts) <= 1
