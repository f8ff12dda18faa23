"""The HTTP API in a cluster with an authorizer: every route, without a permission, with all of them, and with a part."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace
from unit.net.access.access_world import NotedAudit, by_resource
from unit.net.admin.fake_broker import FakeBroker, an_image, described

from barnabas.log.vocabulary.access.acls import Acl, Operation, Permission, ResourceKind
from barnabas.log.vocabulary.access.quotas import EntityQuotas, QuotaEntity
from barnabas.log.vocabulary.cluster_changes import AlterQuotasRequest, CreateAclsRequest, DeleteAclsRequest
from barnabas.log.vocabulary.group_messages import UndoneOffset, UndoOffsetResetResponse
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL, SharePartitionView
from barnabas.net.admin.app import ROUTES, build_app
from barnabas.net.admin.frame.permissions import NEEDS
from barnabas.net.admin.routes.record_reading import TAILS_AT_ONCE
from barnabas.net.server.access.access import AccessControl
from barnabas.net.server.access.authorizer import AccessRules
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, LagPoint, ListedGroup, ListGroupsResponse
from barnabas.net.wire.protocol.requests import (
    DescribeGroupRequest,
    ListGroupsRequest,
    ProduceRequest,
    UndoOffsetResetRequest,
)

CLUSTER = "/v3/clusters/c1"
LOGIN = {"Authorization": f"Basic {base64.b64encode(b'alice:pencil').decode()}"}
HttpClient = TestClient[Any, Any]
# What needs no permission: who asks sees what it may describe.
OPEN = frozenset(
    {
        "GET /healthz",
        "GET /readyz",
        "GET /openapi.json",
        "GET /",
        "GET /console/settings",
        "GET /console/{file}",
        "GET /v3/clusters",
        "GET /v3/clusters/{cluster_id}",
        "GET /v3/clusters/{cluster_id}/topics",
        "GET /v3/clusters/{cluster_id}/topics/-/partitions/-/reassignment",
        "GET /v3/clusters/{cluster_id}/consumer-groups",
        "GET /v3/clusters/{cluster_id}/transactions",
    }
)
ONE_RECORD = b'{"partition_id": 0, "value": {"type": "STRING", "data": "x"}}'
BODIES: dict[str, Any] = {"string": "TOPIC", "integer": 1, "boolean": True, "array": [], "object": {}, "any": "x"}


def acl(operation: Operation, kind: ResourceKind, name: str = "*") -> Acl:
    name = "kafka-cluster" if kind is ResourceKind.CLUSTER else name
    return Acl(kind=kind, name=name, principal="User:alice", operation=operation, permission=Permission.ALLOW)


class SecureBroker(FakeBroker):
    def __init__(self) -> None:
        super().__init__()
        self.given: tuple[Acl, ...] = ()
        self.audit = NotedAudit()
        self.is_current = True
        self.access = AccessControl(
            self.image, AccessRules(), self.audit, brokers_are_certified=True, is_current=lambda: self.is_current
        )

    def image(self) -> Any:
        configs = {"t": {"retention.ms": "1000"}}
        return replace(an_image(), topic_configs=configs, acls=by_resource(self.given))


@pytest.fixture
def broker() -> SecureBroker:
    return SecureBroker()


@pytest.fixture
async def client(broker: SecureBroker) -> AsyncIterator[HttpClient]:
    """Logged in as alice."""
    async with TestClient(TestServer(build_app(broker)), headers=LOGIN) as opened:
        yield opened


@pytest.fixture
async def stranger(client: HttpClient) -> AsyncIterator[HttpClient]:
    """Not logged in, at the same broker."""
    opened: HttpClient
    async with TestClient(client.server) as opened:
        yield opened


def test_every_route_has_its_needs() -> None:
    assert {f"{route.method} {route.path}" for route in ROUTES} == set(NEEDS)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_without_a_permission_a_route_is_closed(client: HttpClient, broker: SecureBroker, route: Any) -> None:
    path = route.path.replace("{cluster_id}", "c1").replace("{partition_id}", "0").replace("{broker_id}", "0")
    path = path.replace("{producer_id}", "1").replace("{file}", "app.js").replace("{", "").replace("}", "")
    body = {field.name: BODIES[field.type] for field in route.body} or None
    answer = await client.request(route.method, path, json=body)
    if f"{route.method} {route.path}" in OPEN:
        assert answer.status < 300, await answer.text()
        return
    assert answer.status == 403, await answer.text()
    assert (await answer.json())["error_code"] == 40301
    assert not broker.asked


async def test_metrics_are_free_where_the_configuration_says_so(client: HttpClient, broker: SecureBroker) -> None:
    """Also on a broker that has just started, and nothing else becomes free."""
    broker.are_metrics_public = True
    for broker.is_current in (True, False):
        assert (await client.get("/metrics")).status == 200
        assert (await client.get("/v3/clusters/c1/brokers")).status == (403 if broker.is_current else 503)


@pytest.mark.parametrize("path", ["consumer-groups", "transactions", "topics"])
async def test_a_list_for_those_who_may_see_nothing_does_not_ask_the_cluster(
    client: HttpClient, broker: SecureBroker, path: str
) -> None:
    """Strangers could have all brokers asked as often as they like."""
    answer = await client.get(f"{CLUSTER}/{path}")
    assert answer.status == 200 and (await answer.json())["data"] == []
    assert not [one for one in broker.asked if type(one).__name__.startswith("List")]


async def names(client: HttpClient, path: str, field: str) -> list[str]:
    answer = await client.get(f"{CLUSTER}/{path}")
    assert answer.status == 200, await answer.text()
    return [item[field] for item in (await answer.json())["data"]]


async def test_lists_have_what_the_caller_may_describe(client: HttpClient, broker: SecureBroker) -> None:
    assert await names(client, "topics", "topic_name") == []
    assert await names(client, "consumer-groups", "consumer_group_id") == []
    broker.given = (acl(Operation.READ, ResourceKind.TOPIC, "t"), acl(Operation.READ, ResourceKind.GROUP, "g"))
    assert await names(client, "topics", "topic_name") == ["t"]
    assert await names(client, "consumer-groups", "consumer_group_id") == ["g"]
    assert set(await names(client, "topics/-/partitions/-/reassignment", "topic_name")) == {"t"}
    broker.given = (acl(Operation.READ, ResourceKind.GROUP, "other"),)
    listed = [ListedGroup(group_id=name, state="Stable", protocol="consumer", member_count=1) for name in "gh"]
    broker.answers[ListGroupsRequest] = lambda _: ListGroupsResponse(groups=tuple(listed))
    page = await (await client.get(f"{CLUSTER}/consumer-groups?page_size=1")).json()
    assert page["data"] == [] and page["metadata"]["next"] is None, "the address of a page would have a hidden name"
    broker.given = (acl(Operation.READ, ResourceKind.TOPIC, "t"),)
    assert (await client.get(f"{CLUSTER}/topics/t")).status == 200
    assert (await client.get(f"{CLUSTER}/topics/missing")).status == 403, "it is not told that it is missing"
    assert (await client.get(f"{CLUSTER}/topics/t/configs")).status == 403


async def test_the_overview_of_a_topic_has_its_configuration_for_those_who_may_describe_it(
    client: HttpClient, broker: SecureBroker
) -> None:
    broker.given = (acl(Operation.DESCRIBE, ResourceKind.TOPIC),)
    answer = await (await client.get(f"{CLUSTER}/topics/t/overview")).json()
    assert answer["topic_name"] == "t" and answer["configs"] == {}
    broker.given = (acl(Operation.ALL, ResourceKind.TOPIC),)
    assert (await (await client.get(f"{CLUSTER}/topics/t/overview")).json())["configs"]


def with_lags(request: DescribeGroupRequest) -> Any:
    found = described(request)
    assert isinstance(found, DescribeGroupResponse)
    if request.shares:
        return replace(found, protocol=SHARE_PROTOCOL, shares=(SharePartitionView(topic="t", partition=0),))
    return replace(found, lags=(LagPoint(at_ms=1, unread=7, lag_ms=7),), lag_topics=("t",))


@pytest.mark.parametrize(
    "path",
    ["lags", "lag-summary", "lag-history", "share-partitions", "explain", "rebalances", "lags/t/partitions/0"],
)
async def test_a_group_does_not_tell_of_topics_that_may_not_be_described(
    client: HttpClient, broker: SecureBroker, path: str
) -> None:
    broker.answers[DescribeGroupRequest] = with_lags
    broker.given = (acl(Operation.READ, ResourceKind.GROUP, "g"),)
    answer = await client.get(f"{CLUSTER}/consumer-groups/g/{path}")
    told = (await answer.text()).replace("g/lags/t/partitions/0 ", "").replace("consumer-groups/g", "")
    if path in ("lag-summary", "lags/t/partitions/0"):
        assert answer.status == 404
        assert "log_end_offset" not in told and "max_lag" not in told
    else:
        assert answer.status == 200
        assert "lag_seconds" not in told and "t-0" not in told and '"topic_name"' not in told and '"topic"' not in told
    broker.given += (acl(Operation.DESCRIBE, ResourceKind.TOPIC, "t"),)
    answer = await client.get(f"{CLUSTER}/consumer-groups/g/{path}")
    assert answer.status == 200
    assert ("lag_seconds" if path == "lag-history" else '"t') in await answer.text()


async def test_the_body_of_a_caller_without_permission_is_not_read(client: HttpClient, broker: SecureBroker) -> None:
    """It may be large, and parsing it would delay the clients of the broker."""
    no_json, is_json = b"[" * 1_000_000, {"Content-Type": "application/json"}
    for path in ("topics", "topics/t/records", "consumer-groups/g/seek", "acls"):
        assert (await client.post(f"{CLUSTER}/{path}", data=no_json, headers=is_json)).status == 403
        wrong = is_json | {"Authorization": "Basic eDp5"}
        assert (await client.post(f"{CLUSTER}/{path}", data=no_json, headers=wrong)).status == 401
    broker.given = (acl(Operation.WRITE, ResourceKind.TOPIC, "t"),)
    assert (await client.post(f"{CLUSTER}/topics/t/records", data=no_json, headers=is_json)).status == 400


async def test_a_caller_that_loses_its_permission_writes_no_more(client: HttpClient, broker: SecureBroker) -> None:
    """Also in the middle of a stream of records: a stream may go on for days."""
    broker.given = (acl(Operation.WRITE, ResourceKind.TOPIC, "t"),)
    is_answered = asyncio.Event()

    async def sent() -> AsyncIterator[bytes]:
        yield ONE_RECORD
        await is_answered.wait()
        yield ONE_RECORD

    answer = await client.post(f"{CLUSTER}/topics/t/records", data=sent(), headers={"Content-Type": "application/json"})
    assert json.loads(await answer.content.readline())["error_code"] == 200
    broker.given = ()
    is_answered.set()
    assert json.loads(await answer.content.readline())["error_code"] == 40301
    assert await answer.content.read() == b""
    assert sum(isinstance(request, ProduceRequest) for request in broker.asked) == 1


async def test_a_broker_that_has_just_started_asks_its_callers_to_wait(
    client: HttpClient, broker: SecureBroker
) -> None:
    broker.given = (acl(Operation.READ, ResourceKind.TOPIC, "t"),)
    broker.is_current = False
    answer = await client.get(f"{CLUSTER}/topics/t")
    assert answer.status == 503 and "just started" in await answer.text()
    assert (await client.get("/healthz")).status == 200
    broker.is_current = True
    assert (await client.get(f"{CLUSTER}/topics/t")).status == 200


async def test_a_seek_needs_what_a_commit_needs(client: HttpClient, broker: SecureBroker) -> None:
    async def status(**body: Any) -> int:
        answer = await client.post(f"{CLUSTER}/consumer-groups/g/seek", json={"to": "start", "preview": True} | body)
        return answer.status

    broker.given = (acl(Operation.READ, ResourceKind.GROUP, "g"), acl(Operation.READ, ResourceKind.TOPIC, "t"))
    assert await status() == 403, "all topics are meant"
    assert await status(topics=["other"]) == 403
    assert await status(topics=["t"]) != 403
    broker.given = (acl(Operation.READ, ResourceKind.GROUP, "g"), acl(Operation.READ, ResourceKind.TOPIC, "*"))
    assert await status() != 403


async def test_the_partition_of_a_typed_key_needs_what_reading_keys_needs(
    client: HttpClient, broker: SecureBroker
) -> None:
    """Errors name the fields of their schema."""

    async def status(**query: str) -> int:
        return (await client.get(f"{CLUSTER}/topics/t/barnabas/partition", params=query)).status

    broker.given = (acl(Operation.DESCRIBE, ResourceKind.TOPIC, "t"),)
    assert (await status(key="x"), await status(key_base64="eA=="), await status(key_json="{}")) == (200, 200, 403)
    broker.given = (acl(Operation.READ, ResourceKind.TOPIC, "t"),)
    assert await status(key_json="{}") == 400, "there is no registry"


async def test_an_undo_needs_what_a_commit_needs(client: HttpClient, broker: SecureBroker) -> None:
    """Only the group knows what its last seek has moved."""
    moved = [UndoneOffset(topic=name, partition=0, before=20, after=40) for name in ("t", "hidden")]
    answer = UndoOffsetResetResponse(reset_id=1, at_ms=0, by="me", offsets=tuple(moved))
    broker.answers[UndoOffsetResetRequest] = lambda request: answer
    broker.topics["hidden"] = broker.topics["t"]
    read_group, read_t = acl(Operation.READ, ResourceKind.GROUP, "g"), acl(Operation.READ, ResourceKind.TOPIC, "t")

    async def refused(*given: Acl) -> str:
        broker.given = (read_group, *given)
        for preview in (True, False):
            told = await client.post(f"{CLUSTER}/consumer-groups/g/seek/undo", json={"preview": preview})
            assert told.status == 403, await told.text()
        assert all(one.validate_only for one in broker.asked if isinstance(one, UndoOffsetResetRequest))
        return str((await told.json())["message"])

    assert "READ TOPIC '*'" in await refused(), "the caller may not know of these topics"
    assert "READ TOPIC '*'" in await refused(read_t)
    assert "READ TOPIC 'hidden'" in await refused(read_t, acl(Operation.DESCRIBE, ResourceKind.TOPIC, "hidden"))
    broker.given = (read_group, read_t, acl(Operation.READ, ResourceKind.TOPIC, "hidden"))
    assert (await client.post(f"{CLUSTER}/consumer-groups/g/seek/undo", json={})).status == 200
    (done,) = [one for one in broker.asked if isinstance(one, UndoOffsetResetRequest) and not one.validate_only]
    assert done.topics == ("hidden", "t"), "a seek that others made meanwhile may have moved more"


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("topics/t/partitions/0/records", acl(Operation.READ, ResourceKind.TOPIC, "t")),
        ("overview/stream", acl(Operation.DESCRIBE, ResourceKind.CLUSTER)),
    ],
)
async def test_one_user_does_not_take_all_places(
    client: HttpClient, stranger: HttpClient, broker: SecureBroker, path: str, needed: Acl
) -> None:
    """A user with READ of one topic kept all others from following records."""
    broker.given = (needed, replace(needed, principal="User:ANONYMOUS"))
    path, streamed = f"{CLUSTER}/{path}", {"Accept": "text/event-stream"}
    opened = [await client.get(path, headers=streamed) for _ in range(TAILS_AT_ONCE // 2)]
    assert {answer.status for answer in opened} == {200}
    refused = await client.get(path, headers=streamed)
    assert refused.status == 503 and "User:alice has 8 of 16 places" in await refused.text()
    others = await stranger.get(path, headers=streamed)
    assert others.status == 200
    for answer in (*opened, others):
        answer.close()


# --- permissions themselves -------------------------------------------------------------------------------------------

READ_T = acl(Operation.READ, ResourceKind.TOPIC, "t")
SHOWN = {
    "resource_type": "TOPIC",
    "resource_name": "t",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}


async def test_permissions_are_listed_added_and_removed(client: HttpClient, broker: SecureBroker) -> None:
    broker.given = (acl(Operation.ALL, ResourceKind.CLUSTER),)
    broker.acls = (READ_T,)
    (listed,) = (await (await client.get(f"{CLUSTER}/acls")).json())["data"]
    assert SHOWN.items() <= listed.items()
    answer = await client.post(
        f"{CLUSTER}/acls", json={key: SHOWN[key].lower() for key in SHOWN} | {"principal": "User:a"}
    )
    assert answer.status == 201, await answer.text()
    created = [request for request in broker.asked if isinstance(request, CreateAclsRequest)]
    assert [one.acls[0].principal for one in created] == ["User:a"] and created[0].acls[0].operation is Operation.READ
    answer = await client.delete(f"{CLUSTER}/acls", json={"principal": "User:a"})
    assert SHOWN.items() <= (await answer.json())["data"][0].items()
    changes = [f"{method} /v3/clusters/{{cluster_id}}/acls" for method in ("POST", "DELETE")]
    assert broker.audit.changes == [(changes[0], "c1,t,User:a", "done"), (changes[1], "c1,User:a", "done")]
    (removed,) = [request for request in broker.asked if isinstance(request, DeleteAclsRequest)]
    assert (removed.filters[0].principal, removed.filters[0].name) == ("User:a", None)


async def test_what_makes_no_permission_is_refused(client: HttpClient, broker: SecureBroker) -> None:
    broker.given = (acl(Operation.ALL, ResourceKind.CLUSTER),)
    answer = await client.post(f"{CLUSTER}/acls", json=SHOWN | {"operation": "EAT"})
    assert answer.status == 400 and "one of ANY, ALL, READ" in (await answer.json())["message"]
    answer = await client.delete(f"{CLUSTER}/acls", json={})
    assert answer.status == 400 and "at least one field" in (await answer.json())["message"]


# --- quotas -----------------------------------------------------------------------------------------------------------


async def test_a_quota_that_no_float_can_express_is_refused(client: HttpClient, broker: SecureBroker) -> None:
    broker.given = (acl(Operation.ALL, ResourceKind.CLUSTER),)
    answer = await client.post(f"{CLUSTER}/quotas", json={"user": "a", "quotas": {"producer_byte_rate": 10**400}})
    assert answer.status == 400 and "quotas must give numbers up to" in (await answer.json())["message"]


async def test_quotas_are_listed_set_and_removed(client: HttpClient, broker: SecureBroker) -> None:
    broker.given = (acl(Operation.ALL, ResourceKind.CLUSTER),)
    both = QuotaEntity(user="alice", client_id="")
    broker.quotas = (EntityQuotas(entity=both, values={"producer_byte_rate": 5.0, "request_percentage": 1.5}),)
    (listed,) = (await (await client.get(f"{CLUSTER}/quotas")).json())["data"]
    assert (listed["user"], listed["client_id"], listed["quotas"]["request_percentage"]) == ("alice", "", 1.5)
    wanted = {"user": "alice", "client_id": "", "quotas": {"producer_byte_rate": 7, "request_percentage": None}}
    answer = await client.post(f"{CLUSTER}/quotas", json=wanted)
    assert answer.status == 200, await answer.text()
    answer = await client.delete(f"{CLUSTER}/quotas", json={"user": "alice", "client_id": ""})
    assert (await answer.json())["data"][0]["user"] == "alice"
    changes = [request.changes for request in broker.asked if isinstance(request, AlterQuotasRequest)]
    assert [[(one.kind, one.value) for one in some] for some in changes] == [
        [("producer_byte_rate", 7), ("request_percentage", None)],
        [("producer_byte_rate", None), ("request_percentage", None)],
    ]
    audited = [f"{method} /v3/clusters/{{cluster_id}}/quotas" for method in ("POST", "DELETE")]
    assert broker.audit.changes == [(change, "c1", "done") for change in audited]


async def test_quotas_that_are_not_understood_are_refused(client: HttpClient, broker: SecureBroker) -> None:
    broker.given = (acl(Operation.ALTER_CONFIGS, ResourceKind.CLUSTER),)
    for body, told in (
        ({"quotas": {"producer_byte_rate": 1}}, "name the entity"),
        ({"user": "a"}, "quotas is missing"),
        ({"user": "a", "quotas": {"producer_byte_rate": "much"}}, "must give numbers"),
    ):
        answer = await client.post(f"{CLUSTER}/quotas", json=body)
        assert answer.status == 400 and told in (await answer.json())["message"]
    broker.given = ()
    assert (await client.get(f"{CLUSTER}/quotas")).status == 403


# --- passwords --------------------------------------------------------------------------------------------------------


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


async def test_a_caller_with_a_password_has_the_permissions_of_the_user(
    client: HttpClient, stranger: HttpClient, broker: SecureBroker
) -> None:
    path = f"{CLUSTER}/brokers"
    broker.given = (acl(Operation.DESCRIBE, ResourceKind.CLUSTER),)
    asked = await stranger.get(path)
    assert (asked.status, (await asked.json())["error_code"]) == (401, 40101), "browsers ask for a password then"
    assert asked.headers["WWW-Authenticate"].startswith("Basic ")
    assert "no permission to DESCRIBE CLUSTER" in (await asked.json())["message"]
    assert (await client.get(path)).status == 200
    refused = await stranger.get(path, headers={"Authorization": basic("alice:wrong")})
    assert (refused.status, (await refused.json())["error_code"]) == (401, 40101)
    assert refused.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize("second", ["alice:pencil", "alice:wrong", "mallory:pencil"])
async def test_two_logins_in_one_call_are_refused(stranger: HttpClient, broker: SecureBroker, second: str) -> None:
    """A proxy may have checked the one, and the broker would go by the other."""
    broker.given = (acl(Operation.ALL, ResourceKind.CLUSTER),)
    for told in (["alice:pencil", second], [second, "alice:pencil"]):
        headers = [("Authorization", basic(one)) for one in told]
        answer = await stranger.get(f"{CLUSTER}/acls", headers=headers)
        assert answer.status == 400 and "2 Authorization headers" in await answer.text()
    assert not broker.asked


async def test_a_permission_for_everyone_needs_no_login(stranger: HttpClient, broker: SecureBroker) -> None:
    broker.given = (replace(acl(Operation.DESCRIBE, ResourceKind.CLUSTER), principal="User:*"),)
    assert (await stranger.get(f"{CLUSTER}/brokers")).status == 200
