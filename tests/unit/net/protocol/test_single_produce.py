"""The short way of a Produce request of one batch: the same values and the same bytes as the general way, for any bytes."""

import random
import struct
from typing import Any

import pytest

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRequestError
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.data_apis import produce_request, produce_response
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.primitives import read_tags
from barnabas.net.wire.protocol.kafka.single_produce import VERSIONS, decode_single, encode_single
from barnabas.net.wire.protocol.responses import ProducePartitionResponse, ProduceResponse

MUTATIONS = 3_000
SIZES = (1, 61, 126, 127, 16_382, 16_383, 70_000)  # round the lengths that need a second and a third byte
BAD_INPUT = (ValueError, IndexError, struct.error)


def frame_of(
    version: int, records: bytes | None, *, client_id: bytes = b"app", topic: str = "orders", **body: Any
) -> bytearray:
    types = types_of("ProduceRequest")
    partition = types["PartitionProduceData"](index=3, records=records)
    data = [types["TopicProduceData"](name=topic, partition_data=[partition])]
    chunks: list[Any] = [struct.pack(">hhih", 0, version, 7, len(client_id)), client_id, b"\0"]
    encoder("ProduceRequest", version)(
        types["ProduceRequest"](**{"acks": -1, "timeout_ms": 9_000, "topic_data": data, **body}), chunks
    )
    return bytearray(b"".join(chunks))


def in_general(frame: memoryview, version: int) -> tuple[str, Any]:
    """By the compiled schema alone. Raises one of BAD_INPUT."""
    (size,) = struct.unpack_from(">h", frame, 8)
    position = 10 + max(size, 0)
    if size < -1 or position > len(frame):
        raise ValueError
    client_id = str(frame[10:position], "utf-8")
    position = read_tags(frame, position, {})[1]
    body, _ = decoder("ProduceRequest", version)(frame, position)
    return client_id, produce_request(body, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", SIZES)
def test_a_usual_request_is_read_as_the_schema_reads_it(version: int, size: int) -> None:
    frame = frame_of(version, bytes(range(256)) * (size // 256) + bytes(size % 256), client_id=b"", topic="t" * 126)
    found = decode_single(memoryview(frame), 7, version)
    assert found is not None
    assert (found.client_id, found.payload) == in_general(memoryview(frame), version)
    assert (found.correlation_id, found.api, found.version) == (7, 0, version)
    payload: Any = found.payload
    payload.partitions[0].records[:1] = b"\xee"
    assert 0xEE in frame, "the records are a view, which the leader patches"


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(9, b"x", transactional_id="t"),
        frame_of(9, b"x", transactional_id=""),
        frame_of(9, b"x", topic="t" * 127),
        frame_of(9, None),
        frame_of(9, b""),
        frame_of(9, b"x" * 2_100_000),
        frame_of(9, bytes(2_100_000))[:-1],  # its length without the highest byte would fit
        frame_of(9, b"x", topic_data=[]),
        frame_of(9, b"x") + b"behind",
        frame_of(9, b"x")[:-1],
        frame_of(9, b"x", client_id=b"\xff"),
        bytearray(struct.pack(">hhih", 0, 9, 7, -1)),
    ],
)
def test_what_is_not_usual_goes_the_general_way(frame: bytearray) -> None:
    assert decode_single(memoryview(frame), 7, 9) is None


def test_several_partitions_and_topics_go_the_general_way() -> None:
    types = types_of("ProduceRequest")
    partition = types["PartitionProduceData"](index=3, records=b"x")
    two = types["TopicProduceData"](name="t", partition_data=[partition, partition])
    one = types["TopicProduceData"](name="t", partition_data=[partition])
    for topics in ([two], [one, one]):
        frame = frame_of(10, b"x", topic_data=topics)
        assert decode_single(memoryview(frame), 7, 10) is None
        payload: Any = KafkaCodec().decode_request(memoryview(frame)).payload
        assert len(payload.partitions) == 2


def test_any_bytes_are_read_as_the_schema_reads_them_or_go_the_general_way() -> None:
    draw = random.Random(5)
    taken = 0
    for number in range(MUTATIONS):
        version = draw.choice(VERSIONS)
        frame = frame_of(version, draw.randbytes(draw.choice((1, 80, 200, 20_000))), topic="t" * draw.randrange(1, 9))
        for _ in range(draw.choice((0, 1, 1, 2))):
            frame[draw.randrange(8, min(len(frame), 50))] = draw.choice(
                (0, 1, 2, 3, 0x7F, 0x80, 0xFF, draw.randrange(256))
            )
        if draw.random() < 0.1:
            del frame[draw.randrange(8, len(frame)) :]
        found = decode_single(memoryview(frame), 7, version)
        if found is not None:
            taken += 1
            assert (found.client_id, found.payload) == in_general(memoryview(frame), version), f"number {number}"
    assert MUTATIONS // 4 < taken < MUTATIONS, "both ways were taken"


def test_what_cannot_be_read_is_refused_as_before() -> None:
    with pytest.raises(InvalidRequestError, match="Produce v9 cannot be read"):
        KafkaCodec().decode_request(memoryview(frame_of(9, b"x")[:-4]))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("throttle_ms", [0, 250])
def test_a_usual_answer_has_the_bytes_of_the_schema(version: int, throttle_ms: int) -> None:
    for name in ("t", "é", "t" * 126):
        answer = ProducePartitionResponse(
            topic=name, partition=3, base_offset=2**40, log_append_time_ms=1_700_000_000_000, log_start_offset=5
        )
        response = ProduceResponse(partitions=(answer,))
        body = produce_response(response, version)
        body.throttle_time_ms = throttle_ms
        chunks: list[Any] = [b"\0"]
        encoder("ProduceResponse", version)(body, chunks)
        expected = b"".join(chunks)
        whole = struct.pack(">ii", len(expected) + 4, 77) + expected
        assert encode_single(77, response, throttle_ms) == whole
        asked = DecodedRequest(correlation_id=77, api=0, version=version, payload=InvalidRequestError("unused"))
        assert KafkaCodec().encode_response(asked, response, throttle_ms) == [whole]


def test_errors_long_names_and_several_partitions_are_answered_the_general_way() -> None:
    good = ProducePartitionResponse(topic="t", partition=0, base_offset=1)
    refused = ProducePartitionResponse(topic="t", partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="moved")
    worded = ProducePartitionResponse(topic="t", partition=0, message="words without an error")
    long = ProducePartitionResponse(topic="t" * 127, partition=0)
    for partitions in ((), (good, good), (refused,), (worded,), (long,)):
        assert encode_single(1, ProduceResponse(partitions=partitions), 0) is None
