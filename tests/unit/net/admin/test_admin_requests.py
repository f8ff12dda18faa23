"""What the admin API refuses before a handler sees it (strangers' pages, wrong bodies), and what it adds to an answer."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace
from unit.net.admin.fake_broker import FakeBroker
from unit.net.admin.test_admin_api import CLUSTER, JSON
from yarl import URL

from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AlterUsersRequest,
    AssignReplicasRequest,
    DecommissionBrokerRequest,
    ElectLeaderRequest,
    FillBrokerRequest,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from barnabas.net.admin.app import ROUTES, build_app, start_admin
from barnabas.net.admin.frame.call import Field, Route
from barnabas.net.admin.frame.errors import ApiError
from barnabas.net.admin.frame.origins import check_host, is_admitted
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.listeners import own_names
from barnabas.net.wire.protocol import requests, responses
from barnabas.net.wire.protocol.broker_figures import DescribeBrokerRequest
from barnabas.net.wire.protocol.user_messages import DescribeUsersRequest

Client = TestClient[Any, Any]
TOPICS = f"{CLUSTER}/topics"
NEW = {"topic_name": "new"}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


async def refusal(answer: aiohttp.ClientResponse, status: int) -> str:
    assert answer.status == status, await answer.text()
    body = await answer.json()
    assert set(body) == {"error_code", "message"}
    return str(body["message"])


# --- browsers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9094",
        "evil.example",
        "localhost.evil.example",
        "",
        "127.0.0.1.nip.io",
        "evil127.0.0.1",
        "evillocalhost",
        "[::1]evil.example",
        "127.0.0.1:80.evil.example",
    ],
)
@pytest.mark.parametrize("path", ["/v3/clusters", "/metrics", "/openapi.json", "/nothing"])
async def test_a_page_whose_name_was_rebound_to_us_reads_nothing(client: Client, host: str, path: str) -> None:
    told = await refusal(await client.get(path, headers={"Host": host}), 403)
    assert "admin.allowed.hosts" in told


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9094",
        "[::1]:9094",
        "10.1.2.3",
        "localhost:1",
        "x.localhost",
        "BROKER-0.example:9094",
        "broker-0.example.",
    ],
)
async def test_addresses_and_names_of_the_broker_may_be_called(client: Client, host: str) -> None:
    assert (await client.get("/metrics", headers={"Host": host})).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_probe_may_ask_under_any_name(client: Client, path: str) -> None:
    assert (await client.get(path, headers={"Host": "balancer.example"})).status == 200


def test_the_names_of_a_broker_are_where_it_is_reached_and_what_is_allowed() -> None:
    given = {
        "listeners": "0.0.0.0:1",
        "allow.plaintext.listeners": "true",
        "advertised.listeners": "kafka.example:1",
        "admin.listener": "admin.example:2",
        "admin.allowed.hosts": "metrics.svc, other",
    }
    names = own_names(load(None, given, {}), "machine")
    assert names >= {"machine", "kafka.example", "admin.example", "metrics.svc", "other"}
    check_host("/metrics", "Metrics.SVC:9094", names)
    check_host("/metrics", "anything", own_names(load(None, {"admin.allowed.hosts": "*"}, {}), "machine"))
    check_host("/metrics", None, names)
    for other in ("evilmetrics.svc", "metrics.svc.evil", "vc", ""):
        with pytest.raises(ApiError):
            check_host("/metrics", other, names)


CROSS_SITE: tuple[dict[str, str], ...] = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:1"},
)


@pytest.mark.parametrize("headers", CROSS_SITE)
async def test_a_page_of_another_site_changes_nothing(
    client: Client, broker: FakeBroker, headers: dict[str, str]
) -> None:
    await refusal(await client.post(TOPICS, json=NEW, headers=headers), 403)
    await refusal(await client.delete(f"{TOPICS}/t", headers=headers), 403)
    await refusal(await client.patch(f"{TOPICS}/t", json={"partitions_count": 9}, headers=headers), 403)
    assert broker.asked == []


RECORDS = f"{TOPICS}/t/records"
SHOP = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


async def test_an_admitted_page_may_produce_records_and_nothing_else(client: Client, broker: FakeBroker) -> None:
    broker.origins = ("https://shop.example", "https://Other.example/")
    value = {"value": {"type": "JSON", "data": {"page": "/"}}}
    for path, body, status in ((RECORDS, value, 200), (f"{RECORDS}:batch", {"entries": [{"id": "1", **value}]}, 207)):
        asked = await client.options(path, headers=SHOP | PREFLIGHT)
        assert asked.status == 204
        assert asked.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert "content-type" in asked.headers["Access-Control-Allow-Headers"]
        answer = await client.post(path, json=body, headers=SHOP)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, "https://shop.example")
        assert "Origin" in answer.headers["Vary"]
    wrong = await client.post(RECORDS, json={"value": "plain"}, headers=SHOP)
    assert (wrong.status, wrong.headers["Access-Control-Allow-Origin"]) == (400, "https://shop.example")
    other = {"Origin": "https://other.example"}
    assert (await client.post(RECORDS, json=value, headers=other)).status == 200
    count = len(broker.asked)
    await refusal(await client.post(TOPICS, json=NEW, headers=SHOP), 403)
    await refusal(await client.delete(f"{TOPICS}/t", headers=SHOP), 403)
    await refusal(await client.delete(URL(f"{TOPICS}/t%2Frecords", encoded=True), headers=SHOP), 403)
    assert (await client.options(TOPICS, headers=SHOP | PREFLIGHT)).status == 405
    assert "Access-Control-Allow-Origin" not in (await client.get(TOPICS, headers=SHOP)).headers
    for origin in ("https://shop.example.evil", "http://shop.example", "null", "https://shop.example:444"):
        await refusal(await client.post(RECORDS, json=value, headers={"Origin": origin}), 403)
    await refusal(await client.post(RECORDS, data=b"{}", headers=SHOP | {"Content-Type": "text/plain"}), 415)
    assert len(broker.asked) == count


async def test_without_the_setting_no_page_of_another_site_produces(client: Client, broker: FakeBroker) -> None:
    await refusal(await client.post(RECORDS, json={}, headers=SHOP), 403)
    assert (await client.options(RECORDS, headers=SHOP | PREFLIGHT)).status == 405
    broker.origins = ("*",)
    assert (await client.post(RECORDS, json={}, headers={"Origin": "http://any.example"})).status == 200


async def test_programs_and_pages_of_this_origin_may_change_things(client: Client) -> None:
    own = f"http://127.0.0.1:{client.port}"
    for headers in ({}, {"Origin": own, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert (await client.post(TOPICS, json=NEW, headers=headers)).status == 201


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_that_is_not_declared_as_json_is_refused(client: Client, broker: FakeBroker, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    skip = () if kind else ("Content-Type",)
    answer = await client.post(TOPICS, data=json.dumps(NEW).encode(), headers=headers, skip_auto_headers=skip)
    assert "Content-Type: application/json" in await refusal(answer, 415)
    assert broker.asked == []


async def test_json_may_have_a_charset_and_a_dialect(client: Client) -> None:
    for kind in ("application/json; charset=utf-8", "application/vnd.kafka.v2+json"):
        answer = await client.post(TOPICS, data=json.dumps(NEW).encode(), headers={"Content-Type": kind})
        assert answer.status == 201


# --- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (TOPICS, {"topic_name": "t", "partitions": 3}, "unknown field partitions: did you mean partitions_count?"),
        (TOPICS, {"topic_name": "t", "zzz": 3}, "unknown field zzz: the fields are configs,"),
        (TOPICS, {"topic_name": "t", "configs": [{"name": "a", "vlaue": "1"}]}, "configs.vlaue: did you mean value?"),
        (f"{TOPICS}/t/records", {"value": {"type": "JSON", "date": 1}}, "value.date: did you mean data?"),
        (f"{TOPICS}/t/records", {"headers": [{"name": "a", "key": "b"}]}, "unknown field headers.key"),
        (f"{TOPICS}/t/configs:alter", {"data": [{"name": "a", "op": "SET"}]}, "data.op: did you mean operation?"),
        (f"{CLUSTER}/consumer-groups/g/seek", {"to": "end", "topic": ["t"]}, "topic: did you mean topics?"),
        (TOPICS, {"topic_name": "t", "partitions_count": 2**31}, "at most 2147483647"),
    ],
)
async def test_an_unknown_field_names_the_nearest(
    client: Client, broker: FakeBroker, path: str, body: dict[str, Any], words: str
) -> None:
    assert words in await refusal(await client.post(path, json=body), 400)
    assert broker.asked == []


async def test_a_change_takes_no_query(client: Client, broker: FakeBroker) -> None:
    assert "validate_only" in await refusal(await client.delete(f"{TOPICS}/t?validate_only=true"), 400)
    assert broker.asked == []
    assert (await client.get(f"{TOPICS}?page_size=5")).status == 200


# --- without a quorum -------------------------------------------------------------------------------------------------


async def test_what_no_quorum_confirms_is_told_with_its_age_and_who_is_missing(
    client: Client, broker: FakeBroker
) -> None:
    broker.quorum = replace(broker.quorum, leader_id=-1, unconfirmed_ms=12_500, unreachable_voters=(1, 2))
    answer = await client.get(f"{CLUSTER}/topics/t/partitions")
    assert answer.status == 200 and answer.headers["Warning"].startswith("110 ")
    body = await answer.json()
    assert body["data"] and body["unconfirmed"] == {
        "message": "no quorum: as of 12 s ago; voters unreachable: 1, 2",
        "seconds": 12.5,
        "unreachable_voters": [1, 2],
    }
    assert "unconfirmed" not in await (await client.get("/healthz")).json()


# --- nothing is an internal error -------------------------------------------------------------------------------------

TEXTS = (
    "",
    "x",
    "9" * 5_000,
    "-1",
    "٣",
    "%00",
    "..",
    "\u202e",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "1969-01-01",
    "@" + "9" * 40,
    "+" + "9" * 40,
    "-" + "9" * 40,
    "start",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "string": (*TEXTS, None, 5),
    "integer": (-1, 0, 2**31 - 1, 2**31, 2**63, 10**400, None, True),
    "boolean": (True, None, 1),
    "array": ([], None, [None], ["t", 5], [[]], ["x" * 1000]),
    "object": ({}, None),
    "any": (*TEXTS, None, 5, 10**400, [], {"a": []}, True),
}
PATHS = ("x", "9" * 5_000, "0", "99999999999", "-1", "%00", "%FF", "%2e%2e", "٣", "t", "g", "-")


def bodies(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    """One field at a time takes each hostile value; the others are as they should be."""
    sound = {item.name: _sound(item) for item in fields if item.required}
    found = [sound]
    for item in fields:
        found += [{**sound, item.name: value} for value in VALUES[item.type]]
        for inner in bodies(item.fields) if item.fields else ():
            found.append({**sound, item.name: [inner] if item.type == "array" else inner})
    return found


def _sound(item: Field) -> Any:
    if item.type == "array":
        return []
    return {"string": "start", "integer": 1, "boolean": True, "object": {}, "any": "1"}[item.type]


def requests_of(route: Route) -> list[tuple[str, dict[str, Any] | None]]:
    """Hostile values in the path with a sound body, and a sound path with hostile bodies."""
    usual = {"cluster_id": "c1", "topic_name": "t", "partition_id": "0", "broker_id": "0", "consumer_group_id": "g"}
    base = route.path
    for name, value in usual.items():
        base = base.replace("{" + name + "}", value)
    base = base.replace("{name}", "retention.ms").replace("{consumer_id}", "m1")
    known = bodies(route.body) if route.body else [None]
    asked: list[tuple[str, dict[str, Any] | None]] = [(base, body) for body in known]
    for name in usual:
        if "{" + name + "}" in route.path:
            other = {**usual, name: "{}"}
            path = route.path.replace("{name}", "a").replace("{consumer_id}", "m1")
            for key, value in other.items():
                path = path.replace("{" + key + "}", value)
            asked += [(path.replace("{}", text), known[0]) for text in PATHS]
    return asked


async def test_no_request_whatsoever_is_an_internal_error(client: Client, broker: FakeBroker) -> None:
    refused = responses.ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no")
    for kind in (requests.DeleteTopicRequest, AddPartitionsRequest, AlterConfigRequest,
                 DescribeBrokerRequest, requests.DescribeStorageRequest, requests.BringBackFolderRequest,
                 requests.DeleteGroupRequest, requests.BrokerShutdownRequest, requests.AlterVotersRequest,
                 requests.DeleteOffsetsRequest, requests.DeleteRecordsRequest, DecommissionBrokerRequest,
                 FillBrokerRequest, UnregisterBrokerRequest, AssignReplicasRequest, ElectLeaderRequest, AlterUsersRequest,
                 DescribeUsersRequest, ConsumerGroupHeartbeatRequest, LeaveGroupRequest,
                 requests.ResetOffsetsRequest, requests.UndoOffsetResetRequest):  # fmt: skip
        broker.answers[kind] = lambda _: refused
    count = 0
    for route in ROUTES:
        for path, body in requests_of(route):
            data = None if body is None else json.dumps(body).encode()
            answer = await client.request(route.method, path, data=data, headers=JSON if body is not None else {})
            count += 1
            assert answer.status < 500 or answer.status == 503, (  # 503: a partition without a leader
                route.method,
                path[:200],
                str(body)[:200],
                await answer.text(),
            )
    assert count > 400


@pytest.mark.parametrize("depth", [*range(300, 2_000, 50), *range(2_000, 60_000, 2_000)])  # the limit depends on Python
async def test_a_deeply_nested_value_is_taken_or_refused(client: Client, depth: int) -> None:
    data = '{"value": {"type": "JSON", "data": ' + "[" * depth + "]" * depth + "}}"
    assert (await client.post(f"{TOPICS}/t/records", data=data.encode(), headers=JSON)).status in (200, 400)
    for body in (
        '{"name": DEEP}',
        '{"name": "a", "configs": {"retention.ms": DEEP}}',
        '{"DEEP": DEEP}',
        '{"assignment": [DEEP]}',
    ):
        deep = body.replace("DEEP", "[" * depth + "]" * depth)
        assert (await client.post(TOPICS, data=deep.encode(), headers=JSON)).status == 400


# --- what is not HTTP -------------------------------------------------------------------------------------------------


async def test_what_is_not_http_is_refused_without_a_traceback(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    server = await start_admin(broker, listening)
    try:
        for bad in (b"GET / HTTP/\xff\r\n\r\n", b"GET / HTTP/1.1\r\nHo\x80st: x\r\n\r\n", b"\0\1\2\r\n\r\n"):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(bad)
            assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
            writer.close()
            await writer.wait_closed()
    finally:
        await server.close()
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


@pytest.mark.parametrize(("origin", "is_welcome"), [("https://shop.example", True), ("https://\udcff", False)])
def test_an_origin_that_no_header_can_repeat_is_not_admitted(origin: str, is_welcome: bool) -> None:
    """It is told in the answer: to encode it failed, with a traceback in the log."""
    assert is_admitted("/v3/clusters/c1/topics/t/records", origin, ("*",)) is is_welcome
