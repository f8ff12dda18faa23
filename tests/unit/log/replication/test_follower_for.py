"""Which follower serves a consumer (KIP-392)."""

import pytest

from barnabas.log.replication.partition import Partition

from .partitions import fetch, leader, produce


def led(isr: tuple[int, ...] = (1, 2, 3)) -> Partition:
    """Follower 2 has three records, follower 3 has one."""
    partition = leader(isr=isr)
    produce(partition, 1, 2, 3)
    for replica_id, offset in ((2, 3), (3, 1)):
        fetch(partition, replica_id, offset)
        partition.role.current_leader().followers.replicas[replica_id].log_start_offset = 0
    return partition


@pytest.mark.parametrize(
    ("offset", "among", "expected"),
    [(0, {2, 3}, 2), (0, {3}, 3), (1, {3}, 3), (2, {3}, None), (2, {2, 3}, 2), (0, {1}, None), (0, set(), None)],
)
def test_it_has_all_records_before_the_offset(offset: int, among: set[int], expected: int | None) -> None:
    assert led().leading.follower_for(offset, among, 0) == expected


def test_it_is_in_sync_and_has_not_removed_what_is_wanted() -> None:
    assert led(isr=(1, 2)).leading.follower_for(0, {3}, 0) is None
    partition = led()
    partition.role.current_leader().followers.replicas[3].log_start_offset = 1
    assert partition.leading.follower_for(0, {3}, 0) is None and partition.leading.follower_for(1, {3}, 0) == 3


def test_a_former_incarnation_serves_nobody() -> None:
    partition = led()
    partition.role.current_leader().followers.replicas[3].broker_epoch -= 1
    assert partition.leading.follower_for(0, {3}, 0) is None
