"""What a produce request is refused for, with Kafka's codes."""

import struct

import pytest
from crc32c import crc32c
from simulation.log_building import open_log
from unit.net.handlers.handler_world import HandlerWorld, produce
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.handlers.records.produce_rules import check_produced
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.requests import InitProducerIdRequest
from barnabas.net.wire.protocol.responses import ErrorResponse, InitProducerIdResponse, ProduceResponse

NOW_MS = 1_700_000_000_000
ALONE = topic("t", partition(0, replicas=(0,)))
IDEMPOTENT = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=0)


def batch(compression: Compression = Compression.NONE, timestamps_ms: int | list[int] = NOW_MS,
          producer: ProducerFields | None = None) -> bytes:  # fmt: skip
    values = [b"a", b"b"] if isinstance(timestamps_ms, int) else [b"a"] * len(timestamps_ms)
    fields = {} if producer is None else {"producer": producer}
    return encode_batch(values, timestamps_ms=timestamps_ms, compression=compression, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 6, 7])
@pytest.mark.parametrize("size", [17, 20, 22])
def test_a_batch_that_ends_within_its_header_is_left_to_the_log(version: int, size: int) -> None:
    """It once failed the whole request, behind partitions that were appended already."""
    check_produced(batch()[:size], kafka_version=version)


def patched(data: bytes, position: int, layout: str, *values: int) -> bytes:
    """With other fields, and a right CRC over them."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, *values)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


@pytest.mark.parametrize(
    ("records", "version", "code"),
    [
        (b"", 3, ErrorCode.INVALID_RECORD),
        (patched(batch(), 16, ">b", 1), 3, ErrorCode.INVALID_RECORD),
        (batch() + batch(), 9, ErrorCode.INVALID_RECORD),
        (batch() + b"x", 9, ErrorCode.INVALID_RECORD),
        (batch(Compression.ZSTD), 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (patched(batch(producer=IDEMPOTENT), 21, ">h", 0x10), 9, None),
        (patched(batch(producer=IDEMPOTENT), 21, ">h", 0x10) + batch(), -1, ErrorCode.INVALID_RECORD),
        (batch() + batch(), -1, None),
        (batch(Compression.ZSTD), 7, None),
        (batch(producer=IDEMPOTENT), 3, None),
        (b"short", 3, None),  # the log says what is wrong with it
    ],
)
def test_rules_of_a_request(records: bytes, version: int, code: ErrorCode | None) -> None:
    if code is None:
        check_produced(records, kafka_version=version)
        return
    with pytest.raises(BarnabasError) as refused:
        check_produced(records, kafka_version=version)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("records", "config", "code"),
    [
        (patched(batch(), 43, ">qhi", 7, 0, -1), {}, ErrorCode.INVALID_RECORD),
        (patched(batch(), 43, ">qhi", 7, -1, 0), {}, ErrorCode.INVALID_RECORD),
        (patched(batch(), 43, ">qhi", -5, 0, 0), {}, ErrorCode.INVALID_RECORD),
        (patched(batch(), 21, ">h", 0x10), {}, ErrorCode.INVALID_RECORD),  # transactional, without a producer id
        (patched(batch(), 21, ">h", 0x20), {}, ErrorCode.INVALID_RECORD),  # control
        (patched(batch(), 21, ">h", 0x08), {}, ErrorCode.INVALID_TIMESTAMP),
        (patched(batch(), 23, ">i", 5), {}, ErrorCode.INVALID_RECORD),
        (patched(batch(), 57, ">i", 0), {}, ErrorCode.INVALID_RECORD),
        (batch(timestamps_ms=NOW_MS + 3_600_001), {}, ErrorCode.INVALID_TIMESTAMP),
        (batch(timestamps_ms=[NOW_MS - 1_001, NOW_MS]), {"message.timestamp.before.max.ms": "1000"},
         ErrorCode.INVALID_TIMESTAMP),
        (batch(), {"max.message.bytes": "60"}, ErrorCode.MESSAGE_TOO_LARGE),
        (batch(timestamps_ms=[NOW_MS - 1_000, NOW_MS]), {"message.timestamp.before.max.ms": "1000"}, None),
        (batch(timestamps_ms=-1), {"message.timestamp.before.max.ms": "1000"}, None),
        (batch(timestamps_ms=NOW_MS + 3_600_001), {"message.timestamp.type": "LogAppendTime"}, None),
    ],
)  # fmt: skip
def test_rules_of_a_log(records: bytes, config: dict[str, str], code: ErrorCode | None) -> None:
    log = open_log(SimulatedDisk(), config=LogConfig.from_map(config))
    if code is None:
        log.append_as_leader(records, leader_epoch=0, now_ms=NOW_MS)
        return
    with pytest.raises(BarnabasError) as refused:
        log.append_as_leader(records, leader_epoch=0, now_ms=NOW_MS)
    assert refused.value.code == code and log.log_end_offset == 0


@simulated
async def test_an_answer_says_when_and_where_the_log_begins_and_a_repetition_gets_the_same() -> None:
    world = await HandlerWorld.start(ALONE, log_message_timestamp_type="LogAppendTime")
    handler = ProduceHandler(world.services)
    answers = []
    for _ in range(2):
        client = Client()
        handler(produce(batch(producer=IDEMPOTENT)), client, client.reply)  # type: ignore[arg-type]
        answer = client.answer()
        assert isinstance(answer, ProduceResponse)
        answers.append(answer.partitions[0])
    first, again = answers
    assert (first.error, first.base_offset, first.log_start_offset) == (0, 0, 0)
    assert first.log_append_time_ms > 0
    assert again == first and world.log().log_end_offset == 2


@pytest.mark.parametrize("version", range(5))
def test_init_producer_id_of_kafka(version: int) -> None:
    codec = KafkaCodec()
    types = types_of("InitProducerIdRequest")
    chunks: list[bytes] = [struct.pack(">hhi", 22, version, 5), b"\x00\x01c"]
    if version >= 2:
        chunks.append(b"\0")
    body = types["InitProducerIdRequest"](transactional_id=None, transaction_timeout_ms=1)
    encoder("InitProducerIdRequest", version)(body, chunks)  # type: ignore[arg-type]
    request = codec.decode_request(memoryview(b"".join(chunks)))
    assert request.payload == InitProducerIdRequest(transactional_id=None)
    answer = InitProducerIdResponse(producer_id=9, producer_epoch=0)
    given = b"".join(map(bytes, codec.encode_response(request, answer)))  # type: ignore[arg-type]
    assert struct.pack(">hqh", 0, 9, 0) in given
    refused = b"".join(map(bytes, codec.encode_response(request, ErrorResponse(error=35, message="no"))))  # type: ignore[arg-type]
    assert struct.pack(">hqh", 35, -1, -1) in refused
