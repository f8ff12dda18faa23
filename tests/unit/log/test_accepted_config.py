"""Topic keys of Kafka that change nothing here: what is taken, what is refused, and what the error says."""

import pytest

from barnabas.log.settings.accepted_config import CURES, WITHOUT_EFFECT, check_topic_value, with_effect
from barnabas.log.settings.config import DEFINITIONS, LogConfig
from barnabas.log.vocabulary.errors import InvalidConfigError


def test_every_key_says_why_it_has_no_effect_and_takes_its_default() -> None:
    assert not set(WITHOUT_EFFECT) & set(DEFINITIONS)
    for name, found in WITHOUT_EFFECT.items():
        assert found.documentation.startswith("Without effect")
        check_topic_value(name, found.default)


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
    check_topic_value(name, value)


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
        check_topic_value(name, value)


def test_what_is_not_to_be_had_names_the_cure() -> None:
    for name, cure in CURES.items():
        assert name not in DEFINITIONS and name not in WITHOUT_EFFECT
        with pytest.raises(InvalidConfigError) as refused:
            check_topic_value(name, "1")
        assert cure in str(refused.value)
    with pytest.raises(InvalidConfigError, match=r"did you mean retention\.ms"):
        check_topic_value("retention.msec", "1")


def test_remote_storage_cannot_be_switched_on() -> None:
    with pytest.raises(InvalidConfigError, match=r"remote\.storage\.enable=true: there is no remote storage: set"):
        check_topic_value("remote.storage.enable", "true")


def test_gzip_has_no_level_0() -> None:
    with pytest.raises(InvalidConfigError, match="must be 1 to 9, or -1"):
        LogConfig.from_map({"compression.gzip.level": "0"})


def test_a_log_is_told_only_of_what_has_an_effect() -> None:
    assert with_effect({"message.format.version": "3.0", "retention.ms": "5"}) == {"retention.ms": "5"}
