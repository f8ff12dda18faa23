"""Partitions come, change and go with the metadata; the trouble of one is not that of others."""

import pytest
from simulation.isr_log import MemoryLog, batch
from unit.log.replication.partitions import fetch, members, proposal_in

from barnabas.log.replication.effects import (
    IsrAnswer,
    PartitionAssignment,
    ProposeIsr,
    StartFetching,
    StopFetching,
    StorageFailed,
)
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.errors import NotLeaderOrFollowerError, StorageError, UnknownTopicOrPartitionError
from barnabas.log.vocabulary.topic_partition import TopicPartition

LAG_MS = 1_000


class Logs:
    def __init__(self) -> None:
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.refuses: set[TopicPartition] = set()

    def create_log(self, topic_partition: TopicPartition, topic_id: str, *, is_new: bool) -> MemoryLog:
        if topic_partition in self.refuses:
            raise StorageError("disk is gone")
        return self.logs.setdefault(topic_partition, MemoryLog(topic_partition, topic_id))

    def get(self, topic_partition: TopicPartition) -> MemoryLog | None:
        return self.logs.get(topic_partition)

    def delete(self, topic_partition: TopicPartition) -> None:
        del self.logs[topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Nothing is kept of what could not be opened."""


def assigned(
    number: int,
    leader: int,
    *,
    epoch: int = 1,
    topic_id: str = "t1",
    isr: tuple[int, ...] = (1, 2),
    replicas: tuple[int, ...] = (1, 2),
) -> PartitionAssignment:
    return PartitionAssignment(
        topic_partition=TopicPartition("t", number),
        topic_id=topic_id,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        replicas=replicas,
        isr=isr,
        broker_epochs={1: 1, 2: 2},
    )


def manager() -> tuple[ReplicaManager, Logs]:
    logs = Logs()
    return ReplicaManager(1, logs, replica_lag_time_max_ms=LAG_MS), logs


def test_leading_following_and_counts():
    replicas, _ = manager()
    effects = replicas.apply([assigned(0, 1), assigned(1, 2), assigned(2, 1, isr=(1,))], (), 0)
    assert StartFetching(topic_partition=TopicPartition("t", 1), leader=2, leader_epoch=1) in effects
    counts = replicas.counts()
    assert (counts.partitions, counts.leaders, counts.under_replicated, counts.at_min_isr) == (3, 2, 1, 1)
    assert replicas.leads_anything and len(replicas.led()) == 2
    assert len(list(replicas.partitions())) == 3


def test_deleted_topics_and_moved_replicas_leave_no_log():
    replicas, logs = manager()
    replicas.apply([assigned(0, 1), assigned(1, 2)], (), 0)
    effects = replicas.apply([assigned(1, 2, epoch=2, replicas=(2, 3))], (), 0)
    assert effects == [StopFetching(topic_partition=TopicPartition("t", 1))]
    replicas.apply([], ["t"], 0)
    assert logs.logs == {}
    with pytest.raises(UnknownTopicOrPartitionError):
        replicas.partition(TopicPartition("t", 0))
    assert replicas.find(TopicPartition("t", 0)) is None


def test_a_topic_made_again_under_its_name_begins_empty():
    replicas, logs = manager()
    replicas.apply([assigned(0, 1, isr=(1,))], (), 0)
    replicas.partition(TopicPartition("t", 0)).leading.append(batch((0, 1)), acks=1, now_ms=0)
    replicas.apply([assigned(0, 1, topic_id="t2", isr=(1,))], (), 0)
    assert replicas.partition(TopicPartition("t", 0)).log_end_offset == 0
    restarted = ReplicaManager(1, logs)
    restarted.apply([assigned(0, 1, topic_id="t3", isr=(1,))], (), 0)
    assert restarted.partition(TopicPartition("t", 0)).topic_id == "t3"


def test_a_log_that_cannot_be_opened_is_told_once_and_stops_nobody():
    replicas, logs = manager()
    broken = TopicPartition("t", 0)
    logs.refuses.add(broken)
    effects = replicas.apply([assigned(0, 1), assigned(1, 1)], (), 0)
    assert StorageFailed(topic_partition=broken, message="disk is gone") in effects
    assert replicas.check_isr(0) == []
    with pytest.raises(StorageError):
        replicas.partition(broken)
    assert replicas.partition(TopicPartition("t", 1)).role.is_leader
    assert replicas.counts().offline == 1


def test_a_log_that_fails_later_gives_up_its_role():
    replicas, logs = manager()
    replicas.apply([assigned(0, 1), assigned(1, 1)], (), 0)
    broken = TopicPartition("t", 0)
    logs.logs[broken].fail_next, logs.logs[broken].failed = StorageError("EIO"), True
    with pytest.raises(StorageError):
        replicas.partition(broken).leading.append(batch((0, 1)), acks=1, now_ms=0)
    failures = [effect for effect in replicas.check_isr(0) if isinstance(effect, StorageFailed)]
    assert failures == [StorageFailed(topic_partition=broken, message="EIO", was_in_use=True)]
    assert [partition.topic_partition for partition in replicas.led()] == [TopicPartition("t", 1)]


def test_isr_proposals_answers_and_silence():
    replicas, _ = manager()
    replicas.apply([assigned(0, 1)], (), 0)
    partition = replicas.partition(TopicPartition("t", 0))
    partition.leading.append(batch((0, 1)), acks=1, now_ms=0)
    (proposal,) = [effect for effect in replicas.check_isr(2 * LAG_MS) if isinstance(effect, ProposeIsr)]
    assert replicas.counts().isr_shrinks == 1
    replicas.isr_unanswered(proposal, 2 * LAG_MS)
    assert partition.high_watermark == 0
    agreed = IsrAnswer(leader=1, leader_epoch=1, partition_epoch=2, isr=(1,))
    replicas.isr_answered(proposal, agreed, 2 * LAG_MS)
    assert partition.high_watermark == 1 and partition.role.partition_epoch == 2


def test_a_proposal_of_the_unchanged_isr_counts_as_no_change():
    """The leader makes it to learn whether a follower that is silent now was added."""
    replicas, _ = manager()
    replicas.apply([assigned(0, 1, isr=(1,))], (), 0)
    partition = replicas.partition(TopicPartition("t", 0))
    replicas.isr_unanswered(proposal_in(fetch(partition, 2, 0, broker_epoch=2)), 0)
    partition.leading.append(batch((0, 1)), acks=1, now_ms=0)
    assert members(proposal_in(replicas.check_isr(LAG_MS + 1))) == [1]
    assert replicas.counts().isr_shrinks == replicas.counts().isr_expands == 0


def test_brokers_that_are_fenced_release_the_high_watermark():
    replicas, _ = manager()
    replicas.apply([assigned(0, 1, isr=(1,))], (), 0)
    partition = replicas.partition(TopicPartition("t", 0))
    assert partition.role.leader_state is not None
    partition.leading.read_for_follower(
        2, broker_epoch=2, offset=0, max_bytes=1, current_leader_epoch=1, last_fetched_epoch=-1, now_ms=0
    )
    partition.make_leader(assigned(0, 1, epoch=2, isr=(1,)), 0)
    replicas.brokers_changed({1: 1}, 0)
    partition.leading.append(batch((0, 1)), acks=1, now_ms=0)
    assert partition.high_watermark == 1


def test_stopping_ends_all_roles():
    replicas, _ = manager()
    replicas.apply([assigned(0, 1), assigned(1, 2)], (), 0)
    assert len(replicas.stop()) == 2
    assert not replicas.leads_anything
    with pytest.raises(NotLeaderOrFollowerError):
        replicas.partition(TopicPartition("t", 0))
