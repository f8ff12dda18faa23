"""Events over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from unit.net.admin.fake_broker import FakeBroker

from barnabas.net.admin.app import build_app
from barnabas.net.client.admin.events import POLL_MS
from barnabas.net.wire.protocol import requests, responses
from barnabas.net.wire.protocol.event_messages import ClusterEvent, EventsRequest, EventsResponse

EVENTS = "/v3/clusters/c1/events"
HttpClient = TestClient[Any, Any]
EVENT = ClusterEvent(number=8, at_ms=1_000, kind="isr", name="isr", fields={"isr": "0,1"}, topic="t", offset=3)
HERE = responses.ClusterBroker(
    node_id=0, host="h", port=1, rack=None, fenced=False, in_controlled_shutdown=False, broker_epoch=1
)


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.answers[requests.DescribeClusterRequest] = lambda request: responses.DescribeClusterResponse(
        cluster_id="c1", controller_id=0, offset=1, brokers=(HERE,)
    )
    made.answers[EventsRequest] = lambda request: EventsResponse(node_id=0, events=(EVENT,), last=8)
    return made


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


def asked(broker: FakeBroker) -> EventsRequest:
    (found,) = [request for request in broker.asked if isinstance(request, EventsRequest)]
    return found


async def test_events_and_the_cursor_of_the_next_call(client: HttpClient, broker: FakeBroker) -> None:
    answer = await (
        await client.get(f"{EVENTS}?kind=isr,elected&topic=t&broker=1&since_ms=1700000000000&limit=7")
    ).json()
    assert asked(broker) == EventsRequest(
        kinds=("isr", "elected"), topic="t", broker=1, since_ms=1_700_000_000_000, limit=7
    )
    (row,) = answer["data"]
    assert (row["event"], row["fields"], row["at_ms"], row["seen_by"]) == ("isr", {"isr": "0,1"}, 1_000, 0)
    assert answer["kind"] == "BarnabasEventList" and answer["unanswered"] == {} and answer["has_more"] is False
    broker.asked.clear()
    assert (await (await client.get(EVENTS, params={"after": answer["cursor"]})).json())["data"] == []  # shown already
    assert asked(broker).after == 8


async def test_a_broker_that_does_not_let_readers_wait_is_not_asked_in_a_loop(
    client: HttpClient, broker: FakeBroker
) -> None:
    broker.answers[EventsRequest] = lambda request: EventsResponse(node_id=0, events=(), last=8)
    answer = await (await client.get(f"{EVENTS}?wait_ms={2 * POLL_MS + 100}")).json()
    assert answer["data"] == []
    assert len([request for request in broker.asked if isinstance(request, EventsRequest)]) <= 4


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("kinds=isr", "did you mean kind?"),
        ("limit=x", "limit must be an integer"),
        ("since_ms=-1", "since_ms must be an integer"),
        ("broker=99999999999999999", "broker must be an integer"),
        ("after=nonsense", "is no cursor"),
    ],
)
async def test_wrong_parameters_are_named(client: HttpClient, query: str, words: str) -> None:
    answer = await client.get(f"{EVENTS}?{query}")
    assert answer.status == 400 and words in (await answer.json())["message"]


async def test_the_document_has_parameters_and_the_answer(client: HttpClient) -> None:
    path = (await (await client.get("/openapi.json")).json())["paths"]["/v3/clusters/{cluster_id}/events"]["get"]
    named = {(item["name"], item["in"]) for item in path["parameters"]}
    assert {("cluster_id", "path"), ("after", "query"), ("wait_ms", "query"), ("kind", "query")} <= named
    schema = path["responses"]["200"]["content"]["application/json"]["schema"]
    assert {"data", "cursor"} <= set(schema["required"])
    row = (await (await client.get(EVENTS)).json())["data"][0]
    assert row.keys() <= schema["properties"]["data"]["items"]["properties"].keys()
