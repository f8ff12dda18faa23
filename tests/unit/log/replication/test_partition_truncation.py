"""Logs that parted meet again: directed scenarios for the truncation bugs that Kafka and its followers had, by their names."""

import pytest
from simulation.isr_log import RECORD, batch, changed
from unit.log.replication.partitions import LAG_MS, assignment, fetch, leader, produce, pull, replica

from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
)


def test_bug_1_kip_101_scenario_1_a_restarted_follower_keeps_what_its_high_watermark_does_not_know():
    """B has both records but has not heard that the second is committed; A dies before B can ask. B must not cut."""
    a, b = leader(isr=(1, 2)), replica(2)
    produce(a, 1, 2)
    b.make_follower(assignment(1, 5), 0)
    pull(b, a, rounds=2)
    assert (b.log_end_offset, b.high_watermark) == (2, 1)
    restarted = Partition(b.log, 2, replica_lag_time_max_ms=LAG_MS)
    restarted.make_follower(assignment(1, 5), 0)
    restarted.make_leader(assignment(2, 6, isr=(2,)), 0)
    assert restarted.log_end_offset == 2
    assert restarted.high_watermark == 2


def test_bug_1_kip_101_scenario_2_two_logs_that_parted_meet_again():
    """A and B lose power; B comes back short and leads; A's own second record must give way to B's."""
    a, b = replica(1), replica(2)
    a.make_leader(assignment(1, 1), 0)
    produce(a, 1, 2)
    b.make_follower(assignment(1, 1), 0)
    pull(b, a, rounds=1)
    b.make_leader(assignment(2, 2, isr=(2,)), 0)
    b.leading.append(batch((9, 1)), acks=1, now_ms=0)
    a.make_follower(assignment(2, 2, isr=(2,)), 0)
    pull(a, b)
    assert a.log.records == b.log.records == [(1, (0, 1)), (2, (9, 1))]


def test_bug_2_kip_279_logs_that_part_twice_are_cut_epoch_by_epoch():
    a, b = replica(1), replica(2)
    for log, epochs in ((a.log, (1, 1, 3, 3, 3)), (b.log, (1, 1, 2, 2, 4))):
        for sequence, epoch in enumerate(epochs):
            log.append_as_leader(batch((epoch, sequence)), leader_epoch=epoch, now_ms=0)
    b.make_leader(assignment(2, 5, isr=(2,)), 0)
    a.make_follower(assignment(2, 5, isr=(2,)), 0)
    pull(a, b)
    assert a.log.records == b.log.records


def test_bug_2_same_length_other_epoch_is_seen():
    a = leader(epoch=5)
    produce(a, 1, 2)
    read, effects = a.leading.read_for_follower(
        2, broker_epoch=102, offset=2, max_bytes=100, current_leader_epoch=5, last_fetched_epoch=3, now_ms=0
    )
    assert read.diverging_end_offset == 0 and not read.records
    assert effects == [] and a.high_watermark == 0  # it acknowledged nothing


def test_a_leader_deposed_before_its_first_record_forgets_its_epoch():
    """Its assigned epoch must not stay in the way of older records that the next leader has."""
    a, b = replica(1), replica(2)
    for log, count in ((a.log, 1), (b.log, 3)):
        for sequence in range(count):
            log.append_as_leader(batch((0, sequence)), leader_epoch=4, now_ms=0)
    a.make_leader(assignment(1, 5), 0)
    b.make_leader(assignment(2, 6, isr=(2,)), 0)
    a.make_follower(assignment(2, 6, isr=(2,)), 0)
    pull(a, b)
    assert a.log.records == b.log.records


@pytest.mark.parametrize("epoch", [4, 6, -1])
def test_bug_2b_fetches_of_another_epoch_move_nothing(epoch: int):
    a = leader(isr=(1, 2), epoch=5)
    produce(a, 1)
    with pytest.raises((FencedLeaderEpochError, UnknownLeaderEpochError)):
        fetch(a, 2, 1, epoch=epoch)
    assert a.high_watermark == 0


def test_bug_3_an_answer_counts_only_for_the_fetch_in_flight():
    a, b = leader(isr=(1, 2)), replica(2)
    produce(a, 1, 2)
    b.make_follower(assignment(1, 5), 0)
    first = b.following.next_fetch()
    assert first is not None
    diverging = FetchAnswer(diverging_epoch=0, diverging_end_offset=0)
    pull(b, a)
    b.following.fetched(first, diverging, 0)
    assert b.log_end_offset == 2
    position = b.following.next_fetch()
    assert position is not None
    records = FetchAnswer(records=RECORD.pack(2, 5, 0, 3), high_watermark=0, log_start_offset=0)
    b.following.fetched(position, records, 0)
    b.following.fetched(position, records, 0)  # repeated
    assert b.log_end_offset == 3


def test_bug_3_an_answer_from_before_a_change_of_leader_is_dropped():
    b = replica(2)
    b.make_follower(assignment(1, 5), 0)
    position = b.following.next_fetch()
    assert position is not None
    b.make_follower(assignment(3, 6), 0)
    b.following.next_fetch()
    b.following.fetched(position, FetchAnswer(records=RECORD.pack(0, 5, 0, 1), high_watermark=1, log_start_offset=0), 0)
    assert (b.log_end_offset, b.high_watermark) == (0, 0)


def test_behind_the_leaders_log_start_a_follower_starts_over():
    b = replica(2)
    b.make_follower(assignment(1, 5), 0)
    position = b.following.next_fetch()
    assert position is not None
    out_of_range = FetchAnswer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=70, high_watermark=90)
    changed(b, b.following.fetched(position, out_of_range, 0))
    assert (b.log.log_start_offset, b.log_end_offset) == (70, 70)


def test_out_of_range_alone_never_drops_data():
    b = replica(2)
    b.log.append_as_leader(batch((0, 1)), leader_epoch=1, now_ms=0)
    b.make_follower(assignment(1, 5), 0)
    position = b.following.next_fetch()
    assert position is not None
    b.following.fetched(position, FetchAnswer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0), 0)
    assert b.log_end_offset == 1
