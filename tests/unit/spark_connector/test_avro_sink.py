"""The schema that a sink of Avro makes from columns, and rows as Avro takes them."""

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from unit.net.client.serde.registry_stub import running_registry

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.client.connection.errors import SchemaRegistryError
from barnabas.net.client.serde.registry import AUTHORITIES, TOKEN, USER_INFO, RegistryAccess, registry_access
from barnabas.spark_connector.pipeline.avro_sink import _with_maps, check_schema, record_name, register, schema_of
from barnabas.spark_connector.pipeline.faults import PipelineFault

COUNTS = MapType(StringType(), IntegerType())


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


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
        check_schema(access, '"int"')
        assert not registry.requests
        register(access, '"int"', "orders")
        assert list(registry.subjects) == ["orders-value"]
        with pytest.raises(SchemaRegistryError, match="refuses this user"):
            register(RegistryAccess(url=registry.url), '"long"', "orders")
    with pytest.raises(PipelineFault, match="sink.schema: the Avro schema cannot be used"):
        check_schema(access, "{}")


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
