"""ISRs, leaders and eligible leader replicas: KIP-903, KIP-966, KIP-841, KIP-455."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController

from barnabas.kraft.metadata.controller_settings import MAX_PARTITIONS_PER_REQUEST, ControllerSettings
from barnabas.kraft.metadata.image import NO_LEADER
from barnabas.kraft.metadata.records import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.metadata.requests import AlterConfig, AlterPartitionAnswer, ConfigChange, Done, ResignReplica
from barnabas.log.vocabulary.cluster_changes import (
    AssignReplicasRequest,
    ElectionNotNeededError,
    ElectLeaderRequest,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
)
from barnabas.log.vocabulary.errors import (
    EligibleLeadersNotAvailableError,
    ErrorCode,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)

# --- brokers come and go ---------------------------------------------------------------------------------------------


def test_fencing_moves_leaderships_with_a_new_epoch_and_shrinks_isrs() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.beat(0, fence=True)
    partition = cluster.partition()
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 1, 1)
    assert partition.isr == (1, 2)
    assert partition.eligible_leader_replicas == ()


def test_a_fenced_follower_leaves_the_isr_without_a_new_leader_epoch() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.beat(1, fence=True)
    partition = cluster.partition()
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (0, 0, 1)


def test_the_broker_with_the_fewest_leaderships_wins_the_election() -> None:
    cluster = SingleController()
    cluster.topic(1, 0, name="busy")
    cluster.topic(0, 1, 2)
    cluster.beat(0, fence=True)
    assert cluster.partition().leader == 2


def test_kip_966_the_last_member_of_an_isr_stays_eligible_and_comes_back_as_leader() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    for node_id in (1, 2, 0):
        cluster.beat(node_id, fence=True)
    gone = cluster.partition()
    assert (gone.leader, gone.isr, gone.eligible_leader_replicas) == (NO_LEADER, (), (0,))
    assert gone.last_known_leader == 0
    cluster.beat(1)
    assert cluster.partition().leader == NO_LEADER, "a replica that may lack committed data is not elected"
    cluster.beat(0)
    back = cluster.partition()
    assert (back.leader, back.isr, back.eligible_leader_replicas, back.last_known_leader) == (0, (0,), (), NO_LEADER)


def test_kip_966_below_min_insync_replicas_members_that_leave_stay_eligible() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2, min_insync_replicas="2")
    cluster.beat(2, fence=True)
    assert cluster.partition().eligible_leader_replicas == ()
    cluster.beat(1, fence=True)
    assert (cluster.partition().isr, cluster.partition().eligible_leader_replicas) == ((0,), (1,))
    cluster.beat(0, fence=True)
    assert set(cluster.partition().eligible_leader_replicas) == {0, 1}
    cluster.beat(1)
    elected = cluster.partition()
    assert (elected.leader, elected.isr, elected.eligible_leader_replicas) == (1, (1,), (0,))
    cluster.beat(0)
    cluster.set_isr(1, 0)
    assert cluster.partition().eligible_leader_replicas == ()


def test_kip_966_a_lossy_restart_takes_a_broker_out_of_the_eligible_replicas() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2, min_insync_replicas="2")
    for node_id in (2, 1, 0):
        cluster.beat(node_id, fence=True)
    cluster.start(0, "second", lossy=True)
    assert cluster.partition().eligible_leader_replicas == (1,)
    assert cluster.partition().leader == NO_LEADER
    cluster.start(1, "second")
    assert cluster.partition().leader == 1


def test_a_restart_inside_its_session_is_a_fence_first() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.now_ms += 2_000
    cluster.register(0, "second")
    assert cluster.partition().leader == 1
    assert 0 not in cluster.partition().isr


def test_a_lossy_restart_of_a_live_leader_never_stays_in_the_isr_or_elr() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, min_insync_replicas="2")
    cluster.now_ms += 2_000
    cluster.register(0, "second", lossy=True)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1,), ())


def test_unclean_election_only_with_the_configuration() -> None:
    cluster = SingleController()
    cluster.topic(0, 1)
    cluster.beat(1, fence=True)
    cluster.beat(0, fence=True)
    cluster.beat(1)
    cluster.tick()
    assert cluster.partition().leader == NO_LEADER
    assert cluster.partition().unclean_elections == 0
    cluster.configure("unclean.leader.election.enable", "true")
    cluster.tick()
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1,), ())
    assert partition.unclean_elections == 1


def test_an_unclean_election_leaves_nobody_eligible() -> None:
    """The log of the new leader is the truth: who was eligible before has records that are not committed any more."""
    cluster = SingleController()
    cluster.topic(0, 1, 2, min_insync_replicas="2", unclean_leader_election_enable="true")
    for node_id in (2, 1, 0):
        cluster.beat(node_id, fence=True)
    assert set(cluster.partition().eligible_leader_replicas) == {0, 1}
    cluster.beat(2)
    elected = cluster.partition()
    assert (elected.leader, elected.isr, elected.eligible_leader_replicas) == (2, (2,), ())


def test_clean_elections_are_not_counted_as_unclean_ones() -> None:
    """From the ISR, and from the eligible replicas: both have everything that is committed."""
    cluster = SingleController()
    cluster.topic(0, 1, 2, unclean_leader_election_enable="true")
    cluster.beat(0, fence=True)
    cluster.beat(1, fence=True)
    cluster.beat(2, fence=True)
    cluster.beat(2)
    assert cluster.partition().leader == 2
    assert cluster.partition().unclean_elections == 0


def test_lowering_min_insync_replicas_ends_the_eligibility_in_the_same_batch() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2, min_insync_replicas="2")
    cluster.set_isr(0)
    assert cluster.partition().eligible_leader_replicas == (1, 2)
    before = cluster.image.offset
    cluster.configure("min.insync.replicas", None)
    assert cluster.partition().eligible_leader_replicas == ()
    assert len([command for command, _ in cluster.cluster.log if command.index > before]) == 1


def test_replacing_all_of_a_topics_configuration_ends_the_eligibility_too() -> None:
    """Kafka's older AlterConfigs: what is not named goes back to its default, and may let the high watermark move again."""
    cluster = SingleController()
    cluster.topic(0, 1, 2, min_insync_replicas="2")
    cluster.set_isr(0)
    assert cluster.partition().eligible_leader_replicas == (1, 2)
    changes = (ConfigChange(key="retention.ms", value="1000"),)
    cluster.ask(AlterConfig(resource_type=TOPIC_RESOURCE, resource="t", changes=changes, replaces_all=True))
    assert cluster.partition().eligible_leader_replicas == ()


def test_lowering_the_cluster_default_of_min_insync_replicas_does_too() -> None:
    cluster = SingleController()

    def default(value: str) -> AlterConfig:
        change = ConfigChange(key="min.insync.replicas", value=value)
        return AlterConfig(resource_type=BROKER_RESOURCE, resource="", changes=(change,))

    cluster.ask(default("2"))
    cluster.topic(0, 1, 2)
    cluster.topic(0, 1, 2, name="own", min_insync_replicas="2")
    cluster.set_isr(0)
    assert cluster.partition().eligible_leader_replicas == (1, 2)
    cluster.ask(default("1"))
    assert cluster.partition().eligible_leader_replicas == ()


def test_expired_sessions_are_fenced_and_everything_moves() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.now_ms += 2_000
    cluster.beat(1)
    cluster.beat(2)
    cluster.now_ms += 1_000
    cluster.tick()
    assert cluster.image.brokers[0].fenced
    assert not cluster.image.brokers[1].fenced
    assert cluster.partition().leader == 1
    assert 0 not in {slot.coordinator for slot in cluster.image.slots}


def test_preferred_leaders_are_restored_at_intervals() -> None:
    cluster = SingleController(settings=ControllerSettings(preferred_leader_check_interval_ms=1_000))
    cluster.topic(0, 1, 2)
    cluster.beat(0, fence=True)
    cluster.beat(0)
    cluster.set_isr(1, 2, 0)
    cluster.tick()
    assert cluster.partition().leader == 1
    cluster.now_ms += 1_000
    cluster.tick()
    assert cluster.partition().leader == 0


# --- a leader proposes -----------------------------------------------------------------------------------------------


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    shrunk = cluster.propose(cluster.proposal(0, 1))
    assert (shrunk.error, shrunk.isr, shrunk.partition_epoch, shrunk.leader_epoch) == (0, (0, 1), 1, 0)
    assert cluster.propose(cluster.proposal(0, 1, 2)).partition_epoch == 2
    again = cluster.propose(cluster.proposal(2, 1, 0))
    assert (again.error, again.partition_epoch, again.isr) == (0, 3, (0, 1, 2))


def test_proposing_the_isr_as_it_is_makes_every_copy_of_an_earlier_proposal_void() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    doubtful = cluster.proposal(0, 1)  # sent, and never heard of again
    assert cluster.propose(cluster.proposal(0, 1, 2)).partition_epoch == 1
    assert cluster.propose(doubtful).error == ErrorCode.INVALID_UPDATE_VERSION


def test_a_proposal_with_old_or_impossible_epochs_is_refused() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.set_isr(0, 1)
    errors = {
        "partition epoch": cluster.propose(cluster.proposal(0, partition_epoch=0)).error,
        "newer partition epoch": cluster.propose(cluster.proposal(0, partition_epoch=9)).error,
        "newer leader epoch": cluster.propose(cluster.proposal(0, leader_epoch=9)).error,
        "not the leader": cluster.propose(cluster.proposal(0, 1, sender=1)).error,
        "without the leader": cluster.propose(cluster.proposal(1)).error,
        "twice": cluster.propose(cluster.proposal(0, 1, 1)).error,
        "no replica": cluster.propose(cluster.proposal(0, 7)).error,
    }
    assert errors == {
        "partition epoch": ErrorCode.INVALID_UPDATE_VERSION,
        "newer partition epoch": ErrorCode.NOT_CONTROLLER,
        "newer leader epoch": ErrorCode.NOT_CONTROLLER,
        "not the leader": ErrorCode.INVALID_REQUEST,
        "without the leader": ErrorCode.INVALID_REQUEST,
        "twice": ErrorCode.INVALID_REQUEST,
        "no replica": ErrorCode.INVALID_REQUEST,
    }
    cluster.ask(ElectLeaderRequest(topic="t", partition=0, target=1))
    assert cluster.propose(cluster.proposal(0, leader_epoch=0, sender=0)).error == ErrorCode.FENCED_LEADER_EPOCH


def test_a_leader_with_an_old_broker_epoch_is_refused_as_a_whole() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    request = cluster.proposal(0, 1)
    cluster.now_ms += 2_000
    cluster.register(0, "second")
    cluster.refused(request, StaleBrokerEpochError)


def test_kip_903_a_member_that_restarted_since_is_ineligible() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.beat(1, fence=True)
    old_epoch = cluster.epochs[1]
    cluster.start(1, "second")
    stale = cluster.proposal(0, 1, 2, member_epochs={1: old_epoch})
    assert cluster.propose(stale).error == ErrorCode.INELIGIBLE_REPLICA
    unknown = cluster.proposal(0, 1, 2, member_epochs={1: -1})
    assert cluster.propose(unknown).error == ErrorCode.INELIGIBLE_REPLICA
    itself = cluster.proposal(0, 1, 2, member_epochs={0: -1})
    assert cluster.propose(itself).error == ErrorCode.NONE


def test_kip_841_a_fenced_or_draining_member_is_ineligible() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.beat(1, fence=True)
    assert cluster.propose(cluster.proposal(0, 1, 2)).error == ErrorCode.INELIGIBLE_REPLICA
    cluster.beat(2, stop=True)
    assert cluster.propose(cluster.proposal(0, 2)).error == ErrorCode.INELIGIBLE_REPLICA


def test_one_refused_partition_does_not_hold_up_another() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    good = cluster.proposal(0, 1)
    unknown = type(good)(
        node_id=0,
        broker_epoch=good.broker_epoch,
        partitions=(*cluster.proposal(0, 1).partitions, *cluster.proposal(0).partitions),
    )
    answer = cluster.ask(unknown)
    errors = [partition.error for partition in answer.partitions]  # type: ignore[attr-defined]
    assert errors == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert cluster.partition().isr == (0, 1)


# --- an operator asks ------------------------------------------------------------------------------------------------


def test_elections_on_request() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.refused(ElectLeaderRequest(topic="x", partition=0), UnknownTopicOrPartitionError)
    cluster.refused(ElectLeaderRequest(topic="t", partition=0), ElectionNotNeededError)
    assert isinstance(cluster.ask(ElectLeaderRequest(topic="t", partition=0, target=2)), Done)
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (2, 1)
    assert isinstance(cluster.ask(ElectLeaderRequest(topic="t", partition=0)), Done)
    assert cluster.partition().leader == 0
    cluster.set_isr(0)
    cluster.refused(ElectLeaderRequest(topic="t", partition=0, target=1), EligibleLeadersNotAvailableError)
    cluster.refused(ElectLeaderRequest(topic="t", partition=0, unclean=True), ElectionNotNeededError)


def test_the_preferred_leader_must_be_in_sync() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.beat(0, fence=True)
    cluster.beat(0)
    cluster.refused(ElectLeaderRequest(topic="t", partition=0), PreferredLeaderNotAvailableError)


def test_an_unclean_election_on_request_takes_whoever_is_alive() -> None:
    cluster = SingleController()
    cluster.topic(0, 1)
    cluster.beat(1, fence=True)
    cluster.beat(0, fence=True)
    cluster.refused(ElectLeaderRequest(topic="t", partition=0, unclean=True), EligibleLeadersNotAvailableError)
    cluster.beat(1)
    assert isinstance(cluster.ask(ElectLeaderRequest(topic="t", partition=0, unclean=True)), Done)
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))
    assert cluster.partition().unclean_elections == 1


# --- KIP-455: reassignment -------------------------------------------------------------------------------------------


def move(cluster: SingleController, *replicas: int) -> object:
    return cluster.ask(AssignReplicasRequest(topic="t", partition=0, replicas=replicas))


def test_a_reassignment_adds_waits_for_the_isr_and_removes() -> None:
    cluster = SingleController(4)
    cluster.topic(0, 1)
    assert isinstance(move(cluster, 2, 3), Done)
    moving = cluster.partition()
    assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ((2, 3, 0, 1), (2, 3), (0, 1))
    assert moving.leader == 0
    cluster.set_isr(0, 1, 2)
    assert cluster.partition().replicas == (2, 3, 0, 1)
    answer = cluster.propose(cluster.proposal(0, 1, 2, 3))
    assert answer.error == ErrorCode.NEW_LEADER_ELECTED
    moved = cluster.partition()
    assert (moved.replicas, moved.isr, moved.leader, moved.leader_epoch) == ((2, 3), (2, 3), 2, 1)
    assert moved.adding_replicas == moved.removing_replicas == ()


def test_replicas_that_leave_bump_the_leader_epoch_even_under_the_same_leader() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    move(cluster, 0, 1)
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == ((0, 1), (0, 1), 0, 1)


def test_a_reassignment_does_not_end_below_min_insync_replicas() -> None:
    cluster = SingleController(4)
    cluster.topic(0, 1, min_insync_replicas="2")
    cluster.beat(3, fence=True)
    move(cluster, 3, 2)
    cluster.set_isr(0, 1, 2)
    assert cluster.partition().replicas == (3, 2, 0, 1)


def test_a_cancelled_reassignment_is_as_if_it_had_never_been() -> None:
    cluster = SingleController(4)
    cluster.topic(0, 1)
    move(cluster, 2, 3)
    cluster.set_isr(0, 1, 2)
    assert isinstance(move(cluster), Done)
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.adding_replicas) == ((0, 1), (0, 1), ())
    cluster.refused(AssignReplicasRequest(topic="t", partition=0, replicas=()), NoReassignmentInProgressError)


def test_a_changed_reassignment_drops_what_it_was_still_adding() -> None:
    cluster = SingleController(4)
    cluster.topic(0, 1)
    move(cluster, 2, 1)
    move(cluster, 3, 1)
    partition = cluster.partition()
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ((3, 1, 0), (3,), (0,))


@pytest.mark.parametrize("replicas", [(0, 0), (0, 9), tuple(range(200))])
def test_an_impossible_reassignment_is_refused(replicas: tuple[int, ...]) -> None:
    cluster = SingleController()
    cluster.topic(0, 1)
    cluster.refused(AssignReplicasRequest(topic="t", partition=0, replicas=replicas), InvalidReplicaAssignmentError)


def test_a_cancellation_that_would_leave_nobody_in_sync_is_refused() -> None:
    cluster = SingleController(4)
    cluster.topic(0, 1)
    move(cluster, 2, 3)
    cluster.set_isr(0, 2)
    cluster.beat(0, fence=True)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    cluster.refused(AssignReplicasRequest(topic="t", partition=0, replicas=()), InvalidReplicaAssignmentError)


@pytest.mark.parametrize("target", [(), (3, 1)])
def test_a_reassignment_that_would_leave_too_few_copies_is_neither_cancelled_nor_changed(
    target: tuple[int, ...],
) -> None:
    """Records were acknowledged with 0 and 2 in sync; 1 never had them, and then the disk of 0 is lost."""
    cluster = SingleController(4)
    cluster.topic(0, 1, min_insync_replicas="2")
    move(cluster, 2, 3)
    cluster.set_isr(0, 1, 2)
    cluster.beat(1, fence=True)
    assert cluster.partition().isr == (0, 2)
    told = cluster.refused(
        AssignReplicasRequest(topic="t", partition=0, replicas=target), InvalidReplicaAssignmentError
    )
    assert "on [0] only" in told and "min.insync.replicas is 2" in told
    cluster.beat(1)
    cluster.set_isr(0, 1, 2)
    assert isinstance(move(cluster, *target), Done)


def test_an_eligible_replica_is_a_copy_that_a_cancellation_may_not_drop() -> None:
    cluster = SingleController(4)
    cluster.topic(0, 1, min_insync_replicas="2")
    move(cluster, 2, 3)
    cluster.set_isr(0, 1, 2)
    cluster.beat(1, fence=True)
    cluster.beat(2, fence=True)
    assert (cluster.partition().isr, cluster.partition().eligible_leader_replicas) == ((0,), (2,))
    cluster.refused(AssignReplicasRequest(topic="t", partition=0, replicas=()), InvalidReplicaAssignmentError)


# --- damaged replicas ------------------------------------------------------------------------------------------------


def resignation(cluster: SingleController, node_id: int, *, leader_epoch: int | None = None) -> ResignReplica:
    return ResignReplica(
        node_id=node_id,
        broker_epoch=cluster.epochs[node_id],
        topic_id=cluster.image.topics["t"].topic_id,
        partition=0,
        leader_epoch=cluster.partition().leader_epoch if leader_epoch is None else leader_epoch,
    )


def test_a_damaged_leader_hands_over_and_nobody_counts_on_it() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    cluster.ask(resignation(cluster, 0))
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1, 2), ())
    assert partition.leader_epoch == 1


def test_a_damaged_follower_leaves_under_a_new_leader_epoch_of_the_same_leader() -> None:
    cluster = SingleController()
    cluster.topic(0, 1)
    asked = resignation(cluster, 1)
    cluster.ask(asked)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (0, (0,), ())
    assert partition.leader_epoch == 1  # a late fetch of the old log belongs to epoch 0
    cluster.ask(asked)
    assert cluster.partition() == partition  # a repetition does no harm
    cluster.ask(resignation(cluster, 1))
    assert cluster.partition().leader_epoch == 2  # it has asked for records in epoch 1 since


def test_the_last_one_in_sync_may_not_resign() -> None:
    cluster = SingleController()
    cluster.topic(0, 1)
    cluster.beat(1, fence=True)
    before = cluster.partition()
    cluster.refused(resignation(cluster, 0), EligibleLeadersNotAvailableError)
    assert cluster.partition() == before


@pytest.mark.parametrize(
    ("count", "is_taken"), [(MAX_PARTITIONS_PER_REQUEST, True), (MAX_PARTITIONS_PER_REQUEST + 1, False)]
)
def test_a_leader_proposes_so_many_isrs_at_a_time_and_no_more(count: int, is_taken: bool) -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    one = cluster.proposal(0, 1, 2)
    answer = cluster.ask(replace(one, partitions=one.partitions * count))
    assert isinstance(answer, AlterPartitionAnswer if is_taken else InvalidRequestError)
