"""Replay: pure, shared, and void where it came too late."""

from __future__ import annotations

from msgspec.structs import replace

from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import MetadataChanges, MetadataImage, PartitionImage, SlotImage
from barnabas.kraft.metadata.records import (
    TOPIC_RESOURCE,
    BrokerChangeRecord,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveGroupRecord,
    RemoveTopicRecord,
    SlotRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    VotersRecord,
)
from barnabas.kraft.metadata.replay import replay
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.topic_partition import TopicPartition


def register(node_id: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        node_id=node_id,
        incarnation="one",
        endpoints=(),
        admin_endpoint=None,
        rack=None,
        directories=(),
        min_feature_level=1,
        max_feature_level=1,
    )


def partition(topic_id: str, number: int, replicas: tuple[int, ...] = (0,)) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=3,
        partition_epoch=5,
    )


def config(resource: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource=resource, key="k", value=value)


VOTERS = (NodeAddress(node_id=1, host="here", port=9093),)


def image_of(*records: Record, base: MetadataImage | None = None) -> MetadataImage:
    delta = MetadataDelta(base or MetadataImage())
    for index, record in enumerate(records, start=1):
        assert replay(delta, record, index), record
    return delta.apply(len(records))


TWO_TOPICS = image_of(
    TopicRecord(name="a", topic_id="A"),
    partition("A", 0),
    TopicRecord(name="b", topic_id="B"),
    partition("B", 0, (0, 1)),
    partition("B", 1),
    config("a", "1"),
    register(0),
)


def test_what_is_unchanged_is_shared() -> None:
    change = PartitionChangeRecord(topic_id="B", partition=0, isr=(0,))
    after = image_of(change, base=TWO_TOPICS)
    assert after.topics["a"] is TWO_TOPICS.topics["a"]
    assert after.topics["b"].partitions[1] is TWO_TOPICS.topics["b"].partitions[1]
    assert after.brokers is TWO_TOPICS.brokers
    assert after.slots is TWO_TOPICS.slots
    assert TWO_TOPICS.topics["b"].partitions[0].isr == (0, 1), "the base does not change"


def test_a_partition_change_counts_the_epochs() -> None:
    old = TWO_TOPICS.topics["b"].partitions[0]
    delta = MetadataDelta(TWO_TOPICS)
    replay(delta, PartitionChangeRecord(topic_id="B", partition=0, isr=(0,)), 9)
    assert delta.partition(TopicPartition("b", 0)) == replace(old, isr=(0,), partition_epoch=6)
    replay(delta, PartitionChangeRecord(topic_id="B", partition=0, leader=0), 10)
    assert delta.partition(TopicPartition("b", 0)) == replace(old, isr=(0,), partition_epoch=7, leader_epoch=4)


def test_records_that_came_too_late_are_void() -> None:
    base = image_of(
        ClusterRecord(cluster_id="first"),
        register(0),
        SlotRecord(slot=3, coordinator=0, coordinator_epoch=4),
        ProducerIdsRecord(next_producer_id=2000),
        VotersRecord(index=5, voters=VOTERS),
        ControllerRecord(controller_id=1, controller_epoch=7),
        TopicRecord(name="a", topic_id="A"),
        partition("A", 0),
    )
    void: list[Record] = [
        ClusterRecord(cluster_id="second"),
        BrokerChangeRecord(node_id=0, broker_epoch=1, fenced=False, in_controlled_shutdown=False),
        BrokerChangeRecord(node_id=9, broker_epoch=1, fenced=False, in_controlled_shutdown=False),
        UnregisterBrokerRecord(node_id=9),
        SlotRecord(slot=3, coordinator=1, coordinator_epoch=4),
        SlotRecord(slot=50, coordinator=1, coordinator_epoch=4),
        ProducerIdsRecord(next_producer_id=1000),
        ProducerIdsRecord(next_producer_id=2000),
        VotersRecord(index=4, voters=()),
        VotersRecord(index=5, voters=()),
        ControllerRecord(controller_id=2, controller_epoch=6),
        TopicRecord(name="a", topic_id="other"),
        TopicRecord(name="other", topic_id="A"),
        RemoveTopicRecord(topic_id="gone"),
        partition("gone", 0),
        partition("A", 2),
        PartitionChangeRecord(topic_id="gone", partition=0),
        PartitionChangeRecord(topic_id="A", partition=1),
        PartitionChangeRecord(topic_id="A", partition=-1),
        config("gone", "1"),
        RemoveGroupRecord(slot=3, coordinator_epoch=4, group_id="g"),
    ]
    delta = MetadataDelta(base)
    assert [record for record in void if replay(delta, record, 99)] == []
    assert delta.apply(base.offset) == base


def test_the_voters_are_those_of_the_newest_entry() -> None:
    image = image_of(VotersRecord(index=5, voters=VOTERS))
    assert (image.voters, image.voters_index) == (VOTERS, 5)


def test_a_topic_that_is_deleted_and_created_again_in_one_delta() -> None:
    delta = MetadataDelta(TWO_TOPICS)
    replay(delta, RemoveTopicRecord(topic_id="A"), 10)
    assert delta.topic("a") is None
    assert delta.topic_name("A") is None
    assert delta.topic_config("a") == {}
    assert [topic.name for topic in delta.topics()] == ["b"]
    replay(delta, TopicRecord(name="a", topic_id="A2"), 11)
    replay(delta, partition("A2", 0, (1,)), 11)
    replay(delta, PartitionChangeRecord(topic_id="A", partition=0, isr=()), 12)
    after = delta.apply(12)
    assert after.topics["a"].topic_id == "A2"
    assert after.topics["a"].partitions[0].isr == (1,)
    assert after.topic_configs == {}
    assert after.topic_names == {"A2": "a", "B": "b"}


def test_reading_sees_what_has_changed_first_then_the_base() -> None:
    delta = MetadataDelta(TWO_TOPICS)
    replay(delta, register(5), 20)
    replay(delta, UnregisterBrokerRecord(node_id=0), 21)
    replay(delta, SlotRecord(slot=1, coordinator=5, coordinator_epoch=1), 22)
    replay(delta, FeatureLevelRecord(feature_level=2), 23)
    assert delta.broker(0) is None
    assert list(delta.brokers()) == [5]
    assert delta.slot(1) == SlotImage(coordinator=5, coordinator_epoch=1)
    assert delta.slot(2) == SlotImage()
    assert delta.partition(TopicPartition("b", 1)) == PartitionImage(
        replicas=(0,), isr=(0,), leader=0, leader_epoch=3, partition_epoch=5
    )
    assert delta.partition(TopicPartition("b", 2)) is None
    assert delta.apply(23).feature_level == 2


def test_changes_name_what_differs() -> None:
    delta = MetadataDelta(TWO_TOPICS)
    replay(delta, register(5), 20)
    replay(delta, RemoveTopicRecord(topic_id="A"), 21)
    replay(delta, SlotRecord(slot=1, coordinator=5, coordinator_epoch=1), 22)
    changes = delta.changes
    assert changes == MetadataChanges(
        brokers=frozenset({5}), topics=frozenset({"a"}), topic_configs=frozenset({"a"}), slots=frozenset({1})
    )


def test_a_change_of_a_removed_configuration() -> None:
    after = image_of(config("a", None), base=TWO_TOPICS)
    assert after.topic_configs == {}
    assert image_of(config("a", None), base=after).topic_configs == {}
