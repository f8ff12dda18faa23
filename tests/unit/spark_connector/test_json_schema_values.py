"""Values with a JSON Schema as columns: which types they have, what is refused, and what makes a value a bad one."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from unit.net.client.serde.registry_stub import RegistryStub, running_registry

from barnabas.net.client.connection.errors import SchemaNotFoundError
from barnabas.net.client.serde.framing import framed
from barnabas.net.client.serde.registry import RegistryAccess
from barnabas.spark_connector.pipeline.avro_values import latest_schema
from barnabas.spark_connector.pipeline.faults import PipelineFault
from barnabas.spark_connector.pipeline.json_schema_values import MAX_DEPTH, JsonSchemaValues
from barnabas.spark_connector.pipeline.schema_values import Schema, reader_of


def of(**properties: Any) -> str:
    return json.dumps({"type": "object", "properties": properties})


def found(values: JsonSchemaValues, value: Any) -> Any:
    """As Spark's worker hands it on: what Arrow does not take as this type raises."""
    row = values.read(json.dumps(value).encode())
    return pa.array([row], to_arrow_type(values.type, timezone="UTC")).to_pylist()[0]


TYPES = [
    ({"type": "boolean"}, "boolean", True, True),
    ({"type": "integer"}, "bigint", 2**62, 2**62),
    ({"type": "integer"}, "bigint", 5.0, 5),
    ({"type": "number"}, "double", 5, 5.0),
    ({"type": "number"}, "double", 0.1, 0.1),
    ({"type": "string"}, "string", "naïve", "naïve"),
    ({"type": "string", "format": "date"}, "string", "2026-01-02", "2026-01-02"),
    ({"type": ["null", "string"]}, "string", None, None),
    ({"type": ["integer", "number", "null"]}, "double", 1, 1.0),
    ({"type": ["integer", "string"]}, "string", "a", '"a"'),
    ({"enum": ["X", "Y", None]}, "string", "Y", "Y"),
    ({"const": 3}, "bigint", 3, 3),
    ({"enum": ["X", 1]}, "string", 1, "1"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "bigint", None, None),
    ({"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}]}, "array<bigint>", [1], [1]),
    ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "double", 7, 7.0),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "string", "a", '"a"'),
    ({"allOf": [{"$ref": "#/definitions/Point"}]}, "struct<x:bigint>", {"x": 1}, {"x": 1}),
    ({"$ref": "#/definitions/Point"}, "struct<x:bigint>", {"x": 1, "more": 2}, {"x": 1}),
    ({"type": "array", "items": {"type": ["string", "null"]}}, "array<string>", ["a", None], ["a", None]),
    ({"type": "array"}, "array<string>", [{"a": 1}, "b"], ['{"a":1}', '"b"']),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>", {"a": 1}, [("a", 1)]),
    ({"type": "object"}, "string", {"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
    ({"properties": {"x": {"type": "number"}}}, "struct<x:double>", {}, {"x": None}),
    ({}, "string", [1], "[1]"),
    (True, "string", None, None),
]


@pytest.mark.parametrize(("kind", "column", "value", "read"), TYPES)
def test_each_type_is_a_column(kind: Any, column: str, value: Any, read: Any) -> None:
    tree = json.loads(of(a=kind))
    tree["definitions"] = {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    values = JsonSchemaValues(json.dumps(tree))
    assert values.type.simpleString() == f"struct<a:{column}>"
    assert found(values, {"a": value}) == {"a": read}


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "the JSON schema cannot be used"),
        ('{"type": "objekt"}', "the JSON schema cannot be used: 'objekt'"),
        ('{"type": "string"}', "describes no object with properties"),
        ("true", "describes no object with properties"),
        (of(next={"$ref": "#"}), "the JSON schema of next contains itself"),
        (of(a={"$ref": "#/definitions/X"}), "refers to #/definitions/X, which is not in it"),
        (of(a={"$ref": "http://127.0.0.1:9/x.json"}), "refers to http://127.0.0.1:9/x.json, which is not in it"),
        (of(a={"$ref": "file:///etc/passwd"}), "refers to file:///etc/passwd, which is not in it"),
        (of(a=deep(MAX_DEPTH)), f"more than {MAX_DEPTH} schemas"),
        (of(**{f"f{number}": {} for number in range(10_001)}), "more than 10000 fields"),
        (of(a={}, A={}), "has A twice|has a twice"),
        (of(record_topic={}), "the field record_topic, the name of a column"),
    ],
)
def test_schemas_that_are_refused(schema: str, words: str) -> None:
    with pytest.raises(PipelineFault, match=words):
        reader_of(Schema(content=schema.encode(), format="json_schema"))


def test_a_schema_in_another_encoding_is_refused() -> None:
    with pytest.raises(PipelineFault, match="no UTF-8 text"):
        reader_of(Schema(content=of(a={}).encode("utf-16"), format="json_schema"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no JSON", "malformed"),
        (b"\xff", "malformed|Invalid|invalid"),
        (b'{"id": "x"}', r"\$\.id: 'x' is not of type 'integer'"),
        (b"{}", "'id' is a required property"),
        (b"[]", "not of type 'object'"),
        (b'{"id": 1} {"id": 2}', "trailing"),
        (b'{"id": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    ],
)
def test_values_that_do_not_fit(data: bytes, words: str) -> None:
    tree = {**json.loads(of(id={"type": "integer"}, a={})), "required": ["id"]}
    with pytest.raises(Exception, match=words):
        JsonSchemaValues(json.dumps(tree)).read(data)


# --- with a registry ------------------------------------------------------------------------------------------------------


def registered(registry: RegistryStub, schema: str, subject: str = "t-value", **more: Any) -> int:
    return registry.register(subject, {"schema": schema, "schemaType": "JSON", **more})


def encoded(schema_id: int, value: Any) -> bytes:
    return framed(schema_id, json.dumps(value).encode())


def test_each_value_is_checked_against_the_schema_that_it_was_written_with() -> None:
    """The reader's schema is closed, so a field that a newer program adds would make each of its records a bad one."""
    old = json.dumps({**json.loads(of(id={"type": "integer"})), "additionalProperties": False})
    new = of(id={"type": "integer", "minimum": 10}, name={"type": "string"})
    with running_registry() as registry:
        first, second = registered(registry, old), registered(registry, new)
        values = JsonSchemaValues(old, RegistryAccess(url=registry.url))
        assert values.read(encoded(second, {"id": 12, "name": "x"})) == {"id": 12}
        assert values.read(encoded(first, {"id": 1})) == {"id": 1}
        with pytest.raises(ValueError, match="less than the minimum"):
            values.read(encoded(second, {"id": 1}))
        with pytest.raises(ValueError, match="Additional properties"):
            values.read(encoded(first, {"id": 12, "name": "x"}))
        with pytest.raises(ValueError, match="not 0: it was not written with a registry"):
            values.read(b'{"id": 12}')
        with pytest.raises(SchemaNotFoundError):
            values.read(encoded(77, {"id": 12}))


@pytest.mark.parametrize(
    ("written_as", "value", "words"),
    [
        ({"type": "string"}, "x", 'a is "x", which is no integer'),
        ({"type": "number"}, 1.5, "a is 1.5, which is no integer"),
        ({"type": "boolean"}, True, "a is true, which is no integer"),
    ],
)
def test_a_field_of_another_type_in_a_newer_schema_makes_a_bad_value(written_as: Any, value: Any, words: str) -> None:
    with running_registry() as registry:
        newer = registered(registry, of(a=written_as))
        values = JsonSchemaValues(of(a={"type": "integer"}), RegistryAccess(url=registry.url))
        with pytest.raises(ValueError, match=words):
            values.read(encoded(newer, {"a": value}))


def test_references_are_those_of_the_registry_and_no_address_is_read() -> None:
    shared = {"$id": "http://shop/point.json", **json.loads(of(x={"type": "integer"}))}
    outer = json.dumps({"$id": "http://shop/order.json", **json.loads(of(at={"$ref": "point.json"}))})
    with running_registry() as registry:
        registered(registry, json.dumps(shared), "point")
        reference = {"name": "point.json", "subject": "point", "version": 1}
        good = registered(registry, outer, references=[reference])
        values = JsonSchemaValues(of(at=json.loads(of(x={}))), RegistryAccess(url=registry.url))
        assert values.read(encoded(good, {"at": {"x": 1}})) == {"at": {"x": "1"}}
        with pytest.raises(ValueError, match="not of type 'integer'"):
            values.read(encoded(good, {"at": {"x": "no"}}))
        before = len(registry.requests)
        bad = registered(registry, of(at={"$ref": f"{registry.url}/secret"}))
        with pytest.raises(Exception, match="Unresolvable"):
            values.read(encoded(bad, {"at": 1}))
        assert [path for _, path in registry.requests[before:]] == [f"/schemas/ids/{bad}"]


def test_schemas_of_another_kind() -> None:
    with running_registry() as registry:
        avro = registry.register("t-value", {"schema": '{"type": "record", "name": "R", "fields": []}'})
        access = RegistryAccess(url=registry.url)
        with pytest.raises(ValueError, match="which is AVRO, not JSON"):
            JsonSchemaValues(of(a={}), access).read(encoded(avro, {"a": 1}))
        with pytest.raises(PipelineFault, match="is AVRO, not JSON"):
            latest_schema(access, "t-value", "JSON")
        broken = registered(registry, '{"type": 5}')
        with pytest.raises(ValueError, match="the registry has a JSON schema that cannot be used"):
            JsonSchemaValues(of(a={}), access).read(encoded(broken, {"a": 1}))
