"""Avro and Protobuf values as columns: which types they have, what is refused, and what makes a value a bad one."""

import datetime
import json
import uuid
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.text_format import Parse
from pyspark.sql.pandas.types import to_arrow_type
from unit.net.client.serde.registry_stub import running_registry

from barnabas.net.client.connection.errors import SchemaNotFoundError, SchemaRegistryError
from barnabas.net.client.serde.framing import framed, message_path
from barnabas.net.client.serde.registry import RegistryAccess
from barnabas.spark_connector.pipeline.avro_values import AvroValues, latest_schema
from barnabas.spark_connector.pipeline.faults import PipelineFault
from barnabas.spark_connector.pipeline.protobuf_values import ProtobufValues
from barnabas.spark_connector.pipeline.schema_values import Schema, _read, _struct, decoded, reader_of

UTC = datetime.UTC
NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC)


def record(*fields: Any, name: str = "R", **more: Any) -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields], **more}
    )


def written(schema: str, row: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), row)
    return out.getvalue()


def in_arrow(values: AvroValues | ProtobufValues, data: bytes) -> Any:
    """As Spark's worker hands it on: what Arrow does not take as this type raises."""
    return pa.array([values.read(data)], to_arrow_type(values.type, timezone="UTC")).to_pylist()[0]


# --- avro -----------------------------------------------------------------------------------------------------------------

AVRO_TYPES = [
    ("boolean", "boolean", True, True),
    ("int", "int", -5, -5),
    ("long", "bigint", 2**62, 2**62),
    ("float", "float", 0.5, 0.5),
    ("double", "double", 0.1, 0.1),
    ("bytes", "binary", b"\x00\xff", b"\x00\xff"),
    ("string", "string", "naïve", "naïve"),
    ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "string", "Y", "Y"),
    ({"type": "array", "items": ["null", "long"]}, "array<bigint>", [1, None], [1, None]),
    ({"type": "array", "items": {"type": "map", "values": "int"}}, "array<map<string,int>>", [{"a": 1}], [[("a", 1)]]),
    (
        {"type": "array", "items": {"type": "string", "logicalType": "uuid"}},
        "array<string>",
        [uuid.UUID(int=7)],
        [str(uuid.UUID(int=7))],
    ),
    ({"type": "map", "values": "int"}, "map<string,int>", {"a": 1}, [("a", 1)]),
    (
        {"type": "map", "values": {"type": "string", "logicalType": "uuid"}},
        "map<string,string>",
        {"a": uuid.UUID(int=7)},
        [("a", str(uuid.UUID(int=7)))],
    ),
    (["null", "string"], "string", None, None),
    (["string", "null"], "string", "a", "a"),
    (["null", "int", "long"], "bigint", 2**40, 2**40),
    (["int", "float"], "double", 16_777_217, 16_777_217.0),
    ({"type": "int", "logicalType": "date"}, "date", datetime.date(1969, 12, 31), datetime.date(1969, 12, 31)),
    ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", NOON, NOON),
    ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", NOON, NOON),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp_ntz",
        NOON.replace(tzinfo=None),
        NOON.replace(tzinfo=None),
    ),
    ({"type": "long", "logicalType": "time-micros"}, "string", datetime.time(1, 2, 3), "01:02:03"),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "decimal(10,2)",
        Decimal("-5.50"),
        Decimal("-5.50"),
    ),
    ({"type": "string", "logicalType": "uuid"}, "string", uuid.UUID(int=7), str(uuid.UUID(int=7))),
    ({"type": "long", "logicalType": "of nobody"}, "bigint", 3, 3),
    (json.loads(record(("x", "int"), name="S")), "struct<x:int>", {"x": 1}, {"x": 1}),
]


@pytest.mark.parametrize(("kind", "column", "value", "found"), AVRO_TYPES)
def test_each_avro_type_is_a_column(kind: Any, column: str, value: Any, found: Any) -> None:
    schema = record(("a", kind))
    values = AvroValues(schema)
    assert values.type.simpleString() == f"struct<a:{column}>"
    assert in_arrow(values, written(schema, {"a": value})) == {"a": found}


def test_named_avro_types_are_used_again() -> None:
    point = {"type": "record", "name": "a.P", "fields": [{"name": "x", "type": "int"}]}
    schema = record(("from", point), ("to", ["null", "a.P"]), ("via", {"type": "array", "items": "a.P"}))
    values = AvroValues(schema)
    assert values.type.simpleString() == "struct<from:struct<x:int>,to:struct<x:int>,via:array<struct<x:int>>>"
    row = {"from": {"x": 1}, "to": None, "via": [{"x": 2}]}
    assert in_arrow(values, written(schema, row)) == row


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "the Avro schema cannot be used"),
        ('{"type": "record"}', "the Avro schema cannot be used"),
        ('"string"', "no record"),
        (record(("a", ["string", "int"])), r'R has the union \["string", "int"\]'),
        (record(("a", ["null"])), "which is no column"),
        (record(("next", ["null", "R"])), "R contains itself"),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0})),
            "39 digits; Spark has 38",
        ),
        (record(("a", {"type": "bytes", "logicalType": "decimal"})), "has no precision"),
        (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 0})), "has no precision"),
        (record(("a", "null")), "R has a type that is always null"),
        (record(("a", {"type": "null"})), "R has a type that is always null"),
        (record(("a", {"type": "array", "items": "null"})), "always null"),
        (record(("a", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})), "items take no bytes"),
        (record(("a", "R")), "R contains itself"),
    ],
)
def test_avro_schemas_that_cannot_be_columns_are_refused(schema: str, words: str) -> None:
    with pytest.raises(PipelineFault, match=words):
        AvroValues(schema)


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02a\x02", b"\xff" * 20])
def test_bytes_that_are_no_avro_are_bad_values(data: bytes) -> None:
    row, reason = _read(AvroValues(record(("a", "string"))).read, data)
    assert row is None and reason is not None and reason.startswith("the value does not fit its schema: ")


def test_a_registry_tells_how_a_value_was_written_and_the_own_schema_what_is_read() -> None:
    old, tree = record(("id", "int")), json.loads(record(("id", "long"), ("name", "string")))
    tree["fields"][1]["default"] = "?"
    new = json.dumps(tree)
    with running_registry() as registry:
        first = registry.register("orders-value", {"schema": old})
        second = registry.register("orders-value", {"schema": new})
        assert latest_schema(RegistryAccess(url=registry.url), "orders-value") == new
        values = AvroValues(new, RegistryAccess(url=registry.url))
        assert values.read(framed(first, written(old, {"id": 1}))) == {"id": 1, "name": "?"}
        assert values.read(framed(second, written(new, {"id": 2, "name": "a"}))) == {"id": 2, "name": "a"}
        asked = len(registry.requests)
        values.read(framed(first, written(old, {"id": 3})))
        assert len(registry.requests) == asked, "a schema is asked for once"
        assert (
            _read(values.read, framed(99, b""))[1]
            == "GET " + registry.url + "/schemas/ids/99: HTTP 404 Schema not found"
        )
        assert "too few for the id" in str(_read(values.read, b"\0")[1])
        with pytest.raises(SchemaNotFoundError):
            latest_schema(RegistryAccess(url=registry.url), "others-value")


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL_MILLIS = {"type": "long", "logicalType": "local-timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
TIME_MILLIS = {"type": "int", "logicalType": "time-millis"}
TIME_MICROS = {"type": "long", "logicalType": "time-micros"}
UUID_TEXT = {"type": "string", "logicalType": "uuid"}
NOON_MS = int(NOON.timestamp() * 1_000)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("long", MILLIS, NOON_MS, NOON),
        ("int", MILLIS, 1_500, datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        ("long", LOCAL_MILLIS, NOON_MS, NOON.replace(tzinfo=None)),
        ("long", MICROS, NOON_MS * 1_000, NOON),
        (MILLIS, MICROS, NOON, NOON),
        ("long", ["null", MILLIS], NOON_MS, NOON),
        ("int", DATE, 5, datetime.date(1970, 1, 6)),
        ("int", TIME_MILLIS, 3_723_000, "01:02:03"),
        ("long", TIME_MICROS, 3_723_000_000, "01:02:03"),
        (UUID_TEXT, "string", uuid.UUID(int=7), str(uuid.UUID(int=7))),
        ("bytes", DECIMAL, b"\xfe\x00", Decimal("-5.12")),
        (DECIMAL, {**DECIMAL, "precision": 6, "scale": 4}, Decimal("1.25"), Decimal("1.2500")),
    ],
)
def test_a_reader_schema_may_have_another_logical_type(writer: Any, reader: Any, value: Any, found: Any) -> None:
    old, new = record(("a", writer)), record(("a", reader))
    with running_registry() as registry:
        first = registry.register("a-value", {"schema": old})
        assert in_arrow(
            AvroValues(new, RegistryAccess(url=registry.url)), framed(first, written(old, {"a": value}))
        ) == {"a": found}


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        (MILLIS, NOON_MS, NOON),
        (DATE, 5, datetime.date(1970, 1, 6)),
        (TIME_MILLIS, 3_723_000, "01:02:03"),
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
        (DECIMAL, "\u0002\u0000", Decimal("5.12")),
        (["null", "string"], None, None),
        ({"type": "map", "values": MILLIS}, {"x": NOON_MS}, [("x", NOON)]),
        (
            {"type": "record", "name": "S", "fields": [{"name": "b", "type": MILLIS, "default": NOON_MS}]},
            {},
            {"b": NOON},
        ),
    ],
)
def test_defaults_are_of_their_type_as_written_values_are(kind: Any, default: Any, found: Any) -> None:
    old, tree = record(("id", "int")), json.loads(record(("a", kind)))
    tree["fields"][0]["default"] = default
    with running_registry() as registry:
        first = registry.register("a-value", {"schema": old})
        assert in_arrow(
            AvroValues(json.dumps(tree), RegistryAccess(url=registry.url)), framed(first, written(old, {"id": 1}))
        ) == {"a": found}


def test_a_time_beyond_the_day_is_a_bad_value() -> None:
    old, new = record(("a", "int")), record(("a", TIME_MILLIS))
    with running_registry() as registry:
        first = registry.register("a-value", {"schema": old})
        for value in (-1, 86_400_000):
            data = framed(first, written(old, {"a": value}))
            assert "is no time of day" in str(_read(AvroValues(new, RegistryAccess(url=registry.url)).read, data)[1])


def test_a_batch_may_have_numbers_and_times_for_one_column() -> None:
    old, new = record(("a", "long")), record(("a", MILLIS))
    with running_registry() as registry:
        first, second = (registry.register("a-value", {"schema": schema}) for schema in (old, new))
        values = AvroValues(new, RegistryAccess(url=registry.url))
        data = [framed(first, written(old, {"a": NOON_MS})), framed(second, written(new, {"a": NOON}))]
        rows = [values.read(one) for one in data]
        found = _struct([*rows, *reversed(rows)], [None] * 4, to_arrow_type(values.type, timezone="UTC")).to_pylist()
    assert found == [{"fields": {"a": NOON}, "reason": None}] * 4


def nested(kind: Any, levels: int) -> Any:
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


def test_types_within_one_another_are_limited() -> None:
    assert AvroValues(record(("a", nested("int", 60)))).type.simpleString().count("array") == 60
    with pytest.raises(PipelineFault, match="more than 64 types within one another"):
        AvroValues(record(("a", nested("int", 65))))


def test_a_value_of_another_format_of_the_registry_is_a_bad_one() -> None:
    with running_registry() as registry:
        first = registry.register("a-value", {"schema": record(("id", "int")), "schemaType": "JSON"})
        reason = _read(AvroValues(record(("id", "int")), RegistryAccess(url=registry.url)).read, framed(first, b"\2"))[
            1
        ]
    assert f"it was written with schema {first}, which is JSON, not AVRO" in str(reason)


def test_schemas_of_too_many_fields_are_refused() -> None:
    schema: Any = "int"
    for level in range(20):  # a million of columns, from twenty types
        first = {"name": "a", "type": schema}
        again = {"name": "b", "type": schema["name"] if level else "int"}
        schema = {"type": "record", "name": f"R{level}", "fields": [first, again]}
    with pytest.raises(PipelineFault, match="more than 10000 fields"):
        AvroValues(json.dumps(schema))


def test_a_registry_that_does_not_answer_makes_no_value_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.net.client.serde.registry.MAX_ATTEMPTS", 1)
    values = AvroValues(record(("id", "int")), RegistryAccess(url="http://127.0.0.1:9"))
    with pytest.raises(SchemaRegistryError):
        _read(values.read, framed(1, b"\2"))


def test_the_newest_schema_must_be_whole_and_of_avro() -> None:
    with running_registry() as registry:
        registry.register("a-value", {"schema": "{}", "schemaType": "JSON"})
        reference = {"name": "S", "subject": "s", "version": 1}
        registry.register("b-value", {"schema": record(("s", "S")), "references": [reference]})
        with pytest.raises(PipelineFault, match="is JSON, not AVRO"):
            latest_schema(RegistryAccess(url=registry.url), "a-value")
        with pytest.raises(PipelineFault, match="refers to S: give a whole reader schema"):
            latest_schema(RegistryAccess(url=registry.url), "b-value")


# --- protobuf -------------------------------------------------------------------------------------------------------------

FILE = Parse(
    """
    name: "shop.proto" package: "shop" syntax: "proto3"
    dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
    enum_type { name: "Kind" value { name: "NEW" number: 0 } value { name: "OLD" number: 1 } }
    message_type {
      name: "Order"
      field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      field { name: "small" number: 2 type: TYPE_UINT32 label: LABEL_OPTIONAL }
      field { name: "large" number: 3 type: TYPE_UINT64 label: LABEL_OPTIONAL }
      field { name: "kind" number: 4 type: TYPE_ENUM type_name: ".shop.Kind" label: LABEL_OPTIONAL }
      field { name: "tags" number: 5 type: TYPE_STRING label: LABEL_REPEATED }
      field { name: "raw" number: 6 type: TYPE_BYTES label: LABEL_OPTIONAL }
      field { name: "at" number: 7 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
      field { name: "rebate" number: 8 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" label: LABEL_OPTIONAL }
      field { name: "items" number: 9 type: TYPE_MESSAGE type_name: ".shop.Order.Item" label: LABEL_REPEATED }
      field { name: "counts" number: 10 type: TYPE_MESSAGE type_name: ".shop.Order.CountsEntry" label: LABEL_REPEATED }
      field { name: "note" number: 11 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 proto3_optional: true }
      nested_type { name: "Item" field { name: "price" number: 1 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
      nested_type {
        name: "CountsEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
      }
      oneof_decl { name: "_note" }
    }
    message_type {
      name: "Node" field { name: "next" number: 1 type: TYPE_MESSAGE type_name: ".shop.Node" label: LABEL_OPTIONAL }
    }
    message_type { name: "Nothing" }
    """,
    FileDescriptorProto(),
)


def descriptor_set(*, imports: bool = True) -> bytes:
    imported = []
    for module in (timestamp_pb2, wrappers_pb2) if imports else ():
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        imported.append(file)
    return bytes(FileDescriptorSet(file=[*imported, FILE]).SerializeToString())


def order(**fields: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptor_set()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)


def test_each_protobuf_type_is_a_column() -> None:
    values = ProtobufValues(descriptor_set(), "shop.Order")
    assert values.type.simpleString() == (
        "struct<id:bigint,small:bigint,large:decimal(20,0),kind:string,tags:array<string>,raw:binary,at:timestamp,"
        "rebate:bigint,items:array<struct<price:double>>,counts:map<string,int>,note:string>"
    )
    sent = order(id=-1, small=2**32 - 1, large=2**64 - 1, kind=1, tags=["a", "b"], raw=b"\xff", note="")
    sent.at.FromDatetime(NOON)
    sent.rebate.value = 0
    sent.items.add(price=0.5)
    sent.counts["x"] = 3
    assert in_arrow(values, sent.SerializeToString()) == {
        "id": -1,
        "small": 2**32 - 1,
        "large": Decimal(2**64 - 1),
        "kind": "OLD",
        "tags": ["a", "b"],
        "raw": b"\xff",
        "at": NOON,
        "rebate": 0,
        "items": [{"price": 0.5}],
        "counts": [("x", 3)],
        "note": "",
    }


def test_what_was_not_sent_is_null_where_presence_is_tracked() -> None:
    found = in_arrow(ProtobufValues(descriptor_set(), "shop.Order"), b"")
    assert {name for name, value in found.items() if value is None} == {"at", "rebate", "note"}
    assert (found["id"], found["kind"], found["tags"], found["raw"]) == (0, "NEW", [], b"")


def test_an_enum_value_of_a_newer_version_is_its_number() -> None:
    assert in_arrow(ProtobufValues(descriptor_set(), "shop.Order"), bytes([4 << 3, 7]))["kind"] == "7"


def test_values_of_confluents_serializers_have_the_place_of_their_message_in_front() -> None:
    values = ProtobufValues(descriptor_set(), "shop.Order", is_framed=True)
    data = order(id=7).SerializeToString()
    assert values.read(framed(1, message_path((0,)) + data))["id"] == 7
    assert values.read(framed(1, message_path((2, 1)) + data))["id"] == 7
    assert "was not written with a registry" in str(_read(values.read, data)[1])


@pytest.mark.parametrize("data", [b"\xff", b"\x0a", b"\x2a\x05ab"])
def test_bytes_that_are_no_protobuf_are_bad_values(data: bytes) -> None:
    row, reason = _read(ProtobufValues(descriptor_set(), "shop.Order").read, data)
    assert row is None and reason is not None and reason.startswith("the value does not fit its schema: ")


@pytest.mark.parametrize(
    ("content", "message", "words"),
    [
        (b"\xff", "shop.Order", "the descriptor set cannot be used"),
        (descriptor_set(imports=False), "shop.Order", "write it with protoc --include_imports"),
        (b"", "shop.Order", "it has no message"),
        (descriptor_set(), "Order", "no message 'Order': it has .*shop.Order, shop.Node, shop.Nothing"),
        (descriptor_set(), "shop.Node", "shop.Node contains itself"),
        (descriptor_set(), "google.protobuf.Timestamp", "is one value"),
        (descriptor_set(), "shop.Nothing", "no fields at all"),
    ],
)
def test_protobuf_schemas_that_cannot_be_columns_are_refused(content: bytes, message: str, words: str) -> None:
    with pytest.raises(PipelineFault, match=words):
        reader_of(Schema(content=content, format="protobuf", message=message))


ODD = Parse(
    """
    name: "odd.proto" package: "odd" syntax: "proto2"
    dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
    enum_type { name: "Kind" value { name: "NEW" number: 0 } value { name: "OLD" number: 2 } }
    message_type {
      name: "Odd"
      field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "must" number: 2 type: TYPE_INT32 label: LABEL_REQUIRED }
      field { name: "seven" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "7" }
      field { name: "at" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
      field { name: "group" number: 5 type: TYPE_GROUP type_name: ".odd.Odd.Group" label: LABEL_OPTIONAL }
      field { name: "from" number: 6 type: TYPE_INT32 label: LABEL_OPTIONAL }
      field { name: "sizes" number: 7 type: TYPE_MESSAGE type_name: ".google.protobuf.UInt64Value" label: LABEL_REPEATED }
      field { name: "times" number: 8 type: TYPE_MESSAGE type_name: ".odd.Odd.TimesEntry" label: LABEL_REPEATED }
      field { name: "kinds" number: 9 type: TYPE_MESSAGE type_name: ".odd.Odd.KindsEntry" label: LABEL_REPEATED }
      nested_type { name: "Group" field { name: "x" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }
      nested_type {
        name: "TimesEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
      }
      nested_type {
        name: "KindsEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
        field { name: "value" number: 2 type: TYPE_ENUM type_name: ".odd.Kind" label: LABEL_OPTIONAL }
      }
      extension_range { start: 100 end: 200 }
    }
    """,
    FileDescriptorProto(),
)


def odd() -> ProtobufValues:
    files = [*FileDescriptorSet.FromString(descriptor_set()).file[:2], ODD]
    return ProtobufValues(FileDescriptorSet(file=files).SerializeToString(), "odd.Odd")


@pytest.mark.parametrize(
    ("data", "name", "found"),
    [
        (b"", "must", None),
        (b"", "seven", None),
        (b"\x2b\x08\x05\x2c", "group", {"x": 5}),
        (b"\x30\x03", "from", 3),
        (b"\xa0\x06\x01", "text", None),  # an extension
        (b"\x3a\x00\x3a\x02\x08\x05", "sizes", [Decimal(0), Decimal(5)]),
        (b"\x42\x07\x0a\x01a\x12\x02\x08\x05", "times", [("a", datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC))]),
        (b"\x42\x03\x0a\x01a" * 2, "times", [("a", datetime.datetime(1970, 1, 1, tzinfo=UTC))]),
        (b"\x4a\x04\x08\x05\x10\x02", "kinds", [(Decimal(5), "OLD")]),
    ],
)
def test_older_and_rarer_parts_of_protobuf(data: bytes, name: str, found: Any) -> None:
    assert in_arrow(odd(), data)[name] == found


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\x02\xff\xfe", "was not a utf8 string"),  # which proto2 lets pass
        (b"\x22\x0a\x08\x80\x80\x80\x80\x80\x80\x80\x80\x40", "Timestamp is not valid"),
        (b"\x22\x08\x08\x05\x10\x80\xa8\xd6\xb9\x07", "Timestamp is not valid"),
    ],
)
def test_odd_contents_are_bad_values(data: bytes, words: str) -> None:
    values = odd()
    row, reason = _read(values.read, data)
    found = _struct([row], [reason], to_arrow_type(values.type, timezone="UTC")).to_pylist()[0]
    assert found["fields"] is None and words in found["reason"]


def test_messages_within_one_another_are_limited() -> None:
    file = FileDescriptorProto(name="deep.proto", syntax="proto3")
    for level in range(66):
        field = file.message_type.add(name=f"M{level}").field.add(
            name="a", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL"
        )
        if level:
            field.type, field.type_name = field.TYPE_MESSAGE, f".M{level - 1}"
    files = FileDescriptorSet(file=[file]).SerializeToString()
    assert ProtobufValues(files, "M63").type.simpleString().count("struct") == 64
    with pytest.raises(PipelineFault, match="more than 64 messages within one another"):
        ProtobufValues(files, "M64")


def test_messages_of_too_many_fields_are_refused() -> None:
    file = FileDescriptorProto(name="wide.proto", syntax="proto3")
    for level in range(20):
        made = file.message_type.add(name=f"M{level}")
        for number, name in enumerate("ab", 1):
            field = made.field.add(name=name, number=number, type="TYPE_INT32", label="LABEL_OPTIONAL")
            if level:
                field.type, field.type_name = field.TYPE_MESSAGE, f".M{level - 1}"
    with pytest.raises(PipelineFault, match="more than 10000 fields"):
        ProtobufValues(FileDescriptorSet(file=[file]).SerializeToString(), "M19")


# --- both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (record(("a", "int"), ("A", "int")), "has a twice"),
        (
            record(("s", {"type": "array", "items": json.loads(record(("b", "int"), ("B", "int"), name="S"))})),
            "s.b twice",
        ),
        (
            record(("s", {"type": "map", "values": json.loads(record(("b", "int"), ("B", "int"), name="S"))})),
            "s.b twice",
        ),
        (record(("record_offset", "int")), "the name of a column that each row has anyway"),
        (record(("s", json.loads(record(name="S")))), "no fields in s"),
    ],
)
def test_columns_that_spark_could_not_tell_apart_are_refused(schema: str, words: str) -> None:
    with pytest.raises(PipelineFault, match=words):
        reader_of(Schema(content=schema.encode()))


def test_a_value_that_arrow_refuses_is_a_bad_one_and_the_others_are_read() -> None:
    arrow = pa.struct([("a", pa.int32())])
    reasons: list[str | None] = [None, None, "known", None]
    found = _struct([{"a": 1}, {"a": 2**40}, None, {"a": 3}], reasons, arrow).to_pylist()
    assert [row["fields"] for row in found] == [{"a": 1}, None, None, {"a": 3}]
    assert [row["reason"] is None for row in found] == [True, False, False, True]
    assert found[1]["reason"].startswith("the value does not fit its schema: ") and found[2]["reason"] == "known"


def test_a_reason_is_short_whatever_an_error_quotes() -> None:
    def read(data: bytes) -> dict[str, Any]:
        raise ValueError("x" * 1_000_000)

    assert len(_read(read, b"")[1] or "") < 300


def test_a_required_field_that_the_schema_lacks_is_told() -> None:
    with pytest.raises(
        PipelineFault, match=r"required has 'amont', which is no field of the schema \(did you mean amount"
    ):
        decoded(None, Schema(content=record(("amount", "int")).encode()), ("amont",))  # type: ignore[arg-type]  # refused before
