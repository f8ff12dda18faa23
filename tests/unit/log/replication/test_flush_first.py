"""flush.messages=1: nothing counts before it is on the disk, with leader and follower; other values never wait."""

from simulation.isr_log import MemoryLog, batch

from barnabas.log.replication.effects import (
    Effect,
    FlushLog,
    HighWatermarkAdvanced,
    LogFlushed,
    PartitionAssignment,
    ResumeFetching,
)
from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.leading import ACKS_ALL
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition

TP = TopicPartition("t", 0)
FLUSH = FlushLog(topic_partition=TP)


def assignment(*, leader: int = 0, leader_epoch: int = 1, isr: tuple[int, ...] = (0, 1)) -> PartitionAssignment:
    return PartitionAssignment(
        topic_partition=TP,
        topic_id="t1",
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch,
        replicas=(0, 1),
        isr=isr,
        broker_epochs={0: 100, 1: 101},
    )


def replica(node_id: int = 0, *, flush_messages: int = 1) -> Partition:
    return Partition(MemoryLog(TP, flush_messages=flush_messages), node_id)


def leader(**settings: int) -> Partition:
    partition = replica(**settings)
    partition.make_leader(assignment(), 0)
    return partition


def test_only_a_follower_that_counts_for_its_leader_waits_for_its_disk() -> None:
    assert not leader().following.waits_for_disk
    partition = replica()
    for leader_epoch, isr in ((2, (1,)), (3, (0,))):
        partition.make_follower(assignment(leader=1, leader_epoch=leader_epoch, isr=isr), 0)
        assert not partition.following.waits_for_disk


def append(partition: Partition, sequence: int = 1) -> list[Effect]:
    return partition.leading.append(batch((0, sequence)), acks=ACKS_ALL, now_ms=0)[2]


def follower_has(partition: Partition, offset: int) -> list[Effect]:
    return partition.leading.read_for_follower(
        1,
        broker_epoch=101,
        offset=offset,
        max_bytes=1_000,
        current_leader_epoch=partition.leader_epoch,
        last_fetched_epoch=-1,
        now_ms=0,
    )[1]


def on_disk(partition: Partition) -> list[Effect]:
    assert isinstance(partition.log, MemoryLog)
    partition.log.flush()
    return partition.flushed(0)


def committed(effects: list[Effect]) -> list[int]:
    return [effect.high_watermark for effect in effects if isinstance(effect, HighWatermarkAdvanced)]


def test_the_leaders_own_log_counts_only_as_far_as_it_is_on_the_disk() -> None:
    partition = leader()
    assert FLUSH in append(partition)
    assert committed(follower_has(partition, 1)) == []
    assert (partition.high_watermark, partition.durable_end_offset, partition.log_end_offset) == (0, 0, 1)
    effects = on_disk(partition)
    assert committed(effects) == [1] and LogFlushed(topic_partition=TP) in effects
    assert partition.high_watermark == partition.durable_end_offset == 1


def test_what_is_appended_during_a_flush_asks_for_the_next_one() -> None:
    partition = leader()
    append(partition)
    log = partition.log
    assert isinstance(log, MemoryLog)
    log.flush()
    append(partition, 2)
    assert FLUSH in partition.flushed(0) and partition.durable_end_offset == 1
    assert FLUSH not in on_disk(partition)


def test_a_lonely_leader_waits_for_its_disk_too() -> None:
    partition = replica()
    partition.make_leader(assignment(isr=(0,)), 0)
    assert committed(append(partition)) == []
    assert committed(on_disk(partition)) == [1]


def test_a_follower_asks_on_when_what_it_has_is_on_the_disk() -> None:
    partition = replica(1)
    partition.make_follower(assignment(), 0)
    position = partition.following.next_fetch()
    assert position is not None and position.offset == 0
    source = leader()
    append(source)
    records = source.log.read(0, max_bytes=1_000, up_to_offset=1).slice
    assert isinstance(records, bytes)
    effects = partition.following.fetched(
        position, FetchAnswer(records=records, high_watermark=0, log_start_offset=0), 0
    )
    assert FLUSH in effects and partition.log_end_offset == 1
    assert partition.storage.awaits_flush and partition.following.next_fetch() is None
    assert on_disk(partition) == [ResumeFetching(topic_partition=TP)]
    position = partition.following.next_fetch()
    assert position is not None and position.offset == 1


def test_a_follower_whose_disk_hangs_is_waited_for_from_its_next_record_on() -> None:
    partition = replica(1)
    partition.make_follower(assignment(), 0)
    assert not partition.storage.awaits_flush and partition.following.waits_for_disk  # asked of folders that hang
    partition.log.append_as_leader(batch((0, 1)), leader_epoch=0, now_ms=0)
    assert partition.following.holds_lane
    assert (
        partition.following.disk_hung(True) == [ResumeFetching(topic_partition=TP)]
        and partition.following.disk_hung(True) == []
    )
    assert not partition.following.holds_lane  # the others of its fetcher go on
    on_disk(partition)
    assert partition.following.next_fetch() is None  # what comes would hang, too
    assert partition.following.disk_hung(False) == [ResumeFetching(topic_partition=TP)]
    assert partition.following.next_fetch() is not None


def test_without_a_flush_a_follower_in_sync_goes_on_while_its_disk_hangs_and_another_one_does_not_come_back() -> None:
    partition = replica(1, flush_messages=9)
    partition.make_follower(assignment(), 0)
    partition.following.disk_hung(True)
    assert partition.following.next_fetch() is not None and not partition.following.waits_for_disk
    partition.make_follower(assignment(leader_epoch=2, isr=(0,)), 0)
    assert partition.following.next_fetch() is None  # else its leader would take it into the ISR again
    partition.following.disk_hung(False)
    assert partition.following.next_fetch() is not None


def test_a_new_role_flushes_what_a_former_process_left() -> None:
    for make in (Partition.make_leader, Partition.make_follower):
        partition = replica()
        partition.log.append_as_leader(batch((0, 1)), leader_epoch=0, now_ms=0)
        leads = make is Partition.make_leader
        assert FLUSH in make(partition, assignment(leader=0 if leads else 1, leader_epoch=2), 0)
        assert partition.storage.awaits_flush


def test_other_values_flush_in_the_background_and_nobody_waits() -> None:
    partition = leader(flush_messages=2)
    assert FLUSH not in append(partition)
    assert FLUSH in append(partition, 2)
    assert committed(follower_has(partition, 2)) == [2]
    assert partition.durable_end_offset == 2 and not partition.storage.awaits_flush


def test_the_policy_may_change_while_it_runs() -> None:
    partition = leader(flush_messages=2)
    append(partition)
    assert isinstance(partition.log, MemoryLog)
    partition.log.config.flush_messages = 1
    assert FLUSH in partition.flushed(0)
    assert committed(follower_has(partition, 1)) == []
    partition.log.config.flush_messages = 1_000
    assert committed(partition.flushed(0)) == [1]


def test_after_a_failed_flush_nothing_of_it_is_ever_acknowledged() -> None:
    partition = leader()
    append(partition)
    assert isinstance(partition.log, MemoryLog)
    partition.log.failed = True
    partition.storage.flush_failed(StorageError("Input/output error"))
    assert partition.storage.error is not None and not partition.storage.awaits_flush
    assert on_disk(partition) == [] and partition.high_watermark == 0


def test_a_flush_that_failed_for_its_checkpoint_only_is_tried_again() -> None:
    partition = leader()
    append(partition)
    partition.storage.flush_failed(StorageError("No space left on device"))  # the log itself is not `failed`
    assert partition.storage.error is None and partition.storage.awaits_flush
    assert committed(follower_has(partition, 1)) == [] and committed(on_disk(partition)) == [1]
