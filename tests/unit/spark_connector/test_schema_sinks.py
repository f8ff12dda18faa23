"""The schemas that a sink makes from columns, and rows as Avro, Protobuf and JSON Schema take them."""

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import jsonschema
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from unit.net.client.serde.registry_stub import running_registry
from unit.spark_connector.test_schema_values import NOON, descriptor_set, in_arrow

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.client.connection.errors import SchemaRegistryError
from barnabas.net.client.serde.registry import AUTHORITIES, TOKEN, USER_INFO, RegistryAccess, registry_access
from barnabas.spark_connector.pipeline.faults import PipelineFault
from barnabas.spark_connector.pipeline.protobuf_values import ProtobufRows, ProtobufValues
from barnabas.spark_connector.pipeline.schema_sinks import (
    _with_maps,
    check_columns,
    check_schema,
    json_schema_of,
    record_name,
    register,
    schema_of,
)
from barnabas.spark_connector.pipeline.schema_values import Schema

COUNTS = MapType(StringType(), IntegerType())


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def avro(text: str) -> Schema:
    return Schema(format="avro", content=text.encode())


def test_columns_become_fields_that_may_be_null() -> None:
    tags = ArrayType(columns(a=IntegerType()))
    kind = columns(id=LongType(), amount=DecimalType(9, 2), day=DateType(), tags=tags)
    made = json.loads(schema_of(kind, "orders"))
    types = {field["name"]: field["type"] for field in made["fields"]}
    assert types["id"] == ["null", "long"] and all(field["default"] is None for field in made["fields"])
    assert types["amount"][1] == {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    assert types["day"][1] == {"type": "int", "logicalType": "date"}
    assert types["tags"][1]["items"][1]["name"] == "orders_tags"
    fastavro.parse_schema(made)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (columns(**{"a-b": IntegerType()}), "the column a-b has no name that Avro takes: rename it in the last step"),
        (columns(a=DayTimeIntervalType()), "t_a is interval day to second, which Avro does not have"),
        (
            columns(a=MapType(IntegerType(), IntegerType())),
            "t_a is map<int,int>, which Avro does not have: convert it in the last step",
        ),
    ],
)
def test_columns_that_avro_does_not_have(found: StructType, words: str) -> None:
    with pytest.raises(PipelineFault) as caught:
        schema_of(found, "t")
    assert words in str(caught.value)


def test_the_record_has_a_name_from_its_topic() -> None:
    assert [record_name(topic) for topic in ("orders", "shop.orders-v1", "2024")] == [
        "orders",
        "shop_orders_v1",
        "_2024",
    ]


def test_maps_at_any_depth_become_dicts() -> None:
    kind = columns(a=MapType(StringType(), ArrayType(COUNTS)), b=columns(c=COUNTS), d=IntegerType())
    given: dict[str, Any] = {"a": [("x", [[("y", 1)], None])], "b": {"c": [("z", None)]}, "d": 4}
    found = _with_maps(kind)(given)
    assert found == {"a": {"x": [{"y": 1}, None]}, "b": {"c": {"z": None}}, "d": 4}
    assert _with_maps(kind)({"a": None, "b": None, "d": None}) == {"a": None, "b": None, "d": None}
    fastavro.schemaless_writer(BytesIO(), json.loads(schema_of(kind, "t")), found)


def test_a_schema_is_checked_without_the_registry_and_registered_with_its_login() -> None:
    with running_registry() as registry:
        registry.wanted_authorization = "Bearer t"
        access = RegistryAccess(url=registry.url, token="t")
        check_schema(access, avro('"int"'), columns())
        assert not registry.requests
        register(access, avro('"int"'), "orders")
        assert list(registry.subjects) == ["orders-value"]
        with pytest.raises(SchemaRegistryError, match="refuses this user"):
            register(RegistryAccess(url=registry.url), avro('"long"'), "orders")
    with pytest.raises(PipelineFault, match="sink.schema: the Avro schema cannot be used"):
        check_schema(access, avro("{}"), columns())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schema.registry.basic.auth.userinfo": "a:b"}, "did you mean schema.registry.basic.auth.user.info"),
        ({USER_INFO: "a:b", TOKEN: "t"}, "two logins"),
        ({USER_INFO: "ab"}, "must be USER:PASSWORD"),
        ({AUTHORITIES: "/none.pem"}, "has no certificates in PEM that can be read"),
        ({AUTHORITIES: __file__}, "has no certificates in PEM that can be read"),
    ],
)
def test_logins_that_cannot_be_used(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        registry_access("http://registry", {**given, "ssl.truststore.location": "of the brokers"})
    assert words in str(caught.value) and "a:b" not in str(caught.value)


def test_the_schema_of_json_is_closed_and_takes_what_to_json_writes() -> None:
    kind = columns(id=LongType(), day=DateType(), price=DoubleType(), tags=ArrayType(StringType()), counts=COUNTS)
    schema = json.loads(json_schema_of(kind, "orders"))
    jsonschema.Draft7Validator.check_schema(schema)
    check = jsonschema.Draft7Validator(schema)
    row = {"id": 1, "day": "2026-01-02", "price": 0.5, "tags": ["a", None], "counts": {"x": None, "y": 1}}
    assert check.is_valid(row) and check.is_valid({}), "to_json leaves out what is null"
    for wrong in ({"id": "1"}, {"id": 1.5}, {"other": 1}, {"tags": [1]}, {"counts": {"x": "y"}}):
        assert not check.is_valid(wrong), wrong


def test_a_row_becomes_a_message_and_comes_back_as_it_was() -> None:
    rows, values = ProtobufRows(descriptor_set(), "shop.Order"), ProtobufValues(descriptor_set(), "shop.Order")
    given: dict[str, Any] = {
        "id": -1,
        "small": 2**32 - 1,
        "large": Decimal(2**64 - 1),
        "kind": "OLD",
        "tags": ["a", "b"],
        "raw": b"\xff",
        "at": NOON,
        "rebate": 0,
        "items": [{"price": 0.5}, {"price": None}],
        "counts": [("x", 3)],
        "note": "",
    }
    found = in_arrow(values, rows.made(given).SerializeToString())
    assert found == given | {"items": [{"price": 0.5}, {"price": 0.0}]}
    nothing = in_arrow(values, rows.made(dict.fromkeys(given)).SerializeToString())
    assert (nothing["at"], nothing["rebate"], nothing["note"], nothing["id"]) == (None, None, None, 0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"kind": "ODD"}, "'ODD' is no value of shop.Kind, which has NEW, OLD"),
        ({"tags": ["a", None]}, "the list tags has a null"),
        ({"counts": [("x", None)]}, "the map has no value for 'x'"),
        ({"small": 2**32}, "out of range"),
    ],
)
def test_rows_that_do_not_fit_a_message(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ProtobufRows(descriptor_set(), "shop.Order").made(row)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (columns(nots=StringType()), "the column nots is no field of the Protobuf message .did you mean note"),
        (columns(id=StringType()), "the column id is string, and the field of the Protobuf message is bigint: CAST it"),
        (columns(items=ArrayType(columns(prise=DoubleType()))), "the column items.prise is no field"),
        (columns(large=DecimalType(9, 2)), r"the column large is decimal\(9,2\), and the field"),
        (
            columns(tags=StringType()),
            "the column tags is string, and the field of the Protobuf message is array<string>",
        ),
    ],
)
def test_columns_that_a_message_does_not_have(found: StructType, words: str) -> None:
    message = ProtobufRows(descriptor_set(), "shop.Order").type
    check_columns(columns(id=IntegerType(), large=LongType(), note=StringType(), counts=COUNTS), message, "")
    with pytest.raises(PipelineFault, match=words):
        check_columns(found, message, "")


def test_a_schema_in_another_encoding_is_refused() -> None:
    """It was an error that could pass, so the driver was started again and again."""
    schema = Schema(format="avro", content='{"type": "string"}'.encode("utf-16"))
    with pytest.raises(PipelineFault, match=r"sink\.schema: the schema is no UTF-8 text"):
        check_schema(RegistryAccess(url="http://registry"), schema, columns(id=LongType()))
