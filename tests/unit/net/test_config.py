"""Reading the configuration: where values come from, what is refused and in which words."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.settings.addresses import Listener, parse_bootstrap
from barnabas.log.settings.config import LogConfig
from barnabas.log.settings.table import BROKER_KEYS, check_topic_config
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.net.base.settings.config import (
    admin_port,
    client_port,
    load,
    quorum_port,
    variable_of,
)
from barnabas.net.base.settings.properties import parse_properties


def test_defaults_are_those_of_a_cluster_of_one_on_loopback() -> None:
    config = load(None, {}, {})
    assert config.client_listeners() == (Listener(name="PLAINTEXT", host="127.0.0.1", port=9092),)
    assert config.voters() == (NodeAddress(node_id=0, host="127.0.0.1", port=9093),)
    assert str(config.admin_address()) == "ADMIN://127.0.0.1:9094"
    assert config.topics == LogConfig()
    assert config.topic_defaults() == {}
    assert config.metadata_folder() == f"{config.data_folders()[0]}/__cluster_metadata"


def test_ports_of_a_node_follow_the_rule() -> None:
    config = load(None, {"node.id": "2"}, {})
    assert config.client_listeners()[0].port == client_port(2) == 9112
    assert config.voters()[0].port == quorum_port(2) == 9113
    assert admin_port(3, 10_000) == 10_032
    assert client_port(5, 0) == quorum_port(5, 0) == admin_port(5, 0) == 0


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\nlog.dirs=/file\nmin.insync.replicas=2\n")
    environment = {"BARNABAS_NUM_PARTITIONS": "3", "BARNABAS_LOG_DIRS": "/a,/b", "BARNABAS_BOOTSTRAP": "x:1"}
    config = load(str(path), {"num.partitions": "4"}, environment)
    assert config.num_partitions == 4
    assert config.data_folders() == ("/a", "/b")
    assert config.topics.min_insync_replicas == 2
    assert config.sources == {"num.partitions": "flag", "log.dirs": "environment", "min.insync.replicas": "file"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("BARNABAS_NUM_PARTITION", r" \(did you mean BARNABAS_NUM_PARTITIONS\?\)"),
        ("BARNABAS_BROKER_RAK", r" \(did you mean BARNABAS_BROKER_RACK\?\)"),
        ("BARNABAS_BOOTSTRAP_PORT_9092_TCP_ADDR", ".*enableServiceLinks"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused(name: str, near: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^unknown environment variable {name}{near}"):
        load(None, {}, {name: "1"})


def test_variables_of_the_command_line_and_of_other_programs_are_left_alone() -> None:
    others = {
        "BARNABAS_BOOTSTRAP": "x:1",
        "BARNABAS_LOG_LEVEL": "DEBUG",
        "BARNABAS_PURE": "1",
        "PATH": "/bin",
        "BARNABASX": "1",
    }
    config = load(None, {}, {**others, "BARNABAS_BROKER_RACK": "b"})
    assert config.sources == {"broker.rack": "environment"} and config.broker_rack == "b"


def test_every_key_has_a_variable_of_its_own() -> None:
    assert len({variable_of(key) for key in BROKER_KEYS}) == len(BROKER_KEYS)


def test_properties_are_read_as_java_does() -> None:
    text = "# comment\n! comment\n\n a = 1 \nb: 2\nc=x\\\n   y,z\nd=\nurl=PLAINTEXT://h:1\n"
    assert parse_properties(text) == {"a": "1", "b": "2", "c": "xy,z", "d": "", "url": "PLAINTEXT://h:1"}


@pytest.mark.parametrize("text", ["novalue", "=1", "a=1\na=2"])
def test_a_line_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="line"):
        parse_properties(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert all(isinstance(value, str) for value in parse_properties(text).values())
    except InvalidConfigError:
        pass


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("num.partitons", "num.partitions"), ("logs.dirs", "log.dirs"), ("log.retention.hour", "log.retention.hours")],
)
def test_an_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{key}: did you mean {nearest}"):
        load(None, {key: "1"}, {})


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("num.partitions", "many", "an integer between 1 and 2147483647"),
        ("num.partitions", "0", "an integer between 1 and 2147483647"),
        ("delete.topic.enable", "yes", "true or false"),
        ("listeners", "PLAINTEXT://h", "NAME://host:port or host:port"),
        ("listeners", "h:1,h:2", "listener name PLAINTEXT is given twice"),
        ("listeners", "h:70000", "'h:70000' is not host:port"),
        ("controller.quorum.voters", "a@h:1", "'a@h:1' is not id@host:port"),
        ("controller.quorum.voters", "1@h:1,1@h:2", "voter 1 is given twice"),
        ("compression.type", "rar", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "an integer between 1 and 9, or -1"),
        ("log.cleanup.policy", "burn", "a comma-separated list of delete, compact"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "a number between 0 and 1"),
        ("log.cleaner.io.max.bytes.per.second", "0", "a number between 1 and 1.79769e+308"),
        ("controller.quorum.election.timeout.ms", "99", "an integer between 100 and 2147483647"),
        ("log.dirs", "", "a comma-separated list"),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(key: str, text: str, words: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        load(None, {key: text}, {})
    assert str(refused.value).startswith(f"{key} must be ")
    assert f", not {text!r}" in str(refused.value)
    assert words in str(refused.value)


def test_a_value_that_is_not_available_says_why_and_what_to_use() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"^log\.preallocate cannot be 'true': not available yet, .*; use false$"
    ):
        load(None, {"log.preallocate": "true"}, {})


def test_listeners_have_names_and_advertised_ones_must_be_among_them() -> None:
    overrides = {
        "listeners": "0.0.0.0:9092,INTERNAL://[::1]:9192",
        "allow.plaintext.listeners": "true",
        "advertised.listeners": "PLAINTEXT://example.org:9092",
        "inter.broker.listener.name": "INTERNAL",
    }
    config = load(None, overrides, {})
    assert config.inter_broker_listener() == "INTERNAL"
    assert config.text("listeners") == "PLAINTEXT://0.0.0.0:9092,INTERNAL://[::1]:9192"
    for key, text, words in (
        ("advertised.listeners", "OUTSIDE://h:1", "OUTSIDE is not one of listeners"),
        (
            "advertised.listeners",
            "0.0.0.0:9092",
            "clients cannot connect to this address; use a host that others can reach",
        ),
        ("inter.broker.listener.name", "OUTSIDE", "no such listener"),
        ("broker.heartbeat.interval.ms", "9000", "must be smaller than broker.session.timeout.ms=3000"),
        ("replica.fetch.wait.max.ms", "10000", "must be smaller than replica.socket.timeout.ms=10000"),
    ):
        with pytest.raises(InvalidConfigError, match=words):
            load(None, {**overrides, key: text}, {})


def test_keys_of_kafka_that_mean_nothing_here_are_taken_and_reported() -> None:
    config = load(None, {"process.roles": "broker,controller", "num.io.threads": "8", "broker.id": "1"}, {})
    assert config.ignored == ("process.roles", "num.io.threads")
    assert config.node_id == 1


def test_a_key_without_effect_is_reported_wherever_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.threads=1\nlog.cleanup.policy=delete\ncompression.type=producer\n")
    config = load(str(path), {"log.cleaner.io.buffer.size": "5"}, {"BARNABAS_MAX_CONNECTIONS_PER_IP": "3"})
    assert config.ignored == ("log.cleaner.threads", "max.connections.per.ip", "log.cleaner.io.buffer.size")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("log.roll.jitter.ms", "-1"),
        ("log.message.format.version", "banana"),
        ("log.message.downconversion.enable", "maybe"),
    ],
)
def test_a_key_without_effect_is_refused_what_the_topics_key_is_refused(key: str, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{key} must be .*, not '{text}'"):
        load(None, {key: text}, {})
    assert load(None, {key: ""}, {}).ignored == (key,)


BOUNDARIES = (
    *("", " 5 ", "+5", "05", "-0", "1.5", "1e3", "1_000", "٣", "nan", "inf", "9" * 5_000),
    *("-1", "0", "1", "3", "4", "8", "11", "12", "13", "14", "1023", "1024"),
    *("2147483647", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("TRUE", "true", "yes", "GZIP", "gzip", "producer", "createtime", "CreateTime", "LogAppendTime"),
    *("delete", "compact, delete", "delete,,compact", "Delete", "delete,shred", ","),
)


@pytest.mark.parametrize(
    ("broker_key", "topic_key"),
    [(row.name, row.topic_key) for row in BROKER_KEYS.values() if row.is_topic_default],
)
@pytest.mark.parametrize("text", BOUNDARIES)
def test_a_brokers_key_takes_exactly_what_the_topics_key_takes(broker_key: str, topic_key: str, text: str) -> None:
    def of_topic() -> object:
        check_topic_config(topic_key, text)
        return LogConfig.from_map({topic_key: text})

    def of_broker() -> object:
        config = load(None, {broker_key: text}, {})
        return LogConfig.from_map(config.topic_defaults())

    if text == "" and parse_or_refusal(of_broker) == LogConfig():
        return  # a key without a value is not set, as in Kafka's files, where its default is none
    assert parse_or_refusal(of_broker) == parse_or_refusal(of_topic)


def parse_or_refusal(read: Callable[[], object]) -> object:
    try:
        return read()
    except InvalidConfigError:
        return "refused"


def test_a_wrong_value_is_refused_under_the_key_that_was_given() -> None:
    with pytest.raises(
        InvalidConfigError, match="^log.index.size.max.bytes must be an integer between 12 and 2147483647, not '8'$"
    ):
        load(None, {"log.index.size.max.bytes": "8"}, {})


@pytest.mark.parametrize(
    ("overrides", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_is_the_finest_unit_given(overrides: dict[str, str], retention_ms: int) -> None:
    config = load(None, overrides, {})
    assert config.topics.retention_ms == retention_ms
    assert config.topic_defaults() == {"retention.ms": str(retention_ms)}


def test_topic_defaults_have_the_names_of_topics() -> None:
    config = load(None, {"log.segment.bytes": "2048", "message.max.bytes": "99", "log.roll.hours": "1"}, {})
    assert config.topic_defaults() == {
        "segment.bytes": "2048",
        "max.message.bytes": "99",
        "segment.ms": "3600000",
    }


def test_compaction_lags_are_refused_together_under_the_names_that_were_given() -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"}
    with pytest.raises(
        InvalidConfigError, match=r"log\.cleaner\.min\.compaction\.lag\.ms=2 must not be greater than log\.cleaner\.max"
    ):
        load(None, lags, {})


def test_the_admin_listener_can_be_switched_off() -> None:
    assert load(None, {"admin.listener": "none"}, {}).admin_address() is None
    everywhere = {"admin.listener": "0.0.0.0:80", "allow.plaintext.listeners": "true"}
    assert str(load(None, everywhere, {}).admin_address()) == "PLAINTEXT://0.0.0.0:80"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"none\.properties cannot be read"):
        load(str(tmp_path / "none.properties"), {}, {})
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        load(str(binary), {}, {})


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a,b:1,[::1]:2") == (("a", 9092), ("b", 1), ("::1", 2))
    for text in ("", ",", "a:b", "a:1:2", "a/b:1"):
        with pytest.raises(ValueError, match=r"host:port|list of addresses"):
            parse_bootstrap(text)
