"""Pages of long lists, and gzip, through real HTTP."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace
from unit.net.admin.fake_broker import FakeBroker

from barnabas.net.admin.app import build_app
from barnabas.net.admin.frame.call import Call, Reply
from barnabas.net.admin.frame.packing import AT_ONCE_BYTES, LEAST_BYTES, THREADS, Packing, accepts_gzip
from barnabas.net.admin.frame.paging import paged

CLUSTER = "/v3/clusters/c1"
HttpClient = TestClient[Any, Any]


class Topics(FakeBroker):
    """Has as many topics as a test wants."""

    def with_topics(self, *names: str) -> None:
        given = self.image()
        one = next(iter(given.topics.values()))
        self.changed = replace(given, topics={name: replace(one, name=name, topic_id=name) for name in names})

    def image(self) -> Any:
        return getattr(self, "changed", None) or super().image()


@pytest.fixture
def broker() -> Topics:
    return Topics()


@pytest.fixture
async def client(broker: Topics) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker)), auto_decompress=False) as opened:
        yield opened


async def plain(client: HttpClient, path: str, status: int = 200) -> Any:
    answer = await client.get(path, headers={"Accept-Encoding": "identity"})
    assert answer.status == status, await answer.text()
    return await answer.json()


async def test_pages_have_every_topic_once_while_topics_come_and_go(client: HttpClient, broker: Topics) -> None:
    broker.with_topics(*(f"t{number}" for number in range(7)))
    seen: list[list[str]] = []
    path = f"{CLUSTER}/topics?page_size=3"
    while path:
        listed = await plain(client, path)
        seen.append([item["topic_name"] for item in listed["data"]])
        following = listed["metadata"]["next"]
        path = following and following[following.index("/v3/") :]
        if len(seen) == 1:  # t2, the last one of the page, is deleted, and one before it is made
            broker.with_topics("a-new-one", *(f"t{number}" for number in range(7) if number != 2))
    assert seen == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"]]


async def test_a_page_that_is_just_full_has_no_next_one(client: HttpClient, broker: Topics) -> None:
    broker.with_topics("a", "b")
    assert (await plain(client, f"{CLUSTER}/topics?page_size=2"))["metadata"]["next"] is None
    assert (await plain(client, f"{CLUSTER}/topics?page_size=1"))["metadata"]["next"] is not None
    assert len((await plain(client, f"{CLUSTER}/topics"))["data"]) == 2


def test_no_page_names_what_the_caller_may_not_see() -> None:
    """The token of a page is the last key that was shown; keys behind it are looked at for one more."""
    query: dict[str, Any] = {"page_size": 1}
    call = SimpleNamespace(
        query=query,
        url=lambda *parts: "u",
        listed=lambda kind, path, data: Reply(body={"metadata": {"next": None}, "data": data}),
    )
    keys, seen, tokens = ["a", "hidden-1", "hidden-2", "z", "zz-hidden"], [], []
    for _ in keys:
        listed = paged(cast(Call, call), "L", ("l",), keys, lambda key: None if "hidden" in key else {"name": key}).body
        assert isinstance(listed, dict)
        seen += [item["name"] for item in listed["data"]]
        if (following := listed["metadata"]["next"]) is None:
            break
        query["page_token"] = parse_qs(urlsplit(following).query)["page_token"][0]
        tokens.append(json.loads(base64.urlsafe_b64decode(query["page_token"] + "==")))
    assert seen == ["a", "z"] and tokens == ["a"]


async def test_partitions_and_groups_have_pages(client: HttpClient) -> None:
    listed = await plain(client, f"{CLUSTER}/topics/t/partitions?page_size=2")
    assert [item["partition_id"] for item in listed["data"]] == [0, 1]
    following = listed["metadata"]["next"]
    rest = await plain(client, following[following.index("/v3/") :])
    assert [item["partition_id"] for item in rest["data"]] == [2] and rest["metadata"]["next"] is None
    assert (await plain(client, f"{CLUSTER}/consumer-groups?page_size=1"))["data"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("page_size=0", "between 1 and 10000"),
        ("page_size=10001", "between 1 and 10000"),
        ("page_size=x", "must be an integer"),
        ("page_token=InQi", "page_token needs page_size"),
        ("page_size=1&page_token=!!", "begin without it"),
        ("page_size=1&page_token=NQ", "begin without it"),  # of partitions
        ("page_size=1&page_token=" + "A" * 1_001, "begin without it"),
        ("page_sice=1", "did you mean page_size?"),
    ],
)
async def test_bad_pages(client: HttpClient, query: str, words: str) -> None:
    assert words in (await plain(client, f"{CLUSTER}/topics?{query}", 400))["message"]


async def test_the_document_has_the_parameters(client: HttpClient) -> None:
    told = (await plain(client, "/openapi.json"))["paths"]["/v3/clusters/{cluster_id}/topics"]["get"]["parameters"]
    assert {"page_size", "page_token"} <= {item["name"] for item in told}


@pytest.mark.parametrize("count", [40, 400])
async def test_long_answers_are_packed_for_those_who_accept_it(client: HttpClient, broker: Topics, count: int) -> None:
    broker.with_topics(*(f"topic-{number}" for number in range(count)))
    wanted = await plain(client, f"{CLUSTER}/topics")
    assert (len(json.dumps(wanted)) > AT_ONCE_BYTES) == (count == 400)
    answer = await client.get(f"{CLUSTER}/topics", headers={"Accept-Encoding": "br, gzip;q=0.5"})
    packed = await answer.read()
    assert answer.headers["Content-Encoding"] == "gzip" and answer.headers["Vary"] == "Accept-Encoding"
    assert json.loads(gzip.decompress(packed)) == wanted
    assert int(answer.headers["Content-Length"]) == len(packed) < len(json.dumps(wanted)) / 4


async def test_short_answers_and_files_are_not_packed(client: HttpClient) -> None:
    answer = await client.get("/healthz", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in answer.headers and len(await answer.read()) < LEAST_BYTES
    answer = await client.get("/", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in answer.headers


async def test_while_threads_are_busy_answers_are_sent_as_they_are() -> None:
    """Memory and processors are bounded: a caller waits for no other one."""
    from aiohttp import web
    from aiohttp.test_utils import make_mocked_request

    packing, body = Packing(), b"x" * (AT_ONCE_BYTES + 1)
    request = make_mocked_request("GET", "/", headers={"Accept-Encoding": "gzip"})
    answers = await asyncio.gather(*(packing.packed(request, web.Response(body=body)) for _ in range(THREADS + 3)))
    packed = [answer for answer in answers if "Content-Encoding" in answer.headers]
    assert len(packed) == THREADS
    assert "Content-Encoding" in (await packing.packed(request, web.Response(body=body))).headers, "they are free again"


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("gzip", True), ("br, gzip", True), ("GZIP;q=1.0", True), ("*", True), ("gzip; q=0.001", True),
        ("", False), ("br", False), ("gzip;q=0", False), ("gzip;q=0.0, br", False), ("notgzip", False), ("gzip;q=x", False),
        ("gzip;q=.", False),
    ],
)  # fmt: skip
def test_who_accepts_gzip(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts
