"""Brokers with more partitions than are decided on at once: they are fenced, drained, replaced and unfenced in pieces."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from msgspec import structs
from unit.kraft.metadata_cluster import MetadataCluster
from unit.kraft.single_controller import NO_BALANCING, SingleController

from barnabas.kraft.controller.memory.departures import HEARTBEATS_OF_AN_UNREGISTRATION, Departures
from barnabas.kraft.metadata.controller_settings import MAX_PARTITIONS_PER_STEP, MAX_RECORDS_PER_COMMAND
from barnabas.kraft.metadata.image import NO_LEADER, PartitionImage
from barnabas.kraft.metadata.records import (
    PartitionChangeRecord,
    RecordBatch,
    RecoveryRecord,
    decode_batch,
    encode_batch,
)
from barnabas.kraft.metadata.requests import CreateTopic, FenceBroker, Registered
from barnabas.log.vocabulary.cluster_changes import UnregisterBrokerRequest
from barnabas.log.vocabulary.errors import BarnabasError, BrokerNotAvailableError, ErrorCode

STEP = 4
COUNT = 10  # partitions: three pieces
SMALL_STEPS = replace(NO_BALANCING, partitions_per_step=STEP)
SESSION_MS = SMALL_STEPS.session_timeout_ms


def in_pieces(brokers: int = 3, *replicas: int) -> SingleController:
    """A cluster with a topic of COUNT partitions on these brokers, all by default; the first one leads."""
    cluster = SingleController(brokers, SMALL_STEPS)
    answer = cluster.ask(CreateTopic(name="t", assignment=((replicas or tuple(range(brokers))),) * COUNT))
    assert not isinstance(answer, BarnabasError), answer
    return cluster


def partitions(cluster: SingleController, name: str = "t") -> tuple[PartitionImage, ...]:
    return cluster.image.topics[name].partitions


def held(cluster: SingleController, node_id: int) -> int:
    """Partitions that the broker leads or is in sync for."""
    return sum(partition.leader == node_id or node_id in partition.isr for partition in partitions(cluster))


def silence(cluster: SingleController, *node_ids: int) -> None:
    """These brokers have sent nothing for a session; the others have just sent a heartbeat."""
    cluster.now_ms += SESSION_MS
    for node_id in cluster.epochs:
        if node_id not in node_ids:
            cluster.beat(node_id)


def finish(cluster: SingleController) -> int:
    """The ticks until nothing is due."""
    for count in range(100):
        node = cluster.cluster.nodes[0]
        if node.next_deadline_ms(cluster.now_ms) != cluster.now_ms:
            return count
        cluster.tick()
    raise AssertionError("the controller does not come to rest")


def test_no_tick_decides_on_more_than_a_piece_of_a_broker_with_very_many_partitions() -> None:
    """100,000 took 617 ms in one go, 200,000 longer than an election timeout: the controller lost its leadership over it."""
    cluster = SingleController(3, NO_BALANCING)
    answer = cluster.ask(CreateTopic(name="t", partition_count=8_000, replication_factor=3))
    assert not isinstance(answer, BarnabasError), answer
    silence(cluster, 0)
    quorum, sizes = cluster.cluster, list[int]()
    while not cluster.image.brokers[0].fenced:
        quorum.tick(cluster.now_ms)
        commands = [decode_batch(entry.command).records for entry in quorum.tail]
        sizes.append(sum(isinstance(item, PartitionChangeRecord) for records in commands for item in records))
        assert max(map(len, commands)) <= MAX_RECORDS_PER_COMMAND
        quorum.tick(cluster.now_ms)
        assert len(quorum.tail) == len(commands), "one piece waits for its commit before the next one is decided"
        quorum.run()
    assert sum(sizes) == 8_000 and max(sizes) == MAX_PARTITIONS_PER_STEP
    assert all(0 not in item.isr and item.leader in (1, 2) for item in partitions(cluster))


def test_the_broker_is_fenced_by_the_last_piece_and_leads_nothing_then() -> None:
    cluster = in_pieces()
    silence(cluster, 0)
    left = []
    while not cluster.image.brokers[0].fenced:
        left.append(held(cluster, 0))
        cluster.tick()
    assert left == [COUNT, COUNT - STEP, COUNT - 2 * STEP] and held(cluster, 0) == 0
    assert {partition.leader for partition in partitions(cluster)} == {1, 2}


def test_a_departing_broker_is_given_nothing() -> None:
    cluster = in_pieces()
    silence(cluster, 0)
    cluster.tick()
    assert held(cluster, 0) == COUNT - STEP and not cluster.image.brokers[0].fenced
    leader = partitions(cluster)[0].leader
    assert 0 not in partitions(cluster)[0].isr
    answer = cluster.propose(cluster.proposal(0, 1, 2, sender=leader))
    assert answer.error == ErrorCode.INELIGIBLE_REPLICA, "it would have to leave the ISR again"
    for name, factor in (("x", 1), ("y", 1), ("z", 3)):
        created = cluster.ask(CreateTopic(name=name, partition_count=1, replication_factor=factor))
        assert not isinstance(created, BarnabasError), created
        assert 0 not in cluster.partition(name).isr
    finish(cluster)
    assert cluster.image.brokers[0].fenced and held(cluster, 0) == 0


def test_a_broker_that_comes_back_in_the_middle_stays_and_no_partition_is_without_a_leader() -> None:
    """The first partitions have no other replica: with the broker, they lost their leader."""
    cluster = in_pieces(3, 0)
    silence(cluster, 0)
    cluster.tick()
    assert sum(item.leader == NO_LEADER for item in partitions(cluster)) == STEP
    assert not cluster.beat(0).fenced
    finish(cluster)
    assert not cluster.image.brokers[0].fenced
    assert {item.leader for item in partitions(cluster)} == {0}


def test_a_controller_that_takes_over_in_the_middle_of_a_return_gives_every_partition_its_leader() -> None:
    """The former one has decided on a part of them; it looks at all of them itself, at an interval."""
    cluster = in_pieces(3, 0)
    silence(cluster, 0)
    finish(cluster)
    assert cluster.image.brokers[0].fenced and {item.leader for item in partitions(cluster)} == {NO_LEADER}
    assert not cluster.beat(0).fenced
    assert sum(item.leader == NO_LEADER for item in partitions(cluster)) == COUNT - STEP
    cluster.cluster.elect(0)
    cluster.cluster.run()
    cluster.now_ms += SMALL_STEPS.leaderless_check_interval_ms
    finish(cluster)
    assert {item.leader for item in partitions(cluster)} == {0}


def test_another_broker_is_fenced_in_the_middle() -> None:
    cluster = in_pieces()
    silence(cluster, 0)
    cluster.tick()
    cluster.now_ms += SESSION_MS - 1
    cluster.beat(2)
    cluster.now_ms += 1
    cluster.tick()  # now the session of broker 1 is over, too
    assert not cluster.image.brokers[0].fenced or not cluster.image.brokers[1].fenced
    finish(cluster)
    assert cluster.image.brokers[0].fenced and cluster.image.brokers[1].fenced
    assert all((item.leader, item.isr) == (2, (2,)) for item in partitions(cluster))


def test_a_piece_costs_no_search_through_those_before_it() -> None:
    """A broker in 200,000 partitions departs in 40 pieces: a walk over all partitions for each took seconds of the quorum's
    thread."""
    cluster = SingleController(3, replace(NO_BALANCING, partitions_per_step=100))
    cluster.ask(CreateTopic(name="t", assignment=((0, 1, 2),) * 4_000))
    silence(cluster, 0)
    counts = []
    while not cluster.image.brokers[0].fenced:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            cluster.tick()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    middle = sorted(counts)[len(counts) // 2]
    assert len(counts) >= 40 and middle < 1.1 * counts[1], counts


def test_what_a_broker_gets_between_two_departures_is_taken_from_it_again() -> None:
    """The walk of the first one has passed these partitions already."""
    cluster = in_pieces()
    silence(cluster, 0)
    cluster.tick()
    cluster.tick()
    assert not cluster.beat(0).fenced
    leader = partitions(cluster)[0].leader
    assert cluster.propose(cluster.proposal(0, 1, 2, sender=leader)).error == 0
    silence(cluster, 0)
    finish(cluster)
    assert cluster.image.brokers[0].fenced and held(cluster, 0) == 0


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_new_controller_completes_what_the_one_before_has_begun(pieces: int) -> None:
    cluster = in_pieces()
    quorums = cluster.cluster
    silence(cluster, 0)
    for _ in range(pieces):
        cluster.tick()
    quorums.restart(0, from_snapshot=False)
    quorums.elect(0)
    quorums.run()
    assert held(cluster, 0) == COUNT - pieces * STEP and not cluster.image.brokers[0].fenced
    cluster.tick()  # the sessions begin
    silence(cluster, 0)
    finish(cluster)
    assert cluster.image.brokers[0].fenced and held(cluster, 0) == 0


def test_a_process_that_is_gone_is_fenced_without_another_request() -> None:
    cluster = in_pieces()
    cluster.ask(FenceBroker(node_id=0, broker_epoch=cluster.epochs[0]))
    assert held(cluster, 0) == COUNT - STEP
    finish(cluster)
    assert cluster.image.brokers[0].fenced and held(cluster, 0) == 0


def test_a_shutdown_may_end_when_the_last_piece_has_moved() -> None:
    cluster = in_pieces()
    answer = cluster.beat(0, stop=True)
    assert not answer.may_shut_down and not cluster.image.brokers[0].in_controlled_shutdown
    for _ in range(2):
        assert not cluster.beat(0, stop=True).may_shut_down
        cluster.tick()
    assert cluster.image.brokers[0].in_controlled_shutdown and held(cluster, 0) == 0
    for node_id in (1, 2):
        cluster.beat(node_id)
    assert cluster.beat(0, stop=True).may_shut_down and cluster.image.brokers[0].fenced


@pytest.mark.parametrize("lossy", [False, True])
def test_a_successor_registers_when_the_partitions_of_the_process_before_have_moved(lossy: bool) -> None:
    """It is told to try again meanwhile. A replica that has lost data is not eligible for any partition afterwards."""
    cluster = in_pieces(3, 0)
    cluster.now_ms += SMALL_STEPS.duplicate_window_ms  # the process before has died a moment ago
    request = cluster.registration(0, "second", lossy=lossy)
    for _ in range(20):
        answer = cluster.ask(request)
        if isinstance(answer, Registered):
            break
        assert isinstance(answer, BrokerNotAvailableError) and answer.retriable, answer
        cluster.tick()
    assert isinstance(answer, Registered)
    cluster.epochs[0] = answer.broker_epoch
    eligible = () if lossy else (0,)
    assert all((item.leader, item.eligible_leader_replicas) == (NO_LEADER, eligible) for item in partitions(cluster))
    cluster.beat(0)
    finish(cluster)
    assert {item.leader for item in partitions(cluster)} == ({NO_LEADER} if lossy else {0})


def test_a_broker_is_unregistered_when_its_partitions_have_moved() -> None:
    cluster = in_pieces()
    cluster.refused(UnregisterBrokerRequest(node_id=0), BrokerNotAvailableError)
    finish(cluster)
    assert not isinstance(cluster.ask(UnregisterBrokerRequest(node_id=0)), BarnabasError)
    assert 0 not in cluster.image.brokers and held(cluster, 0) == 0


def test_a_live_broker_is_unregistered_in_pieces_although_it_sends_heartbeats() -> None:
    cluster = in_pieces()
    cluster.refused(UnregisterBrokerRequest(node_id=0), BrokerNotAvailableError)
    for _ in range(COUNT):  # a heartbeat between all pieces, and more of them
        cluster.beat(0)
        cluster.tick()
    assert held(cluster, 0) == 0 and cluster.image.brokers[0].fenced
    assert not isinstance(cluster.ask(UnregisterBrokerRequest(node_id=0)), BarnabasError)
    assert 0 not in cluster.image.brokers


def test_a_live_broker_whose_unregistration_is_not_asked_for_again_serves_again() -> None:
    cluster = in_pieces()
    cluster.refused(UnregisterBrokerRequest(node_id=0), BrokerNotAvailableError)
    answers = list[bool]()
    for _ in range(HEARTBEATS_OF_AN_UNREGISTRATION + 1):
        answers.append(cluster.beat(0).fenced)
        cluster.tick()
    assert answers[-2:] == [True, False] and not cluster.image.brokers[0].fenced


def test_a_departure_that_is_begun_again_keeps_what_is_known_of_the_same_process_only() -> None:
    broker, departures = in_pieces().image.brokers[0], Departures()
    departures.begin(broker, drains=True, has_lost_data=True)
    departures.begin(broker, drains=True)
    assert departures.is_draining(0) and departures.lost == {0}
    departures.begin(broker)
    assert not departures.is_draining(0) and departures.lost == {0}
    departures.begin(broker, drains=True)
    assert not departures.is_draining(0), "it must be fenced, and a shutdown does not end that"
    departures.begin(structs.replace(broker, broker_epoch=broker.broker_epoch + 1), drains=True)
    assert departures.is_draining(0) and not departures.lost


def test_an_unregistration_is_about_one_process_and_known_to_one_controller() -> None:
    broker, departures = in_pieces().image.brokers[0], Departures()
    departures.begin_unregistration(broker)
    assert departures.is_unregistering(broker)
    assert not departures.is_unregistering(structs.replace(broker, broker_epoch=broker.broker_epoch + 1))
    departures.begin_unregistration(broker)
    departures.restart()
    assert not departures.is_unregistering(broker)


def test_an_unregistered_broker_that_has_lost_data_is_eligible_for_nothing_when_it_registers_again() -> None:
    """It was the last one in sync, so it stayed eligible, and no registration is left that could depart in pieces."""
    cluster = in_pieces(3, 0)
    cluster.refused(UnregisterBrokerRequest(node_id=0), BrokerNotAvailableError)
    finish(cluster)
    assert not isinstance(cluster.ask(UnregisterBrokerRequest(node_id=0)), BarnabasError)
    assert {item.eligible_leader_replicas for item in partitions(cluster)} == {(0,)}
    request = cluster.registration(0, "second", lossy=True)
    for _ in range(20):
        answer = cluster.ask(request)
        if isinstance(answer, Registered):
            break
        assert isinstance(answer, BrokerNotAvailableError) and answer.retriable, answer
    assert isinstance(answer, Registered)
    cluster.epochs[0] = answer.broker_epoch
    assert {item.eligible_leader_replicas for item in partitions(cluster)} == {()}
    cluster.beat(0)
    finish(cluster)
    assert {item.leader for item in partitions(cluster)} == {NO_LEADER}, "it led without its acknowledged records"


def test_a_broker_that_returns_gets_its_leaderships_in_pieces() -> None:
    cluster = in_pieces(3, 0)
    silence(cluster, 0)
    finish(cluster)
    assert {item.leader for item in partitions(cluster)} == {NO_LEADER}
    led = []
    assert not cluster.beat(0).fenced
    for _ in range(3):
        led.append(sum(item.leader == 0 for item in partitions(cluster)))
        cluster.tick()
    assert led == [STEP, 2 * STEP, COUNT]


def test_partitions_that_nobody_can_lead_do_not_hold_up_those_behind_them() -> None:
    """More than a piece of them: a search that began at the first one every time would never come to the others."""
    cluster = in_pieces(3, 0)
    cluster.ask(CreateTopic(name="u", assignment=((1,),) * COUNT))
    silence(cluster, 0, 1)
    finish(cluster)
    assert {item.leader for item in (*partitions(cluster), *partitions(cluster, "u"))} == {NO_LEADER}
    cluster.beat(1)
    finish(cluster)
    assert {item.leader for item in partitions(cluster, "u")} == {1}
    assert {item.leader for item in partitions(cluster)} == {NO_LEADER}


def recover(cluster: SingleController) -> MetadataCluster:
    quorums = cluster.cluster
    accepted = RecordBatch(controller_epoch=quorums.term, records=(RecoveryRecord(recovery_epoch=1_000),))
    quorums.quorums[0].append(encode_batch(accepted), term=quorums.term, done=lambda outcome: None)
    quorums.run()
    quorums.elect(0)
    quorums.run()
    return quorums


def test_after_a_recovery_nothing_is_decided_before_all_former_processes_are_fenced() -> None:
    """If the first one could return between two pieces, it would lose its place to brokers that are gone."""
    cluster = in_pieces()
    recover(cluster)
    answers = [cluster.ask(cluster.registration(0, "second"))]
    while not isinstance(answers[-1], Registered):
        assert isinstance(answers[-1], BrokerNotAvailableError), answers
        assert not any(broker.fenced for broker in cluster.image.brokers.values())
        answers.append(cluster.ask(cluster.registration(0, "second")))
        assert len(answers) < 10
    assert len(answers) == 3 and all(broker.fenced for broker in cluster.image.brokers.values())
    assert {item.eligible_leader_replicas for item in partitions(cluster)} == {(0, 1, 2)}


def test_after_a_recovery_a_piece_waits_for_the_commit_of_the_one_before() -> None:
    """However slow the disk is: each commit replays all that still waits for its own."""
    cluster = in_pieces()
    quorums = recover(cluster)
    for _ in range(5):
        quorums.tick(cluster.now_ms)
    appended = [record for entry in quorums.tail for record in decode_batch(entry.command).records]
    assert sum(isinstance(record, PartitionChangeRecord) for record in appended) == STEP
    finish(cluster)
    assert all(broker.fenced for broker in cluster.image.brokers.values())
