"""Brokers that are emptied and filled, as the controller decides it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import NO_BALANCING, SingleController

from barnabas.kraft.controller.decommission_control import next_moves
from barnabas.kraft.controller.reassignment_control import throttle_records
from barnabas.kraft.metadata.controller_settings import MAX_MOVES_PER_REQUEST, MAX_RECORDS_PER_COMMAND
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.records import BROKER_RESOURCE, SlotRecord, decode_batch
from barnabas.kraft.metadata.requests import CreateTopic, TopicCreated
from barnabas.kraft.metadata.topic_settings import REASSIGNMENT_THROTTLE
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AssignReplicasRequest,
    BrokerIdNotRegisteredError,
    DecommissionBrokerRequest,
    FillBrokerRequest,
    MovesBegun,
)
from barnabas.log.vocabulary.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
)


@pytest.fixture
def four() -> SingleController:
    controller = SingleController(brokers=4)
    controller.topic(3, 0, 1)
    return controller


def later(controller: SingleController, ms: int = 600) -> None:
    controller.now_ms += ms
    for node_id in controller.epochs:
        controller.beat(node_id)
    controller.tick()


def test_a_leaving_broker_is_emptied_by_a_reassignment_that_its_heir_ends(four: SingleController) -> None:
    four.ask(DecommissionBrokerRequest(node_id=3))
    later(four)
    assert four.partition().adding_replicas == (2,) and four.partition().removing_replicas == (3,)
    assert four.partition().replicas == (2, 0, 1, 3)
    four.propose(four.proposal(3, 0, 1, 2))
    assert four.partition().replicas == (2, 0, 1) and four.partition().leader in (0, 1, 2)
    assert all(slot.coordinator in (0, 1, 2) for slot in four.image.slots)
    later(four)
    assert not four.partition().is_moving


def test_it_gets_nothing_new_and_that_survives_its_restart(four: SingleController) -> None:
    four.ask(DecommissionBrokerRequest(node_id=3))
    four.now_ms += 10_000
    four.start(3, "second")
    assert four.image.brokers[3].decommissioning
    created = four.ask(CreateTopic(name="new", partition_count=20, replication_factor=3))
    assert isinstance(created, TopicCreated)
    four.ask(AddPartitionsRequest(name="new", total_count=30))
    assert all(3 not in partition.replicas for partition in four.image.topics["new"].partitions)
    four.refused(CreateTopic(name="wide", replication_factor=4), InvalidReplicationFactorError)
    words = four.refused(CreateTopic(name="placed", assignment=((3, 0),)), InvalidReplicaAssignmentError)
    assert "decommission 3 --cancel" in words
    four.refused(AssignReplicasRequest(topic="new", partition=0, replicas=(3, 0, 1)), InvalidReplicaAssignmentError)


def test_a_move_may_keep_a_leaving_broker_where_it_is(four: SingleController) -> None:
    four.ask(DecommissionBrokerRequest(node_id=3))
    four.ask(AssignReplicasRequest(topic="t", partition=0, replicas=(3, 0, 2)))
    assert four.partition().adding_replicas == (2,)


def test_too_few_would_remain(four: SingleController) -> None:
    four.ask(CreateTopic(name="wide", assignment=((0, 1, 2, 3),)))
    words = four.refused(DecommissionBrokerRequest(node_id=3), InvalidReplicationFactorError)
    assert "wide-0 has 4 replicas, and only 3 brokers would remain" in words
    assert not four.image.brokers[3].decommissioning
    four.refused(DecommissionBrokerRequest(node_id=9), BrokerIdNotRegisteredError)


def test_two_that_leave_count_as_gone_for_each_other() -> None:
    controller = SingleController(brokers=4)
    controller.topic(0, 1, 2)
    controller.ask(DecommissionBrokerRequest(node_id=3))
    controller.refused(DecommissionBrokerRequest(node_id=2), InvalidReplicationFactorError)


def test_a_cancellation_gives_back_what_has_not_moved(four: SingleController) -> None:
    four.ask(DecommissionBrokerRequest(node_id=3))
    later(four)
    four.ask(DecommissionBrokerRequest(node_id=3, cancel=True))
    assert four.partition().replicas == (3, 0, 1) and not four.partition().is_moving
    assert not four.image.brokers[3].decommissioning
    later(four)
    assert not four.partition().is_moving


def test_moves_of_a_leaving_broker_are_limited() -> None:
    controller = SingleController(brokers=4)
    controller.ask(CreateTopic(name="many", assignment=((3, 0, 1),) * 50))
    controller.ask(DecommissionBrokerRequest(node_id=3))
    later(controller)
    later(controller)
    assert sum(partition.is_moving for partition in controller.image.topics["many"].partitions) == 20


def test_another_controller_goes_on(four: SingleController) -> None:
    four.ask(DecommissionBrokerRequest(node_id=3))
    four.cluster.elect(0)
    four.cluster.run()
    later(four)
    assert four.partition().removing_replicas == (3,)


def test_a_newcomer_is_filled(four: SingleController) -> None:
    four.ask(CreateTopic(name="many", assignment=((0, 1, 2), (1, 2, 0), (2, 0, 1)) * 3))
    begun = four.ask(FillBrokerRequest(node_id=3))
    assert isinstance(begun, MovesBegun) and begun.move_count == 6  # 30 replicas on 4 brokers, it has one
    four.ask(DecommissionBrokerRequest(node_id=3))
    four.refused(FillBrokerRequest(node_id=3), InvalidRequestError)


def throttle(controller: SingleController) -> str | None:
    return controller.image.broker_configs.get("", {}).get(REASSIGNMENT_THROTTLE)


def test_a_leaving_broker_without_replicas_gives_its_slots_away(four: SingleController) -> None:
    mine = {number for number, slot in enumerate(four.image.slots) if slot.coordinator == 0}
    assert mine and next_moves(MetadataDelta(four.image), NO_BALANCING) == ()
    image, leaving = four.image, replace(four.image.brokers[0], decommissioning=True)
    view = MetadataDelta(replace(image, brokers={**image.brokers, 0: leaving}, topics={}))
    moved = {record.slot for record in next_moves(view, NO_BALANCING) if isinstance(record, SlotRecord)}
    assert moved >= mine


def test_a_throttle_goes_with_the_last_move(four: SingleController) -> None:
    four.ask(AssignReplicasRequest(topic="t", partition=0, replicas=(2, 0, 1), throttle_bytes_per_s=1_000))
    later(four)
    assert throttle(four) == "1000"
    four.propose(four.proposal(3, 0, 1, 2))
    later(four)
    assert throttle(four) is None
    assert BROKER_RESOURCE == 4


def test_a_throttle_that_is_set_already_is_not_written_again(four: SingleController) -> None:
    four.ask(AssignReplicasRequest(topic="t", partition=0, replicas=(2, 0, 1), throttle_bytes_per_s=1_000))
    view = MetadataDelta(four.image)
    assert throttle_records(view, 1_000) == () == throttle_records(view, 0)
    (record,) = throttle_records(view, 1_001)
    assert record.value == "1001"


def test_a_throttle_of_a_decommission_stays_until_all_batches_are_over() -> None:
    controller = SingleController(brokers=4)
    controller.topic(3, 0, 1)
    controller.ask(DecommissionBrokerRequest(node_id=3, throttle_bytes_per_s=1_000))
    controller.tick()
    assert throttle(controller) == "1000"
    later(controller)
    controller.propose(controller.proposal(3, 0, 1, 2))
    later(controller)
    assert throttle(controller) is None


# --- machines -------------------------------------------------------------------------------------------------------------

TWO_EACH = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}


def test_no_machine_gets_two_replicas_of_a_partition() -> None:
    six = SingleController(brokers=6, machines=TWO_EACH)
    six.ask(CreateTopic(name="t", partition_count=30))  # the default factor is 3, one replica on each machine
    for partition in six.image.topics["t"].partitions:
        assert sorted(TWO_EACH[node_id] for node_id in partition.replicas) == ["a", "b", "c"]
    words = six.refused(CreateTopic(name="wide", replication_factor=4), InvalidReplicationFactorError)
    assert "number of machines, 3" in words
    words = six.refused(CreateTopic(name="placed", assignment=((0, 3),)), InvalidReplicaAssignmentError)
    assert "brokers 0 and 3 share the machine a" in words
    six.topic(0, 1, name="placed")
    move = AssignReplicasRequest(topic="placed", partition=0, replicas=(0, 1, 4))
    assert "share the machine b" in six.refused(move, InvalidReplicaAssignmentError)
    assert six.image.brokers[3].machine == "a"


def test_the_default_factor_is_no_more_than_there_are_machines() -> None:
    four = SingleController(brokers=4, machines={0: "a", 1: "a", 2: "b", 3: "b"})
    four.ask(CreateTopic(name="t", partition_count=10))
    assert {len(partition.replicas) for partition in four.image.topics["t"].partitions} == {2}


def test_a_broker_is_emptied_onto_its_own_machine_or_a_free_one() -> None:
    six = SingleController(brokers=6, machines=TWO_EACH)
    six.topic(0, 1, 2)
    six.ask(DecommissionBrokerRequest(node_id=0))
    later(six)
    assert six.partition().adding_replicas == (3,)
    words = six.refused(DecommissionBrokerRequest(node_id=3), InvalidReplicationFactorError)
    assert "only 4 brokers on 2 machines would remain" in words


def test_replicas_that_came_to_share_a_machine_can_be_moved_apart() -> None:
    six = SingleController(brokers=6)
    six.topic(0, 1, 3)
    for node_id in TWO_EACH:
        six.machines = TWO_EACH
        six.now_ms += 10_000
        six.start(node_id, "second")
    six.refused(AssignReplicasRequest(topic="t", partition=0, replicas=(0, 4, 3, 1)), InvalidReplicaAssignmentError)
    answer = six.ask(AssignReplicasRequest(topic="t", partition=0, replicas=(0, 1, 3, 2)))
    assert not isinstance(answer, Exception), "what was shared before may stay shared meanwhile"
    assert six.partition().adding_replicas == (2,)
    six.ask(AssignReplicasRequest(topic="t", partition=0, replicas=(0, 1, 2)))
    assert 3 in six.partition().removing_replicas


def test_a_newcomer_of_a_large_cluster_is_filled_in_pieces() -> None:
    """Each is a decision of its own, so that the controller's other work goes on in between."""
    controller = SingleController(brokers=4)
    controller.ask(CreateTopic(name="many", assignment=((0, 1, 2), (1, 2, 0), (2, 0, 1)) * 1_200))
    counts = []
    while not counts or counts[-1]:
        begun = controller.ask(FillBrokerRequest(node_id=3))
        assert isinstance(begun, MovesBegun)
        counts.append(begun.move_count)
    assert counts == [MAX_MOVES_PER_REQUEST, 200, 0], "a quarter of 10,800 replicas"


def test_very_many_moves_to_a_newcomer_are_several_commands() -> None:
    controller = SingleController(brokers=4)
    controller.ask(CreateTopic(name="many", assignment=((0, 1, 2), (1, 2, 0), (2, 0, 1)) * 1_200))
    quorum = controller.cluster
    quorum.nodes[0].submit(FillBrokerRequest(node_id=3), controller.now_ms, lambda answer: None)
    assert len(quorum.tail) > 1
    assert max(len(decode_batch(entry.command).records) for entry in quorum.tail) == MAX_RECORDS_PER_COMMAND
