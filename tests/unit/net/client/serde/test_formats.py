"""Formats without a registry, and what the options of clients accept as one."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from barnabas import Json, Text
from barnabas.net.client.connection.errors import InvalidConfigError, SerializationError
from barnabas.net.client.serde.models import json_schema_of
from barnabas.net.client.serde.serdes import Part, deserializer_of, serializer_of
from barnabas.net.client.serde.writing import Encoders


@dataclass
class Order:
    number: int
    amount: Decimal
    at: datetime
    tags: list[str]


class Struct(msgspec.Struct):
    number: int
    note: str = "none"


class Typed(TypedDict):
    number: int


class Model(pydantic.BaseModel):
    number: int
    at: datetime


NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ORDER = Order(7, Decimal("1.10"), NOON, ["a", "b"])


def through(model: Any, data: Any) -> Any:
    written = Json().serialize(data, "t", Part.VALUE)
    assert isinstance(written, bytes)
    return Json(model).deserialize(written, "t", Part.VALUE)


def test_json_keeps_instances_of_every_kind_of_class() -> None:
    assert through(Order, ORDER) == ORDER
    assert through(Struct, Struct(3)) == Struct(3, "none")
    assert through(Typed, {"number": 3, "other": 1}) == {"number": 3}
    assert through(Model, Model(number=1, at=NOON)) == Model(number=1, at=NOON)
    assert through(list[Struct], [Struct(1)]) == [Struct(1)]
    assert through(None, {"a": [1, None, "ü"], "id": UUID(int=5)}) == {"a": [1, None, "ü"], "id": str(UUID(int=5))}
    assert through(None, [Model(number=1, at=NOON)]) == [{"number": 1, "at": "2026-05-04T12:00:00Z"}]


@pytest.mark.parametrize(
    ("model", "data", "told"),
    [
        (Struct, b'{"number": "3"}', "Expected `int`, got `str` - at `\\$.number`"),
        (Struct, b"{}", "missing required field `number`"),
        (Model, b'{"number": 1}', "Field required"),
        (None, b"{", "truncated"),
        (None, b"", "truncated"),
        (Order, b"\xff", "malformed"),
    ],
)
def test_json_refuses_what_does_not_fit_and_says_where(model: Any, data: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Json(model).deserialize(data, "t", Part.VALUE)


def test_objects_that_json_does_not_have_are_refused_before_anything_is_sent() -> None:
    encoders = Encoders.of(None, Json())
    assert encoders is not None
    with pytest.raises(SerializationError, match=r"value of a record for topic 't' cannot be written: .*type Encoders"):
        encoders.now("t", {"a": encoders}, None)


def test_text_takes_strings_only() -> None:
    assert Text("latin-1").serialize("ü", "t", Part.KEY) == b"\xfc"
    assert Text().deserialize("ü".encode(), "t", Part.KEY) == "ü"
    with pytest.raises(TypeError, match="needs a str, not bytes"):
        Text().serialize(b"x", "t", Part.KEY)
    with pytest.raises(UnicodeDecodeError):
        Text().deserialize(b"\xff", "t", Part.KEY)
    with pytest.raises(LookupError):
        Text("utf-99")


def test_functions_names_and_formats_are_accepted() -> None:
    assert Encoders.of(None, None) is None and Encoders.of("bytes", None) is None
    encoders = Encoders.of("text", lambda value: str(value).encode())
    assert encoders is not None
    assert encoders.now("t", 5, "k") == (b"5", b"k")
    assert encoders.now("t", None, None) == (None, None)  # A tombstone stays one.
    reader = deserializer_of(int, "value_deserializer")
    assert reader is not None and reader.deserialize(b"12", "t", Part.VALUE) == 12
    named = deserializer_of("json", "value_deserializer")
    assert named is not None and named.deserialize(b"[1]", "t", Part.VALUE) == [1]


def test_a_function_that_returns_no_bytes_is_refused() -> None:
    encoders = Encoders.of(None, lambda value: str(value))  # type: ignore[arg-type, return-value]
    assert encoders is not None
    with pytest.raises(SerializationError, match="returned str for a value, not bytes"):
        encoders.now("t", 5, None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("avro", 'use "json", "text", "bytes"'),
        (Order, r"the class Order: for JSON of this class, pass barnabas.Json\(Order\)"),
        (5, "is a int; it must be a format"),
    ],
)
def test_other_things_are_refused_with_what_to_pass(given: Any, told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        serializer_of(given, "value_serializer")
    with pytest.raises(InvalidConfigError, match=told):
        deserializer_of(given, "value_deserializer")


def test_the_json_schema_of_a_class_stands_alone() -> None:
    schema = json_schema_of(Struct)
    assert schema["title"] == "Struct" and schema["required"] == ["number"] and "$ref" not in schema
    assert json_schema_of(Model)["properties"]["number"] == {"title": "Number", "type": "integer"}

    nested = json_schema_of(list[Struct])
    assert nested["items"] == {"$ref": "#/$defs/Struct"} and nested["$defs"]["Struct"]["title"] == "Struct"
