"""A partition without in-sync and eligible replicas: the longest log leads, and what may be longer is waited for (KIP-966)."""

import pytest
from unit.kraft.single_controller import SingleController

from barnabas.kraft.controller.memory.log_ends import PATIENCE_MS
from barnabas.kraft.metadata.image import NO_LEADER
from barnabas.kraft.metadata.requests import LogEnd, ReportLogEnds, ReportOfflineReplicas, TopicNumbers
from barnabas.log.vocabulary.cluster_changes import ElectLeaderRequest, UnregisterBrokerRequest
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, StaleBrokerEpochError


class World(SingleController):
    """Broker 0 led a partition of three; all machines lost their power."""

    def __init__(self, *replicas: int, comes_back: tuple[int, ...] = (0, 1, 2), **configs: str) -> None:
        super().__init__()
        self.topic(*(replicas or (0, 1, 2)), **configs)
        for node_id in (1, 2, 0):
            self.beat(node_id, fence=True)
        for node_id in comes_back:
            self.register(node_id, "second", lossy=True)
            self.beat(node_id)

    def report(self, node_id: int, end_offset: int, last_epoch: int = 0, *, leader_epoch: int | None = None) -> None:
        partition = self.partition()
        end = LogEnd(
            topic_id=self.image.topics["t"].topic_id,
            partition=0,
            leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
            last_epoch=last_epoch,
            end_offset=end_offset,
        )
        answer = self.ask(ReportLogEnds(node_id=node_id, broker_epoch=self.epochs[node_id], ends=(end,)))
        assert not isinstance(answer, BarnabasError), answer

    def disk_report(self, node_id: int, number: int, *, is_offline: bool) -> ReportOfflineReplicas:
        places = (TopicNumbers(topic_id=self.image.topics["t"].topic_id, partitions=(0,)),)
        return ReportOfflineReplicas(
            node_id=node_id,
            broker_epoch=self.epochs[node_id],
            report=number,
            troubled_folders=(),
            offline=places if is_offline else (),
        )

    def pass_time(self, ms: int) -> None:
        """The brokers that are there keep their sessions."""
        while ms > 0:
            step_ms = min(ms, 1_000)
            self.now_ms += step_ms
            ms -= step_ms
            for broker in self.image.brokers.values():
                if not broker.fenced:
                    self.beat(broker.node_id)
            self.tick()

    def disk_fails(self, node_id: int) -> None:
        number = TopicNumbers(topic_id=self.image.topics["t"].topic_id, partitions=(0,))
        report = ReportOfflineReplicas(
            node_id=node_id, broker_epoch=self.epochs[node_id], report=1, troubled_folders=(), offline=(number,)
        )
        assert not isinstance(self.ask(report), BarnabasError)
        assert node_id in self.partition().offline_replicas

    @property
    def leader(self) -> int:
        return self.partition().leader


def test_the_longest_log_leads_once_all_have_reported() -> None:
    world = World()
    partition = world.partition()
    assert (partition.isr, partition.eligible_leader_replicas, partition.leader) == ((), (), NO_LEADER)
    world.report(0, 80)
    world.report(1, 100)
    assert world.leader == NO_LEADER
    world.report(2, 90)
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.unclean_elections) == (1, (1,), 1)


@pytest.mark.parametrize("ends, leader", [
    (((5, 3), (90, 2), (80, 2)), 0),  # a newer epoch counts more than a larger offset
    (((80, 2), (80, 2), (80, 2)), 0),  # of equal ones, the last leader
    (((0, -1), (7, 1), (7, 1)), 1),  # an empty log loses
    (((0, 9), (7, 1), (7, 1)), 1),  # also if it has led in a newer epoch
])  # fmt: skip
def test_which_log_is_the_longest(ends: tuple[tuple[int, int], ...], leader: int) -> None:
    world = World()
    for node_id, (end_offset, epoch) in enumerate(ends):
        world.report(node_id, end_offset, epoch)
    assert world.leader == leader


def test_the_order_of_reports_has_no_meaning() -> None:
    world = World()
    for node_id in (2, 1, 0):
        world.report(node_id, 10 * node_id)
    assert world.leader == 2


def test_a_replica_whose_broker_is_down_is_waited_for_and_then_no_more() -> None:
    world = World(comes_back=(0, 1))
    world.report(0, 80)
    world.report(1, 100)
    assert world.leader == NO_LEADER
    world.pass_time(PATIENCE_MS - 1)
    world.report(1, 100)
    assert world.leader == NO_LEADER
    world.pass_time(1)
    world.report(1, 100)
    assert world.leader == 1


def test_without_the_last_leader_nobody_is_elected() -> None:
    """As before: it may have more than any other. An operator can decide otherwise."""
    world = World()
    world.beat(0, fence=True)
    for _ in range(3):
        world.report(1, 80)
        world.report(2, 100)
        assert world.leader == NO_LEADER
        world.pass_time(PATIENCE_MS)
    assert not isinstance(world.ask(ElectLeaderRequest(topic="t", partition=0, unclean=True)), BarnabasError)
    assert world.leader == 2, "the longest of those that are here"


def test_an_empty_log_never_leads_while_another_replica_may_have_records() -> None:
    """The disk of the last leader was replaced, and the other brokers are down."""
    world = World(comes_back=(0,))
    for _ in range(3):
        world.report(0, 0, -1)
        assert world.leader == NO_LEADER
        world.pass_time(PATIENCE_MS)
    world.register(1, "second", lossy=True)
    world.beat(1)
    world.report(1, 5)
    world.report(0, 0, -1)
    world.pass_time(PATIENCE_MS)
    world.report(1, 5)
    assert world.leader == 1


def test_a_broker_that_was_removed_is_not_waited_for() -> None:
    world = World(comes_back=(0, 1))
    world.report(0, 80)
    world.report(1, 70)
    assert not isinstance(world.ask(UnregisterBrokerRequest(node_id=2)), BarnabasError)
    world.report(0, 80)
    assert world.leader == 0


def test_the_disk_of_the_last_leader_is_waited_for_and_those_of_others_are_not() -> None:
    world = World()
    world.disk_fails(2)
    world.report(0, 80)
    world.report(1, 70)
    assert world.leader == 0, "at once"
    world = World()
    world.disk_fails(0)
    for _ in range(3):
        world.report(1, 80)
        world.report(2, 100)
        assert world.leader == NO_LEADER
        world.pass_time(PATIENCE_MS)


def test_a_broker_that_was_fenced_after_its_report_does_not_lead() -> None:
    world = World()
    world.report(0, 80)
    world.report(1, 60)
    world.beat(0, fence=True)
    world.report(2, 50)
    assert world.leader == NO_LEADER


def test_a_broker_that_was_removed_with_a_broken_disk_is_not_waited_for() -> None:
    """The partition waited for ever for the repair of the disk."""
    world = World()
    assert not isinstance(world.ask(world.disk_report(0, 1, is_offline=True)), BarnabasError)
    assert world.partition().offline_replicas == (0,)
    world.report(1, 80)
    world.report(2, 70)
    assert world.leader == NO_LEADER
    world.beat(0, fence=True)
    assert not isinstance(world.ask(UnregisterBrokerRequest(node_id=0)), BarnabasError)
    world.report(1, 80)
    assert world.leader == 1


def test_what_a_broker_reported_before_its_disk_failed_does_not_count() -> None:
    """The disk came back empty, and led by its report of before; the others dropped their records to follow it."""
    world = World()
    world.report(0, 100)
    world.report(1, 80)
    for number, is_offline in ((1, True), (2, False)):
        assert not isinstance(world.ask(world.disk_report(0, number, is_offline=is_offline)), BarnabasError)
    world.report(2, 70)
    assert world.leader == NO_LEADER
    world.report(0, 0, -1)
    assert world.leader == 1


def test_reports_are_forgotten_when_there_is_a_leader() -> None:
    """They stayed in memory until the next controller, for every partition that was ever without a leader."""
    world = World()
    known = world.cluster.nodes[0]._controller._replication._ends._partitions
    for node_id in (0, 1):
        world.report(node_id, 80)
    assert known
    world.report(2, 90)
    assert world.leader == 2 and not known


def test_the_only_replica_leads_with_what_it_has() -> None:
    world = World(0)
    world.report(0, 0, -1)
    assert world.leader == 0


def test_reports_of_former_registrations_epochs_and_strangers_do_not_count() -> None:
    world = World()
    world.report(0, 80)
    world.report(1, 500, leader_epoch=0)
    world.beat(0, fence=True)
    world.register(0, "third", lossy=True)  # it restarts: its log may end elsewhere now
    world.beat(0)
    world.report(1, 60)
    world.report(2, 50)
    assert world.leader == NO_LEADER
    world.report(0, 70)
    assert world.leader == 0
    stale = ReportLogEnds(node_id=1, broker_epoch=1, ends=())
    world.refused(stale, StaleBrokerEpochError)
    too_many = ReportLogEnds(node_id=1, broker_epoch=world.epochs[1], ends=(END,) * 10_001)
    assert "10000" in world.refused(too_many, InvalidRequestError)
    unknown = ReportLogEnds(node_id=1, broker_epoch=world.epochs[1], ends=(END,) * 10_000)
    assert not isinstance(world.ask(unknown), BarnabasError)


def test_a_late_report_of_an_earlier_leader_epoch_takes_nothing_away() -> None:
    world = World()
    world.report(0, 80)
    world.report(1, 100)
    world.report(2, 500, leader_epoch=0)
    world.report(2, 90)
    assert world.leader == 1


END = LogEnd(topic_id="none", partition=3, leader_epoch=0, last_epoch=0, end_offset=9)


def test_a_partition_with_an_eligible_replica_waits_for_it_and_not_for_reports() -> None:
    world = SingleControllerWithEligible()
    for node_id in (0, 2):
        world.report(node_id, 100)
    assert world.leader == NO_LEADER
    world.beat(1)
    assert world.leader == 1 and world.partition().unclean_elections == 0


def test_an_operator_who_gives_up_eligible_replicas_gets_the_longest_log_of_the_others() -> None:
    world = SingleControllerWithEligible()
    world.report(0, 80)
    world.report(2, 100)
    assert not isinstance(world.ask(ElectLeaderRequest(topic="t", partition=0, unclean=True)), BarnabasError)
    assert world.leader == 2


def test_a_topic_with_unclean_elections_does_not_wait() -> None:
    world = World(comes_back=(), unclean_leader_election_enable="true")
    world.register(2, "second", lossy=True)
    world.beat(2)
    assert (world.leader, world.partition().unclean_elections) == (2, 1)


class SingleControllerWithEligible(World):
    """Broker 1 left the ISR last, and is down."""

    def __init__(self) -> None:
        SingleController.__init__(self)
        self.topic(0, 1, 2)
        for node_id in (0, 2, 1):
            self.beat(node_id, fence=True)
        for node_id in (0, 2):
            self.beat(node_id)


def test_what_was_reported_before_an_election_is_void_after_it() -> None:
    world = World()
    for node_id, end_offset in enumerate((80, 100, 90)):
        world.report(node_id, end_offset)
    assert world.leader == 1
    world.beat(1, fence=True)
    world.register(1, "third", lossy=True)
    world.beat(1)
    assert world.partition().isr == () and world.leader == NO_LEADER
    world.report(1, 10)
    assert world.leader == NO_LEADER
    world.report(0, 150)
    world.report(2, 120)
    assert world.leader == 0
