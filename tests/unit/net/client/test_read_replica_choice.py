"""Which broker a consumer with a rack fetches from, partition by partition."""

from types import SimpleNamespace
from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.read_replicas import AVOIDED_MS, ReadReplicas

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
LEADER, NEAR, OTHER = range(3)
STAY_MS = 300_000


class World:
    def __init__(self) -> None:
        self.epochs = dict.fromkeys((T0, T1, T2), 1)
        self.brokers = {LEADER: None, NEAR: None, OTHER: None}
        metadata: Any = SimpleNamespace(
            brokers=self.brokers,
            leader=lambda place: SimpleNamespace(node_id=LEADER, epoch=self.epochs[place]),
        )
        self.replicas = ReadReplicas(metadata, "b", stay_ms=STAY_MS)
        for place, node_id in ((T0, NEAR), (T1, OTHER), (T2, NEAR)):
            self.replicas.send(place, node_id, 0)

    def sources(self, now_ms: int) -> list[tuple[int, str]]:
        return [self.replicas.source(place, now_ms) for place in (T0, T1, T2)]


def test_a_broker_that_is_lost_costs_its_own_partitions_only() -> None:
    world = World()
    assert world.sources(1) == [(NEAR, "b"), (OTHER, "b"), (NEAR, "b")]
    world.replicas.lost(NEAR, 1)
    assert world.sources(2) == [(LEADER, ""), (OTHER, "b"), (LEADER, "")]
    assert world.sources(1 + AVOIDED_MS) == [(LEADER, "b"), (OTHER, "b"), (LEADER, "b")]


def test_a_broker_that_is_not_known_any_more_is_not_asked() -> None:
    world = World()
    del world.brokers[NEAR]
    assert world.sources(1) == [(LEADER, ""), (OTHER, "b"), (LEADER, "")], "or the leader would name it again and again"


def test_a_new_epoch_of_the_same_leader_ends_the_stay_of_its_partition() -> None:
    world = World()
    world.epochs[T0] = 2
    assert world.sources(1) == [(LEADER, "b"), (OTHER, "b"), (NEAR, "b")]
    assert world.sources(STAY_MS) == [(LEADER, "b")] * 3
