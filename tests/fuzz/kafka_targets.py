"""What strangers send to the codec of Kafka's protocol: every API in every version, damaged; lengths that lie; arrays of nearly
nothing; produced batches that lie about their records.

A frame is decoded, or refused by an error of ours. What is decoded costs memory in proportion to limits, not to claims.
"""

import struct
from random import Random
from typing import Any, Final

from fuzz.mutations import mutated
from fuzz.wire_targets import with_crc
from simulation.log_building import NOW_MS, append, open_log, read_all
from unit.log.records.record_world import decode_columns
from unit.net.protocol.random_messages import RandomMessages

from barnabas.log.format.compression import Compression
from barnabas.log.format.recompression import recompressed
from barnabas.log.format.record_batch import COMPRESSION_MASK, HEADER_SIZE
from barnabas.log.format.record_check import RecordRules
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError
from barnabas.net.base.limits import MAX_MESSAGE_ITEMS
from barnabas.net.handlers.records.produce_rules import check_produced
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.kafka.apis import API_VERSIONS_KEY, LISTED, SERVED, KafkaRequest, is_flexible
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import encoder, max_items
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.primitives import uvarint
from barnabas.net.wire.protocol.kafka.schema import Field, Struct, messages
from barnabas.net.wire.protocol.requests import KafkaProduceRequest, Request
from barnabas.net.wire.protocol.responses import ErrorResponse

CODEC: Final = KafkaCodec()
RULES: Final = RecordRules(needs_keys=False, max_message_bytes=1 << 20)
_HEAD: Final = struct.Struct(">hhih")
_LIES: Final = (-(2**31), -2, -1, 0, 1, 0x7F, 0x80, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1)
_API_OF: Final = {message.api_key: name for name, message in messages().items() if name.endswith("Request")}


def head(key: int, version: int, *, with_tags: bool, client_id: bytes = b"fuzz") -> bytes:
    return _HEAD.pack(key, version, 7, len(client_id)) + client_id + (b"\0" if with_tags else b"")


def kafka_frame(rng: Random, key: int, version: int) -> bytes:
    """A valid request without its size, as it lies in a frame."""
    name = _API_OF[key]
    made = RandomMessages(rng.getrandbits(32)).encoded(name, version)
    return head(key, version, with_tags=is_flexible(name, version)) + made


def decode_anyhow(frame: bytes) -> DecodedRequest | None:
    """None where the connection would be closed."""
    try:
        decoded = CODEC.decode_request(memoryview(bytearray(frame)))
    except InvalidRequestError:
        return None
    assert isinstance(decoded.payload, KafkaRequest | Request | KafkaProduceRequest | BarnabasError), decoded
    return decoded


def any_version(rng: Random) -> tuple[int, int]:
    """Of any API that Kafka's schemas know, whether it is served here or not."""
    key = rng.choice(list(SERVED) if rng.random() < 0.8 else list(_API_OF))
    versions = messages()[_API_OF[key]].versions
    return key, rng.randint(versions.first, versions.last)


def kafka_requests(rng: Random) -> None:
    """Whole ones are taken in all versions that are served, with tagged fields of the future; others are refused."""
    key, version = any_version(rng)
    frame = kafka_frame(rng, key, version)
    served = SERVED.get(key)
    is_served = served is not None and version in served.versions and version >= served.taken_from
    decoded = decode_anyhow(frame)
    if key == API_VERSIONS_KEY:
        assert decoded is not None
        assert is_served or (decoded.version == 0 and isinstance(decoded.payload, UnsupportedVersionError))
    else:
        assert (decoded is not None) == is_served, (key, version)
    if is_served and is_flexible(_API_OF[key], version) and frame.endswith(b"\0"):
        tag = uvarint(rng.randint(100, 2**31)) + b"\x03xyz"
        assert decode_anyhow(frame[:-1] + b"\x01" + tag) is not None
    decode_anyhow(mutated(rng, frame))


def kafka_strange_versions(rng: Random) -> None:
    """Keys and versions that nobody has: closed, but for ApiVersions, which is told what there is (KIP-35)."""
    key = rng.choice((API_VERSIONS_KEY, rng.randint(-(2**15), 2**15 - 1)))
    version = rng.choice((-1, 31, 99, 2**15 - 1, -(2**15)))
    decoded = decode_anyhow(head(key, version, with_tags=True) + rng.randbytes(rng.randrange(40)))
    assert (decoded is None) == (key != API_VERSIONS_KEY)
    if decoded is not None:
        answer = b"".join(CODEC.encode_response(decoded, ErrorResponse(error=35, message="unknown")))  # type: ignore[arg-type]
        size, correlation_id, error, count = struct.unpack_from(">iihi", answer)
        assert (size, correlation_id, error, count) == (len(answer) - 4, 7, 35, len(LISTED))


def kafka_lengths(rng: Random) -> None:
    """At every position of a small request: a number in place of whatever length or count may stand there."""
    key, version = any_version(rng)
    frame = kafka_frame(rng, key, version)[:400]
    width, layout = rng.choice(((2, ">h"), (4, ">i"), (0, "varint")))
    for position in range(8, len(frame)):
        lie = rng.choice(_LIES)
        if width:
            bits = 8 * width
            value = (lie + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            told = struct.pack(layout, value)
        else:
            told = uvarint(lie % 2**32)
        decode_anyhow(frame[:position] + told + frame[position + max(width, 1) :])


def kafka_arrays(rng: Random) -> None:
    """Arrays in arrays of as many nearly empty items as one cares to send, none of them a lie: up to the limit they are
    taken, beyond it the connection ends before the memory is gone."""
    key, item = rng.choice(list(SERVED.items()))
    version = rng.randint(max(item.versions.first, item.taken_from), item.versions.last)
    name = f"{item.name}Request"
    count = (
        rng.choice((3, 100, 1_000)) if rng.random() < 0.97 else rng.choice((MAX_MESSAGE_ITEMS, 2 * MAX_MESSAGE_ITEMS))
    )
    made, items = _crowded(messages()[name].body, version, types_of(name), count)
    chunks: list[Any] = [head(key, version, with_tags=is_flexible(name, version))]
    encoder(name, version)(made, chunks)
    decoded = decode_anyhow(b"".join(map(bytes, chunks)))
    assert (decoded is None) == (items > max_items(name)), (name, version, items)


def _crowded(body: Struct, version: int, types: dict[str, type], count: int) -> tuple[Any, int]:
    """The struct with about `count` items in all, the same one over and over; and how many it has."""
    made, items = types[body.name](), 0
    arrays = [item for item in body.fields if item.is_array and version in item.versions and item.tag is None]
    for item in arrays:
        share = count // len(arrays)
        inner_arrays = item.struct is not None and _has_arrays(item.struct, version)
        length = max(1, int(share**0.5)) if inner_arrays else share
        one, inside = _one(item, version, types, share // length)
        setattr(made, item.name, [one] * length)
        items += length * (1 + inside)
    return made, items


def _one(item: Field, version: int, types: dict[str, type], count: int) -> tuple[Any, int]:
    if item.struct is not None:
        return _crowded(item.struct, version, types, count)
    return {"string": "", "bytes": b"", "uuid": bytes(16)}.get(item.type, 0), 0


def _has_arrays(body: Struct, version: int) -> bool:
    return any(item.is_array and version in item.versions for item in body.fields)


def kafka_batches(rng: Random) -> None:
    """A produced batch whose header or compressed records say what is not so, under a checksum that is right: refused, or
    taken whole; readable, or refused by an error of ours."""
    count = rng.randint(1, 8)
    values = [rng.choice((None, b"", b"value", bytes(3_000))) for _ in range(count)]
    codec = rng.choice(tuple(Compression))
    batch = bytearray(
        encode_batch(values, timestamps_ms=[NOW_MS + number for number in range(count)], compression=codec)
    )
    position, layout = rng.choice(((8, ">i"), (23, ">i"), (57, ">i"), (21, ">h"), (27, ">q"), (35, ">q"), (53, ">i")))
    lie = rng.choice((*_LIES, count - 1, count, count + 1, 2**62 if layout == ">q" else 3))
    bits = 8 * struct.calcsize(layout)
    struct.pack_into(layout, batch, position, (lie + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))
    if rng.random() < 0.4:
        batch[HEADER_SIZE:] = mutated(rng, bytes(batch[HEADER_SIZE:]))
    if rng.random() < 0.2:
        batch[22] = batch[22] & ~COMPRESSION_MASK | rng.randrange(8)  # another codec than it is, or none at all
    version = rng.randint(3, SERVED[0].versions.last)
    for item in _produced(with_crc(bytes(batch)), version).partitions:
        _append(item.records, version, rng)


def _produced(batch: bytes, version: int) -> KafkaProduceRequest:
    types = types_of("ProduceRequest")
    data = types["PartitionProduceData"](index=0, records=batch)
    topic = types["TopicProduceData"](name="t", partition_data=[data])
    chunks: list[Any] = [head(0, version, with_tags=is_flexible("ProduceRequest", version))]
    encoder("ProduceRequest", version)(types["ProduceRequest"](acks=-1, timeout_ms=5, topic_data=[topic]), chunks)
    decoded = CODEC.decode_request(memoryview(bytearray(b"".join(map(bytes, chunks)))))
    assert isinstance(decoded.payload, KafkaProduceRequest)
    return decoded.payload


def _append(records: Any, version: int, rng: Random) -> None:
    log = open_log(SimulatedDisk())
    append(log, b"before")
    end, size = log.log_end_offset, log.size_bytes
    try:
        check_produced(records, kafka_version=version)
        stored = recompressed(records, rng.choice(tuple(Compression)), RULES) if rng.random() < 0.4 else records
        log.append_as_leader(stored, leader_epoch=0, now_ms=NOW_MS)
    except BarnabasError:
        assert (log.log_end_offset, log.size_bytes) == (end, size)
        return
    assert len(read_all(log)) == log.size_bytes
    for read in (
        lambda: decode_columns(bytes(stored)),
        lambda: log.offset_for_timestamp(NOW_MS + 1),
        log.max_timestamp,
    ):
        try:
            read()
        except BarnabasError:
            pass


TARGETS: Final = (
    kafka_requests,
    kafka_strange_versions,
    kafka_lengths,
    kafka_arrays,
    kafka_batches,
)
