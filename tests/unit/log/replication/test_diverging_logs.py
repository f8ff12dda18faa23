"""Three logs with any history of leaders: the others get the log of the last leader, and cut nothing that they share with it."""

from random import Random
from typing import Any

import pytest
from simulation.isr_log import batch
from unit.log.replication.partitions import assignment, pull, replica

from barnabas.log.replication.partition import Partition

MOST_ROUNDS = 60


def elect(partitions: dict[int, Partition], leader: int, epoch: int) -> None:
    for node_id, partition in partitions.items():
        becomes = partition.make_leader if node_id == leader else partition.make_follower
        becomes(assignment(leader, epoch, isr=(leader,)), 0)


def records_of(partition: Partition) -> list[Any]:
    log: Any = partition.log
    return list(log.records)


def shared(one: Partition, other: Partition) -> int:
    """How many records the logs have in common at their start."""
    pairs = list(zip(records_of(one), records_of(other), strict=False))
    return next((number for number, (left, right) in enumerate(pairs) if left != right), len(pairs))


@pytest.mark.parametrize("seed", range(100))
def test_followers_get_the_log_of_their_leader_and_keep_what_they_share_with_it(seed: int) -> None:
    rng, partitions = Random(seed), {node_id: replica(node_id) for node_id in (1, 2, 3)}
    number, epoch = 0, -1
    elections = rng.randint(1, 9)
    for election in range(elections):
        leader = rng.choice(list(partitions))
        epoch += rng.choice([1, 1, 2])
        elect(partitions, leader, epoch)
        for _ in range(rng.randint(0, 3)):
            number += 1
            partitions[leader].leading.append(batch((0, number)), acks=1, now_ms=0)
        for _ in range(rng.randint(0, 8) if election < elections - 1 else 0):
            pull(
                rng.choice([it for node_id, it in partitions.items() if node_id != leader]),
                partitions[leader],
                rounds=1,
            )
    source = partitions.pop(leader)
    records = records_of(source)
    for follower in partitions.values():
        for _ in range(MOST_ROUNDS):
            common = shared(follower, source)
            pull(follower, source, rounds=1)
            assert shared(follower, source) >= common, "what both have was cut"
        assert records_of(follower) == records == records_of(source)
        assert follower.high_watermark <= len(records)
