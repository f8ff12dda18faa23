"""What the console asks: the overview and its stream, the doctor, the quorum, records, and its own files."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec import structs
from msgspec.structs import replace
from unit.net.admin.fake_broker import FakeBroker, an_image, described

from barnabas.kraft.metadata.image import MetadataImage, PartitionImage, TopicImage
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL, DeliveredRecords, SharePartitionView
from barnabas.net.admin import app
from barnabas.net.admin.app import ROUTES, build_app
from barnabas.net.admin.console import overview
from barnabas.net.admin.console.history import ROUTES as ROUTES_OF_HISTORY
from barnabas.net.admin.frame import feed
from barnabas.net.admin.frame.connections import AdminConnections
from barnabas.net.admin.frame.errors import ApiError
from barnabas.net.admin.routes import record_reading
from barnabas.net.wire.protocol import requests, responses
from barnabas.net.wire.protocol.broker_figures import DescribeBrokerRequest, DescribeBrokerResponse, HistoryPoint
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, LagPoint
from barnabas.net.wire.protocol.requests import DescribeGroupRequest

CLUSTER = "/v3/clusters/c1"
RECORDS = f"{CLUSTER}/topics/t/partitions/0/records"
HttpClient = TestClient[Any, Any]
FIGURES = DescribeBrokerResponse(
    node_id=0, version="0.1", python="3.11", wall_ms=1, started_ms=1, cpu_s=1.0, memory_bytes=90, memory_limit_bytes=100,
    descriptors=8, descriptor_limit=100, loop_delay_ms=20, connections=8, max_connections=100, connections_per_s=5.0,
    in_per_s=0, out_per_s=0,
)  # fmt: skip


class Broker(FakeBroker):
    def __init__(self) -> None:
        super().__init__()
        self.now = an_image()

    def image(self) -> MetadataImage:
        return self.now

    def shrink(self, isr: tuple[int, ...]) -> None:
        topic = self.now.topics["t"]
        changed = replace(topic, partitions=(replace(topic.partitions[0], isr=isr), *topic.partitions[1:]))
        self.now = replace(self.now, topics={"t": changed})


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


# --- overview


async def test_the_overview_counts_what_is_not_well(client: HttpClient) -> None:
    answer = await (await client.get(f"{CLUSTER}/overview")).json()
    assert answer["totals"] == {"partitions": 3, "under_replicated": 1, "without_leader": 1, "moving": 1}
    assert [(item["broker_id"], item["state"], item["leaders"], item["replicas"]) for item in answer["brokers"]] == [
        (0, "active", 1, 1), (1, "active", 1, 2), (2, "fenced", 0, 2),
    ]  # fmt: skip
    (topic,) = answer["topics"]
    assert (topic["topic_name"], topic["partitions"], topic["replication_factor"]) == ("t", 3, 2)


async def test_the_overview_has_a_limit_and_counts_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MAX_TOPICS", 3)
    partition = PartitionImage(replicas=(0,), isr=(0,), leader=0)
    names = [f"t{number}" for number in range(250)]
    topics = {name: TopicImage(name=name, topic_id=name, partitions=(partition,)) for name in names}
    found = await overview.overview_of(replace(an_image(), topics=topics))
    assert len(found["topics"]) == 3 and found["topics_count"] == 250 == found["totals"]["partitions"]


async def events(response: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        line = await asyncio.wait_for(response.content.readline(), 10)
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:]))
    return found


async def test_another_leader_is_in_the_stream_although_all_counts_are_as_before(
    client: HttpClient, broker: Broker
) -> None:
    """The page of a topic looks at its partitions when its entry has changed."""
    async with client.get(f"{CLUSTER}/overview/stream") as stream:
        (before,) = await events(stream, 1)
        topic = broker.now.topics["t"]
        first, *others = topic.partitions
        led = replace(first, leader_epoch=first.leader_epoch + 1, partition_epoch=first.partition_epoch + 1)
        broker.now = replace(broker.now, topics={"t": replace(topic, partitions=(led, *others))})
        (after,) = await events(stream, 1)
    assert before["topics"] != after["topics"] and before["totals"] == after["totals"]
    assert after["topics"][0]["changes"] == before["topics"][0]["changes"] + 1


async def test_a_loss_of_a_replica_is_in_the_stream_at_once(client: HttpClient, broker: Broker) -> None:
    async with client.get(f"{CLUSTER}/overview/stream") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream" and stream.headers["Cache-Control"] == "no-store"
        (first,) = await events(stream, 1)
        assert first["totals"]["under_replicated"] == 1
        began = asyncio.get_running_loop().time()
        broker.shrink((0,))
        (second,) = await events(stream, 1)
        assert second["totals"]["under_replicated"] == 2
        assert asyncio.get_running_loop().time() - began < 1.0


async def test_a_stream_outlives_the_limits_of_idle_connections(broker: Broker) -> None:
    """An empty pool is false: a pool that was made in its place did not count requests, and calls were cut after 10 s."""
    pool = AdminConnections(lambda: 0.0)
    assert any(found is pool for found in build_app(broker, pool).values())


async def test_the_readers_of_streams_share_one_computation_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TICK_S", 0.01)
    computed: list[int] = []
    sources = [object(), object()]

    async def compute() -> dict[str, Any]:
        computed.append(len(computed))
        return {"n": len(computed)}

    shared = feed.Feed(lambda: sources[0], compute)
    assert computed == [], "nothing is computed while nobody reads"
    readers = [shared.follow(dict) for _ in range(feed.MAX_READERS)]
    with pytest.raises(ApiError, match="16 readers follow this broker already"):
        shared.follow(dict)
    walks = [aiter(reader) for reader in readers]
    assert {await anext(walk) for walk in walks} == {'data: {"n":1}\n\n'} and computed == [0]
    sources.pop(0)
    assert {await anext(walk) for walk in walks} == {'data: {"n":2}\n\n'} and computed == [0, 1]
    for reader in readers:
        await reader.aclose()
    await asyncio.sleep(0)
    assert shared._task is not None and shared._task.cancelling()
    again = shared.follow(dict)
    assert await anext(aiter(again)) == 'data: {"n":2}\n\n'
    await again.aclose()
    await again.aclose()
    assert shared._places.taken == 0


async def test_readers_who_may_see_everything_share_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    def event_of(state: dict[str, Any]) -> str:
        written.append(state)
        return json.dumps(state)

    monkeypatch.setattr(feed, "TICK_S", 0.01)
    monkeypatch.setattr(feed, "event_of", event_of)

    async def compute() -> dict[str, Any]:
        return {"topics": [1, 2]}

    source = object()
    shared = feed.Feed(lambda: source, compute)
    readers = [shared.follow(lambda state: state) for _ in range(5)]
    part = shared.follow(lambda state: {"topics": [1]})
    assert {await anext(aiter(reader)) for reader in readers} == {'{"topics": [1, 2]}'}
    assert await anext(aiter(part)) == '{"topics": [1]}'
    assert written == [{"topics": [1, 2]}, {"topics": [1]}]
    for reader in (*readers, part):
        await reader.aclose()


async def test_a_stream_that_was_never_read_gives_its_place_back(client: HttpClient) -> None:
    for _ in range(feed.MAX_READERS + 5):
        async with client.head(f"{CLUSTER}/overview/stream") as answer:
            assert answer.status == 200


async def test_a_stream_ends_and_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(feed, "MAX_STREAM_S", 0.1)

    async def compute() -> dict[str, Any]:
        return {"n": 1}

    found = [event async for event in feed.Feed(object, compute).follow(dict)]
    assert found[0] == 'data: {"n":1}\n\n' and found[1:] and set(found[1:]) == {feed.HEARTBEAT}


# --- topic, quorum, doctor


async def test_partitions_of_a_topic_have_their_ends_and_one_without_a_leader_has_none(
    client: HttpClient,
) -> None:
    rows = (await (await client.get(f"{CLUSTER}/topics/t/overview")).json())["partitions"]
    assert [(row["leader"], row["isr"]) for row in rows] == [(0, [0, 1]), (1, [1]), (-1, [2])]
    assert [row["end_offset"] is None for row in rows] == [False, False, True]


async def test_the_quorum(client: HttpClient) -> None:
    answer = await (await client.get(f"{CLUSTER}/quorum")).json()
    assert (answer["leader_id"], answer["voters"], answer["unconfirmed_ms"]) == (0, [0, 1, 2], -1)


async def test_the_doctor_says_what_is_wrong_and_the_cure(client: HttpClient, broker: Broker) -> None:
    assert (await (await client.get(f"{CLUSTER}/doctor")).json())["healthy"] is True
    broker.quorum = replace(broker.quorum, leader_id=-1, unconfirmed_ms=5_000, unreachable_voters=(1, 2))
    answer = await (await client.get(f"{CLUSTER}/doctor")).json()
    assert answer["healthy"] is False
    assert any("quorum" in item["what"] and item["weight"] == "critical" for item in answer["findings"]), answer


# --- records


def stored(broker: FakeBroker, *values: bytes | None, keys: list[bytes | None] | None = None) -> None:
    batch = encode_batch(list(values), timestamps_ms=[1_000 + number for number in range(len(values))], keys=keys)
    end = len(values)

    def fetch(request: requests.FetchRequest) -> responses.FetchResponse:
        (wanted,) = request.partitions
        answer = responses.FetchPartitionResponse(
            topic="t", partition=0, high_watermark=end, log_start_offset=0, records=batch
        )
        if wanted.fetch_offset > end:
            answer = replace(answer, records=b"", error=ErrorCode.OFFSET_OUT_OF_RANGE)
        return responses.FetchResponse(partitions=(answer,))

    def offsets(request: requests.ListOffsetsRequest) -> responses.ListOffsetsResponse:
        found = {-2: 0, -1: end}
        return responses.ListOffsetsResponse(
            partitions=tuple(
                responses.ListOffsetsPartitionResponse(
                    topic=item.topic,
                    partition=item.partition,
                    offset=found.get(item.timestamp_ms, max(-1, item.timestamp_ms - 1_000)),
                    timestamp_ms=item.timestamp_ms,
                )
                for item in request.partitions
            )
        )

    broker.answers[requests.FetchRequest] = fetch
    broker.answers[requests.ListOffsetsRequest] = offsets


async def read(client: HttpClient, query: str = "") -> Any:
    answer = await client.get(f"{RECORDS}?{query}")
    body = await answer.json()
    assert answer.status == 200, body
    return body


async def test_records_are_text_or_base64_and_tombstones_are_null(client: HttpClient, broker: Broker) -> None:
    stored(broker, b"pear", b"\xff\x00", None, keys=[b"k", None, "ü".encode()])
    body = await read(client)
    assert (body["start_offset"], body["end_offset"], body["next_offset"]) == (0, 3, 3)
    first, second, third = body["data"]
    assert (first["offset"], first["timestamp_ms"], first["key"], first["value"]) == (
        0, 1_000, {"size": 1, "text": "k"}, {"size": 4, "text": "pear"},
    )  # fmt: skip
    assert second["key"] is None and second["value"] == {"size": 2, "base64": "/wA="}
    assert third["value"] is None and third["key"]["text"] == "ü"


async def test_records_are_those_of_the_topic_that_the_offsets_are_of(client: HttpClient, broker: Broker) -> None:
    stored(broker, b"pear")
    await read(client, "timestamp_ms=1000")
    found = [request for request in broker.asked if isinstance(request, requests.FetchRequest)]
    assert found and {item.topic_id for request in found for item in request.partitions} == {"a" * 32}


async def test_a_page_does_not_go_on_in_a_topic_that_was_made_again(client: HttpClient, broker: Broker) -> None:
    stored(broker, b"pear", b"plum")
    first = await read(client, "limit=1&offset=0")
    assert first["topic_id"] == "a" * 32
    following = await read(client, f"offset={first['next_offset']}&topic_id={first['topic_id']}")
    assert [row["offset"] for row in following["data"]] == [1]
    answer = await client.get(f"{RECORDS}?offset=1&topic_id={'b' * 32}")
    told = (await answer.json())["message"]
    assert answer.status == 400 and f"its id was {'b' * 32} and is {'a' * 32} now" in told, told


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("last=2", [8, 9], 10),
        ("last=99", list(range(10)), 10),
        ("offset=4&limit=3", [4, 5, 6], 7),
        ("offset=999", [], 10),
        ("timestamp_ms=1007", [7, 8, 9], 10),
        ("timestamp_ms=500", [], 10),
        ("limit=1", [0], 1),
    ],
)
async def test_where_to_begin(
    client: HttpClient, broker: Broker, query: str, offsets: list[int], next_offset: int
) -> None:
    stored(broker, *(b"%d" % number for number in range(10)))
    body = await read(client, query)
    assert [row["offset"] for row in body["data"]] == offsets and body["next_offset"] == next_offset


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("limit=0", "limit is 0; it must be an integer from 1 to 1000"),
        ("limit=5000", "limit is 5000"),
        ("offset=1&last=2", "offset and last exclude each other"),
        ("isolation=dirty", "it must be read_committed or read_uncommitted"),
        ("ofset=1", "did you mean offset?"),
        ("offset=-1", "must be an integer"),
        ("offset=1&topic_id=t", "topic_id is 't'; it must be the topic_id of an answer, 32 hex digits"),
    ],
)
async def test_wrong_questions_are_refused(client: HttpClient, query: str, told: str) -> None:
    answer = await client.get(f"{RECORDS}?{query}")
    assert answer.status == 400 and told in (await answer.json())["message"]


async def test_large_records_are_cut_and_an_answer_has_a_limit(
    client: HttpClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reading, "MAX_CELL_BYTES", 7)
    monkeypatch.setattr(record_reading, "MAX_ANSWER_BYTES", 3 * (2 * record_reading.FRAME_BYTES + 20))
    stored(broker, *(["äöüß".encode() * 100] * 9))
    body = await read(client, "offset=0")
    assert body["data"][0]["value"] == {"size": 800, "cut": True, "text": "äöü"}
    assert len(body["data"]) == 3 and body["next_offset"] == 3, "more is read with the next call"
    assert [row["offset"] for row in (await read(client, "offset=3"))["data"]] == [3, 4, 5]


def test_headers_count_and_are_cut_too() -> None:
    """A few bytes of a compressed batch may have a million empty headers, or names of a megabyte."""
    pages = []
    for headers in ([("n" * 900_000, None)], [("", None)] * 300_000, [("n", b"\1" * 65_536)] * 40):
        page = record_reading._Page(1_000)
        page.add(SimpleNamespace(offset=n, timestamp_ms=0, key=None, value=b"", headers=headers) for n in range(1_000))
        assert len(page.rows) > 1 and len(json.dumps(page.rows)) < 1.2 * record_reading.MAX_ANSWER_BYTES
        pages.append(page)
    assert "headers_cut" not in pages[0].rows[0] and pages[1].rows[0]["headers_cut"] == 300_000


def test_the_limit_of_an_answer_is_of_its_json() -> None:
    page = record_reading._Page(1_000)
    value = b"\1" * record_reading.MAX_CELL_BYTES  # six characters each
    page.add(SimpleNamespace(offset=n, timestamp_ms=0, key=None, value=value, headers=()) for n in range(1_000))
    assert len(json.dumps(page.rows)) < 1.2 * record_reading.MAX_ANSWER_BYTES


async def test_a_caller_that_does_not_take_a_large_answer_is_dropped(
    client: HttpClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 of them held 400 MB."""
    monkeypatch.setattr(app, "LARGE_TIMEOUT_S", 0.2)
    stored(broker, *([b"p" * 60_000] * 100))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, (client.host, client.port))
        await loop.sock_sendall(slow, f"GET {RECORDS}?offset=0&limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert len((await read(client, "offset=0&limit=1000"))["data"]) > 60, "others are served meanwhile"
        assert isinstance(client.server, TestServer) and client.server.app is not None
        large = client.server.app[app._LARGE]
        async with asyncio.timeout(10):
            for _ in range(app.LARGE_AT_ONCE):  # also the place of the slow one is free again
                await large.acquire()
        size = 0
        with pytest.raises(ConnectionResetError):
            while chunk := await loop.sock_recv(slow, 65_536):
                size += len(chunk)
            raise ConnectionResetError  # the end came early, in order
        assert size < 3_900_000


async def test_a_damaged_batch_is_an_error_that_names_it(client: HttpClient, broker: Broker) -> None:
    stored(broker, b"pear")
    good: Any = broker.answers[requests.FetchRequest]

    def damaged(request: Any) -> Any:
        (answer,) = good(request).partitions
        return responses.FetchResponse(partitions=(replace(answer, records=answer.records[:-1] + b"x"),))

    broker.answers[requests.FetchRequest] = damaged
    answer = await client.get(RECORDS)
    assert answer.status >= 400 and "CRC" in (await answer.text()).upper()


# --- files


async def test_the_page_and_its_files_may_run_nothing_else(client: HttpClient) -> None:
    for path in ("/", "/console/app.js", "/console/style.css", "/console/icon.svg"):
        answer = await client.get(path)
        assert answer.status == 200, path
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        again = await client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status == 304 and await again.read() == b""


def test_the_files_have_no_inline_code_and_make_no_markup_of_data() -> None:
    static = files("barnabas.net.admin.console") / "static"
    names = {item.name for item in static.iterdir()}
    assert {"index.html", "app.js", "style.css"} <= names
    for item in static.iterdir():
        text = item.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), item
        assert not re.search(r"https?://(?!www\.w3\.org)", text), f"{item.name} refers to another server"
    page = (static / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", page)


async def test_other_names_are_not_files(client: HttpClient) -> None:
    for name in ("nothing.js", "..%2Fpages.py", "%2e%2e%2foverview.py", "__init__.py"):
        answer = await client.get(f"/console/{name}")
        assert answer.status == 404 and "import" not in await answer.text()


@pytest.mark.parametrize("mode", ["off", "readonly", "on"])
async def test_the_console_can_be_switched_off(client: HttpClient, broker: Broker, mode: str) -> None:
    broker.console = mode
    for path in ("/", "/console/app.js", "/console/settings"):
        assert (await client.get(path)).status == (404 if mode == "off" else 200)
    if mode != "off":
        answer = await (await client.get("/console/settings")).json()
        assert answer == {
            "cluster_id": "c1",
            "node_id": 0,
            "can_change": mode == "on",
            "has_registry": False,
            "is_secure": False,
        }
    assert (await client.get(f"{CLUSTER}/overview")).status == 200, "programs may go on"
    created = await client.post(f"{CLUSTER}/topics", json={"topic_name": "new"})
    assert created.status == 201, "the setting is about pages; permissions decide about changes"


def test_all_routes_of_the_console_are_in_the_table() -> None:
    paths = {route.path for route in ROUTES}
    assert {"/", "/console/{file}", "/console/settings", "/v3/clusters/{cluster_id}/overview"} <= paths


# --- the last hour ----------------------------------------------------------------------------------------------------


async def test_the_last_hour_of_a_broker(client: HttpClient, broker: FakeBroker) -> None:
    def point(at_ms: int) -> HistoryPoint:
        values: dict[str, Any] = dict.fromkeys((field.name for field in structs.fields(HistoryPoint)), -1)
        return HistoryPoint(**{**values, "at_ms": at_ms, "produce_p99_ms": 1.23456, "in_per_s": 7})

    def answer(request: DescribeBrokerRequest) -> DescribeBrokerResponse:
        assert (request.node_id, request.history) == (1, True)
        return replace(FIGURES, node_id=1, history=(point(10_000), point(20_000)))

    broker.answers[DescribeBrokerRequest] = answer
    path = f"{CLUSTER}/brokers/1/barnabas/history"
    found = await (await client.get(path)).json()
    assert [row["at_ms"] for row in found["data"]] == [10_000, 20_000] and found["interval_ms"] == 10_000
    assert found["data"][0] | {"produce_p99_ms": 1.235, "in_per_s": 7, "commit_p99_ms": None} == found["data"][0]
    later = await (await client.get(f"{path}?after_ms=10000")).json()
    assert [row["at_ms"] for row in later["data"]] == [20_000]
    assert (await client.get(f"{CLUSTER}/brokers/7/barnabas/history")).status == 404
    declared = {field.name for field in ROUTES_OF_HISTORY[0].answer[-1].fields}
    assert declared == found["data"][0].keys()


async def test_the_lag_of_a_group_in_the_last_hour(client: HttpClient, broker: FakeBroker) -> None:
    def answer(request: DescribeGroupRequest) -> Any:
        assert request.history
        points = (LagPoint(at_ms=30_000, unread=-1, lag_ms=-1), LagPoint(at_ms=60_000, unread=7, lag_ms=1_500))
        return replace(cast(DescribeGroupResponse, described(request)), lags=points, lag_topics=("t",))

    broker.answers[DescribeGroupRequest] = answer
    path = f"{CLUSTER}/consumer-groups/g/lag-history"
    found = await (await client.get(path)).json()
    assert found["data"] == [
        {"at_ms": 30_000, "lag": None, "lag_seconds": None},
        {"at_ms": 60_000, "lag": 7, "lag_seconds": 1.5},
    ]
    assert found["interval_ms"] == 30_000
    later = await (await client.get(f"{path}?after_ms=30000")).json()
    assert [row["at_ms"] for row in later["data"]] == [60_000]


async def test_the_partitions_of_a_share_group(client: HttpClient, broker: FakeBroker) -> None:
    path = f"{CLUSTER}/consumer-groups/g/share-partitions"
    answer = await client.get(path)
    assert answer.status == 400 and "is not a share group" in await answer.text()

    def shares(request: DescribeGroupRequest) -> Any:
        assert request.shares
        delivered = (DeliveredRecords(deliveries=2, count=3),)
        known = SharePartitionView(
            topic="t", partition=0, start_offset=5, log_end_offset=9, lag=3, acquired=1, deliveries=delivered
        )
        unknown = SharePartitionView(topic="t", partition=1, start_offset=5)
        found = cast(DescribeGroupResponse, described(request))
        return replace(found, protocol=SHARE_PROTOCOL, shares=(known, unknown))

    broker.answers[DescribeGroupRequest] = shares
    first, second = (await (await client.get(path)).json())["data"]
    assert (first["topic_name"], first["partition_id"], first["start_offset"]) == ("t", 0, 5)
    assert (first["log_end_offset"], first["lag"], first["acquired"]) == (9, 3, 1)
    assert first["deliveries"] == [{"deliveries": 2, "records": 3}]
    assert (second["log_end_offset"], second["lag"], second["acquired"], second["deliveries"]) == (None, None, None, [])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"key": "a", "key_base64": "YQ=="}, "give key or key_base64, not both"),
        ({"key_base64": "YQ==", "key_json": "1"}, "give key_base64 or key_json, not both"),
        ({"key_base64": "YQ"}, "key_base64 is not valid base64"),
        ({"key_base64": "+ =="}, "key_base64 is not valid base64"),
    ],
)
async def test_a_key_that_is_no_key_is_refused(query: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiError, match=told):
        await record_reading._key_of(cast(Any, SimpleNamespace(query=query)), "t")


async def test_a_key_that_is_typed_as_json_has_the_id_of_its_schema() -> None:
    async def encode_key(topic: str, text: str) -> tuple[int, bytes]:
        return 7, f"{topic} {text}".encode()

    call = SimpleNamespace(query={"key_json": "1"}, decoding=SimpleNamespace(encode_key=encode_key))
    assert await record_reading._key_of(cast(Any, call), "t") == (b"t 1", 7)


async def test_keys_that_are_looked_for() -> None:
    async def key_of(**query: str) -> bytes | None:
        return (await record_reading._key_of(cast(Any, SimpleNamespace(query=query)), "t"))[0]

    assert await key_of() is None
    assert (await key_of(key="\u00fc"), await key_of(key="")) == (b"\xc3\xbc", b"")
    assert (await key_of(key_base64="AP8="), await key_of(key_base64="")) == (b"\x00\xff", b"")


async def test_the_partition_of_a_key(client: HttpClient) -> None:
    address = f"{CLUSTER}/topics/t/barnabas/partition"
    as_text = await (await client.get(address, params={"key": "pear"})).json()
    assert as_text["key_base64"] == "cGVhcg==" and "schema_id" not in as_text
    assert await (await client.get(address, params={"key_base64": "cGVhcg=="})).json() == as_text
    missing = await client.get(address)
    assert missing.status == 400 and "the parameter key is missing" in await missing.text()
    typed = await client.get(address, params={"key_json": "1"})
    assert typed.status == 400 and "set admin.schema.registry.url" in await typed.text()
