"""Records that were written with a schema registry, over HTTP."""

import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from unit.net.admin.fake_broker import FakeBroker
from unit.net.client.serde.registry_stub import RegistryStub, running_registry

from barnabas.net.admin.app import build_app
from barnabas.net.admin.console import decoding
from barnabas.net.client.serde.framing import framed

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
    for value, words in zip(values, (None, None, "PROTOBUF", "99", None, "", "JSON compliant"), strict=True):
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
