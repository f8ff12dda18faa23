"""Topic keys of Kafka that change nothing here: what is taken, what is refused, and what the error says."""

import pytest

from barnabas.log.settings.config import TOPIC_KEYS, LogConfig
from barnabas.log.settings.table import BROKER_KEYS, check_broker_config, check_topic_config
from barnabas.log.settings.without_effect import (
    BROKER_KEYS_WITHOUT_EFFECT,
    CURES,
    TOPIC_KEYS_WITHOUT_EFFECT,
    with_effect,
)
from barnabas.log.vocabulary.errors import InvalidConfigError


def test_every_key_says_why_it_has_no_effect_and_takes_its_default() -> None:
    assert not set(TOPIC_KEYS_WITHOUT_EFFECT) & set(TOPIC_KEYS)
    for name, found in TOPIC_KEYS_WITHOUT_EFFECT.items():
        assert found.documentation.startswith("Without effect")
        check_topic_config(name, found.default_text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message.format.version", "2.8-IV1"),
        ("message.format.version", "0.10.2"),
        ("message.format.version", "3.0"),
        ("message.downconversion.enable", "TRUE"),
        ("segment.jitter.ms", "1000"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,1:2, 2:3"),
        ("retention.ms", "5"),
        ("remote.storage.enable", "false"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("local.retention.ms", "1000"),
        ("local.retention.bytes", "-2"),
        ("compression.gzip.level", "-1"),
        ("compression.lz4.level", "17"),
        ("compression.zstd.level", "-131072"),
    ],
)
def test_what_kafka_takes_is_taken(name: str, value: str) -> None:
    check_topic_config(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message.format.version", "banana"),
        ("message.format.version", ""),
        ("message.downconversion.enable", "maybe"),
        ("segment.jitter.ms", "-1"),
        ("leader.replication.throttled.replicas", "1"),
        ("leader.replication.throttled.replicas", "1:2,"),
        ("retention.ms", "x"),
        ("local.retention.ms", "-3"),
        ("local.retention.bytes", "-3"),
        ("remote.storage.enable", "1"),
        ("compression.gzip.level", "10"),
        ("compression.gzip.level", "-2"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("compression.zstd.level", "-131073"),
    ],
)
def test_what_kafka_refuses_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match="must be"):
        check_topic_config(name, value)


def test_a_key_of_brokers_without_effect_cannot_be_changed_while_they_run() -> None:
    name = min(BROKER_KEYS_WITHOUT_EFFECT)
    with pytest.raises(InvalidConfigError, match="has no effect here"):
        check_broker_config(name, BROKER_KEYS_WITHOUT_EFFECT[name].default_text or "1")
    check_broker_config("log.retention.ms", "5000")


def test_what_is_not_to_be_had_names_the_cure() -> None:
    for name, cure in CURES.items():
        assert name not in TOPIC_KEYS and name not in TOPIC_KEYS_WITHOUT_EFFECT
        with pytest.raises(InvalidConfigError) as refused:
            check_topic_config(name, "1")
        assert cure in str(refused.value)
    with pytest.raises(InvalidConfigError, match=r"did you mean retention\.ms"):
        check_topic_config("retention.msec", "1")


def test_remote_storage_cannot_be_switched_on() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"remote\.storage\.enable cannot be 'true': there is no remote storage: set"
    ):
        check_topic_config("remote.storage.enable", "true")


def test_gzip_has_no_level_0() -> None:
    with pytest.raises(InvalidConfigError, match="between 1 and 9, or -1"):
        LogConfig.from_map({"compression.gzip.level": "0"})


def test_a_log_is_told_only_of_what_has_an_effect() -> None:
    assert with_effect({"message.format.version": "3.0", "retention.ms": "5"}) == {"retention.ms": "5"}


def test_a_key_of_brokers_without_effect_says_why_and_is_no_key_with_an_effect() -> None:
    assert not BROKER_KEYS_WITHOUT_EFFECT.keys() & BROKER_KEYS.keys()
    assert all(row.no_effect and not row.no_effect.endswith(".") for row in BROKER_KEYS_WITHOUT_EFFECT.values())
    assert "one log is compacted at a time" in BROKER_KEYS_WITHOUT_EFFECT["log.cleaner.threads"].no_effect
