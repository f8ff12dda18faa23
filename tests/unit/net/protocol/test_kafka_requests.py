"""What Kafka's frames become, and what our answers become: by API and version."""

import struct
from typing import Any

import pytest

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FetchSessionIdNotFoundError,
    UnsupportedAssignorError,
)
from barnabas.net.server.dispatcher import error_response
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.kafka.apis import SERVED, is_flexible
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.responses import BrokerMetadata, MetadataResponse, TopicMetadata

FETCH, METADATA, JOIN_GROUP, CONSUMER_GROUP_HEARTBEAT = 1, 3, 11, 68
TOPIC_ID = bytes(range(16))


def request(key: int, version: int, **fields: Any) -> DecodedRequest:
    """A frame as a client sends it, decoded."""
    name = f"{SERVED[key].name}Request"
    header = types_of("RequestHeader")["RequestHeader"](
        request_api_key=key, request_api_version=version, correlation_id=5, client_id="c"
    )
    chunks: list[Any] = []
    encoder("RequestHeader", 2 if is_flexible(name, version) else 1)(header, chunks)
    encoder(name, version)(types_of(name)[name](**fields), chunks)
    return KafkaCodec().decode_request(memoryview(b"".join(chunks)))


def answer(decoded: DecodedRequest, response: Any) -> Any:
    """Our response, as the client reads it."""
    frame = b"".join(bytes(chunk) for chunk in KafkaCodec().encode_response(decoded, response))  # type: ignore[arg-type]
    size_bytes, correlation_id = struct.unpack_from(">ii", frame)
    assert (size_bytes, correlation_id) == (len(frame) - 4, decoded.correlation_id)
    name = f"{SERVED[decoded.api].name}Response"
    body, end = decoder(name, decoded.version)(memoryview(frame), 9 if is_flexible(name, decoded.version) else 8)
    assert end == len(frame)
    return body


def asked_topic(name: str | None, topic_id: bytes = bytes(16)) -> Any:
    return types_of("MetadataRequest")["MetadataRequestTopic"](name=name, topic_id=topic_id)


def test_metadata_asks_by_name_and_by_id() -> None:
    payload = request(
        METADATA, 12, topics=[*[asked_topic("t")] * 1_000, asked_topic(None, TOPIC_ID), asked_topic("", TOPIC_ID)]
    ).payload
    assert (payload.topics, payload.topic_ids) == (("t",), (TOPIC_ID.hex(),)), "however often they are named"


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_in_the_versions_that_must_not_use_it(version: int) -> None:
    payload = request(METADATA, version, topics=[asked_topic(None, TOPIC_ID)]).payload
    assert isinstance(payload, BarnabasError) and payload.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(13))
def test_metadata_answers_every_version(version: int) -> None:
    decoded = request(METADATA, version, topics=[asked_topic("t")])
    topics = (TopicMetadata(error=0, name="t", topic_id=TOPIC_ID.hex()),)
    brokers = (BrokerMetadata(node_id=1, host="h", port=9092),)
    found = answer(decoded, MetadataResponse(cluster_id="c", controller_id=1, offset=9, brokers=brokers, topics=topics))
    (topic,) = found.topics
    assert (topic.name, topic.error_code) == ("t", 0)
    assert topic.topic_id == (TOPIC_ID if version >= 10 else bytes(16))
    assert found.controller_id == (1 if version >= 1 else -1)


def test_an_id_that_nobody_has_comes_back_without_a_name() -> None:
    decoded = request(METADATA, 12, topics=[asked_topic(None, TOPIC_ID)])
    unknown = TopicMetadata(error=ErrorCode.UNKNOWN_TOPIC_ID, name="", topic_id=TOPIC_ID.hex())
    found = answer(decoded, MetadataResponse(cluster_id="c", controller_id=1, offset=9, brokers=(), topics=(unknown,)))
    (topic,) = found.topics
    assert (topic.name, topic.error_code, topic.topic_id) == (None, ErrorCode.UNKNOWN_TOPIC_ID, TOPIC_ID)


def test_metadata_that_fails_as_a_whole_fails_for_each_topic() -> None:
    decoded = request(METADATA, 12, topics=[asked_topic("t"), asked_topic(None, TOPIC_ID)])
    found = answer(decoded, error_response(ValueError("a bug")))
    assert [(item.name, item.topic_id, item.error_code) for item in found.topics] == [
        ("t", bytes(16), ErrorCode.UNKNOWN_SERVER_ERROR),
        (None, TOPIC_ID, ErrorCode.UNKNOWN_SERVER_ERROR),
    ]


@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_fetch_session_that_was_never_opened_is_told_so(version: int) -> None:
    """The client must hear that the session is gone, and not that the broker is broken: then it names all partitions."""
    decoded = request(FETCH, version, session_id=12_345, session_epoch=1)
    assert (decoded.payload.session_id, decoded.payload.session_epoch) == (12_345, 1)
    found = answer(decoded, error_response(FetchSessionIdNotFoundError("not known")))
    assert (found.error_code, found.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_a_string_that_older_versions_could_not_answer_with_is_refused() -> None:
    assert request(JOIN_GROUP, 6, group_id="g" * 32_767).payload.body.group_id == "g" * 32_767
    with pytest.raises(BarnabasError, match="32768"):
        request(JOIN_GROUP, 6, group_id="g" * 32_768)


def test_the_words_of_a_refusal_reach_the_client() -> None:
    decoded = request(CONSUMER_GROUP_HEARTBEAT, 0, group_id="g", member_id="m")
    found = answer(decoded, error_response(UnsupportedAssignorError("no assignor 'x' here; there are: range")))
    assert (found.error_code, found.error_message) == (
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "no assignor 'x' here; there are: range",
    )
