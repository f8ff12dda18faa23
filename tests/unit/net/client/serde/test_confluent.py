"""Confluent's own serializers write and read what ours read and write, with one registry for both."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, duration_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st
from unit.net.client.serde.registry_stub import RegistryStub

from barnabas import Avro, JsonSchema, Protobuf, SchemaRegistry
from barnabas.net.client.connection.errors import DeserializationError, InvalidConfigError, SerializationError
from barnabas.net.client.connection.records import consumer_record
from barnabas.net.client.serde.framing import HEAD_SIZE, MAX_MESSAGE_DEPTH, framed, message_path, read_message_path
from barnabas.net.client.serde.reading import Decoders
from barnabas.net.client.serde.serdes import SchemaNotLoaded
from barnabas.net.client.serde.writing import Encoders

TOPIC = "orders"
CONTEXT = SerializationContext(TOPIC, MessageField.VALUE)
AVRO = (
    '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "number", "type": "long"},'
    ' {"name": "note", "type": ["null", "string"], "default": null},'
    ' {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0}]}'
)
OLDER = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "number", "type": "int"}]}'
JSON = (
    '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",'
    ' "properties": {"number": {"type": "integer"}}, "required": ["number"]}'
)


@pytest.fixture
def theirs(stub: RegistryStub) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": stub.url})
    yield client
    client.close()


async def written(serializer: Any, data: Any) -> bytes:
    encoders = Encoders.of(None, serializer)
    assert encoders is not None
    value, _ = await encoders.record(TOPIC, data, None)
    assert isinstance(value, bytes)
    return value


async def read(deserializer: Any, data: bytes) -> Any:
    decoders = Decoders.of(None, deserializer)
    assert decoders is not None
    for _ in range(5):
        try:
            return decoders.record(consumer_record(TOPIC, 3, 17, 0, None, data)).value
        except SchemaNotLoaded as missing:
            await missing.load()
    raise AssertionError("it is never loaded")


async def test_avro(stub: RegistryStub, theirs: SchemaRegistryClient) -> None:
    write = AvroSerializer(theirs, AVRO, conf={"normalize.schemas": False})
    order = {"number": 2**40, "note": "five pears", "day": None}
    order.pop("day")
    foreign = write(order, CONTEXT)
    ours = Avro(SchemaRegistry(stub.url), AVRO)
    mine = await written(ours, order)
    assert mine[HEAD_SIZE:] == foreign[HEAD_SIZE:] and mine[0] == 0
    expected = AvroDeserializer(theirs)(mine, CONTEXT)
    assert expected == await read(Avro(SchemaRegistry(stub.url)), foreign) == await read(ours, mine)
    assert str(expected["day"]) == "1970-01-01"


async def test_avro_resolves_what_an_older_schema_wrote(stub: RegistryStub, theirs: SchemaRegistryClient) -> None:
    old = AvroSerializer(theirs, OLDER)({"number": 5}, CONTEXT)
    assert await read(Avro(SchemaRegistry(stub.url)), old) == {"number": 5}
    found = await read(Avro(SchemaRegistry(stub.url), AVRO), old)
    assert found["number"] == 5 and found["note"] is None
    assert found == AvroDeserializer(theirs, AVRO)(old, CONTEXT)


@pytest.mark.parametrize("schema", ['"bytes"', '{"type": "bytes"}', '{"type": "bytes", "logicalType": "new"}'])
@pytest.mark.parametrize("data", [b"\x00", b"\x06abc", b"\xff" * 2_000], ids=len)
async def test_bytes_as_a_whole_have_no_length(
    stub: RegistryStub, theirs: SchemaRegistryClient, schema: str, data: bytes
) -> None:
    foreign = AvroSerializer(theirs, schema)(data, CONTEXT)
    ours = Avro(SchemaRegistry(stub.url), schema)
    assert (await written(ours, data))[HEAD_SIZE:] == foreign[HEAD_SIZE:] == data
    assert AvroDeserializer(theirs)(foreign, CONTEXT) == data
    assert data == await read(ours, foreign) == await read(Avro(SchemaRegistry(stub.url)), foreign)


async def test_json_schema(stub: RegistryStub, theirs: SchemaRegistryClient) -> None:
    foreign = JSONSerializer(JSON, theirs)({"number": 5}, CONTEXT)
    ours = JsonSchema(SchemaRegistry(stub.url), schema=JSON)
    mine = await written(ours, {"number": 5})
    assert JSONDeserializer(JSON)(mine, CONTEXT) == {"number": 5} == await read(ours, foreign)
    with pytest.raises(SerializationError, match=r"\$.number: 'x' is not of type 'integer'"):
        await written(ours, {"number": "x"})
    with pytest.raises(DeserializationError, match=r"\$: 'number' is a required property"):
        await read(ours, framed(1, b"{}"))


@pytest.mark.parametrize(
    "message",
    [
        FileDescriptorProto(name="orders.proto", message_type=[DescriptorProto(name="Order")]),
        DescriptorProto.ExtensionRange(start=5, end=7),  # a nested message
        duration_pb2.Duration(seconds=5),
    ],
)
async def test_protobuf(stub: RegistryStub, theirs: SchemaRegistryClient, message: Any) -> None:
    kind = type(message)
    foreign = ProtobufSerializer(kind, theirs, {"use.deprecated.format": False})(message, CONTEXT)
    ours = Protobuf(SchemaRegistry(stub.url), kind)
    mine = await written(ours, message)
    assert mine == foreign
    assert await read(ours, foreign) == message
    assert ProtobufDeserializer(kind, {"use.deprecated.format": False})(mine, CONTEXT) == message


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes are too few for the id of a schema"),
        (b'{"number": 5}', "the first byte is 123, not 0: it was not written with a registry"),
        (framed(77, b"\x0a"), "HTTP 404 Schema not found"),
        (framed(1, b""), "cannot be read"),
        (framed(1, b"\x0a\x00\x00junk"), "4 bytes are left behind the data"),
        (framed(2, b"{}"), "written with schema 2, which is JSON, not AVRO"),
        (framed(3, b"{}"), "an Avro schema that cannot be used"),
    ],
)
async def test_foreign_bytes_are_bad_records_with_their_place(stub: RegistryStub, data: bytes, told: str) -> None:
    stub.register("orders-value", {"schema": AVRO})
    stub.register("orders-value", {"schema": JSON, "schemaType": "JSON"})
    stub.register("orders-value", {"schema": '{"type": "recor"}'})
    with pytest.raises(DeserializationError, match=told) as caught:
        await read(Avro(SchemaRegistry(stub.url)), data)
    assert (caught.value.partition, caught.value.offset, caught.value.part) == ((TOPIC, 3), 17, "value")


async def test_what_does_not_fit_a_schema_is_not_sent(stub: RegistryStub) -> None:
    registry = SchemaRegistry(stub.url)
    with pytest.raises(SerializationError, match="value of a record for topic 'orders' cannot be written"):
        await written(Avro(registry, AVRO), {"number": "five"})
    with pytest.raises(SerializationError, match="must be a Duration, not dict"):
        await written(Protobuf(registry, duration_pb2.Duration), {})
    with pytest.raises(InvalidConfigError, match=r"Avro needs a schema to write"):
        await written(Avro(registry), {})
    with pytest.raises(InvalidConfigError, match="the Avro schema cannot be used"):
        Avro(registry, '{"type": "recor"}')
    with pytest.raises(InvalidConfigError, match="the JSON schema cannot be used"):
        JsonSchema(registry, schema='{"type": 5}')
    with pytest.raises(InvalidConfigError, match="not a class that protoc has generated"):
        Protobuf(registry, dict)


@pytest.mark.parametrize(
    ("subject", "told"),
    [("topic", "orders-value"), ("record", "shop.Order"), ("topic-record", "orders-shop.Order"), (lambda *a: "x", "x")],
)
async def test_subjects(stub: RegistryStub, subject: Any, told: str) -> None:
    await written(Avro(SchemaRegistry(stub.url), AVRO, subject=subject), {"number": 1})
    assert list(stub.subjects) == [told]
    with pytest.raises(InvalidConfigError, match="must be one of topic, record, topic-record"):
        Avro(SchemaRegistry(stub.url), AVRO, subject="y")


async def test_a_file_that_a_message_imports_is_registered_first(
    stub: RegistryStub, theirs: SchemaRegistryClient
) -> None:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    inner = descriptor_pb2.FileDescriptorProto(name="inner.proto", package="p", syntax="proto3")
    inner.message_type.add(name="Inner").field.add(name="n", number=1, type=5, label=1)
    outer = descriptor_pb2.FileDescriptorProto(
        name="outer.proto", package="p", syntax="proto3", dependency=["inner.proto"]
    )
    outer.message_type.add(name="First")
    outer.message_type.add(name="Outer").field.add(name="i", number=1, type=11, type_name=".p.Inner", label=1)
    pool.Add(inner)
    pool.Add(outer)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Outer"))
    message = kind()
    message.i.n = 5  # type: ignore[attr-defined]
    mine = await written(Protobuf(SchemaRegistry(stub.url), kind), message)
    assert mine == ProtobufSerializer(kind, theirs, {"use.deprecated.format": False})(message, CONTEXT)
    assert stub.schemas[2]["references"] == [{"name": "inner.proto", "subject": "inner.proto", "version": 1}]


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=MAX_MESSAGE_DEPTH))
def test_paths_of_messages_come_back(indexes: list[int]) -> None:
    encoded = message_path(tuple(indexes))
    assert read_message_path(b"x" + encoded + b"rest", 1) == (tuple(indexes), 1 + len(encoded))


@given(st.binary(max_size=12))
def test_any_bytes_are_a_path_or_an_error(data: bytes) -> None:
    try:
        indexes, at = read_message_path(data, 0)
    except ValueError:
        return
    assert len(indexes) <= MAX_MESSAGE_DEPTH and at <= len(data)
