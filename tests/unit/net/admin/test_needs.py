"""Every operation of the HTTP API with exactly the permissions that docs/security.md names, with all others, and without a login.

The table of the documentation is written by hand, so a wrong entry in the code's own table is found.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from unit.net.admin.test_permissions import LOGIN, SecureBroker, acl, basic

from barnabas.log.vocabulary.access.acls import OPERATIONS, Acl, Operation, ResourceKind
from barnabas.log.vocabulary.group_messages import UndoneOffset, UndoOffsetResetResponse
from barnabas.net.admin.app import ROUTES, build_app
from barnabas.net.admin.frame.call import Route
from barnabas.net.client.positions.pipeline_reports import PIPELINES_TOPIC
from barnabas.net.wire.protocol.requests import UndoOffsetResetRequest

HttpClient = TestClient[Any, Any]
DOCUMENT = Path(__file__).parents[4] / "docs/security.md"
HEADING = "### What each HTTP call needs\n"
LETTERS = {
    "{cluster_id}": "CLUSTER",
    "{topic_name}": "T",
    "{partition_id}": "P",
    "{broker_id}": "B",
    "{consumer_group_id}": "G",
    "{consumer_id}": "M",
    "{transactional_id}": "X",
    "{producer_id}": "N",
    "{name}": "K",
    "{user}": "U",
    "{file}": "F",
}
VALUES = {"{cluster_id}": "c1", "{topic_name}": "t", "{partition_id}": "0", "{broker_id}": "0", "{consumer_group_id}": "g"} | {
    "{consumer_id}": "m", "{transactional_id}": "x", "{producer_id}": "1", "{name}": "k", "{user}": "u", "{file}": "app.js"
}  # fmt: skip
NAMES = {
    ResourceKind.TOPIC: "t",
    ResourceKind.GROUP: "g",
    ResourceKind.TRANSACTIONAL_ID: "x",
    ResourceKind.CLUSTER: "kafka-cluster",
}
BODIES: dict[str, Any] = {"string": "t", "integer": 1, "boolean": True, "array": [], "object": {}, "any": "x"}
# READ, WRITE, DELETE and ALTER include DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS, as in Kafka.
INCLUDED_IN = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
Permission = tuple[Operation, ResourceKind]
Needs = tuple[tuple[Permission, ...], ...]
"""All of them, each by one of its alternatives."""


def replaced(text: str, words: dict[str, str]) -> str:
    for word, letter in words.items():
        text = text.replace(word, letter)
    return text


def documented() -> dict[str, Needs]:
    """By method and path, as the table writes it. An operation in two rows is an error."""
    section = DOCUMENT.read_text(encoding="utf-8").split(HEADING)[1].split("\n##")[0]
    found: dict[str, Needs] = {}
    for words, calls in re.findall(r"^\| (none|[A-Z_a-z ]+) \| (`.*) \|$", section, re.MULTILINE):
        needs = () if words == "none" else tuple(alternatives(one) for one in words.split(" and "))
        for methods, path in re.findall(r"`([A-Z,]+) (\S+)`", calls):
            for method in methods.split(","):
                name = f"{method} {path}"
                assert name not in found, f"{name} is in two rows"
                found[name] = needs
    return found


def alternatives(words: str) -> tuple[Permission, ...]:
    return tuple((Operation[one.split()[0]], ResourceKind[one.split()[1]]) for one in words.split(" or "))


def name_of(route: Route) -> str:
    return f"{route.method} {replaced(route.path, LETTERS)}".replace("/v3/clusters/CLUSTER", "…")


TABLE = documented()
every = pytest.mark.parametrize("route", ROUTES, ids=name_of)


def granted(permissions: Iterable[Permission]) -> tuple[Acl, ...]:
    """On a topic, also for the one topic that an operation names by itself."""
    return tuple(
        acl(operation, kind, name)
        for operation, kind in permissions
        for name in ((NAMES[kind], PIPELINES_TOPIC) if kind is ResourceKind.TOPIC else (NAMES[kind],))
    )


def all_but(left_out: Sequence[Permission]) -> tuple[Acl, ...]:
    """Every permission that is there, but for these and those that include them."""
    without = {(more, kind) for one, kind in left_out for more in {one, *INCLUDED_IN.get(one, ())}}
    return granted((one, kind) for kind in NAMES for one in OPERATIONS[kind] if (one, kind) not in without)


@pytest.fixture
def broker() -> SecureBroker:
    made = SecureBroker()
    moved = UndoneOffset(topic="t", partition=0, before=20, after=40)
    undone = UndoOffsetResetResponse(reset_id=1, at_ms=0, by="me", offsets=(moved,))
    made.answers[UndoOffsetResetRequest] = lambda request: undone
    return made


@pytest.fixture
async def client(broker: SecureBroker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


async def ask(client: HttpClient, route: Route, login: dict[str, str]) -> tuple[int, str]:
    """Status and text; of a stream, only the status."""
    body: Any = {field.name: BODIES[field.type] for field in route.body if field.required}
    if route.path.endswith("/seek"):
        body = {"to": "start", "topics": ["t"], "preview": True}
    if route.path.endswith("/records") and route.method == "POST":
        body = {"value": {"type": "STRING", "data": "x"}}
    path = replaced(route.path, VALUES)
    answer = await client.request(route.method, path, json=body if route.body else None, headers=login)
    try:
        return answer.status, "" if answer.content_type == "text/event-stream" else await answer.text()
    finally:
        answer.close()


def test_the_documentation_names_every_operation_and_no_other() -> None:
    assert set(TABLE) == {name_of(route) for route in ROUTES}


@every
async def test_what_the_documentation_names_suffices(client: HttpClient, broker: SecureBroker, route: Route) -> None:
    needs = TABLE[name_of(route)]
    for chosen in range(max((len(one) for one in needs), default=1)):
        broker.given = granted(one[min(chosen, len(one) - 1)] for one in needs)
        status, text = await ask(client, route, LOGIN)
        assert status not in (401, 403), text
        assert not broker.audit.denials, (
            "whether the call succeeds is tested elsewhere: this cluster has no answer for some"
        )


@every
async def test_without_one_of_its_permissions_a_call_is_refused(
    client: HttpClient, broker: SecureBroker, route: Route
) -> None:
    for one in TABLE[name_of(route)]:
        broker.given = all_but(one)
        broker.asked.clear()
        status, text = await ask(client, route, LOGIN)
        assert status == 403, text
        assert any(f"{operation.name} {kind.name}" in text for operation, kind in one), text
        changes = [request for request in broker.asked if not getattr(request, "validate_only", False)]
        assert not changes, "the cluster was asked"


@every
async def test_without_a_login_a_call_is_refused(client: HttpClient, broker: SecureBroker, route: Route) -> None:
    broker.given = all_but(())  # of alice
    needs = TABLE[name_of(route)]
    status, text = await ask(client, route, {})
    assert (status == 401 and "log in" in text) if needs else status < 300, text
    assert (await ask(client, route, {"Authorization": basic("alice:wrong")}))[0] == 401
    assert not broker.asked or not needs
