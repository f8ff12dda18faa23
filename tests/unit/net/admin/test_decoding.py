"""Records that were written with a schema registry, over HTTP."""

import json
import tracemalloc
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from unit.net.admin.fake_broker import FakeBroker
from unit.net.client.serde.registry_stub import RegistryStub, running_registry

from barnabas.net.admin.app import build_app
from barnabas.net.admin.console import decoding
from barnabas.net.client.serde.framing import framed, message_path

TAIL = "/v3/clusters/c1/topics/t/partitions/0/records?decode="
HttpClient = TestClient[Any, Any]


@pytest.fixture
def registry() -> Iterator[RegistryStub]:
    with running_registry() as stub:
        yield stub


def cell(data: bytes, **more: Any) -> dict[str, Any]:
    return {"size": len(data), "text": data.decode(), **more}


def rows(*values: bytes) -> list[dict[str, Any]]:
    return [{"key": None, "value": cell(value)} for value in values]


async def test_avro_and_json_schema_are_decoded_and_the_rest_says_why(registry: RegistryStub) -> None:
    number = registry.register("a", {"schema": '"string"'})
    tree = registry.register("b", {"schema": "{}", "schemaType": "JSON"})
    proto = registry.register("c", {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"})
    found = rows(
        framed(number, b"\x08pear"), framed(tree, b'{"a": [1]}'), framed(proto, b"\0"), framed(99, b"x"), b"plain",
        framed(number, b"\x08p"), framed(tree, b"NaN"),
    )  # fmt: skip
    await decoding.Decoding(registry.url).fill("t", found)
    values = [row["value"] for row in found]
    assert [value.get("decoded") for value in values] == ["pear", {"a": [1]}, None, None, None, None, None]
    assert [value.get("schema_id") for value in values] == [number, tree, None, None, None, None, None]
    for value, words in zip(values, (None, None, "no descriptor", "99", None, "", "JSON compliant"), strict=True):
        assert ("undecoded" in value) is (words is not None), value
        assert words is None or words in value["undecoded"]
    json.dumps(found, allow_nan=False)


async def test_an_answer_has_a_limit_and_a_part_of_a_value_is_not_decoded(
    registry: RegistryStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = registry.register("a", {"schema": '"string"'})
    monkeypatch.setattr(decoding, "MAX_DECODED_BYTES", 10)
    found = rows(*[framed(number, b"\x08pear")] * 4)
    found[0]["value"]["cut"] = True
    await decoding.Decoding(registry.url).fill("t", found)
    assert ["decoded" in row["value"] for row in found] == [False, True, True, False]
    assert "at most 10 bytes" in found[3]["value"]["undecoded"]


async def test_a_few_bytes_that_stand_for_gigabytes_of_text_are_refused_before_it_is_made(
    registry: RegistryStub,
) -> None:
    """Of an enum, a byte is a symbol of any length: 3 kB took 600 MB."""
    symbol = "A" * (decoding.MAX_DECODED_BYTES // 8)
    enum = {"type": "array", "items": {"type": "enum", "name": "E", "symbols": [symbol]}}
    number = registry.register("a", {"schema": json.dumps(enum)})
    found = rows(framed(number, b"\x7e" + bytes(63) + b"\0"), framed(number, b"\x02\0\0"))
    tracemalloc.start()
    try:
        await decoding.Decoding(registry.url).fill("t", found)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "larger than" in found[0]["value"]["undecoded"]
    assert found[1]["value"]["decoded"] == [symbol]
    assert most_bytes < 4 * decoding.MAX_DECODED_BYTES, "the whole text would be twice that"


async def test_a_registry_that_is_silent_keeps_no_answer_back(
    registry: RegistryStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "REGISTRY_S", 0.1)
    registry.shut()
    found = rows(framed(1, b"\x08pear"))
    await decoding.Decoding(registry.url).fill("t", found)
    registry.open()
    assert "does not answer" in found[0]["value"]["undecoded"]


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(FakeBroker()))) as opened:
        yield opened


async def test_without_a_registry_the_cure_is_told(client: HttpClient) -> None:
    answer = await client.get(f"{TAIL}http://evil.example")
    assert answer.status == 400 and "it must be registry" in await answer.text(), "a caller names no address"
    with pytest.raises(Exception, match=r"admin\.schema\.registry\.url"):
        await decoding.Decoding("").fill("t", [])


def a_file(name: str, *messages: DescriptorProto, imports: tuple[str, ...] = ()) -> FileDescriptorProto:
    return FileDescriptorProto(name=name, package="shop", syntax="proto3", message_type=messages, dependency=imports)


def registered(registry: RegistryStub, subject: str, file: FileDescriptorProto, *references: dict[str, Any]) -> int:
    text = b64encode(file.SerializeToString()).decode()
    return registry.register(subject, {"schema": text, "schemaType": "PROTOBUF", "references": list(references)})


def field(name: str, number: int, kind: Any, **more: Any) -> FieldDescriptorProto:
    return FieldDescriptorProto(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL, **more)


async def test_protobuf_is_decoded_with_imports_nested_messages_and_two_of_one_name(registry: RegistryStub) -> None:
    message, text, whole = (getattr(FieldDescriptorProto, f"TYPE_{name}") for name in ("MESSAGE", "STRING", "INT64"))
    money = a_file("other name", DescriptorProto(name="Money", field=[field("cents", 1, whole)]))
    registered(registry, "money", money)
    order = a_file(
        "default",
        DescriptorProto(name="Unused"),
        DescriptorProto(
            name="Order",
            field=[
                field("fruit_name", 1, text),
                field("price", 2, message, type_name=".shop.Money"),
                field("at", 3, message, type_name=".google.protobuf.Timestamp"),
            ],
            nested_type=[DescriptorProto(name="Line", field=[field("n", 1, whole)])],
        ),
        imports=("money.proto", "google/protobuf/timestamp.proto"),
    )
    number = registered(registry, "orders", order, {"name": "money.proto", "subject": "money", "version": 1})
    other = registered(registry, "others", a_file("x", DescriptorProto(name="Order", field=[field("other", 1, text)])))
    found = rows(
        framed(number, message_path((1,)) + b"\n\4pear\x12\2\10\7\x1a\2\10\1"),
        framed(number, message_path((1, 0)) + b"\10\5"),
        framed(other, message_path((0,)) + b"\n\1x"),
        framed(number, message_path((7,))),
        framed(number, message_path((1,)) + b"\n\x7f"),
    )
    found[0]["key"] = cell(framed(other, message_path((0,)) + b"\n\1k"))
    await decoding.Decoding(registry.url).fill("t", found)
    first, line, alike, beyond, torn = (row["value"] for row in found)
    assert first["decoded"] == {"fruit_name": "pear", "price": {"cents": "7"}, "at": "1970-01-01T00:00:01Z"}
    assert (first["schema_id"], line["decoded"], alike["decoded"]) == (number, {"n": "5"}, {"other": "x"})
    assert found[0]["key"]["decoded"] == {"other": "k"}
    assert "no message at the position (7,)" in beyond["undecoded"] and "DecodeError" in torn["undecoded"]


async def test_an_import_that_the_registry_does_not_know_is_named(registry: RegistryStub) -> None:
    number = registered(registry, "a", a_file("a", DescriptorProto(name="A"), imports=("lost.proto",)))
    found = rows(framed(number, b"\0"))
    await decoding.Decoding(registry.url).fill("t", found)
    assert "imports lost.proto" in found[0]["value"]["undecoded"]
