"""Directed scenarios for the replication bugs that Kafka and its followers had, each under its name."""

import dataclasses

import pytest
from simulation.isr_log import RECORD, MemoryLog, batch, changed

from barnabas.log.replication.effects import (
    Effect,
    HighWatermarkAdvanced,
    IsrAnswer,
    LeadershipLost,
    PartitionAssignment,
    ProposeIsr,
    StartFetching,
    StopFetching,
)
from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.leader import PROPOSAL_LIFETIME_MS, PROPOSAL_RETRY_MS
from barnabas.log.replication.partition import ACKS_ALL, Partition
from barnabas.log.replication.partition_reads import PartitionRead
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StaleBrokerEpochError,
    StorageError,
    UnknownLeaderEpochError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

TP = TopicPartition("t", 0)
LAG_MS = 1_000


def assignment(
    leader: int,
    epoch: int,
    *,
    partition_epoch: int | None = None,
    isr: tuple[int, ...] = (1, 2, 3),
    active: dict[int, int] | None = None,
) -> PartitionAssignment:
    return PartitionAssignment(
        topic_partition=TP,
        topic_id="t1",
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch * 10 if partition_epoch is None else partition_epoch,
        replicas=(1, 2, 3),
        isr=isr,
        broker_epochs={1: 101, 2: 102, 3: 103} if active is None else active,
    )


def replica(node_id: int, *, min_isr: int = 1) -> Partition:
    log = MemoryLog(TP, min_insync_replicas=min_isr)
    return Partition(log, node_id, replica_lag_time_max_ms=LAG_MS)


def leader(*, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 1, epoch: int = 5) -> Partition:
    partition = replica(1, min_isr=min_isr)
    partition.make_leader(assignment(1, epoch, isr=isr), 0)
    return partition


def produce(partition: Partition, *sequences: int, now_ms: int = 0, acks: int = 1) -> list[Effect]:
    effects: list[Effect] = []
    for sequence in sequences:
        effects += partition.append_as_leader(batch((0, sequence)), acks=acks, now_ms=now_ms)[2]
    return effects


def fetch(
    partition: Partition,
    replica_id: int,
    offset: int,
    *,
    now_ms: int = 0,
    broker_epoch: int | None = None,
    epoch: int | None = None,
) -> list[Effect]:
    """A follower whose log agrees with the leader's says that it has everything before `offset`."""
    last = partition.log.records[offset - 1][0] if offset else -1
    return partition.read_for_follower(
        replica_id,
        broker_epoch=100 + replica_id if broker_epoch is None else broker_epoch,
        offset=offset,
        max_bytes=1 << 20,
        current_leader_epoch=partition.leader_epoch if epoch is None else epoch,
        last_fetched_epoch=last,
        now_ms=now_ms,
    )[1]


def pull(follower: Partition, source: Partition, *, rounds: int = 10) -> None:
    """Fetch until the logs are equal."""
    for _ in range(rounds):
        position = follower.next_fetch()
        assert position is not None
        read, _ = source.read_for_follower(
            follower.node_id,
            broker_epoch=100 + follower.node_id,
            offset=position.offset,
            max_bytes=RECORD.size,
            current_leader_epoch=position.leader_epoch,
            last_fetched_epoch=position.last_fetched_epoch,
            now_ms=0,
        )
        changed(follower, follower.fetched(position, answer(read), 0))


def answer(read: PartitionRead) -> FetchAnswer:
    assert isinstance(read.records, bytes)
    return FetchAnswer(
        error=read.error,
        records=read.records,
        high_watermark=read.high_watermark,
        log_start_offset=read.log_start_offset,
        diverging_epoch=read.diverging_epoch,
        diverging_end_offset=read.diverging_end_offset,
    )


def proposal_in(effects: list[Effect]) -> ProposeIsr:
    (proposal,) = [effect for effect in effects if isinstance(effect, ProposeIsr)]
    return proposal


def members(proposal: ProposeIsr) -> list[int]:
    return [member.node_id for member in proposal.isr]


# --- truncation: bug classes 1, 2, 3 ---------------------------------------------------------------------------------


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
    b.append_as_leader(batch((9, 1)), acks=1, now_ms=0)
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
    read, effects = a.read_for_follower(
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
    first = b.next_fetch()
    assert first is not None
    diverging = FetchAnswer(diverging_epoch=0, diverging_end_offset=0)
    pull(b, a)
    b.fetched(first, diverging, 0)
    assert b.log_end_offset == 2
    position = b.next_fetch()
    assert position is not None
    records = FetchAnswer(records=RECORD.pack(2, 5, 0, 3), high_watermark=0, log_start_offset=0)
    b.fetched(position, records, 0)
    b.fetched(position, records, 0)  # repeated
    assert b.log_end_offset == 3


def test_bug_3_an_answer_from_before_a_change_of_leader_is_dropped():
    b = replica(2)
    b.make_follower(assignment(1, 5), 0)
    position = b.next_fetch()
    assert position is not None
    b.make_follower(assignment(3, 6), 0)
    b.next_fetch()
    b.fetched(position, FetchAnswer(records=RECORD.pack(0, 5, 0, 1), high_watermark=1, log_start_offset=0), 0)
    assert (b.log_end_offset, b.high_watermark) == (0, 0)


def test_behind_the_leaders_log_start_a_follower_starts_over():
    b = replica(2)
    b.make_follower(assignment(1, 5), 0)
    position = b.next_fetch()
    assert position is not None
    out_of_range = FetchAnswer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=70, high_watermark=90)
    changed(b, b.fetched(position, out_of_range, 0))
    assert (b.log.log_start_offset, b.log_end_offset) == (70, 70)


def test_out_of_range_alone_never_drops_data():
    b = replica(2)
    b.log.append_as_leader(batch((0, 1)), leader_epoch=1, now_ms=0)
    b.make_follower(assignment(1, 5), 0)
    position = b.next_fetch()
    assert position is not None
    b.fetched(position, FetchAnswer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0), 0)
    assert b.log_end_offset == 1


# --- the ISR: bug classes 4 to 8 -------------------------------------------------------------------------------------


def test_nothing_is_committed_while_replicas_outside_of_the_isr_are_eligible():
    """The controller's min.insync.replicas is 2, this broker's still 1: its own value must not decide (KIP-966)."""
    a = replica(1, min_isr=1)
    a.make_leader(dataclasses.replace(assignment(1, 5, isr=(1,)), eligible=(2,)), 0)
    produce(a, 1, acks=ACKS_ALL)
    assert a.high_watermark == 0
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,)), 0)
    assert a.high_watermark == 1


def test_an_answer_names_the_eligible_replicas_before_the_metadata_does():
    """It may overtake the metadata of a min.insync.replicas that was raised just before."""
    a = leader(isr=(1, 2), min_isr=1)
    produce(a, 1)
    fetch(a, 2, 1, now_ms=0)
    produce(a, 2)
    proposal = proposal_in(a.check_isr(LAG_MS + 600))
    agreed = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=51, isr=(1,), eligible=(2,))
    a.isr_answered(proposal, agreed, LAG_MS + 700)
    assert a.high_watermark == 1


def test_a_doubt_about_the_isr_does_not_forget_the_eligible_replicas():
    """No answer, and much later one that changes nothing: replica 2 is eligible all the time."""
    a = replica(1, min_isr=1)
    a.make_leader(dataclasses.replace(assignment(1, 5, isr=(1,)), eligible=(2,)), 0)
    a.isr_unanswered(proposal_in(fetch(a, 3, 0)), 0)
    produce(a, 1)
    late = PROPOSAL_LIFETIME_MS
    unchanged = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=50, isr=(1,), eligible=(2,))
    a.isr_answered(proposal_in(a.check_isr(late)), unchanged, late)
    assert a.leader_state is not None and a.leader_state.isr.maximal_isr == {1}
    assert a.high_watermark == 0


def test_bug_4_a_shrink_counts_only_when_the_controller_agreed():
    a = leader(isr=(1, 2, 3))
    produce(a, 1)
    fetch(a, 2, 1, now_ms=LAG_MS + 500)
    proposal = proposal_in(a.check_isr(LAG_MS + 600))
    assert members(proposal) == [1, 2]
    assert a.high_watermark == 0
    agreed = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=51, isr=(1, 2))
    assert any(isinstance(effect, HighWatermarkAdvanced) for effect in a.isr_answered(proposal, agreed, LAG_MS + 700))
    assert a.high_watermark == 1


def test_bug_5_every_unanswered_proposal_stays_in_the_union_until_newer_metadata():
    a = leader(isr=(1,))
    first = proposal_in(fetch(a, 2, 0))
    a.isr_unanswered(first, 10)
    now_ms = 10 + PROPOSAL_RETRY_MS
    second = proposal_in(fetch(a, 3, 0, now_ms=now_ms))
    a.isr_unanswered(second, now_ms)
    assert a.leader_state is not None and a.leader_state.isr.maximal_isr == {1, 2, 3}
    produce(a, 1)
    fetch(a, 3, 1, now_ms=now_ms)
    assert a.high_watermark == 0  # 2 may be in the ISR, and may be elected
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1, 3)), now_ms)
    assert a.leader_state.isr.maximal_isr == {1, 3}


def test_bug_5_a_version_refusal_may_be_the_echo_of_an_accepted_proposal():
    a = leader(isr=(1,))
    proposal = proposal_in(fetch(a, 2, 0))
    a.isr_answered(proposal, IsrAnswer(error=ErrorCode.INVALID_UPDATE_VERSION), 0)
    assert a.leader_state is not None and a.leader_state.isr.maximal_isr == {1, 2}
    assert fetch(a, 2, 0, now_ms=1) == []  # and it is not repeated at once


def test_an_ineligible_replica_is_let_go():
    a = leader(isr=(1,))
    proposal = proposal_in(fetch(a, 2, 0))
    a.isr_answered(proposal, IsrAnswer(error=ErrorCode.INELIGIBLE_REPLICA), 0)
    assert a.leader_state is not None and a.leader_state.isr.maximal_isr == {1}


def test_a_doubt_about_a_silent_replica_ends_when_no_copy_of_the_proposal_can_live():
    a = leader(isr=(1,))
    a.isr_unanswered(proposal_in(fetch(a, 2, 0)), 0)
    produce(a, 1)
    unchanged = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=50, isr=(1,))
    early = LAG_MS + 1
    a.isr_answered(proposal_in(a.check_isr(early)), unchanged, early)
    assert a.high_watermark == 0
    late = PROPOSAL_LIFETIME_MS
    a.isr_answered(proposal_in(a.check_isr(late)), unchanged, late)
    assert a.high_watermark == 1


def test_bug_6_a_follower_joins_only_with_the_high_watermark_and_the_start_of_the_epoch():
    a = replica(1)
    for sequence in range(3):
        a.log.append_as_leader(batch((0, sequence)), leader_epoch=4, now_ms=0)
    a.make_leader(assignment(1, 5, isr=(1, 2)), 0)
    assert a.high_watermark == 0  # ours lags; what was committed ends somewhere up to 3
    assert fetch(a, 3, 2) == []
    assert members(proposal_in(fetch(a, 3, 3))) == [1, 2, 3]


def test_bug_7_a_ghost_of_an_earlier_incarnation_moves_nothing():
    a = leader(isr=(1, 2))
    produce(a, 1)
    with pytest.raises(StaleBrokerEpochError):
        fetch(a, 2, 1, broker_epoch=99)
    fetch(a, 2, 0, broker_epoch=200)  # it has registered again; the metadata does not know yet
    with pytest.raises(StaleBrokerEpochError):
        fetch(a, 2, 1, broker_epoch=102)
    assert a.high_watermark == 0


def test_bug_7_only_the_incarnation_of_the_metadata_may_join_and_the_proposal_names_it():
    a = leader(isr=(1,))
    assert fetch(a, 2, 0, broker_epoch=200) == []
    proposal = proposal_in(fetch(a, 3, 0))
    assert [(member.node_id, member.broker_epoch) for member in proposal.isr] == [(1, -1), (3, 103)]


def test_bug_7_who_is_fenced_cannot_join_and_holds_nobody_up():
    a = leader(isr=(1,))
    produce(a, 1)
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,), active={1: 101}), 0)
    assert fetch(a, 2, 0, now_ms=1) == []
    produce(a, 2, now_ms=2)
    assert a.high_watermark == 2


def test_a_strangers_fetch_moves_nothing():
    a = leader(isr=(1,))
    produce(a, 1)
    for stranger in (-1, 1, 4):
        with pytest.raises(NotLeaderOrFollowerError):
            fetch(a, stranger, 1)
    assert a.leader_state is not None and a.leader_state.isr.maximal_isr == {1}


def test_a_follower_about_to_join_is_waited_for_as_long_as_it_keeps_up():
    a = leader(isr=(1,))
    fetch(a, 2, 0)
    produce(a, 1)
    assert a.high_watermark == 0
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,)), 1)  # the controller refused
    assert a.high_watermark == 0
    a.check_isr(2 * LAG_MS)
    assert a.high_watermark == 1


@pytest.mark.parametrize("by", ["metadata", "answer"])
def test_a_follower_that_the_controller_put_out_holds_nobody_up(by):
    """Its disk may hang: it had everything a moment ago, and is not about to join."""
    a = leader(isr=(1, 2))
    fetch(a, 2, 0)
    produce(a, 1)
    if by == "metadata":
        effects = a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,)), 1)
    else:
        proposal = proposal_in(fetch(a, 3, 0))
        answer = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=51, isr=(1, 3))
        effects = a.isr_answered(proposal, answer, 1) + fetch(a, 3, 1, now_ms=1)
    assert HighWatermarkAdvanced(topic_partition=TP, high_watermark=1) in effects
    fetch(a, 2, 1, now_ms=2)  # it keeps up again
    produce(a, 2, now_ms=3)
    fetch(a, 3, 2, now_ms=3)
    assert a.high_watermark == 1
    fetch(a, 2, 2, now_ms=4)
    assert a.high_watermark == 2


def test_a_follower_one_round_trip_behind_a_busy_leader_stays_in():
    """lastCaughtUpTimeMs: having all that was there at the previous fetch counts as caught up at that time."""
    a = leader(isr=(1, 2))
    for step in range(20):
        now_ms = step * LAG_MS // 2
        produce(a, step, now_ms=now_ms)
        fetch(a, 2, step, now_ms=now_ms)
        assert a.check_isr(now_ms) == []


# --- acknowledgement: bug classes 9 to 11, 17, 19 --------------------------------------------------------------------


def test_bug_9_the_high_watermark_waits_for_the_whole_isr():
    a = leader(isr=(1, 2, 3))
    assert not any(isinstance(effect, HighWatermarkAdvanced) for effect in produce(a, 1, acks=ACKS_ALL))
    fetch(a, 2, 1)
    assert a.high_watermark == 0
    fetch(a, 3, 1)
    assert a.high_watermark == 1
    fetch(a, 3, 0)  # a follower that fell back does not take it along
    assert a.high_watermark == 1


def test_bug_10_under_min_isr_acks_all_is_refused_before_the_append_and_the_high_watermark_stands():
    a = leader(isr=(1, 2), min_isr=2)
    produce(a, 1, acks=ACKS_ALL)
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,)), 0)
    with pytest.raises(NotEnoughReplicasError):
        produce(a, 2, acks=ACKS_ALL)
    assert a.log_end_offset == 1
    produce(a, 2, acks=1)
    assert (a.log_end_offset, a.high_watermark) == (2, 0)


def test_bug_11_kip_966_last_replica_standing_commits_nothing_that_the_eligible_ones_lack():
    a = leader(isr=(1, 2, 3), min_isr=2)
    produce(a, 1)
    fetch(a, 2, 1)
    fetch(a, 3, 1)
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,)), 0)  # 2 or 3 is eligible now
    produce(a, 2)
    a.check_isr(10)
    assert a.high_watermark == 1
    a.make_leader(assignment(1, 5, partition_epoch=52, isr=(1, 2)), 20)
    fetch(a, 2, 2, now_ms=LAG_MS + 20)
    assert a.high_watermark == 2


def test_bug_17_metadata_that_is_older_than_the_log_makes_no_leader():
    a = leader(epoch=5)
    produce(a, 1)
    restarted = Partition(a.log, 1)
    assert restarted.make_leader(assignment(1, 4), 0) == []
    with pytest.raises(NotLeaderOrFollowerError):
        produce(restarted, 2)


def test_bug_17_a_deposed_leader_takes_nothing_any_more():
    a = leader(epoch=5)
    effects = a.make_follower(assignment(2, 6), 0)
    assert effects == [LeadershipLost(topic_partition=TP), StartFetching(topic_partition=TP, leader=2, leader_epoch=6)]
    with pytest.raises(NotLeaderOrFollowerError):
        produce(a, 1)
    assert a.make_leader(assignment(1, 5), 0) == []
    assert a.make_follower(assignment(-1, 7), 0) == [StopFetching(topic_partition=TP)]
    assert a.next_fetch() is None


def test_bug_19_consumers_see_committed_records_only_and_the_end_never_goes_back():
    a = replica(1)
    for sequence in range(3):
        a.log.append_as_leader(batch((0, sequence)), leader_epoch=4, now_ms=0)
    a.log.set_high_watermark(1)
    a.make_leader(assignment(1, 5, isr=(1, 2)), 0)
    read = a.read_for_consumer(0, max_bytes=1 << 20)
    assert isinstance(read.records, bytes) and len(read.records) == RECORD.size
    with pytest.raises(OffsetNotAvailableError):
        a.list_offset(-1)
    with pytest.raises(OffsetNotAvailableError):
        a.read_for_consumer(2, max_bytes=100)
    fetch(a, 2, 3)
    assert a.list_offset(-1).offset == 3
    assert a.read_for_consumer(3, max_bytes=100).records == b""


def test_a_new_leaders_lower_high_watermark_does_not_take_a_followers_back():
    b = replica(2)
    b.log.append_as_leader(batch((0, 1)), leader_epoch=1, now_ms=0)
    b.log.set_high_watermark(1)
    b.make_follower(assignment(3, 6), 0)
    position = b.next_fetch()
    assert position is not None
    b.fetched(position, FetchAnswer(high_watermark=0, log_start_offset=0), 0)
    assert b.high_watermark == 1


# --- reading and the rest --------------------------------------------------------------------------------------------


def test_reads_check_epochs_and_ranges():
    a = leader(isr=(1,), epoch=5)
    produce(a, 1, 2)
    with pytest.raises(FencedLeaderEpochError):
        a.read_for_consumer(0, max_bytes=1, current_leader_epoch=4)
    with pytest.raises(UnknownLeaderEpochError):
        a.read_for_consumer(0, max_bytes=1, current_leader_epoch=6)
    out = a.read_for_consumer(9, max_bytes=1)
    assert (out.error, out.high_watermark, out.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2, 0)
    diverging = a.read_for_consumer(2, max_bytes=1, last_fetched_epoch=4)
    assert diverging.diverging_end_offset == 0


def test_read_committed_ends_at_the_last_stable_offset():
    a = leader(isr=(1,))
    produce(a, 1, 2, 3)
    a.log.open_transaction_at = 1
    read = a.read_for_consumer(0, max_bytes=1 << 20, isolation_level=1)
    assert isinstance(read.records, bytes) and len(read.records) == RECORD.size
    assert a.list_offset(-1, isolation_level=1).offset == 1


def test_a_follower_serves_only_whom_it_was_asked_to_serve():
    b = replica(2)
    b.make_follower(assignment(1, 5), 0)
    with pytest.raises(NotLeaderOrFollowerError):
        b.read_for_consumer(0, max_bytes=1)
    assert b.read_for_consumer(0, max_bytes=1, allow_follower=True).records == b""
    with pytest.raises(OffsetNotAvailableError):
        b.read_for_consumer(1, max_bytes=1, allow_follower=True)


def test_an_offset_that_is_found_by_time_has_the_epoch_of_its_record():
    """Not of who leads now: clients keep it, and would overlook a truncation (KIP-320)."""
    a = leader(isr=(1,), epoch=5)
    produce(a, 10, 20)
    a.make_leader(assignment(1, 6, isr=(1,)), 0)
    produce(a, 30)
    assert [a.list_offset(time_ms).leader_epoch for time_ms in (10, 20, 30)] == [5, 5, 6]
    assert (a.list_offset(-1).leader_epoch, a.list_offset(-3).leader_epoch) == (6, 6)


def test_list_offsets_by_time():
    a = leader(isr=(1,))
    produce(a, 10, 20, 30)
    assert a.list_offset(-2).offset == 0
    assert a.list_offset(15).offset == 1
    assert a.list_offset(31).offset == -1
    assert a.list_offset(-3).timestamp_ms == 30
    assert a.list_offset(-1, for_replica=True).offset == 3
    assert a.end_offset_for_epoch(5) == (5, 3)
    assert a.readable_bytes(1, end_offset=3, max_bytes=1 << 20) == 2 * RECORD.size


def test_delete_records_up_to_the_high_watermark():
    a = leader(isr=(1, 2))
    produce(a, 1, 2)
    fetch(a, 2, 1)
    with pytest.raises(OffsetOutOfRangeError):
        a.delete_records(2, now_ms=0)
    assert a.delete_records(-1, now_ms=0) == (1, [])
    assert a.delete_records(0, now_ms=0) == (1, [])


def test_a_failed_log_ends_the_partition_a_full_disk_does_not():
    a = leader(isr=(1,))
    a.log.fail_next = StorageError("no space left")
    with pytest.raises(StorageError):
        produce(a, 1)
    produce(a, 1)
    a.log.fail_next = StorageError("input/output error")
    a.log.failed = True
    with pytest.raises(StorageError):
        produce(a, 2)
    with pytest.raises(StorageError):
        a.read_for_consumer(0, max_bytes=1)
    assert a.check_isr(0) == []


def test_unbroken_leadership_is_told_from_one_that_came_back():
    a = leader(epoch=5)
    assert a.leadership == 5
    a.make_leader(assignment(1, 6), 0)
    assert a.leadership == 5
    a.make_follower(assignment(2, 7), 0)
    assert a.leadership == -1
    a.make_leader(assignment(1, 8), 0)
    assert a.leadership == 8
    assert str(a).startswith("t-0 pe80 leader e8")
