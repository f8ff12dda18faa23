"""The client of a schema registry: one request for each schema, and errors that say whose fault it is."""

import asyncio
import traceback
from typing import Any

import pytest
from aiohttp import web
from unit.net.client.serde.registry_stub import RegistryStub

from barnabas.net.client.connection.errors import (
    InvalidConfigError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from barnabas.net.client.serde import registry as module
from barnabas.net.client.serde.registered import with_references
from barnabas.net.client.serde.registry import Reference, Schema, SchemaRegistry
from barnabas.net.client.serde.serdes import SchemaNotLoaded

INT = Schema(text='"int"')


async def loaded(look_up: Any) -> Any:
    """What a client does: look up, load, look up again."""
    for _ in range(10):
        try:
            return look_up()
        except SchemaNotLoaded as missing:
            await missing.load()
    raise AssertionError("it is never loaded")


async def test_a_schema_is_registered_and_asked_for_once(stub: RegistryStub) -> None:
    registry = SchemaRegistry(f"{stub.url}/")
    schema_id = await loaded(lambda: registry.schema_id("t-value", INT))
    assert await loaded(lambda: registry.schema_id("t-value", INT)) == schema_id
    assert await loaded(lambda: registry.schema(schema_id)) == INT == await loaded(lambda: registry.schema(schema_id))
    assert stub.requests == [("POST", "/subjects/t-value/versions"), ("GET", f"/schemas/ids/{schema_id}")]


async def test_all_that_want_a_schema_share_one_request_and_a_cancelled_one_does_not_end_it(
    stub: RegistryStub,
) -> None:
    registry = SchemaRegistry(stub.url)
    stub.shut()
    waiting = [asyncio.ensure_future(loaded(lambda: registry.schema_id("s", INT))) for _ in range(5)]
    await asyncio.to_thread(stub.is_asked.wait, 10)
    waiting[0].cancel()
    stub.open()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError) and outcomes[1:] == [1, 1, 1, 1]
    assert len(stub.requests) == 1


async def test_an_unknown_id_is_remembered(stub: RegistryStub) -> None:
    registry = SchemaRegistry(stub.url)
    for _ in range(3):
        with pytest.raises(SchemaNotFoundError, match="HTTP 404 Schema not found"):
            await loaded(lambda: registry.schema(99))
    assert len(stub.requests) == 1


async def test_an_id_that_comes_later_is_found(stub: RegistryStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica of the registry may be behind the producer that has just registered a schema."""
    monkeypatch.setattr(module, "ABSENT_MS", 0)
    registry = SchemaRegistry(stub.url)
    with pytest.raises(SchemaNotLoaded) as missing:
        registry.schema(1)
    await missing.value.load()
    stub.register("s", INT.to_json())
    assert await loaded(lambda: registry.schema(1)) == INT


async def test_the_error_of_an_unknown_id_does_not_grow(stub: RegistryStub) -> None:
    """One that is raised again and again keeps the frames of all that it has passed, and their records."""
    registry = SchemaRegistry(stub.url)
    depths = []
    for _ in range(3):
        with pytest.raises(SchemaNotFoundError) as caught:
            await loaded(lambda: registry.schema(99))
        depths.append(len(list(traceback.walk_tb(caught.value.__traceback__))))
    assert depths[2] == depths[1]


async def test_without_auto_register_the_schema_must_be_there(stub: RegistryStub) -> None:
    registry = SchemaRegistry(stub.url, auto_register=False)
    with pytest.raises(SchemaNotFoundError, match="the subject s/x does not have this schema: register it"):
        await loaded(lambda: registry.schema_id("s/x", INT))
    stub.register("s/x", INT.to_json())
    assert await loaded(lambda: registry.schema_id("s/x", INT)) == 1


async def test_a_registry_that_cannot_answer_now_is_asked_again(stub: RegistryStub) -> None:
    stub.failures = [web.Response(status=503, text="leader election"), web.Response(status=429)]
    registry = SchemaRegistry(stub.url)
    assert await loaded(lambda: registry.schema_id("s", INT)) == 1
    assert len(stub.requests) == 3
    stub.failures = [web.Response(status=503, text="down") for _ in range(module.MAX_ATTEMPTS)]
    with pytest.raises(SchemaRegistryUnavailableError, match="HTTP 503 down") as caught:
        await loaded(lambda: registry.schema(1))
    assert caught.value.retriable
    assert await loaded(lambda: registry.schema(1)) == INT  # The next call asks again.


async def test_another_address_answers_for_one_that_is_down(stub: RegistryStub) -> None:
    registry = SchemaRegistry(["http://127.0.0.1:1", stub.url])
    assert await loaded(lambda: registry.schema_id("s", INT)) == 1


async def test_nothing_listens() -> None:
    with pytest.raises(SchemaRegistryUnavailableError, match=r"does not answer GET http://127.0.0.1:1/schemas/ids/3"):
        await loaded(lambda: SchemaRegistry("http://127.0.0.1:1").schema(3))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (web.Response(status=401, text="who?"), "refuses this user: .*HTTP 401 who\\?; check `auth`"),
        (web.Response(status=404, text="<html>"), "no answer of a schema registry: .*check the path"),
        (web.Response(text="<html>"), "no answer of a schema registry"),
        (web.json_response({"x": 1}), "the registry's answer is no schema"),
        (web.json_response({"schema": "1", "references": [{"name": "x"}]}), "is no schema"),
        (web.json_response({"schema": "1" * (module.MAX_ANSWER_BYTES + 1)}), "more than 8388608 bytes"),
        (web.json_response({"error_code": 42201, "message": "Invalid schema"}, status=422), "HTTP 422 Invalid schema"),
    ],
)
async def test_other_answers_are_errors_with_their_cause(stub: RegistryStub, answer: web.Response, told: str) -> None:
    stub.failures = [answer]
    registry = SchemaRegistry(stub.url)
    with pytest.raises(SchemaRegistryError, match=told) as caught:
        await loaded(lambda: registry.schema(1))
    assert not caught.value.retriable and len(stub.requests) == 1


async def test_user_and_password_are_sent(stub: RegistryStub) -> None:
    registry = SchemaRegistry(stub.url, auth=("ann", "secret"))
    await loaded(lambda: registry.schema_id("s", INT))
    assert stub.authorization == ["Basic YW5uOnNlY3JldA=="]


async def test_references_come_after_what_they_need_and_a_circle_is_an_error(stub: RegistryStub) -> None:
    def refers(*names: str) -> list[dict[str, object]]:
        return [{"name": name, "subject": name, "version": 1} for name in names]

    stub.register("c", {"schema": "C"})
    stub.register("b", {"schema": "B", "references": refers("c")})
    stub.register("a", {"schema": "A", "references": refers("b", "c")})
    registry = SchemaRegistry(stub.url)
    root = await loaded(lambda: registry.schema(3))
    needed = await loaded(lambda: [schema.text for _, schema in with_references(registry, root)])
    assert needed == ["C", "B"]
    stub.register("x", {"schema": "X", "references": refers("x")})
    circle = Schema(text="Y", references=(Reference(name="x", subject="x", version=1),))
    with pytest.raises(ValueError, match="x version 1 refers to itself"):
        await loaded(lambda: list(with_references(registry, circle)))


@pytest.mark.parametrize("status", [200, 500])
async def test_no_error_shows_a_password_in_the_address(
    stub: RegistryStub, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker shows them to those who read records."""
    monkeypatch.setattr(module, "MAX_ATTEMPTS", 1)
    stub.failures = [web.Response(status=status, text="{")]
    for address in (stub.url, "http://127.0.0.1:1"):
        with pytest.raises(SchemaRegistryError) as caught:
            await SchemaRegistry(address.replace("http://", "http://me:secret@")).latest("t")
        assert address in str(caught.value) and "secret" not in str(caught.value)


def test_addresses_are_checked() -> None:
    with pytest.raises(InvalidConfigError, match="'localhost:8081' of a schema registry must begin with http://"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(InvalidConfigError, match="at least one address"):
        SchemaRegistry([])


async def test_what_is_kept_is_bounded(stub: RegistryStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    registry = SchemaRegistry(stub.url)
    for number in range(10):
        with pytest.raises(SchemaNotFoundError):
            await loaded(lambda number=number: registry.schema(number))
    assert len(registry._absent) == 3
