"""The compiled codec of Kafka's messages: every message in every version, against itself and against two other codecs."""

import importlib
import pkgutil
import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import kafka.protocol
import pytest
from kafka.protocol.api_message import ApiMessage
from kio.serial import entity_reader, entity_writer
from unit.net.protocol.random_messages import RandomMessages, plain

from barnabas.net.base.limits import MAX_DATA_ITEMS, MAX_WIDE_ITEMS
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.primitives import read_uvarint, uvarint
from barnabas.net.wire.protocol.kafka.schema import Versions, messages

EVERY_VERSION = [
    (name, version)
    for name, message in sorted(messages().items())
    for version in range(message.versions.first, message.versions.last + 1)
]
ROUNDS = 5
BAD_INPUT = (ValueError, IndexError, struct.error)


def test_every_message_in_every_version_comes_back_as_it_went() -> None:
    made = RandomMessages(1)
    for name, version in EVERY_VERSION:
        for _ in range(ROUNDS):
            message = made.message(name, version)
            chunks: list[Any] = []
            encoder(name, version)(message, chunks)
            raw = b"".join(chunks)
            back, end = decoder(name, version)(memoryview(raw), 0)
            assert end == len(raw), f"{name} v{version}"
            assert plain(back) == plain(message), f"{name} v{version}"


def kafka_python_classes() -> dict[str, Any]:
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "stubs" not in module.name:
            importlib.import_module(module.name)

    def below(cls: Any) -> Iterator[Any]:
        for sub in cls.__subclasses__():
            yield sub
            yield from below(sub)

    return {cls.name: cls for cls in below(ApiMessage) if cls._class_version is None and getattr(cls, "_json", None)}


def test_kafka_python_writes_the_same_bytes() -> None:
    classes = kafka_python_classes()
    made, compared = RandomMessages(2), 0
    for name, version in EVERY_VERSION:
        # Its ApiVersionsResponse reads and writes version 0 where the error is not 0.
        if name not in classes or name == "ApiVersionsResponse":
            continue
        for _ in range(ROUNDS):
            raw = made.encoded(name, version)
            theirs = classes[name][version].decode(raw, version=version, header=False)
            theirs._header = None
            assert bytes(theirs.encode(version=version, header=False)) == raw, f"{name} v{version}"
            compared += 1
    assert compared > 2_000


class _Buffer(bytearray):
    """What kio writes to."""

    def write(self, data: bytes) -> None:
        self += data


@pytest.mark.parametrize("name", ["ConsumerGroupHeartbeat", "ConsumerGroupDescribe"])
@pytest.mark.parametrize("kind", ["Request", "Response"])
@pytest.mark.parametrize("version", [0, 1])
def test_kio_writes_the_same_bytes_where_kafka_python_has_no_message(name: str, kind: str, version: int) -> None:
    folder = {"ConsumerGroupHeartbeat": "consumer_group_heartbeat", "ConsumerGroupDescribe": "consumer_group_describe"}
    module = importlib.import_module(f"kio.schema.{folder[name]}.v{version}.{kind.lower()}")
    entity = getattr(module, name + kind)
    made = RandomMessages(3)
    for _ in range(50):
        message = without_what_kio_refuses(made.message(name + kind, version))
        chunks: list[Any] = []
        encoder(name + kind, version)(message, chunks)
        raw = b"".join(chunks)
        theirs, size = entity_reader(entity)(raw, 0)
        assert size == len(raw)
        buffer = _Buffer()
        entity_writer(entity)(buffer, theirs)
        assert bytes(buffer) == raw


def without_what_kio_refuses(message: Any) -> Any:
    """It knows error codes only, and takes times for what a datetime can hold."""
    for name in message.__slots__:
        value = getattr(message, name)
        if name == "error_code":
            message.error_code = 0
        elif name.endswith("_ms"):
            setattr(message, name, abs(value) % 1_000_000)
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "__slots__") and not isinstance(item, uuid.UUID):
                without_what_kio_refuses(item)
    return message


def test_records_are_neither_copied_in_nor_out() -> None:
    types = types_of("ProduceRequest")
    records = bytearray(b"batch" * 100)
    partition = types["PartitionProduceData"](index=3, records=memoryview(records))
    topic = types["TopicProduceData"](name="t", partition_data=[partition])
    chunks: list[Any] = []
    encoder("ProduceRequest", 9)(types["ProduceRequest"](acks=-1, timeout_ms=5, topic_data=[topic]), chunks)
    assert any(isinstance(chunk, memoryview) and chunk.obj is records for chunk in chunks)
    frame = bytearray(b"".join(chunks))
    back, _ = decoder("ProduceRequest", 9)(memoryview(frame), 0)
    view = back.topic_data[0].partition_data[0].records
    assert view.obj is frame
    assert view == records


def test_unknown_tagged_fields_are_passed_over() -> None:
    chunks: list[Any] = []
    encoder("HeartbeatRequest", 4)(types_of("HeartbeatRequest")["HeartbeatRequest"](group_id="g"), chunks)
    raw = b"".join(chunks)
    assert raw.endswith(b"\0")
    with_tags = raw[:-1] + b"\x02" + b"\x05\x03abc" + uvarint(1_000) + b"\x00"
    back, end = decoder("HeartbeatRequest", 4)(memoryview(with_tags), 0)
    assert (back.group_id, end) == ("g", len(with_tags))


def test_forged_lengths_are_refused_before_anything_is_made() -> None:
    many = struct.pack(">hih", -1, 5, -1)  # v3 of Produce: no transactional id ... and so on
    for tail in (struct.pack(">i", 2**31 - 1), struct.pack(">i", -5), b"\xff" * 12):
        with pytest.raises(BAD_INPUT):
            decoder("ProduceRequest", 3)(memoryview(many + tail), 0)
    with pytest.raises(ValueError, match="five bytes"):
        read_uvarint(memoryview(b"\xff" * 11), 0)


def test_items_without_end_are_refused_before_they_are_made() -> None:
    """Each of these is two bytes and honest, and would be an object of more than a hundred."""
    for count, is_taken in ((MAX_WIDE_ITEMS, True), (MAX_WIDE_ITEMS + 1, False)):
        frame = memoryview(uvarint(count + 1) + b"\x01\x00" * count + b"\x01\x01\x01\x00")
        if is_taken:
            assert len(decoder("MetadataRequest", 9)(frame, 0)[0].topics) == count
        else:
            with pytest.raises(ValueError, match=str(MAX_WIDE_ITEMS)):
                decoder("MetadataRequest", 9)(frame, 0)
    begin = struct.pack(">hhiih", -1, 1, 1_000, 1, 1) + b"t"
    for count, is_taken in ((MAX_DATA_ITEMS - 1, True), (MAX_DATA_ITEMS, False)):
        frame = memoryview(begin + struct.pack(">i", count) + struct.pack(">ii", 0, 0) * count)
        if is_taken:
            assert len(decoder("ProduceRequest", 3)(frame, 0)[0].topic_data[0].partition_data) == count
        else:
            with pytest.raises(ValueError, match=str(MAX_DATA_ITEMS)):
                decoder("ProduceRequest", 3)(frame, 0)
    frame = memoryview(b"\x02g" + uvarint(MAX_DATA_ITEMS + 2) + b"\x01\x01\x00" * (MAX_DATA_ITEMS + 1))
    with pytest.raises(ValueError, match=f"more than {MAX_DATA_ITEMS} items"):
        decoder("OffsetFetchRequest", 6)(frame, 0)


def test_mutated_messages_are_read_or_refused_and_nothing_else() -> None:
    made, draw = RandomMessages(4), random.Random(5)
    requests = [(name, version) for name, version in EVERY_VERSION if name.endswith("Request")]
    for name, version in requests * 10:
        raw = bytearray(made.encoded(name, version))
        for _ in range(draw.randint(1, 4)):
            if raw:
                raw[draw.randrange(len(raw))] = draw.randrange(256)
        cut = raw[: draw.randint(0, len(raw))]
        for data in (raw, cut):
            try:
                decoder(name, version)(memoryview(data), 0)
            except BAD_INPUT:
                pass


def test_versions_are_read_as_kafka_writes_them() -> None:
    assert 3 in Versions.parse("3")
    assert 4 not in Versions.parse("3")
    assert 30_000 in Versions.parse("4+")
    assert 3 not in Versions.parse("4+")
    assert 2 in Versions.parse("0-2")
    assert 0 not in Versions.parse("none")
    assert 0 not in Versions.parse(None)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31 - 1, 2**32 - 1])
def test_varints_come_back(value: int) -> None:
    raw = uvarint(value)
    assert read_uvarint(memoryview(raw), 0) == (value, len(raw))
