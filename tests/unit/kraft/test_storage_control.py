"""Disks of brokers fail: their replicas leave ISRs and leaderships, and are elected by nobody until they are back."""

from __future__ import annotations

import pytest
from unit.kraft.group_state_fake import FakeGroupState
from unit.kraft.single_controller import SingleController

from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import (
    FOLDER_FULL,
    FOLDER_HANGING,
    FOLDER_OFFLINE,
    NO_LEADER,
    FolderTrouble,
    MetadataImage,
)
from barnabas.kraft.metadata.records import BrokerStorageRecord, PartitionRecord, RegisterBrokerRecord, TopicRecord
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.metadata.requests import (
    LogEnd,
    ReportLogEnds,
    ReportOfflineReplicas,
    TopicNumbers,
    decode_request,
    encode_request,
)
from barnabas.kraft.node.snapshot import decode_snapshot, encode_snapshot
from barnabas.log.vocabulary.cluster_changes import AssignReplicasRequest, ElectLeaderRequest
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    EligibleLeadersNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    StaleBrokerEpochError,
)

BAD = FolderTrouble(path="/d1", directory_id="x", state=FOLDER_OFFLINE, cause="EIO; replace it", since_ms=7)
FULL = FolderTrouble(path="/d1", directory_id="x", state=FOLDER_FULL, cause="full; free space", since_ms=7)
HANGING = FolderTrouble(path="/d1", directory_id="x", state=FOLDER_HANGING, cause="hangs", since_ms=7)


class World(SingleController):
    """`report` says which partitions of the topic t a broker cannot serve."""

    def __init__(self, brokers: int = 3, settings: ControllerSettings | None = None) -> None:
        super().__init__(brokers, settings or ControllerSettings(auto_preferred_leaders=False))
        self.reports: dict[int, int] = {}

    def report_of(
        self,
        node_id: int,
        *offline: int,
        lost: tuple[int, ...] = (),
        hand_over: tuple[int, ...] = (),
        folder: FolderTrouble | None = None,
        number: int | None = None,
    ) -> ReportOfflineReplicas:
        def of_topic(numbers: tuple[int, ...]) -> tuple[TopicNumbers, ...]:
            topic_id = self.image.topics["t"].topic_id
            return (TopicNumbers(topic_id=topic_id, partitions=numbers),) if numbers else ()

        if number is None:
            number = self.reports[node_id] = self.reports.get(node_id, 0) + 1
        if folder is None and offline:
            folder = BAD
        return ReportOfflineReplicas(
            node_id=node_id,
            broker_epoch=self.epochs[node_id],
            report=number,
            troubled_folders=() if folder is None else (folder,),
            offline=of_topic(offline),
            lost=of_topic(lost),
            hand_over=of_topic(hand_over),
        )

    def report(
        self,
        node_id: int,
        *offline: int,
        lost: tuple[int, ...] = (),
        hand_over: tuple[int, ...] = (),
        folder: FolderTrouble | None = None,
    ) -> None:
        answer = self.ask(self.report_of(node_id, *offline, lost=lost, hand_over=hand_over, folder=folder))
        assert not isinstance(answer, BarnabasError), answer


def test_a_leader_whose_disk_failed_is_replaced_at_once_and_leaves_the_isr() -> None:
    world = World()
    world.topic(0, 1, 2)
    before = world.partition()
    world.report(0, 0)
    partition = world.partition()
    assert partition.leader in (1, 2) and partition.isr == (1, 2) and partition.offline_replicas == (0,)
    assert partition.leader_epoch == before.leader_epoch + 1
    assert world.image.brokers[0].troubled_folders == (BAD,)
    assert world.image.brokers[0].is_active, "the broker serves the rest"


def test_a_follower_whose_disk_failed_leaves_the_isr_and_the_leader_stays() -> None:
    world = World()
    world.topic(0, 1, 2)
    before = world.partition()
    world.report(2, 0)
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == (0, (0, 1), before.leader_epoch)
    assert partition.partition_epoch > before.partition_epoch


def test_an_offline_replica_is_let_into_no_isr() -> None:
    world = World()
    world.topic(0, 1, 2)
    world.report(2, 0)
    assert world.propose(world.proposal(0, 1, 2)).error == ErrorCode.INELIGIBLE_REPLICA
    world.report(2)
    world.set_isr(0, 1, 2)


@pytest.mark.parametrize("unclean", [False, True])
def test_the_last_replica_in_sync_stays_eligible_and_is_not_elected_while_it_is_offline(unclean: bool) -> None:
    world = World()
    world.topic(0, 1, min_insync_replicas="2")
    world.set_isr(0)
    world.report(0, 0)
    partition = world.partition()
    # Broker 1 left an ISR that was large enough then, so it is eligible (KIP-966), and it is alive.
    assert partition.leader == 1 and partition.eligible_leader_replicas == (0,)
    world.report(1, 0)
    partition = world.partition()
    assert partition.leader == NO_LEADER and partition.isr == ()
    assert set(partition.eligible_leader_replicas) == {0, 1}
    if unclean:
        world.refused(ElectLeaderRequest(topic="t", partition=0, unclean=True), EligibleLeadersNotAvailableError)
    world.beat(0)
    world.now_ms += 60_000
    for node_id in range(3):
        world.beat(node_id)
    world.tick()
    assert world.partition().leader == NO_LEADER
    world.report(1)
    assert world.partition().leader == 1 and world.partition().isr == (1,)


def test_a_replica_that_comes_back_with_losses_is_not_eligible_any_more() -> None:
    world = World()
    world.topic(0, 1, min_insync_replicas="2")
    world.report(1, 0)
    world.report(0, 0)
    assert set(world.partition().eligible_leader_replicas) == {0, 1}
    world.report(0, lost=(0,))
    partition = world.partition()
    assert partition.leader == NO_LEADER and partition.eligible_leader_replicas == (1,)
    assert partition.offline_replicas == (1,)
    world.report(1)
    assert world.partition().leader == 1


def test_the_only_replica_is_offline_and_leads_again_when_it_is_back() -> None:
    world = World()
    world.topic(0)
    epoch = world.partition().leader_epoch
    world.report(0, 0)
    assert (world.partition().leader, world.partition().eligible_leader_replicas) == (NO_LEADER, (0,))
    world.report(0, lost=(0,))
    assert world.partition().leader == NO_LEADER and world.partition().eligible_leader_replicas == ()
    topic_id = world.image.topics["t"].topic_id
    end = LogEnd(topic_id=topic_id, partition=0, leader_epoch=epoch + 1, last_epoch=0, end_offset=7)
    world.ask(ReportLogEnds(node_id=0, broker_epoch=world.epochs[0], ends=(end,)))
    assert world.partition().leader == 0 and world.partition().leader_epoch == epoch + 2


def test_a_restart_of_the_broker_keeps_its_replicas_offline_until_it_says_otherwise() -> None:
    world = World()
    world.topic(0)
    world.report(0, 0)
    world.now_ms += 10_000
    world.start(0, "second")
    world.reports.clear()
    world.tick()
    assert world.partition().leader == NO_LEADER and world.partition().offline_replicas == (0,)
    assert world.image.brokers[0].troubled_folders == ()
    world.report(0)
    assert world.partition().leader == 0 and world.partition().offline_replicas == ()


def test_a_new_controller_knows_of_it_too() -> None:
    world = World()
    world.topic(0, 1)
    world.report(0, 0)
    world.report(1, 0)
    world.cluster.elect(0)
    world.cluster.run()
    for _ in range(3):
        world.now_ms += 1_000
        for node_id in range(3):
            world.beat(node_id)
        world.tick()
    assert world.partition().leader == NO_LEADER and set(world.partition().offline_replicas) == {0, 1}


def test_reports_that_come_late_or_twice_change_nothing() -> None:
    world = World()
    world.topic(0, 1, 2)
    late = world.report_of(0, 0)
    world.report(0)
    world.ask(late)
    assert world.partition().offline_replicas == () and world.partition().leader == 0
    world.report(0, 0)
    offset = world.image.offset
    world.ask(world.report_of(0, 0, number=world.reports[0]))
    assert world.image.offset == offset
    world.epochs[0] -= 1
    world.refused(world.report_of(0), StaleBrokerEpochError)


def test_a_report_has_a_limit() -> None:
    world = World()
    world.topic(0)
    world.refused(world.report_of(0, *range(10_001)), InvalidRequestError)


@pytest.mark.parametrize("trouble", [FULL, HANGING])
def test_an_impaired_disk_hands_its_leaderships_over_and_gets_them_back_when_it_is_well(trouble: FolderTrouble) -> None:
    world = World(settings=ControllerSettings(preferred_leader_check_interval_ms=100))
    world.topic(0, 1, 2)
    world.report(1, folder=trouble)
    world.report(0, folder=trouble, hand_over=(0,))
    partition = world.partition()
    in_sync = (1, 2) if trouble.state == FOLDER_HANGING else (0, 1, 2)  # acks=all must not wait for a disk that hangs
    assert (partition.leader, partition.isr, partition.offline_replicas) == (2, in_sync, ())

    def check_preferred() -> None:
        for _ in range(3):
            world.now_ms += 200
            for node_id in range(3):
                world.beat(node_id)
            world.tick()

    check_preferred()
    assert world.partition().leader == 2, "the preferred leader has no room yet"
    world.report(0)
    world.set_isr(0, 1, 2)  # the leader brings it back once it has caught up
    check_preferred()
    assert world.partition().leader == 0


def test_a_follower_whose_disk_hangs_leaves_the_isr_unless_it_is_alone_in_it() -> None:
    world = World()
    world.topic(0, 1, 2)
    world.report(2, folder=HANGING, hand_over=(0,))
    assert (world.partition().leader, world.partition().isr) == (0, (0, 1))
    world.set_isr(0)
    world.report(0, folder=HANGING, hand_over=(0,))
    assert (world.partition().leader, world.partition().isr) == (0, (0,))


def test_a_full_disk_keeps_the_leadership_where_nobody_else_in_sync_has_room() -> None:
    world = World()
    world.topic(0, 1, 2)
    world.set_isr(0, 1)
    world.report(1, folder=FULL)
    world.report(0, folder=FULL, hand_over=(0,))
    assert world.partition().leader == 0


def test_a_replica_that_is_moved_away_takes_its_mark_along() -> None:
    world = World()
    world.topic(0, 1)
    world.report(0, 0)
    world.ask(AssignReplicasRequest(topic="t", partition=0, replicas=(1, 2)))
    assert world.partition().offline_replicas == (0,)
    world.set_isr(1, 2)
    partition = world.partition()
    assert partition.replicas == (1, 2) and partition.offline_replicas == ()


def test_the_request_the_records_and_the_snapshot_carry_it() -> None:
    world = World()
    world.topic(0, 1)
    request = world.report_of(0, 0, lost=(0,), hand_over=(0,))
    assert decode_request(encode_request(request)) == request
    world.ask(request)
    image, _ = decode_snapshot(encode_snapshot(world.image, FakeGroupState()))
    assert image == world.image and image.brokers[0].troubled_folders == (BAD,)


def test_a_record_of_an_older_registration_is_void() -> None:
    delta = MetadataDelta(MetadataImage())
    register = RegisterBrokerRecord(
        node_id=1, incarnation="a", endpoints=(), admin_endpoint=None, rack=None, directories=(),
        min_feature_level=1, max_feature_level=1,
    )  # fmt: skip
    replay(delta, register, 5)
    storage = BrokerStorageRecord(node_id=1, broker_epoch=4, report=1, troubled_folders=(BAD,))
    assert not replay(delta, storage, 6)
    replay(delta, TopicRecord(name="t", topic_id="i"), 7)
    whole = PartitionRecord(
        topic_id="i", partition=0, replicas=(1,), isr=(), leader=-1, leader_epoch=0, partition_epoch=0,
        offline_replicas=(1,),
    )  # fmt: skip
    replay(delta, whole, 8)
    image = delta.apply(8)
    assert image.brokers[1].troubled_folders == () and image.topics["t"].partitions[0].offline_replicas == (1,)
