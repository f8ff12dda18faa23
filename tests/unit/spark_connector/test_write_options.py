"""Options of sinks: defaults, what is refused, and that the refusal names the cure."""

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidTopicError
from barnabas.spark_connector.write.write_options import WriteOptions, parse_write_options

BASIC = {"bootstrap.servers": "h:1"}


def parse(**more: str) -> WriteOptions:
    return parse_write_options({**BASIC, **{key.replace("__", "."): value for key, value in more.items()}})


def refusal(given: dict[str, str]) -> str:
    with pytest.raises((InvalidConfigError, InvalidTopicError)) as caught:
        parse_write_options({**BASIC, **given})
    return str(caught.value)


def test_defaults() -> None:
    options = parse()
    assert (options.topic, options.delivery, options.sink_id) == (None, "at_least_once", None)
    assert not options.is_effectively_once
    assert options.producer.compression == "none" and options.producer.delivery_timeout_ms == 120_000


def test_names_are_kafkas_in_any_case_with_and_without_the_prefix() -> None:
    options = parse(
        TOPIC="t", kafka__Compression__Type="ZSTD", linger__ms="5", delivery="EFFECTIVELY_ONCE", sinkId="a:b"
    )
    assert (options.topic, options.producer.compression, options.producer.linger_ms) == ("t", "zstd", 5)
    assert options.is_effectively_once and options.sink_id == "a:b"


def test_what_spark_and_its_users_put_beside_them_is_let_pass() -> None:
    assert (
        parse(checkpointLocation="/tmp/x", queryName="q", includeHeaders="true", kafka__acks="all", acks="all").topic
        is None
    )


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"topick": "t"}, "did you mean topic?"),
        ({"subscribe": "t"}, "unknown option 'subscribe'"),
        ({"kafka.acks": "1"}, "acks is always all in this sink, so that no row is lost: remove the option"),
        ({"enable.idempotence": "false"}, "enable.idempotence is always true"),
        ({"delivery": "exactly_once"}, "use at_least_once or effectively_once"),
        ({"batchId": "1"}, "set sinkId, too"),
        ({"batchId": "-1", "sinkId": "x", "delivery": "effectively_once"}, "integer of at least 0"),
        ({"sinkId": "x"}, "requires delivery=effectively_once"),
        ({"sinkId": "a b", "delivery": "effectively_once"}, "use 1 to 200 characters"),
        ({"sinkId": "", "delivery": "effectively_once"}, "use 1 to 200 characters"),
        ({"compression.type": "zip"}, "use none, gzip, snappy, lz4, zstd"),
        ({"batch.size": "1"}, "at least 256"),
        ({"buffer.memory": "1000"}, "must hold at least one batch"),
        ({"delivery.timeout.ms": "10"}, "at least request.timeout.ms + linger.ms (30000)"),
        ({"topic": "a/b"}, "illegal character"),
        ({"key.serializer": "x"}, "convert the column"),
        ({"sasl.mechanism": "x"}, "no effect without security_protocol"),
    ],
)
def test_refusals_name_the_cure(given: dict[str, str], cure: str) -> None:
    assert cure in refusal(given)


def test_brokers_must_be_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"bootstrap\.servers is missing"):
        parse_write_options({"topic": "t"})
