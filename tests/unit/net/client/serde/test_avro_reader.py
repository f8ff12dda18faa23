"""Avro of strangers: data and schemas that would make a reader endless, or end its process."""

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest

from barnabas.net.client.serde.avro_format import MAX_COMPILED_BYTES, Avro, AvroReader
from barnabas.net.client.serde.framing import framed
from barnabas.net.client.serde.registry import Schema, SchemaRegistry
from barnabas.net.client.serde.serdes import Part

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
FLAT = {"type": "record", "name": "Node", "fields": [{"name": "id", "type": "int"}]}
EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}


def of(schema: Any) -> AvroReader:
    named: dict[str, Any] = {}
    return AvroReader(fastavro.parse_schema(schema, named_schemas=named), named)


def chain(length: int) -> bytes:
    return b"\x02\x02" * (length - 1) + b"\x02\x00"


@pytest.mark.parametrize("reader", [None, FLAT])
def test_records_within_one_another_without_end_are_an_error(reader: Any) -> None:
    """The compiled reader would overflow the stack, which ends the process."""
    parsed = None if reader is None else fastavro.parse_schema(reader)
    for length in (MAX_COMPILED_BYTES, 1_000_000):
        with pytest.raises(RecursionError):
            of(NODE).read(chain(length), 0, parsed)


def test_trees_of_usual_depth_are_read_whatever_their_size() -> None:
    tree = {
        **NODE,
        "fields": [{"name": "name", "type": "string"}, {"name": "nodes", "type": {"type": "array", "items": "Node"}}],
    }
    row: Any = {"name": "leaf", "nodes": []}
    for _ in range(30):
        row = {"name": "x" * MAX_COMPILED_BYTES, "nodes": [row, {"name": "", "nodes": []}]}
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(tree), row)
    assert of(tree).read(b"head" + out.getvalue(), 4) == row
    assert of(NODE).read(chain(3), 0) == {"id": 1, "next": {"id": 1, "next": {"id": 1, "next": None}}}


@pytest.mark.parametrize("data", [chain(2) + b"\x00", chain(MAX_COMPILED_BYTES // 10) + bytes(MAX_COMPILED_BYTES)])
def test_bytes_behind_the_data_are_an_error_for_both_readers(data: bytes) -> None:
    with pytest.raises(ValueError, match="bytes are left behind the data"):
        of(NODE).read(data, 0)


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "null"}, {"type": "fixed", "name": "F", "size": 0}, EMPTY, {**EMPTY, "fields": []}],
)
def test_arrays_whose_items_take_no_bytes_are_refused(items: Any) -> None:
    schema = {
        **FLAT,
        "fields": [{"name": "a", "type": ["null", {"type": "map", "values": {"type": "array", "items": items}}]}],
    }
    with pytest.raises(ValueError, match="items take no bytes"):
        of(schema)


def test_arrays_of_named_types_without_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="items take no bytes"):
        of({**FLAT, "fields": [{"name": "e", "type": EMPTY}, {"name": "a", "type": {"type": "array", "items": "E"}}]})


def doubling(kind: Any, levels: int) -> Any:
    """Each record has the one before it twice."""
    for level in range(levels):
        again = f"R{level - 1}" if level else kind
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    return kind


def test_records_without_bytes_that_would_take_for_ever_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no bytes and has more than 10000 values"):
        of(doubling("null", 100))
    assert of(doubling("null", 2)).read(b"", 0) == {"a": {"a": None, "b": None}, "b": {"a": None, "b": None}}
    with pytest.raises(EOFError):
        of(doubling("int", 100)).read(b"\x02" * 50, 0)


@pytest.mark.parametrize("is_union", [False, True])
def test_values_without_bytes_beside_one_with_a_byte_are_limited(is_union: bool) -> None:
    """600 bytes took 200 MB: each byte of an array stood for 10,000 values."""
    empty = {"type": "record", "name": "Z", "fields": [{"name": f"n{i}", "type": "null"} for i in range(60)]}
    fields = [{"name": "flag", "type": "boolean"}, {"name": "z", "type": empty}, {"name": "again", "type": "Z"}]
    many = {**empty, "fields": [{"name": f"n{i}", "type": "null"} for i in range(101)]}
    item: Any = ["null", many] if is_union else {**FLAT, "fields": fields}
    with pytest.raises(ValueError, match="more than 100 values that take no bytes"):
        of({"type": "array", "items": item})
    few = {**FLAT, "fields": [fields[0], {"name": "z", "type": EMPTY}]}
    assert of({"type": "array", "items": few}).read(b"\x02\x01\x00", 0) == [{"flag": True, "z": {"n": None}}]


@pytest.mark.parametrize("items", [["null", "int"], "string", FLAT, {"type": "enum", "name": "X", "symbols": ["A"]}])
def test_other_arrays_are_not(items: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    with pytest.raises(EOFError):
        of(schema).read(b"\x80\x80\x80\x80\x80\x80\x80\x01", 0)  # an array of 2**48 items that are not there


@pytest.mark.parametrize("name", ["Node", "Other"])
def test_a_record_that_always_contains_another_one_is_refused(name: str) -> None:
    other = {"type": "record", "name": "Other", "fields": [{"name": "back", "type": "Node"}]}
    inner: Any = "Node" if name == "Node" else other
    with pytest.raises(ValueError, match="each Node contains another one, without end"):
        of({**FLAT, "fields": [{"name": "next", "type": inner}]})


def test_a_deserializer_reads_what_a_registry_says_in_that_way() -> None:

    registry = SchemaRegistry("http://registry.invalid")
    empty = {**FLAT, "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    registry._schemas = {1: Schema(text=json.dumps(NODE)), 2: Schema(text=json.dumps(empty))}
    with pytest.raises(RecursionError):
        Avro(registry).deserialize(framed(1, chain(1_000_000)), "t", Part.VALUE)
    with pytest.raises(ValueError, match="the registry has an Avro schema that cannot be used: an array's items"):
        Avro(registry).deserialize(framed(2, b"\x00"), "t", Part.VALUE)
