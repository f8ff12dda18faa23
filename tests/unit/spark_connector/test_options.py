"""Options of reads: names in any case, precedence, defaults, and refusals that name the cure."""

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidTopicError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.spark_connector.common.options import Options, parse_by_partition
from barnabas.spark_connector.read.read_options import (
    EARLIEST,
    LATEST,
    Assigned,
    AtOffsets,
    AtTime,
    AtTimes,
    Everywhere,
    ReadOptions,
    TopicPattern,
    Topics,
    includes_headers,
    parse_read_options,
)

BASIC = {"bootstrap.servers": "h:1", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(is_stream: bool = True, **more: str) -> ReadOptions:
    return parse_read_options(
        {**BASIC, **{key.replace("__", "."): value for key, value in more.items()}}, is_stream=is_stream
    )


def refusal(given: dict[str, str], *, is_stream: bool = True) -> str:
    with pytest.raises((InvalidConfigError, InvalidTopicError)) as caught:
        parse_read_options(given, is_stream=is_stream)
    return str(caught.value)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    stream, batch = parse(), parse(is_stream=False)
    assert (stream.start, batch.start, batch.end) == (Everywhere(LATEST), Everywhere(EARLIEST), Everywhere(LATEST))
    assert stream.fails_on_data_loss and not stream.includes_headers and stream.group_id is None
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert stream.fetch.is_committed_only


def test_names_count_in_any_case_and_with_kafkas_prefix() -> None:
    options = parse_read_options(
        {"KAFKA.Bootstrap.Servers": "h:1,h:2", "SUBSCRIBE": "a, b ,a", "kafka.request.timeout.ms": "7"}, is_stream=True
    )
    assert options.client.bootstrap == "h:1,h:2" and options.client.request_timeout_ms == 7
    assert options.subscription == Topics(("a", "b"))
    assert "set twice" in refusal({**BASIC, "kafka.bootstrap.servers": "h:2"})
    assert parse(kafka__bootstrap__servers="h:1").client.bootstrap == "h:1"


@pytest.mark.parametrize(
    "name",
    [
        "kafka.max.poll.records",
        "kafka.session.timeout.ms",
        "fetch.min.bytes",
        "groupIdPrefix",
        "fetchOffset.numRetries",
    ],
)
def test_options_of_sparks_kafka_source_without_effect_are_taken_with_a_warning(name: str) -> None:
    with pytest.warns(UserWarning, match=f"option '{name}' has no effect: "):
        options = parse_read_options({**BASIC, name: "3"}, is_stream=True)
    assert options.subscription == Topics(("t",))
    assert "is not supported: offsets are kept in the checkpoint" in refusal({**BASIC, "kafka.group.id": "g"})


def test_exactly_one_way_to_subscribe() -> None:
    assert "found none" in refusal({"bootstrap.servers": "h:1"})
    assert "subscribe and assign" in refusal({**BASIC, "assign": '{"t":[0]}'})
    brokers = {"bootstrap.servers": "h:1"}
    pattern = parse_read_options({**brokers, "subscribePattern": "t.*"}, is_stream=True)
    assert pattern.subscription == TopicPattern("t.*")
    assigned = parse_read_options({**brokers, "assign": '{"t":[1,0,1]}'}, is_stream=True)
    assert assigned.subscription == Assigned((T0, T1))
    assert "not a valid regular expression" in refusal({**brokers, "subscribePattern": "t["})
    assert '{"topic":[0,1]}' in refusal({**brokers, "assign": "t-0"})
    assert "no partition" in refusal({**brokers, "assign": "{}"})
    assert "illegal character" in refusal({**brokers, "subscribe": "a b"})
    assert "is empty" in refusal({**brokers, "subscribe": " "})


def test_where_to_begin_in_order_of_precedence() -> None:
    times = '{"t":{"0":5,"1":6}}'
    assert parse(startingOffsets="Earliest").start == Everywhere(EARLIEST)
    assert parse(startingOffsets='{"t":{"0":7,"1":-2}}').start == AtOffsets({T0: 7, T1: -2})
    assert parse(startingOffsets="earliest", startingOffsetsByTimestamp=times).start == AtTimes({T0: 5, T1: 6})
    everything = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": times, "startingTimestamp": "9"}
    assert parse(**everything).start == AtTime(9)
    ends = {"endingOffsets": "latest", "endingOffsetsByTimestamp": times}
    assert parse(is_stream=False, **ends).end == AtTimes({T0: 5, T1: 6})
    assert parse(is_stream=False, **ends, endingTimestamp="3").end == AtTime(3)
    assert parse(startingOffsetsByTimestampStrategy="LATEST").is_late_start_latest


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "begin"}, "earliest, latest or"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "below -2"),
        ({"startingOffsets": '{"t":{"0":"4"}}'}, "must be an integer"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "must be an integer"),
        ({"startingOffsets": '{"t":[0]}'}, "cannot be parsed"),
        ({"startingTimestamp": "-1"}, "at least 0"),
        ({"startingOffsetsByTimestampStrategy": "newest"}, "error or latest"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"endingTimestamp": "3"}, "a stream has no end"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "must be an integer"),
        ({"maxTriggerDelay": "soon"}, "15m, 10s or 250ms"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above maxOffsetsPerTrigger"),
        ({"groupId": ""}, "name the group"),
        ({"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
        ({"maxOffsetPerTrigger": "9"}, "did you mean maxOffsetsPerTrigger"),
        ({"kafka.bootstrap.server": "h:1"}, "did you mean bootstrap.servers"),
        ({"frobnicate": "1"}, "docs/spark.md"),
        ({"kafka.group.id": "g"}, "use groupId"),
        ({"kafka.enable.auto.commit": "true"}, "use groupId"),
        ({"value.deserializer": "x"}, "CAST(value AS STRING)"),
        ({"kafka.ssl.cipher.suites": "x"}, "is not available"),
        ({"kafka.ssl.keystore.type": "JKS"}, "only PEM"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl_mechanism"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "no effect without"),
    ],
)
def test_what_is_wrong_is_refused_with_a_cure(given: dict[str, str], told: str) -> None:
    assert told in refusal({**BASIC, **given})


def test_brokers_must_be_named() -> None:
    assert 'option("bootstrap.servers"' in refusal({"subscribe": "t"})


def test_a_batch_that_would_read_nothing_is_refused() -> None:
    for given in ({"startingOffsets": "latest"}, {"startingOffsets": '{"t":{"0":-1}}'}):
        assert "would read nothing in a batch" in refusal({**BASIC, **given}, is_stream=False)
    for given in ({"endingOffsets": "earliest"}, {"endingOffsets": '{"t":{"0":-2}}'}):
        assert "would read nothing" in refusal({**BASIC, **given}, is_stream=False)


def test_what_spark_adds_itself_is_let_through() -> None:
    assert parse(checkpointLocation="/c", path="p", queryName="q").subscription == Topics(("t",))


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("250", 250), ("250ms", 250), ("10s", 10_000), ("2 min", 120_000), ("1h", 3_600_000)]
)
def test_durations(text: str, expected_ms: int) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay_ms == expected_ms


def test_the_schema_is_known_before_the_options_are_checked() -> None:
    assert includes_headers({"includeHeaders": "TRUE"})
    assert not includes_headers({"includeHeaders": "false"}) and not includes_headers({})


def test_a_name_that_only_the_other_side_knows_is_unknown() -> None:
    with pytest.raises(InvalidConfigError, match="did you mean topic"):
        Options({"topics": "x"}, known=("topic",))


def test_numbers_by_partition() -> None:
    assert parse_by_partition('{"t":{"0":1,"12":-2},"u":{}}') == {"t": {0: 1, 12: -2}, "u": {}}


def test_tls_and_logins_reach_the_client_and_no_repr_shows_them() -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="hidden";'
    found = parse(
        **{
            **BASIC,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": jaas,
        }
    )
    assert dict(found.client.security) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "hidden",
    }
    assert "hidden" not in repr(found)
    assert hash(found.client) is not None, "one client for equal settings"
    wrong = refusal({**BASIC, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.jaas.config": jaas[:-1]})
    assert "hidden" not in wrong and "ScramLoginModule" in wrong
