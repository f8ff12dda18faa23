"""Metadata for Kafka's clients: answers encoded once, kept while they are true, within a bound."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.test_kafka_configs import request
from unit.net.shell_world import Client, broker, image_of, partition, simulated, topic

from barnabas.kraft.metadata.image import SlotImage
from barnabas.log.vocabulary.errors import ErrorCode, InvalidTopicError
from barnabas.net.handlers.kafka.metadata import EncodedAnswers, KafkaMetadataHandler
from barnabas.net.handlers.own.metadata import MetadataHandler
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.kafka.apis import SERVED, KafkaResponse
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import decoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.metadata_api import metadata_request
from barnabas.net.wire.protocol.responses import ErrorResponse

METADATA = 3
ID = "ab" * 16
T = topic("t", partition(0), partition(1), topic_id=ID)
VERSIONS = range(SERVED[METADATA].versions.first, SERVED[METADATA].versions.last + 1)


def asked(version: int, *names: str, every: bool = False, **values: Any) -> Any:
    make = types_of("MetadataRequest")["MetadataRequestTopic"]
    named = [make(name=name) for name in names]
    if version >= 4:
        values.setdefault("allow_auto_topic_creation", False)
    asked_for = request(METADATA, version, topics=None if every and version else named, **values)
    return metadata_request(asked_for.body, version)


async def raw(handler: KafkaMetadataHandler, wanted: Any, listener: str = "PLAINTEXT") -> bytes:
    replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    handler(wanted, Client(listener=listener), replied.set_result)
    body = (await replied).body
    assert isinstance(body, bytes)
    return body


def read(body: bytes, version: int) -> Any:
    return decoder("MetadataResponse", version)(memoryview(body), 0)[0]


def kafka_metadata(world: HandlerWorld) -> KafkaMetadataHandler:
    return KafkaMetadataHandler(MetadataHandler(world.services))


# --- what is answered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_every_version_the_second_time_gets_the_very_bytes_of_the_first(version: int) -> None:
    world = await HandlerWorld.start(T)
    handler = kafka_metadata(world)
    for wanted in (asked(version, "t"), asked(version, every=True)):
        first = await raw(handler, wanted)
        assert await raw(handler, wanted) is first
        answer = read(first, version)
        assert [item.node_id for item in answer.brokers] == [0, 1]
        (found,) = (item for item in answer.topics if item.name == "t")
        assert [(item.partition_index, item.leader_id) for item in found.partitions] == [(0, 0), (1, 1)]


@simulated
async def test_another_listener_another_version_and_other_topics_have_answers_of_their_own() -> None:
    world = await HandlerWorld.start(T)
    handler = kafka_metadata(world)
    first = await raw(handler, asked(9, "t"))
    for wanted, listener in ((asked(9, "t"), "OTHER"), (asked(8, "t"), "PLAINTEXT"), (asked(9), "PLAINTEXT")):
        assert await raw(handler, wanted, listener) is not first
    assert await raw(handler, asked(9, "t")) is first


@simulated
async def test_who_asks_what_may_be_done_is_told_everything() -> None:
    world = await HandlerWorld.start(T)
    handler = kafka_metadata(world)
    flags = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = read(await raw(handler, asked(9, "t", **flags)), 9)
    assert (answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations) == (3576, 8096)
    answer = read(await raw(handler, asked(9, "t")), 9)
    assert (answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations) == (-(2**31), -(2**31))


@simulated
async def test_a_kept_answer_is_framed_as_any_other() -> None:
    world = await HandlerWorld.start(T)
    wanted, codec = asked(9, "t"), KafkaCodec()
    made = DecodedRequest(correlation_id=7, api=METADATA, version=9, payload=wanted)
    kept = KafkaResponse(body=await raw(kafka_metadata(world), wanted))
    plain = await MetadataHandler(world.services)(wanted, Client())
    framed = [b"".join(map(bytes, codec.encode_response(made, response))) for response in (kept, plain)]  # type: ignore[arg-type]
    assert framed[0] == framed[1]
    refused = codec.encode_response(made, ErrorResponse(error=ErrorCode.REQUEST_TIMED_OUT, message="late"))
    answer = decoder("MetadataResponse", 9)(memoryview(b"".join(map(bytes, refused)))[9:], 0)[0]  # type: ignore[arg-type]
    assert [(item.name, item.error_code) for item in answer.topics] == [("t", ErrorCode.REQUEST_TIMED_OUT)]


# --- until it is no longer true ---------------------------------------------------------------------------------------


@simulated
async def test_an_election_is_seen_at_once() -> None:
    world = await HandlerWorld.start(T)
    handler = kafka_metadata(world)
    before = read(await raw(handler, asked(9, "t")), 9)
    world.show(topic("t", partition(1), partition(1), topic_id=ID), offset=11)
    after = read(await raw(handler, asked(9, "t")), 9)
    assert [[part.leader_id for part in answer.topics[0].partitions] for answer in (before, after)] == [[0, 1], [1, 1]]


@simulated
async def test_a_topic_that_is_not_there_is_looked_for_every_time() -> None:
    world = await HandlerWorld.start(T)
    handler = kafka_metadata(world)
    for _ in range(2):
        answer = read(await raw(handler, asked(9, "t", "new")), 9)
        assert [item.error_code for item in answer.topics] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert handler.answers.size_bytes == 0
    world.source.script(InvalidTopicError("no"))
    answer = read(await raw(handler, asked(9, "new", allow_auto_topic_creation=True)), 9)
    assert [item.error_code for item in answer.topics] == [ErrorCode.INVALID_TOPIC_EXCEPTION]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_commits_that_show_nothing_drop_nothing() -> None:
    answers, image = EncodedAnswers(), image_of(broker(0), topics=[T])
    answers.keep(image, "key", b"body", key_bytes=1)
    quiet = replace(image, offset=99, next_producer_id=5, topic_configs={"t": {"retention.ms": "5"}})
    assert answers.find(quiet, "key") == b"body"


@pytest.mark.parametrize(
    "change",
    [
        {"topics": {"t": T}},
        {"brokers": {0: broker(0)}},
        {"slots": (SlotImage(coordinator=1),)},
        {"controller_id": 7},
        {"cluster_id": "x"},
    ],
)
def test_whatever_is_shown_drops_all_when_it_changes(change: dict[str, Any]) -> None:
    answers, image = EncodedAnswers(), image_of(broker(0), topics=[T])
    answers.keep(image, "key", b"body", key_bytes=1)
    assert answers.find(replace(image, **change), "key") is None
    assert answers.size_bytes == 0


def test_the_least_recently_used_goes_first_and_the_bound_holds() -> None:
    answers, image = EncodedAnswers(max_bytes=100), image_of(broker(0))
    for number in range(3):
        answers.keep(image, number, b"x" * 30, key_bytes=3)
    assert answers.find(image, 0) is not None
    answers.keep(image, 3, b"x" * 30, key_bytes=3)
    assert [answers.find(image, number) is not None for number in range(4)] == [True, False, True, True]
    answers.keep(image, 4, b"x" * 98, key_bytes=3)
    assert answers.find(image, 4) is None and answers.size_bytes == 99
