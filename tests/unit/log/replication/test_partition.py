"""Directed scenarios for the replication bugs that Kafka and its followers had, each under its name.

Those of logs that parted are in `test_partition_truncation`.
"""

import dataclasses

import pytest
from simulation.isr_log import RECORD, batch
from unit.log.replication.partitions import (
    LAG_MS,
    TP,
    assignment,
    fetch,
    leader,
    members,
    produce,
    proposal_in,
    replica,
)

from barnabas.log.replication.effects import (
    HighWatermarkAdvanced,
    IsrAnswer,
    IsrMember,
    LeadershipLost,
    ProposeIsr,
    StartFetching,
    StopFetching,
)
from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.isr import (
    PROPOSAL_LIFETIME_MS,
    PROPOSAL_RETRY_MS,
    PROPOSAL_TIMEOUT_MS,
    CommittedIsr,
    IsrProposals,
)
from barnabas.log.replication.leading import ACKS_ALL
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.replica import Followers
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
    proposal = proposal_in(a.leading.check_isr(LAG_MS + 600))
    agreed = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=51, isr=(1,), eligible=(2,))
    a.leading.isr_answered(proposal, agreed, LAG_MS + 700)
    assert a.high_watermark == 1


def test_a_doubt_about_the_isr_does_not_forget_the_eligible_replicas():
    """No answer, and much later one that changes nothing: replica 2 is eligible all the time."""
    a = replica(1, min_isr=1)
    a.make_leader(dataclasses.replace(assignment(1, 5, isr=(1,)), eligible=(2,)), 0)
    a.leading.isr_unanswered(proposal_in(fetch(a, 3, 0)), 0)
    produce(a, 1)
    late = PROPOSAL_LIFETIME_MS
    unchanged = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=50, isr=(1,), eligible=(2,))
    a.leading.isr_answered(proposal_in(a.leading.check_isr(late)), unchanged, late)
    assert a.role.leader_state is not None and a.role.leader_state.isr.maximal_isr == {1}
    assert a.high_watermark == 0


def test_bug_4_a_shrink_counts_only_when_the_controller_agreed():
    a = leader(isr=(1, 2, 3))
    produce(a, 1)
    fetch(a, 2, 1, now_ms=LAG_MS + 500)
    proposal = proposal_in(a.leading.check_isr(LAG_MS + 600))
    assert members(proposal) == [1, 2]
    assert a.high_watermark == 0
    agreed = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=51, isr=(1, 2))
    assert any(
        isinstance(effect, HighWatermarkAdvanced) for effect in a.leading.isr_answered(proposal, agreed, LAG_MS + 700)
    )
    assert a.high_watermark == 1


def test_bug_5_every_unanswered_proposal_stays_in_the_union_until_newer_metadata():
    a = leader(isr=(1,))
    first = proposal_in(fetch(a, 2, 0))
    a.leading.isr_unanswered(first, 10)
    now_ms = 10 + PROPOSAL_RETRY_MS
    second = proposal_in(fetch(a, 3, 0, now_ms=now_ms))
    a.leading.isr_unanswered(second, now_ms)
    assert a.role.leader_state is not None and a.role.leader_state.isr.maximal_isr == {1, 2, 3}
    produce(a, 1)
    fetch(a, 3, 1, now_ms=now_ms)
    assert a.high_watermark == 0  # 2 may be in the ISR, and may be elected
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1, 3)), now_ms)
    assert a.role.leader_state.isr.maximal_isr == {1, 3}


def test_bug_5_a_version_refusal_may_be_the_echo_of_an_accepted_proposal():
    a = leader(isr=(1,))
    proposal = proposal_in(fetch(a, 2, 0))
    a.leading.isr_answered(proposal, IsrAnswer(error=ErrorCode.INVALID_UPDATE_VERSION), 0)
    assert a.role.leader_state is not None and a.role.leader_state.isr.maximal_isr == {1, 2}
    assert fetch(a, 2, 0, now_ms=PROPOSAL_RETRY_MS - 1) == []  # and it is not repeated at once
    assert members(proposal_in(fetch(a, 2, 0, now_ms=PROPOSAL_RETRY_MS))) == [1, 2]


def test_a_proposal_whose_answer_is_lost_is_repeated_after_its_timeout():
    a = leader(isr=(1,))
    proposal_in(fetch(a, 2, 0))
    a.leading.check_isr(PROPOSAL_TIMEOUT_MS - 1)
    state = a.role.leader_state
    assert state.isr.maximal_isr == {1, 2} and not isinstance(state.isr, CommittedIsr)
    a.leading.check_isr(PROPOSAL_TIMEOUT_MS)
    assert state.isr.maximal_isr == {1, 2} and isinstance(state.isr, CommittedIsr)
    again_ms = PROPOSAL_TIMEOUT_MS + PROPOSAL_RETRY_MS
    assert fetch(a, 2, 0, now_ms=again_ms - 1) == []
    assert members(proposal_in(fetch(a, 2, 0, now_ms=again_ms))) == [1, 2]


def test_a_late_answer_settles_no_later_proposal():
    """The second proposal may be accepted, so its members count until it is answered itself."""
    a = leader(isr=(1,))
    first = proposal_in(fetch(a, 2, 0))
    a.leading.isr_unanswered(first, 0)
    now_ms = PROPOSAL_RETRY_MS
    second = proposal_in(fetch(a, 2, 0, now_ms=now_ms))
    assert second != first == dataclasses.replace(second, proposal_id=first.proposal_id)
    refusal = IsrAnswer(error=ErrorCode.INELIGIBLE_REPLICA)
    state = a.role.leader_state
    a.leading.isr_answered(first, refusal, now_ms)
    a.leading.isr_unanswered(first, now_ms)
    assert state.proposals.is_pending(second) and state.isr.maximal_isr == {1, 2}
    agreed = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=51, isr=(1, 2))
    a.leading.isr_answered(second, agreed, now_ms)
    for late in (first, second):
        a.leading.isr_answered(late, refusal, now_ms)
        a.leading.isr_unanswered(late, now_ms)
    assert state.isr.isr == state.isr.maximal_isr == {1, 2}


def test_an_ineligible_replica_is_let_go():
    a = leader(isr=(1,))
    proposal = proposal_in(fetch(a, 2, 0))
    a.leading.isr_answered(proposal, IsrAnswer(error=ErrorCode.INELIGIBLE_REPLICA), 0)
    assert a.role.leader_state is not None and a.role.leader_state.isr.maximal_isr == {1}


def test_a_doubt_about_a_silent_replica_ends_when_no_copy_of_the_proposal_can_live():
    a = leader(isr=(1,))
    a.leading.isr_unanswered(proposal_in(fetch(a, 2, 0)), 0)
    produce(a, 1)
    unchanged = IsrAnswer(leader=1, leader_epoch=5, partition_epoch=50, isr=(1,))
    early = LAG_MS + 1
    a.leading.isr_answered(proposal_in(a.leading.check_isr(early)), unchanged, early)
    assert a.high_watermark == 0
    late = PROPOSAL_LIFETIME_MS
    a.leading.isr_answered(proposal_in(a.leading.check_isr(late)), unchanged, late)
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
    assert a.role.leader_state is not None and a.role.leader_state.isr.maximal_isr == {1}


def test_a_follower_about_to_join_is_waited_for_as_long_as_it_keeps_up():
    a = leader(isr=(1,))
    fetch(a, 2, 0)
    produce(a, 1)
    assert a.high_watermark == 0
    a.make_leader(assignment(1, 5, partition_epoch=51, isr=(1,)), 1)  # the controller refused
    assert a.high_watermark == 0
    a.leading.check_isr(2 * LAG_MS)
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
        effects = a.leading.isr_answered(proposal, answer, 1) + fetch(a, 3, 1, now_ms=1)
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
        assert a.leading.check_isr(now_ms) == []


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
    a.leading.check_isr(10)
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
    assert a.following.next_fetch() is None


def test_bug_19_consumers_see_committed_records_only_and_the_end_never_goes_back():
    a = replica(1)
    for sequence in range(3):
        a.log.append_as_leader(batch((0, sequence)), leader_epoch=4, now_ms=0)
    a.log.set_high_watermark(1)
    a.make_leader(assignment(1, 5, isr=(1, 2)), 0)
    read = a.reads.read_for_consumer(0, max_bytes=1 << 20)
    assert isinstance(read.records, bytes) and len(read.records) == RECORD.size
    with pytest.raises(OffsetNotAvailableError):
        a.reads.list_offset(-1)
    with pytest.raises(OffsetNotAvailableError):
        a.reads.read_for_consumer(2, max_bytes=100)
    fetch(a, 2, 3)
    assert a.reads.list_offset(-1).offset == 3
    assert a.reads.read_for_consumer(3, max_bytes=100).records == b""


def test_a_new_leaders_lower_high_watermark_does_not_take_a_followers_back():
    b = replica(2)
    b.log.append_as_leader(batch((0, 1)), leader_epoch=1, now_ms=0)
    b.log.set_high_watermark(1)
    b.make_follower(assignment(3, 6), 0)
    position = b.following.next_fetch()
    assert position is not None
    b.following.fetched(position, FetchAnswer(high_watermark=0, log_start_offset=0), 0)
    assert b.high_watermark == 1


# --- reading and the rest --------------------------------------------------------------------------------------------


def test_reads_check_epochs_and_ranges():
    a = leader(isr=(1,), epoch=5)
    produce(a, 1, 2)
    with pytest.raises(FencedLeaderEpochError):
        a.reads.read_for_consumer(0, max_bytes=1, current_leader_epoch=4)
    with pytest.raises(UnknownLeaderEpochError):
        a.reads.read_for_consumer(0, max_bytes=1, current_leader_epoch=6)
    out = a.reads.read_for_consumer(9, max_bytes=1)
    assert (out.error, out.high_watermark, out.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2, 0)
    diverging = a.reads.read_for_consumer(2, max_bytes=1, last_fetched_epoch=4)
    assert diverging.diverging_end_offset == 0


def test_read_committed_ends_at_the_last_stable_offset():
    a = leader(isr=(1,))
    produce(a, 1, 2, 3)
    a.log.open_transaction_at = 1
    read = a.reads.read_for_consumer(0, max_bytes=1 << 20, isolation_level=1)
    assert isinstance(read.records, bytes) and len(read.records) == RECORD.size
    assert a.reads.list_offset(-1, isolation_level=1).offset == 1


def test_a_follower_serves_only_whom_it_was_asked_to_serve():
    b = replica(2)
    b.make_follower(assignment(1, 5), 0)
    with pytest.raises(NotLeaderOrFollowerError):
        b.reads.read_for_consumer(0, max_bytes=1)
    assert b.reads.read_for_consumer(0, max_bytes=1, allow_follower=True).records == b""
    with pytest.raises(OffsetNotAvailableError):
        b.reads.read_for_consumer(1, max_bytes=1, allow_follower=True)


def test_an_offset_that_is_found_by_time_has_the_epoch_of_its_record():
    """Not of who leads now: clients keep it, and would overlook a truncation (KIP-320)."""
    a = leader(isr=(1,), epoch=5)
    produce(a, 10, 20)
    a.make_leader(assignment(1, 6, isr=(1,)), 0)
    produce(a, 30)
    assert [a.reads.list_offset(time_ms).leader_epoch for time_ms in (10, 20, 30)] == [5, 5, 6]
    assert (a.reads.list_offset(-1).leader_epoch, a.reads.list_offset(-3).leader_epoch) == (6, 6)


def test_list_offsets_by_time():
    a = leader(isr=(1,))
    produce(a, 10, 20, 30)
    assert a.reads.list_offset(-2).offset == 0
    assert a.reads.list_offset(15).offset == 1
    assert a.reads.list_offset(31).offset == -1
    assert a.reads.list_offset(-3).timestamp_ms == 30
    assert a.reads.list_offset(-1, for_replica=True).offset == 3
    assert a.reads.end_offset_for_epoch(5) == (5, 3)
    assert a.readable_bytes(1, end_offset=3, max_bytes=1 << 20) == 2 * RECORD.size


def test_delete_records_up_to_the_high_watermark():
    a = leader(isr=(1, 2))
    produce(a, 1, 2)
    fetch(a, 2, 1)
    with pytest.raises(OffsetOutOfRangeError):
        a.leading.delete_records(2)
    assert a.leading.delete_records(-1) == 1
    assert a.leading.delete_records(0) == 1


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
        a.reads.read_for_consumer(0, max_bytes=1)
    assert a.leading.check_isr(0) == []


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


def test_only_members_of_the_isr_have_the_lag_time_before_their_first_fetch() -> None:
    followers = Followers(0, max_lag_ms=10)
    followers.assign((0, 1, 2), (0, 1), now_ms=100)
    assert [followers.is_lagging(replica_id, leader_end_offset=5, now_ms=110) for replica_id in (0, 1, 2)] == [
        False, False, True,
    ]  # fmt: skip
    assert followers.is_lagging(1, leader_end_offset=5, now_ms=111)


def test_a_refused_proposal_is_not_repeated_at_once() -> None:
    proposals = IsrProposals()
    proposals.committed((0, 1), partition_epoch=1, eligible=())
    proposal = ProposeIsr(topic_partition=TP, topic_id="id", leader_epoch=1, partition_epoch=1,
                          isr=(IsrMember(node_id=0, broker_epoch=-1),), proposal_id=proposals.next_id())  # fmt: skip
    proposals.propose(proposal, now_ms=100)
    proposals.refused(ErrorCode.INELIGIBLE_REPLICA, now_ms=100)
    assert not proposals.may_propose(100 + PROPOSAL_RETRY_MS - 1)
    assert proposals.may_propose(100 + PROPOSAL_RETRY_MS)
