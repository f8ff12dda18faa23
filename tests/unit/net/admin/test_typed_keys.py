"""Keys that people type as JSON, and the bytes that serializers with a schema registry write for them."""

import json
import time as time_zones
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from unit.net.admin.test_decoding import a_file, field, registered, rows
from unit.net.client.serde.registry_stub import RegistryStub, running_registry

from barnabas.net.admin.console.decoding import Decoding
from barnabas.net.admin.frame.errors import ApiError
from barnabas.net.client.serde.avro_format import Avro
from barnabas.net.client.serde.framing import framed
from barnabas.net.client.serde.registry import SchemaRegistry
from barnabas.net.client.serde.serdes import Part, SchemaNotLoaded


@pytest.fixture
def registry() -> Iterator[RegistryStub]:
    with running_registry() as stub:
        yield stub


async def written(serializer: Any, key: Any) -> bytes:
    """As a producer writes it; its schema is registered."""
    while True:
        try:
            return bytes(serializer.serialize(key, "t", Part.KEY))
        except SchemaNotLoaded as missing:
            await missing.load()


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Key", "fields": [{"name": name, "type": kind} for name, kind in fields], **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


CASES: list[tuple[Any, Any]] = [
    ("string", "pear"),
    ("long", -5),
    ("boolean", True),
    ("double", 1.5),
    ("bytes", b"\0\xff"),
    ({"type": "bytes"}, b"\4ab"),
    (["null", "long", "string"], "5"),
    (["null", "long", "string"], 5),
    (["null", "long", "string"], None),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "int"}, {"a": 1}),
    (record(("customer", "string"), ("number", "long")), {"customer": "Müller", "number": 7}),
    (record(("of", record(("n", "int"), name="Inner")), ("again", "Inner")), {"of": {"n": 1}, "again": {"n": 2}}),
    (logical("long", "timestamp-millis"), datetime(2026, 11, 29, 12, 30, tzinfo=UTC)),
    (logical("int", "date"), date(2026, 11, 29)),
    (logical("int", "time-millis"), time(12, 30)),
    (logical("bytes", "decimal", precision=9, scale=2), Decimal("12.50")),
    (["null", logical("bytes", "decimal", precision=9, scale=2)], Decimal("-0.05")),
    ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.50")),
    (["null", logical("long", "timestamp-micros"), "string"], datetime(2026, 11, 29, 12, 30, 1, 5, tzinfo=UTC)),
    (logical("long", "local-timestamp-millis"), datetime(2026, 11, 29, 12, 30)),
    (["null", {"type": "array", "items": ["null", "int"]}, "bytes"], [1, None]),
    (["null", {"type": "map", "values": "int"}, record(("a", "int"))], {"a": 1}),
    ([record(("a", "int"), name="n.One"), record(("a", "string"), name="n.Two")], {"a": "x"}),
    (
        record(("one", record(("a", "int"), name="n.One")), ("other", ["null", "n.One"])),
        {"one": {"a": 1}, "other": {"a": 2}},
    ),
    (
        ["null", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "fixed", "name": "F", "size": 3}],
        b"\0\xff\1",
    ),
    (["int", "float", "double"], 1.1),
    (logical("string", "date"), "2026-11-29"),
    (logical("long", "date"), 5),
    (logical("string", "decimal"), "5"),
    (logical("bytes", "of-a-newer-version"), b"\1"),
    (logical("string", "uuid"), "5a8a1f3e-93d5-4b43-a3b1-7a3a0c1c1d53"),
]


@pytest.mark.parametrize(("schema", "key"), CASES, ids=str)
async def test_what_the_console_shows_of_a_key_is_found_when_it_is_typed(
    registry: RegistryStub, schema: Any, key: Any
) -> None:
    data = await written(Avro(SchemaRegistry(registry.url), json.dumps(schema)), key)
    decoding = Decoding(registry.url)
    (row,) = rows(b"")
    row["value"] = {"size": len(data), "base64": b64encode(data).decode()}
    await decoding.fill("t", [row])
    typed = json.dumps(row["value"]["decoded"])
    assert await decoding.encode_key("t", typed) == (1, data)


async def test_the_newest_schema_of_the_keys_counts_and_fields_may_have_defaults(registry: RegistryStub) -> None:
    registry.register("t-key", {"schema": '"string"'})
    newest = record(("a", "string"))
    newest["fields"].append({"name": "b", "type": "int", "default": 3})
    registry.register("t-key", {"schema": json.dumps(newest)})
    assert await Decoding(registry.url).encode_key("t", '{"a": "x"}') == (2, b"\0\0\0\0\2\2x\6")


async def test_a_schema_that_refers_to_others(registry: RegistryStub) -> None:
    registry.register("inner", {"schema": json.dumps(record(("n", "int"), name="Inner"))})
    reference = {"name": "Inner", "subject": "inner", "version": 1}
    registry.register("t-key", {"schema": json.dumps(record(("of", "Inner"))), "references": [reference]})
    assert await Decoding(registry.url).encode_key("t", '{"of": {"n": 1}}') == (2, b"\0\0\0\0\2\2")


async def test_the_first_message_of_a_protobuf_file(registry: RegistryStub) -> None:
    text = FieldDescriptorProto.TYPE_STRING
    messages = [DescriptorProto(name=name, field=[field("name", 1, text)]) for name in ("Key", "Other")]
    schema_id = registered(registry, "t-key", a_file("keys", *messages))
    decoding = Decoding(registry.url)
    assert await decoding.encode_key("t", '{"name": "x"}') == (schema_id, framed(schema_id, b"\0\n\1x"))
    for typed, told in (('{"nam": "x"}', 'no field named "nam"'), ('"x"', "must be an object")):
        with pytest.raises(ApiError, match=told):
            await decoding.encode_key("t", typed)


async def test_a_built_in_file_of_protobuf_that_imports_others(registry: RegistryStub) -> None:
    kind = field("of", 1, FieldDescriptorProto.TYPE_MESSAGE, type_name=".google.protobuf.Type")
    file = a_file("keys", DescriptorProto(name="Key", field=[kind]), imports=("google/protobuf/type.proto",))
    schema_id = registered(registry, "t-key", file)
    expected = framed(schema_id, b"\0\n\3\n\1x")
    assert await Decoding(registry.url).encode_key("t", '{"of": {"name": "x"}}') == (schema_id, expected)


@pytest.mark.parametrize(
    ("schema", "text", "told"),
    [
        ("string", "pear", 'text needs quotes: "pear"'),
        ("string", "[" * 40, "more than 32 objects"),
        pytest.param("string", '["]\\"]", ' * 40, "more than 32 objects", id="ends of lists in strings"),
        pytest.param(
            "string", '{"[[[[": ' * 32 + "1" + "}" * 32, "must be of type string, not an object", id="begins in names"
        ),
        ("string", f'"{"x" * 20_000}"', "more than 16384 characters"),
        ("string", "5", "the key must be of type string, not 5"),
        ("long", "true", "must be of type long, not true"),
        ("long", str(2**63), "must be of type long"),
        ("bytes", '"+"', "must be bytes as base64"),
        (record(("a", "string"), ("b", "int")), '{"c": 1}', "Key has no field c and needs a, b"),
        (record(("a", {"type": "array", "items": "int"})), '{"a": [1, "x"]}', r"the key\.a\[1\] must be of type int"),
        (record(("a", "string")), '"x"', "must be an object with the fields of Key"),
        (["null", {"type": "array", "items": "int"}], '{"a": 1}', "none of the 2 types"),
        ({"type": "array", "items": "int"}, '{"a": 1}', "must be of type array, not an object"),
        (logical("int", "time-millis"), '"12:30+02:00"', "must be a time-millis as ISO 8601 without a zone"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, '"B"', 'must be of type enum, not "B"'),
        (["null", "int"], '"x"', "none of the 2 types"),
        (logical("int", "date"), '"soon"', "must be a date as ISO 8601"),
        ({"type": "array", "items": "null"}, "[]", "takes? no bytes"),
    ],
)
async def test_a_key_that_does_not_fit_its_schema_says_where(
    registry: RegistryStub, schema: Any, text: str, told: str
) -> None:
    registry.register("t-key", {"schema": json.dumps(schema)})
    with pytest.raises(ApiError, match=told) as error:
        await Decoding(registry.url).encode_key("t", text)
    assert error.value.status == 400


async def test_defaults_are_written_as_serializers_write_them(registry: RegistryStub) -> None:
    inner = record(("a", "int"), ("b", ["null", "string"]), name="Inner")
    inner["fields"][1]["default"] = None
    schema = record(
        ("id", "int"), ("of", inner), ("some", {"type": "array", "items": "Inner"}), ("any", ["Inner", "null"])
    )
    for at, default in ((1, {"a": 3}), (2, [{"a": 4, "b": None}]), (3, {"a": 5})):
        schema["fields"][at]["default"] = default
    expected = await written(Avro(SchemaRegistry(registry.url), json.dumps(schema)), {"id": 1})
    assert await Decoding(registry.url).encode_key("t", '{"id": 1}') == (1, expected)


async def test_a_default_of_bytes_has_one_for_each_character(registry: RegistryStub) -> None:
    schema = record(("a", "bytes"))
    schema["fields"][0]["default"] = "\u00ff"
    registry.register("t-key", {"schema": json.dumps(schema)})
    assert await Decoding(registry.url).encode_key("t", "{}") == (1, framed(1, b"\2\xff"))


@pytest.mark.parametrize("exponent", ["10000", "999999999"])
async def test_an_exponent_makes_no_number_that_is_larger_than_its_schema_allows(
    registry: RegistryStub, exponent: str
) -> None:
    """A power of ten with a billion digits keeps the whole process busy for hours."""
    for place, precision in enumerate((9, 2_000_000_000)):
        schema = logical("bytes", "decimal", precision=precision, scale=2)
        registry.register(f"{place}-key", {"schema": json.dumps(schema)})
        for text in (f"1E{exponent}", f"0E{exponent}", "NaN", "-Infinity"):
            with pytest.raises(ApiError, match="must be a decimal, not"):
                await Decoding(registry.url).encode_key(str(place), json.dumps(text))


async def test_what_is_no_decimal_may_be_another_type_of_a_union(registry: RegistryStub) -> None:
    registry.register("t-key", {"schema": json.dumps([logical("bytes", "decimal", precision=9), "string"])})
    assert await Decoding(registry.url).encode_key("t", '"NaN"') == (1, framed(1, b"\2\6NaN"))


async def test_a_timestamp_without_a_zone_is_one_of_utc_on_every_machine(
    registry: RegistryStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("t-key", {"schema": json.dumps(logical("long", "timestamp-millis"))})
    monkeypatch.setenv("TZ", "America/New_York")
    time_zones.tzset()
    try:
        keys = [
            (await Decoding(registry.url).encode_key("t", f'"2026-11-29T{told}"'))[1]
            for told in ("12:30:00", "12:30:00Z", "14:30:00+02:00")
        ]
    finally:
        monkeypatch.undo()
        time_zones.tzset()
    assert len(set(keys)) == 1


async def test_a_default_that_contains_itself_is_told(registry: RegistryStub) -> None:
    """In compiled code it would end the process."""
    schema = record(("s", "string"), ("next", ["Key", "null"]))
    for item, default in zip(schema["fields"], ("", {}), strict=True):
        item["default"] = default
    registry.register("t-key", {"schema": json.dumps(schema)})
    with pytest.raises(ApiError, match="defaults, are too deep in one another"):
        await Decoding(registry.url).encode_key("t", "{}")


async def test_defaults_within_one_another_are_bounded(registry: RegistryStub) -> None:
    schema: Any = record(("s", "string"), name="R0")
    schema["fields"][0]["default"] = ""
    for number in range(1, 24):
        schema = record(("a", schema), ("b", f"R{number - 1}"), name=f"R{number}")
        for item in schema["fields"]:
            item["default"] = {}
    registry.register("t-key", {"schema": json.dumps(schema)})
    with pytest.raises(ApiError, match="more than 10000 values of its schema"):
        await Decoding(registry.url).encode_key("t", "{}")


async def test_a_list_of_an_enum_with_very_many_symbols_is_bounded(registry: RegistryStub) -> None:
    """fastavro checks each symbol again for each value."""
    symbols = [f"S{number}" for number in range(100_000)]
    registry.register(
        "t-key", {"schema": json.dumps({"type": "array", "items": {"type": "enum", "name": "E", "symbols": symbols}})}
    )
    decoding = Decoding(registry.url)
    assert await decoding.encode_key("t", '["S99999"]') == (1, framed(1, b"\2\xbe\x9a\x0c\0"))
    with pytest.raises(ApiError, match="more than 10000 values of its schema"):
        await decoding.encode_key("t", json.dumps(["S99999"] * 20))


async def test_a_large_default_in_many_records_makes_no_large_key(registry: RegistryStub) -> None:
    schema = record(("s", "string"))
    schema["fields"][0]["default"] = "x" * 100_000
    registry.register("t-key", {"schema": json.dumps({"type": "array", "items": schema})})
    with pytest.raises(ApiError, match="more than 262144 bytes"):
        await Decoding(registry.url).encode_key("t", "[{}, {}, {}]")


async def test_a_type_that_was_found_in_unions_is_not_looked_for_again(registry: RegistryStub) -> None:
    """fastavro tries all types of a union, also when the first one fits: 4 ** 30 ways."""
    wrong = record(("n", ["B0", "B1", "B2", "string"]), name="B2")
    wrong = record(("n", ["B0", record(("n", ["B0", "B1", wrong, "string"]), name="B1"), "string"]), name="B0")
    schemas = [record(("n", ["A", "int"]), name="A"), wrong, "B1", "B2"]
    registry.register("t-key", {"schema": json.dumps(schemas)})
    tree: Any = 5
    for _ in range(30):
        tree = {"n": tree}
    expected = framed(1, b"\0" * 30 + b"\2\n")
    assert await Decoding(registry.url).encode_key("t", json.dumps(tree)) == (1, expected)


def twice(depth: int) -> Any:
    """A union of two records, both of which have a union of two records, and so on: 2 ** depth ways to read a key."""
    if depth == 0:
        return "int"
    names = [f"A{depth - 1}", f"B{depth - 1}"] if depth > 1 else "int"
    return [record(("next", twice(depth - 1)), name=f"A{depth}"), record(("next", names), name=f"B{depth}")]


async def test_unions_in_unions_are_tried_within_a_limit(registry: RegistryStub) -> None:
    registry.register("t-key", {"schema": json.dumps(twice(16))})
    tree: Any = "x"
    for _ in range(16):
        tree = {"next": tree}
    with pytest.raises(ApiError, match="more than 10000 values of its schema must be tried"):
        await Decoding(registry.url).encode_key("t", json.dumps(tree))


async def test_what_the_registry_lacks_is_told_with_the_cure(
    registry: RegistryStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Decoding(registry.url)
    with pytest.raises(ApiError, match="no subject t-key: look for keys without a schema by key"):
        await decoding.encode_key("t", "1")
    registry.register("t-key", {"schema": "{}", "schemaType": "JSON"})
    with pytest.raises(ApiError, match="it is JSON, where one key has several forms"):
        await decoding.encode_key("t", "1")
    with pytest.raises(ApiError, match=r"set admin\.schema\.registry\.url"):
        await Decoding("").encode_key("t", "1")
    monkeypatch.setattr("barnabas.net.admin.console.decoding.REGISTRY_S", 0.1)
    registry.shut()
    with pytest.raises(ApiError, match="does not answer within"):
        await decoding.encode_key("t", "1")
    registry.open()
