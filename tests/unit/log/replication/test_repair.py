"""A damaged replica: it resigns first, and cuts its log only in an epoch in which nobody counts on it."""

from simulation.isr_log import MemoryLog, batch, changed
from unit.log.replication.test_flush_first import TP, assignment

from barnabas.log.replication.effects import Effect, Resign, StartFetching
from barnabas.log.replication.partition import Partition


def resign(leader_epoch: int) -> list[Effect]:
    return [Resign(topic_partition=TP, topic_id="t1", leader_epoch=leader_epoch)]


def damaged_follower(leader_epoch: int = 2) -> Partition:
    log = MemoryLog(TP)
    for sequence in range(6):
        log.append_as_leader(batch((0, sequence)), leader_epoch=max(0, leader_epoch - 1), now_ms=0)
    partition = Partition(log, 0)
    partition.make_follower(assignment(leader=1, leader_epoch=leader_epoch), 0)
    assert partition.following.next_fetch() is not None and partition.repair.resign_if_damaged() == []
    log.damage.rotten = log.damage.found = {3}
    return partition


def test_it_asks_until_the_controller_agrees_and_goes_on_meanwhile() -> None:
    partition = damaged_follower()
    assert partition.repair.resign_if_damaged() == partition.repair.resign_if_damaged() == resign(2)
    assert partition.following.next_fetch() is not None and partition.log_end_offset == 6


def test_the_log_is_cut_when_the_metadata_shows_it_too() -> None:
    partition = damaged_follower()
    assert partition.repair.resigned(2) == [] and partition.log_end_offset == 6  # its leader may still count on it
    effects = partition.make_follower(assignment(leader=1, leader_epoch=3, isr=(1,)), 0)
    assert partition.following.next_fetch() is None  # the log is cut by another thread
    assert StartFetching(topic_partition=TP, leader=1, leader_epoch=3) in changed(partition, effects)
    assert partition.log_end_offset == 3 and partition.repair.resign_if_damaged() == []
    position = partition.following.next_fetch()
    assert position is not None and (position.offset, position.leader_epoch) == (3, 3)


def test_a_replica_that_is_still_in_sync_in_the_metadata_keeps_its_log() -> None:
    """Another change has raised the leader epoch before the controller took it out: its leader counts on it."""
    partition = damaged_follower()
    assert partition.repair.resigned(2) == []
    partition.make_follower(assignment(leader=1, leader_epoch=3, isr=(0, 1)), 0)
    assert partition.log_end_offset == 6 and partition.repair.resign_if_damaged() == resign(3)
    assert partition.repair.resigned(3) == []
    changed(partition, partition.make_follower(assignment(leader=1, leader_epoch=4, isr=(1,)), 0))
    assert partition.log_end_offset == 3


def test_the_first_epoch_of_a_partition_is_one_to_resign_in() -> None:
    partition = damaged_follower(leader_epoch=0)
    assert partition.repair.resign_if_damaged() == resign(0)
    assert partition.repair.resigned(0) == [] and partition.log_end_offset == 6
    changed(partition, partition.make_follower(assignment(leader=1, leader_epoch=1, isr=(1,)), 0))
    assert partition.log_end_offset == 3


def test_the_answer_may_come_behind_the_metadata() -> None:
    partition = damaged_follower()
    partition.make_follower(assignment(leader=1, leader_epoch=3, isr=(1,)), 0)
    assert partition.following.next_fetch() is None and partition.log_end_offset == 6
    effects = changed(partition, partition.repair.resigned(2))
    assert StartFetching(topic_partition=TP, leader=1, leader_epoch=3) in effects and partition.log_end_offset == 3


def test_a_fetch_since_then_makes_the_consent_void() -> None:
    partition = damaged_follower()
    partition.log.damage.found = set()
    partition.make_follower(assignment(leader=1, leader_epoch=3, isr=(1,)), 0)
    assert partition.following.next_fetch() is not None  # in epoch 3: it may bring us back into the ISR
    partition.log.damage.found = {3}
    assert partition.repair.resigned(2) == resign(3) and partition.log_end_offset == 6


def test_a_damaged_leader_serves_on_until_another_one_leads() -> None:
    partition = damaged_follower()
    partition.make_leader(assignment(leader=0, leader_epoch=3), 0)
    assert (
        partition.repair.resign_if_damaged() == resign(3) and partition.role.is_leader and partition.log_end_offset == 6
    )
    assert partition.repair.resigned(3) == []
    changed(partition, partition.make_follower(assignment(leader=1, leader_epoch=4, isr=(1,)), 0))
    assert partition.log_end_offset == 3


def test_an_unclean_election_makes_it_ask_again() -> None:
    partition = damaged_follower()
    partition.repair.resigned(2)
    partition.make_leader(assignment(leader=0, leader_epoch=4, isr=(0,)), 0)
    assert partition.repair.resign_if_damaged() == resign(4) and partition.log_end_offset == 6


def test_a_leader_looks_at_its_file_when_a_follower_asks_again_for_what_it_was_given() -> None:
    partition = damaged_follower()
    log = partition.log
    assert isinstance(log, MemoryLog)
    log.damage.found = set()
    partition.make_leader(assignment(leader=0, leader_epoch=3), 0)

    def fetch(offset: int) -> bytes:
        read, _ = partition.leading.read_for_follower(
            1,
            broker_epoch=101,
            offset=offset,
            max_bytes=10_000,
            current_leader_epoch=3,
            last_fetched_epoch=1,
            now_ms=0,
        )
        assert isinstance(read.records, bytes)
        return read.records

    whole = fetch(2)
    assert not log.damage.is_known  # nobody has complained yet
    assert len(fetch(2)) < len(whole) and log.damage.found == {3}
    assert partition.repair.resign_if_damaged() == resign(3)
