"""A truncation takes time in another thread: until it is over the log is that thread's, and roles wait."""

from dataclasses import replace

import pytest
from simulation.isr_log import MemoryLog, batch
from unit.log.replication.test_flush_first import TP, assignment

from barnabas.log.replication.effects import ChangeLog, Effect, StartFetching, StopFetching
from barnabas.log.replication.follower import FetchAnswer, FetchPosition
from barnabas.log.replication.leading import ACKS_ALL
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import CorruptRecordError, DiskFailedError, NotLeaderOrFollowerError


def follower() -> Partition:
    """Six records of epoch 1; its leader of epoch 2 is broker 1."""
    log = MemoryLog(TP)
    for sequence in range(6):
        log.append_as_leader(batch((0, sequence)), leader_epoch=1, now_ms=0)
    partition = Partition(log, 0)
    partition.make_follower(assignment(leader=1, leader_epoch=2), 0)
    return partition


def diverging_at(end_offset: int, partition: Partition) -> tuple[FetchPosition, ChangeLog]:
    position = partition.following.next_fetch()
    assert position is not None
    answer = FetchAnswer(diverging_epoch=1, diverging_end_offset=end_offset, high_watermark=0, log_start_offset=0)
    (effect,) = partition.following.fetched(position, answer, 0)
    assert isinstance(effect, ChangeLog)
    return position, effect


def ended(partition: Partition, effect: ChangeLog) -> list[Effect]:
    effect.change.perform()
    return partition.log_changed(effect.change, now_ms=0, wall_ms=0)


def test_the_log_is_not_touched_before_a_thread_does_it_and_is_asked_for_nothing_meanwhile() -> None:
    partition = follower()
    position, effect = diverging_at(4, partition)
    assert partition.log_end_offset == 6 and partition.log.is_changing
    assert (
        partition.following.next_fetch() is None
        and partition.flushed(0) == []
        and partition.repair.resign_if_damaged() == []
    )
    late = FetchAnswer(records=batch((0, 6)), high_watermark=0, log_start_offset=0)
    assert partition.following.fetched(position, late, 0) == [] and partition.log_end_offset == 6
    with pytest.raises(NotLeaderOrFollowerError, match="truncation to 4"):
        partition.reads.read_for_consumer(0, max_bytes=100, allow_follower=True)
    with pytest.raises(NotLeaderOrFollowerError):
        partition.leading.append(batch((0, 6)), acks=ACKS_ALL, now_ms=0)
    assert ended(partition, effect) == [StartFetching(topic_partition=TP, leader=1, leader_epoch=2)]
    asked = partition.following.next_fetch()
    assert asked is not None and asked.offset == 4 and not partition.log.is_changing


def test_a_leadership_that_comes_amid_a_truncation_begins_at_the_truncated_end() -> None:
    partition = follower()
    _, effect = diverging_at(4, partition)
    assert partition.make_leader(assignment(leader=0, leader_epoch=3), 0) == []
    assert not partition.role.is_leader and partition.in_sync_when_leading == (0, 1)
    partition.brokers_changed({0: 100, 1: 105}, 0)  # the other broker has registered again
    ended(partition, effect)
    assert partition.role.is_leader and partition.leader_epoch == 3 and partition.log.epochs[-1] == (3, 4)
    leading = partition.role.leader_state
    assert leading is not None and not leading.followers.is_stale(1, 105) and leading.followers.is_stale(1, 101)


def test_a_follower_in_sync_whose_truncation_hangs_is_waited_for() -> None:
    partition = follower()
    assert not partition.following.waits_for_disk
    _, effect = diverging_at(4, partition)
    assert partition.following.waits_for_disk
    ended(partition, effect)
    assert not partition.following.waits_for_disk


def test_of_several_assignments_the_newest_is_taken_up() -> None:
    partition = follower()
    _, effect = diverging_at(4, partition)
    partition.make_leader(assignment(leader=0, leader_epoch=3), 0)
    partition.make_follower(assignment(leader=1, leader_epoch=4), 0)
    partition.make_leader(replace(assignment(leader=0, leader_epoch=3), partition_epoch=3), 0)  # late
    effects = ended(partition, effect)
    assert StartFetching(topic_partition=TP, leader=1, leader_epoch=4) in effects
    assert partition.role.is_follower and partition.leader_epoch == 4


def test_a_replica_that_is_removed_amid_a_truncation_takes_no_role() -> None:
    partition = follower()
    _, effect = diverging_at(4, partition)
    partition.make_leader(assignment(leader=0, leader_epoch=3), 0)
    partition.stop()
    assert ended(partition, effect) == [] and not partition.role.is_leader and not partition.role.is_follower


def test_a_truncation_that_is_dropped_is_asked_for_again() -> None:
    partition = follower()
    _, effect = diverging_at(4, partition)
    assert partition.log_changed(effect.change, now_ms=0, wall_ms=0) == [
        StartFetching(topic_partition=TP, leader=1, leader_epoch=2)
    ]
    assert partition.log_end_offset == 6
    ended(partition, diverging_at(4, partition)[1])
    assert partition.log_end_offset == 4


def test_a_refusal_is_waited_out_and_a_failed_log_gives_its_role_up() -> None:
    partition = follower()
    _, effect = diverging_at(4, partition)
    effect.change.work = lambda: refuse(CorruptRecordError("the batch at 4 is damaged"))
    assert ended(partition, effect) == [StopFetching(topic_partition=TP)] and partition.storage.error is None
    assert partition.following.fetch_again() == [StartFetching(topic_partition=TP, leader=1, leader_epoch=2)]
    troubles: list[str] = []
    partition.storage.trouble = lambda _, error: troubles.append(error.message)
    _, effect = diverging_at(4, partition)
    effect.change.work = lambda: refuse(DiskFailedError("Input/output error"))
    partition.log.failed = True
    ended(partition, effect)
    assert partition.storage.error is not None and troubles == ["Input/output error"]
    assert partition.following.fetch_again() == [] and partition.following.next_fetch() is None


def refuse(error: Exception) -> None:
    raise error
