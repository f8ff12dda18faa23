"""Topics: names, limits, placement, configuration, deletion."""

from __future__ import annotations

import random

import pytest
from unit.kraft.metadata_cluster import MetadataCluster
from unit.kraft.single_controller import SingleController

from barnabas.kraft.controller.configuration_control import ConfigRules
from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.controller.memory.mutation_quota import BURST_PARTITIONS, PARTITIONS_PER_S
from barnabas.kraft.metadata.controller_settings import MAX_PARTITIONS_PER_REQUEST, ControllerSettings
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange, CreateTopic, DeleteTopic, Done, TopicCreated
from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    ThrottlingQuotaExceededError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)


def test_a_repeated_creation_finds_what_its_first_copy_has_made() -> None:
    cluster = SingleController(2)
    request = CreateTopic(name="t", partition_count=2, topic_id="0" * 31 + "f")
    created = cluster.ask(request)
    offset = cluster.image.offset
    again = cluster.ask(request)
    assert isinstance(created, TopicCreated)
    assert created == again
    assert cluster.image.offset == offset
    assert created.topic_id == cluster.image.topics["t"].topic_id
    cluster.refused(CreateTopic(name="t", topic_id="1" * 32), TopicAlreadyExistsError)
    cluster.refused(CreateTopic(name="t"), TopicAlreadyExistsError)
    cluster.refused(CreateTopic(name="t", topic_id="0" * 8), InvalidRequestError)
    cluster.refused(CreateTopic(name="u", topic_id="../" + "0" * 29), InvalidRequestError)


def test_a_creation_that_is_repeated_behind_the_deletion_makes_another_topic() -> None:
    """With the id of the deleted one, a broker that was away would take its old records for those of the new topic."""
    cluster = SingleController(2)
    request = CreateTopic(name="t", topic_id="0" * 31 + "f")
    ids = []
    for _ in range(2):
        created = cluster.ask(request)
        assert isinstance(created, TopicCreated)
        assert not isinstance(cluster.ask(DeleteTopic(name="t")), BarnabasError)
        ids.append(created.topic_id)
    assert ids[0] != ids[1] and all(len(topic_id) == 32 and topic_id.startswith("0" * 16) for topic_id in ids)


def test_a_topic_with_defaults() -> None:
    cluster = SingleController(2, ControllerSettings(default_partitions=4))
    created = cluster.ask(CreateTopic(name="t"))
    assert isinstance(created, TopicCreated)
    assert (created.partition_count, created.replication_factor) == (4, 2)
    assert cluster.image.topics["t"].topic_id == created.topic_id
    assert cluster.image.topic_names[created.topic_id] == "t"
    assert {partition.leader for partition in cluster.image.topics["t"].partitions} == {0, 1}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CreateTopic(name="../x"), InvalidTopicError),
        (CreateTopic(name="__consumer_offsets"), TopicAlreadyExistsError),
        (CreateTopic(name="__transaction_state"), InvalidTopicError),
        (CreateTopic(name="t"), TopicAlreadyExistsError),
        (CreateTopic(name="a_b.c"), InvalidTopicError),
        (CreateTopic(name="._._._._._._._._"), InvalidTopicError),
        (CreateTopic(name="x", partition_count=0), InvalidPartitionsError),
        (CreateTopic(name="x", partition_count=-2), InvalidPartitionsError),
        (CreateTopic(name="x", partition_count=MAX_PARTITIONS_PER_REQUEST + 1), InvalidPartitionsError),
        (CreateTopic(name="x", replication_factor=0), InvalidReplicationFactorError),
        (CreateTopic(name="x", replication_factor=4), InvalidReplicationFactorError),
        (CreateTopic(name="x", replication_factor=32767), InvalidReplicationFactorError),
        (CreateTopic(name="x", assignment=((0, 0),)), InvalidReplicaAssignmentError),
        (CreateTopic(name="x", assignment=((0, 7),)), InvalidReplicaAssignmentError),
        (CreateTopic(name="x", assignment=((0,), (0, 1))), InvalidReplicaAssignmentError),
        (CreateTopic(name="x", assignment=((),)), InvalidReplicaAssignmentError),
        (CreateTopic(name="x", assignment=((0,),), partition_count=2), InvalidRequestError),
        (CreateTopic(name="x", assignment=((0,),), replication_factor=2), InvalidRequestError),
        (AddPartitionsRequest(name="x", total_count=2), UnknownTopicOrPartitionError),
        (AddPartitionsRequest(name="t", total_count=1), InvalidPartitionsError),
        (AddPartitionsRequest(name="t", total_count=10**6), InvalidPartitionsError),
        (AddPartitionsRequest(name="t", total_count=3, assignment=((0,),)), InvalidReplicaAssignmentError),
        (AddPartitionsRequest(name="t", total_count=2, assignment=((0, 1),)), InvalidReplicaAssignmentError),
        (DeleteTopic(name="x"), UnknownTopicOrPartitionError),
        (AlterConfig(resource_type=TOPIC_RESOURCE, resource="x", changes=()), UnknownTopicOrPartitionError),
        (AlterConfig(resource_type=BROKER_RESOURCE, resource="9", changes=()), InvalidRequestError),
        (AlterConfig(resource_type=BROKER_RESOURCE, resource="²", changes=()), InvalidRequestError),
        (AlterConfig(resource_type=7, resource="", changes=()), InvalidRequestError),
        (
            AlterConfig(
                resource_type=TOPIC_RESOURCE,
                resource="t",
                changes=(ConfigChange(key="k", value="1"), ConfigChange(key="k", value="2")),
            ),
            InvalidRequestError,
        ),
        (
            AlterConfig(
                resource_type=TOPIC_RESOURCE, resource="t", changes=(ConfigChange(key="k", value="x" * 40_000),)
            ),
            InvalidConfigError,
        ),
    ],
)
def test_what_is_refused(request_: CreateTopic, error: type[BarnabasError]) -> None:
    cluster = SingleController(3)
    cluster.topic(0)
    cluster.topic(0, name="a.b_c")
    cluster.topic(0, name="_._._._._._._._.")
    before = cluster.image
    cluster.refused(request_, error)
    assert cluster.image is before


def test_a_topic_needs_an_active_broker() -> None:
    cluster = SingleController(1)
    cluster.beat(0, fence=True)
    cluster.refused(CreateTopic(name="t"), InvalidReplicationFactorError)
    cluster.refused(CreateTopic(name="t", assignment=((0,),)), InvalidReplicaAssignmentError)


def test_a_fenced_broker_gets_replicas_where_there_are_not_enough_others_but_is_not_in_sync() -> None:
    cluster = SingleController(3)
    cluster.beat(2, fence=True)
    cluster.ask(CreateTopic(name="t", replication_factor=3))
    assert set(cluster.partition().replicas) == {0, 1, 2}
    assert set(cluster.partition().isr) == {0, 1}


def test_validate_only_changes_nothing() -> None:
    cluster = SingleController(1)
    cluster.topic(0)
    before = cluster.image
    assert isinstance(cluster.ask(CreateTopic(name="x", validate_only=True)), TopicCreated)
    assert isinstance(cluster.ask(AddPartitionsRequest(name="t", total_count=2, validate_only=True)), Done)
    change = ConfigChange(key="k", value="v")
    cluster.ask(AlterConfig(resource_type=TOPIC_RESOURCE, resource="t", changes=(change,), validate_only=True))
    assert cluster.image is before


def test_two_creations_at_once_do_not_both_succeed() -> None:
    cluster = SingleController(1)
    answers: list[object] = []
    for _ in range(2):
        cluster.cluster.nodes[0].submit(CreateTopic(name="t"), cluster.now_ms, answers.append)
    assert answers == [], "even the refusal waits for the commit that it stands on"
    cluster.cluster.run()
    assert [type(answer) for answer in answers] == [TopicCreated, TopicAlreadyExistsError]


def test_a_deleted_topic_takes_its_configuration_along_and_may_come_back() -> None:
    cluster = SingleController(1)
    cluster.topic(0, retention_ms="5")
    first = cluster.image.topics["t"].topic_id
    assert cluster.image.topic_configs == {"t": {"retention.ms": "5"}}
    assert isinstance(cluster.ask(DeleteTopic(name="t")), Done)
    assert not cluster.image.topics
    assert not cluster.image.topic_configs
    assert not cluster.image.topic_names
    cluster.topic(0)
    assert cluster.image.topics["t"].topic_id != first


def test_a_deletion_by_id_never_meets_a_newer_topic_of_that_name() -> None:
    cluster = SingleController(3)
    cluster.topic(0)
    first = cluster.image.topics["t"].topic_id
    assert isinstance(cluster.ask(DeleteTopic(name="", topic_id=first)), Done)
    assert not cluster.image.topics
    cluster.topic(0)
    assert isinstance(cluster.ask(DeleteTopic(name="", topic_id=first)), UnknownTopicIdError)
    assert "t" in cluster.image.topics


def test_partitions_are_added_behind_the_others() -> None:
    cluster = SingleController(3)
    cluster.topic(0, 1)
    cluster.ask(AddPartitionsRequest(name="t", total_count=3))
    partitions = cluster.image.topics["t"].partitions
    assert [len(partition.replicas) for partition in partitions] == [2, 2, 2]
    cluster.ask(AddPartitionsRequest(name="t", total_count=4, assignment=((2, 1),)))
    assert cluster.partition("t", 3).replicas == (2, 1)


def test_configurations_are_checked_by_whoever_knows_them() -> None:
    def check(key: str, value: str) -> None:
        if key != "known":
            raise InvalidConfigError(f"there is no configuration {key!r}")

    controller = Controller(
        settings=ControllerSettings(), rng=random.Random(0), config_rules=ConfigRules(check_topic=check)
    )
    controller.activate(MetadataImage())
    with pytest.raises(InvalidConfigError):
        controller.decide(CreateTopic(name="t", configs={"unknown": "1"}), 0)


def test_removing_a_configuration_and_the_default_of_all_brokers() -> None:
    cluster = SingleController(1)
    cluster.topic(0, a="1", b="2")
    cluster.configure("a", None)
    assert cluster.image.topic_configs["t"] == {"b": "2"}
    cluster.configure("b", None)
    assert "t" not in cluster.image.topic_configs
    change = ConfigChange(key="x", value="1")
    cluster.ask(AlterConfig(resource_type=BROKER_RESOURCE, resource="", changes=(change,)))
    cluster.ask(AlterConfig(resource_type=BROKER_RESOURCE, resource="0", changes=(change,)))
    assert cluster.image.broker_configs[""]["x"] == "1"
    assert cluster.image.broker_configs["0"] == {"x": "1"}


def test_creating_ten_thousand_partitions_is_one_command() -> None:
    cluster = SingleController(3)
    commands = len(cluster.cluster.log)
    cluster.ask(CreateTopic(name="t", partition_count=MAX_PARTITIONS_PER_REQUEST))
    assert len(cluster.cluster.log) == commands + 1
    leaders = [partition.leader for partition in cluster.image.topics["t"].partitions]
    assert max(map(leaders.count, range(3))) - min(map(leaders.count, range(3))) <= 1
    cluster.beat(0, fence=True)
    assert len(cluster.cluster.log) > commands + 2, "what need not be atomic is cut into smaller commands"
    assert isinstance(cluster.cluster, MetadataCluster)


def test_partitions_are_made_and_removed_no_faster_than_the_quota() -> None:
    cluster = SingleController(1)
    asked = CreateTopic(name="large", partition_count=BURST_PARTITIONS, replication_factor=1, topic_id="0" * 32)
    assert isinstance(cluster.ask(asked), TopicCreated)
    refused = (
        asked,
        CreateTopic(name="t"),
        DeleteTopic(name="large"),
        AddPartitionsRequest(name="large", total_count=9_000),
    )
    for request in refused:
        cluster.refused(request, ThrottlingQuotaExceededError)
    cluster.now_ms += 1_000
    assert isinstance(cluster.ask(DeleteTopic(name="large")), Done)
    cluster.now_ms += 1_000 * (BURST_PARTITIONS // PARTITIONS_PER_S - 2)
    cluster.refused(CreateTopic(name="t"), ThrottlingQuotaExceededError)
    cluster.now_ms += 2_000
    assert isinstance(cluster.ask(CreateTopic(name="t")), TopicCreated)


def test_what_is_only_validated_or_refused_costs_no_token() -> None:
    cluster = SingleController(1)
    for number in range(2):
        request = CreateTopic(
            name=f"t{number}", partition_count=BURST_PARTITIONS, replication_factor=1, validate_only=True
        )
        assert isinstance(cluster.ask(request), TopicCreated)
    cluster.refused(CreateTopic(name="t", partition_count=0), InvalidPartitionsError)
    assert isinstance(cluster.ask(CreateTopic(name="t", partition_count=1)), TopicCreated)


def test_a_name_of_many_dots_collides_like_any_other_and_costs_no_time() -> None:
    """It has more spellings than there are topics: they are not tried one by one."""
    cluster = SingleController(1)
    assert isinstance(cluster.ask(CreateTopic(name="." * 100 + "t")), TopicCreated)
    assert isinstance(cluster.ask(CreateTopic(name="." * 101 + "t")), TopicCreated)
    assert "collides" in cluster.refused(CreateTopic(name="_." * 50 + "t"), InvalidTopicError)
