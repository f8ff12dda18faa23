"""Configurations as tools show them: sources and synonyms, in the order in which they count."""

from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.log.settings.table import ALL_TOPIC_KEYS, BROKER_KEYS
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.config_descriptions import (
    ConfigSource,
    DescribedConfig,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)

RATE = "leader.replication.throttled.rate"
KAFKA_TYPES = {"PASSWORD", "BOOLEAN", "INT", "LONG", "DOUBLE", "STRING", "LIST"}


def synonyms(item: DescribedConfig) -> list[tuple[str, str | None, int]]:
    return [(other.key, other.value, int(other.source)) for other in item.synonyms]


def test_a_topics_own_value_stands_before_the_file_and_that_before_the_default() -> None:
    config = load(None, {"log.retention.hours": "2", "log.retention.ms": "7000", "log.segment.bytes": "4096"}, {})
    found = {item.key: item for item in describe_topic({"retention.ms": "5", "segment.jitter.ms": "9"}, config, {})}
    assert set(found) == set(ALL_TOPIC_KEYS)
    assert {item.type for item in found.values()} <= KAFKA_TYPES
    assert found["retention.ms"].value == "5"
    assert synonyms(found["retention.ms"]) == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "7000", 4),
        ("log.retention.hours", "2", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (found["segment.bytes"].value, found["segment.bytes"].source) == ("4096", ConfigSource.FILE)
    assert synonyms(found["segment.jitter.ms"]) == [("segment.jitter.ms", "9", 1), ("segment.jitter.ms", "0", 5)]
    assert synonyms(found["compression.type"]) == [("compression.type", "producer", 5)]
    without = {item.key: item for item in describe_topic({}, config, {})}
    assert (without["retention.ms"].value, without["retention.ms"].source) == ("7000", ConfigSource.FILE)


def test_what_is_set_while_brokers_run_stands_between_a_topics_own_value_and_the_file() -> None:
    config = load(None, {"log.retention.hours": "2", "node.id": "3"}, {})
    cluster, own = {"log.retention.ms": "7000", "log.roll.ms": "8000"}, {"log.retention.ms": "6000"}
    found = {item.key: item for item in describe_topic({}, config, cluster, own)}
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("6000", ConfigSource.BROKER)
    assert synonyms(found["retention.ms"]) == [
        ("log.retention.ms", "6000", 2),
        ("log.retention.ms", "7000", 3),
        ("log.retention.hours", "2", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (found["segment.ms"].value, found["segment.ms"].source) == ("8000", ConfigSource.CLUSTER)


def test_a_retention_in_hours_is_shown_in_the_topics_unit() -> None:
    (found,) = (
        item
        for item in describe_topic({}, load(None, {"log.retention.hours": "2"}, {}), {})
        if item.key == "retention.ms"
    )
    assert (found.value, found.source) == ("7200000", ConfigSource.FILE)


def test_what_was_set_for_one_broker_stands_before_all_brokers() -> None:
    config = load(None, {"num.partitions": "7", RATE: "1000"}, {})
    found = {item.key: item for item in describe_broker(config, own={RATE: "10"}, cluster={RATE: "100"})}
    assert set(found) == set(BROKER_KEYS)
    assert {item.type for item in found.values()} <= KAFKA_TYPES
    assert synonyms(found[RATE]) == [(RATE, "10", 2), (RATE, "100", 3), (RATE, "1000", 4), (RATE, str(2**63 - 1), 5)]
    assert not found[RATE].read_only
    assert (found["num.partitions"].value, found["num.partitions"].read_only) == ("7", True)


def test_the_clusters_value_stands_before_the_file_and_can_be_changed_for_all_brokers_only() -> None:
    config, cluster = load(None, {"min.insync.replicas": "1"}, {}), {"min.insync.replicas": "2"}
    of_topic = {item.key: item for item in describe_topic({}, config, cluster)}["min.insync.replicas"]
    assert synonyms(of_topic)[:2] == [("min.insync.replicas", "2", 3), ("min.insync.replicas", "1", 4)]
    of_broker = {item.key: item for item in describe_broker(config, own={}, cluster=cluster)}["min.insync.replicas"]
    assert (of_broker.value, of_broker.read_only) == ("2", True)
    (of_all,) = describe_all_brokers(cluster)
    assert (of_all.value, of_all.read_only) == ("2", False)


def test_of_all_brokers_only_what_was_set_is_known() -> None:
    (found,) = describe_all_brokers({RATE: "100"})
    assert (found.key, found.value, found.source) == (RATE, "100", ConfigSource.CLUSTER)
    assert describe_all_brokers({}) == ()


def test_the_default_of_every_configuration_of_topics_can_be_set_for_a_broker() -> None:
    assert {row.broker_key for row in TOPIC_KEYS.values()} <= BROKER_KEYS.keys()
    config = load(None, {"log.message.timestamp.after.max.ms": "5", "log.message.timestamp.before.max.ms": "6"}, {})
    found = {item.key: item.value for item in describe_topic({}, config, {})}
    assert (found["message.timestamp.after.max.ms"], found["message.timestamp.before.max.ms"]) == ("5", "6")
