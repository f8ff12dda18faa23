"""Settings with one value for the cluster: written once, kept through failovers, changed for everybody at once."""

import random

from msgspec.structs import replace
from unit.kraft.metadata_cluster import MetadataCluster
from unit.kraft.single_controller import NO_BALANCING, SingleController

from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.metadata.cluster_settings import first_values
from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.records import BROKER_RESOURCE, ConfigRecord, PartitionChangeRecord
from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange, CreateTopic
from barnabas.kraft.metadata.topic_settings import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION
from barnabas.log.settings.table import CLUSTER_SETTINGS
from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError

TWO_OF_MANY = ControllerSettings(auto_preferred_leaders=False, min_insync_replicas=2)


def alter(key: str, value: str | None, *, resource: str = "", replaces_all: bool = False) -> AlterConfig:
    change = ConfigChange(key=key, value=value)
    return AlterConfig(resource_type=BROKER_RESOURCE, resource=resource, changes=(change,), replaces_all=replaces_all)


def test_the_first_controller_writes_its_values_and_no_later_one_does() -> None:
    cluster = MetadataCluster(2, settings=TWO_OF_MANY)
    cluster.elect(0)
    cluster.run()
    cluster.tick(1_000)
    cluster.run()
    written = cluster.nodes[0].image.broker_configs[""]
    assert written == first_values(TWO_OF_MANY) and written.keys() == CLUSTER_SETTINGS.keys()
    cluster.settings = NO_BALANCING  # another file, with min.insync.replicas=1
    cluster.restart(1, from_snapshot=False)
    cluster.run()
    cluster.elect(1)
    cluster.run()
    cluster.tick(2_000)
    cluster.run()
    assert cluster.nodes[1].is_active_controller
    assert cluster.nodes[1].image.broker_configs[""] == written


def test_nothing_is_decided_before_the_values_are_written() -> None:
    cluster = MetadataCluster(1, settings=TWO_OF_MANY)
    cluster.elect(0)
    cluster.run()
    cluster.nodes[0].submit(CreateTopic(name="t"), 0, lambda answer: None)
    cluster.run()
    assert cluster.nodes[0].image.broker_configs[""][MIN_INSYNC_REPLICAS] == "2"


def test_elections_follow_the_value_of_the_cluster() -> None:
    cluster = SingleController(2, settings=NO_BALANCING)
    cluster.topic(0, 1)
    cluster.ask(alter(MIN_INSYNC_REPLICAS, "2"))
    cluster.beat(1, fence=True)
    assert cluster.partition().eligible_leader_replicas == (1,)
    cluster.ask(alter(MIN_INSYNC_REPLICAS, "1"))
    assert cluster.partition().eligible_leader_replicas == ()
    cluster.beat(0, fence=True)
    cluster.ask(alter(UNCLEAN_LEADER_ELECTION, "true"))
    cluster.beat(1)
    assert cluster.partition().leader == 1


def test_a_cluster_without_values_frees_its_leaders_from_replicas_that_another_file_made_eligible() -> None:
    """After an upgrade: the controller before had min.insync.replicas=2 in its file, the one that writes has 1."""
    cluster = SingleController(2, settings=TWO_OF_MANY)
    cluster.topic(0, 1)
    cluster.beat(1, fence=True)
    assert cluster.partition().eligible_leader_replicas == (1,)
    node = cluster.cluster.nodes[0]
    without = {key: value for key, value in node.image.broker_configs.items() if key}
    controller = Controller(settings=NO_BALANCING, rng=random.Random(0))
    controller.activate(replace(node.image, broker_configs=without))
    written = controller.unset_cluster_settings()
    changed = [record for record in written if isinstance(record, PartitionChangeRecord)]
    assert [record.eligible_leader_replicas for record in changed] == [()]


def test_a_setting_that_is_new_in_a_version_leaves_the_values_of_the_others_alone() -> None:
    cluster = SingleController(1, settings=TWO_OF_MANY)
    node = cluster.cluster.nodes[0]
    known = {key: value for key, value in node.image.broker_configs[""].items() if key != "num.partitions"}
    controller = Controller(settings=NO_BALANCING, rng=random.Random(0))
    controller.activate(replace(node.image, broker_configs={"": known}))
    written = [record for record in controller.unset_cluster_settings() if isinstance(record, ConfigRecord)]
    assert [(record.key, record.value) for record in written] == [("num.partitions", "1")]


def test_no_setting_can_be_removed() -> None:
    cluster = SingleController(1)
    told = cluster.refused(alter(MIN_INSYNC_REPLICAS, None), InvalidConfigError)
    assert "min.insync.replicas of the cluster cannot be removed" in told
    cluster.ask(alter("x", "1"))
    assert not isinstance(cluster.ask(alter("y", "1", replaces_all=True)), BarnabasError)
    assert cluster.image.broker_configs[""] == first_values(NO_BALANCING) | {"y": "1"}


def test_a_new_topic_is_what_the_cluster_says() -> None:
    cluster = SingleController(3)
    cluster.ask(alter("num.partitions", "4"))
    cluster.ask(alter("default.replication.factor", "2"))
    cluster.ask(CreateTopic(name="t"))
    partitions = cluster.image.topics["t"].partitions
    assert [len(partition.replicas) for partition in partitions] == [2, 2, 2, 2]


def test_a_registration_shows_what_the_file_of_the_broker_says_and_nothing_else() -> None:
    cluster = SingleController(1)
    registration = cluster.registration(7)
    given = {MIN_INSYNC_REPLICAS: "2", "unknown": "1", UNCLEAN_LEADER_ELECTION: "x" * 65}
    cluster.ask(replace(registration, file_settings=given))
    assert cluster.image.brokers[7].file_settings == {MIN_INSYNC_REPLICAS: "2"}
