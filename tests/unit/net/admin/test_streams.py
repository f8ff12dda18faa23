"""Records that a caller sends one after the other, and records that a reader follows."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from integration.cluster import until
from unit.net.admin.fake_broker import FakeBroker
from unit.net.client.serde.registry_stub import running_registry

from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.admin import app, streams
from barnabas.net.admin.app import build_app
from barnabas.net.admin.frame.documents import MAX_DEPTH, Documents
from barnabas.net.admin.frame.errors import KAFKA_BAD_REQUEST, ApiError
from barnabas.net.admin.routes import record_reading
from barnabas.net.client.serde.framing import framed
from barnabas.net.server.dispatcher import Reply
from barnabas.net.wire.protocol import requests, responses

RECORDS = "/v3/clusters/c1/topics/t/records"
TAIL = "/v3/clusters/c1/topics/t/partitions/0/records"
JSON = {"Content-Type": "application/json"}
EVENTS = {"Accept": "text/event-stream"}
TOPIC_ID = "a" * 32  # of the topic of FakeBroker
HttpClient = TestClient[Any, Any]


class Broker(FakeBroker):
    """Lets readers wait for records."""

    def _answer(self, request: requests.Request, context: object, reply: Reply) -> None:
        if isinstance(request, requests.FetchRequest):
            asyncio.get_running_loop().call_later(0.005, super()._answer, request, context, reply)
        else:
            super()._answer(request, context, reply)


@pytest.fixture
def broker() -> FakeBroker:
    return Broker()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


def record(value: str, **fields: Any) -> bytes:
    return json.dumps({"partition_id": 0, "value": {"type": "STRING", "data": value}, **fields}).encode()


async def lines(answer: Any) -> list[Any]:
    return [json.loads(line) for line in (await answer.text()).splitlines()]


@given(
    objects=st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())), max_size=5),
    space=st.sampled_from(["", "\n", " \r\n\t"]),
    size=st.integers(1, 40),
)
def test_objects_are_found_wherever_their_bytes_are_cut(objects: list[Any], space: str, size: int) -> None:
    data = space.join(json.dumps(item, ensure_ascii=False) for item in objects).encode()
    found = []
    documents = Documents(10_000)
    for start in range(0, len(data), size):
        documents.feed(data[start : start + size])
        while (one := documents.next()) is not None:
            found.append(json.loads(one))
    assert found == objects and documents.is_complete


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[1]", r"near '\[1\]'"),
        (b"{}x", "near 'x'"),
        (b"{" * (MAX_DEPTH + 1), "deeper"),
        (b'{"' + b"x" * 200, "larger"),
    ],
)
def test_what_is_no_sequence_of_objects_is_refused(data: bytes, words: str) -> None:
    documents = Documents(100 if "larger" in words else 10_000)
    documents.feed(data)
    with pytest.raises(ApiError, match=words):
        while documents.next() is not None:
            pass


def test_a_large_object_is_looked_at_once() -> None:
    documents = Documents(100_000_000)
    looked = 0
    for _ in range(1_000):
        documents.feed(b'{"a":[' if not looked else b'"xxxxxxxxxxxxxxxx",' * 50)
        assert documents.next() is None
        assert documents._seen == len(documents._kept) > looked
        looked = documents._seen


async def test_several_objects_in_one_body_have_a_line_each(client: HttpClient, broker: FakeBroker) -> None:
    body = (
        record("a") + b"\n" + record("b") + record("c", partition_id=99) + b'{"valu": 1}' + record("d", partition_id=1)
    )
    answer = await client.post(RECORDS, data=body, headers=JSON)
    assert answer.status == 200 and answer.content_type == "application/json"
    told = await lines(answer)
    assert [item.get("offset", item["error_code"]) for item in told] == [7, 8, 40403, 400, 7]
    assert "did you mean value?" in told[3]["message"]
    batches = [request for request in broker.asked if isinstance(request, requests.ProduceRequest)]
    assert [read_header(item.partitions[0].records).record_count for item in batches] == [2, 1], "written together"


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD])
async def test_a_record_that_is_refused_keeps_no_other_one_back(
    client: HttpClient, broker: FakeBroker, code: ErrorCode
) -> None:
    """They were written together, so the log refused all of them."""
    written = []

    def produce(request: requests.ProduceRequest) -> responses.Response:
        (item,) = request.partitions
        batch = bytes(item.records)
        is_refused = b"bad" in batch
        if not is_refused:
            written.append(batch)
        first = sum(read_header(one).record_count for one in written[:-1])
        answer = responses.ProducePartitionResponse(
            topic=item.topic, partition=0, error=code if is_refused else ErrorCode.NONE, base_offset=first
        )
        return responses.ProduceResponse(partitions=(answer,))

    broker.answers[requests.ProduceRequest] = produce
    values = ["a", "b", "c", "bad", "d", "bad", "e"]
    told = await lines(await client.post(RECORDS, data=b"".join(map(record, values)), headers=JSON))
    assert [item.get("offset") for item in told] == [0, 1, 2, None, 3, None, 4]
    assert [item["error_code"] for item in told if "offset" in item] == [200] * 5
    assert sum(read_header(one).record_count for one in written) == 5, "each once"


async def test_each_record_is_answered_before_the_next_one_is_sent(client: HttpClient) -> None:
    answered: asyncio.Queue[None] = asyncio.Queue()

    async def sent() -> AsyncIterator[bytes]:
        for number in range(3):
            one = record(str(number))
            yield one[:9]
            yield one[9:]
            await answered.get()

    answer = await client.post(RECORDS, data=sent(), headers=JSON)
    for _ in range(3):
        assert json.loads(await answer.content.readline())["offset"] == 7
        answered.put_nowait(None)
    assert await answer.content.read() == b""


@pytest.mark.parametrize(("rest", "words"), [(b"nonsense", "near 'nonsense'"), (b'{"value": ', "ends within a record")])
async def test_what_follows_the_records_is_the_last_line(client: HttpClient, rest: bytes, words: str) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield record("a")
        yield rest

    told = await lines(await client.post(RECORDS, data=sent(), headers=JSON))
    assert told[0]["offset"] == 7 and words in told[1]["message"] and len(told) == 2


@pytest.mark.parametrize(("body", "status"), [(b"", 400), (b"nonsense", 400), (b'{"valu": 1}', 200)])
async def test_an_error_before_the_first_answer_has_a_status(client: HttpClient, body: bytes, status: int) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield body

    answer = await client.post(RECORDS, data=sent(), headers=JSON)
    assert answer.status == status and (await lines(answer))[0]["error_code"] == 400


async def test_a_topic_that_does_not_exist_and_another_media_type(client: HttpClient) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield record("a")

    assert (await client.post(RECORDS.replace("/t/", "/none/"), data=sent(), headers=JSON)).status == 404
    assert (await client.post(RECORDS, data=sent(), headers={"Content-Type": "text/plain"})).status == 415


async def test_callers_that_send_nothing_more_are_answered_and_counted(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "DOCUMENT_TIMEOUT_S", 0.3)
    is_over = asyncio.Event()

    async def sent() -> AsyncIterator[bytes]:
        yield record("a") + b'{"value"'
        await is_over.wait()

    async def send() -> Any:
        answer = await client.post(RECORDS, data=sent(), headers=JSON)
        told = json.loads(await answer.content.readline())
        return answer.status, told.get("offset", -1), await answer.content.readline()

    found = await asyncio.gather(*(send() for _ in range(app.PRODUCING_AT_ONCE + 1)))
    is_over.set()
    assert sorted(status for status, _, _ in found) == [200] * app.PRODUCING_AT_ONCE + [503]
    assert all(b"no complete record" in rest for status, _, rest in found if status == 200)


async def test_a_record_that_comes_byte_by_byte_keeps_no_place(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is that of a record, not of its next byte."""
    monkeypatch.setattr(streams, "DOCUMENT_TIMEOUT_S", 0.3)
    is_over = asyncio.Event()

    async def sent() -> AsyncIterator[bytes]:
        yield record("a") + b'{"value": "'
        while not is_over.is_set():
            yield b"x"
            await asyncio.sleep(0.02)  # the pace of the caller

    answer = await client.post(RECORDS, data=sent(), headers=JSON)
    try:
        async with asyncio.timeout(20):
            assert json.loads(await answer.content.readline())["offset"] == 7
            assert b"no complete record" in await answer.content.readline()
    finally:
        is_over.set()


class Log:
    """A partition that grows."""

    def __init__(self, broker: FakeBroker) -> None:
        self.values: list[bytes] = []
        self.start = 0
        broker.answers[requests.FetchRequest] = self._fetch
        broker.answers[requests.ListOffsetsRequest] = self._offsets

    def _fetch(self, request: requests.FetchRequest) -> responses.Response:
        (item,) = request.partitions
        if not self.start <= item.fetch_offset <= len(self.values):
            found = responses.FetchPartitionResponse(topic=item.topic, partition=item.partition, error=1)
        else:
            rest = self.values[item.fetch_offset :]
            data = bytearray(encode_batch(rest, timestamps_ms=[1_000] * len(rest))) if rest else bytearray()
            data[:8] = item.fetch_offset.to_bytes(8, "big") if rest else b""
            found = responses.FetchPartitionResponse(
                topic=item.topic, partition=item.partition, high_watermark=len(self.values), records=bytes(data)
            )
        return responses.FetchResponse(partitions=(found,))

    def _offsets(self, request: requests.ListOffsetsRequest) -> responses.Response:
        found = {requests.EARLIEST_TIMESTAMP: self.start}
        return responses.ListOffsetsResponse(
            partitions=tuple(
                responses.ListOffsetsPartitionResponse(
                    topic=item.topic,
                    partition=item.partition,
                    offset=found.get(item.timestamp_ms, len(self.values)),
                )
                for item in request.partitions
            )
        )


async def events(answer: Any, count: int) -> list[tuple[str, str, Any]]:
    """Kind, id, and data of the next ones; heartbeats are left out."""
    found: list[tuple[str, str, Any]] = []
    fields: dict[str, str] = {}
    async with asyncio.timeout(20):
        while len(found) < count:
            line = (await answer.content.readline()).decode()
            assert line, f"the stream has ended after {found}"
            name, _, value = line.rstrip("\n").partition(": ")
            if line == "\n" and "data" in fields:
                found.append((fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])))
                fields = {}
            elif name:
                fields[name] = value
    return found


async def test_a_tail_has_what_is_there_and_what_comes(client: HttpClient, broker: FakeBroker) -> None:
    log = Log(broker)
    log.values = [b"0", b"1"]
    async with client.get(f"{TAIL}?offset=1", headers=EVENTS) as answer:
        assert answer.content_type == "text/event-stream"
        assert [(kind, number, row["value"]["text"]) for kind, number, row in await events(answer, 1)] == [
            ("", f"1@{TOPIC_ID}", "1")
        ]
        log.values.append(b"2")
        assert [row["offset"] for _, _, row in await events(answer, 1)] == [2]
    for last in (f"0@{TOPIC_ID}", "0"):  # of a browser, of a program that knows only offsets
        async with client.get(TAIL, headers=EVENTS | {"Last-Event-ID": last}) as answer:
            assert [row["offset"] for _, _, row in await events(answer, 2)] == [1, 2], "it misses nothing"
    async with client.get(f"{TAIL}?offset=0&limit=2", headers=EVENTS) as answer:
        assert (await answer.text()).count("data: ") == 2, "and it ends"
    async with client.get(TAIL, headers=EVENTS) as answer:
        await answer.content.readline()
        log.values.append(b"3")
        assert [row["offset"] for _, _, row in await events(answer, 1)] == [3], "without a place: new ones"


async def test_a_browser_does_not_go_on_in_a_topic_that_was_made_again(client: HttpClient, broker: FakeBroker) -> None:
    Log(broker).values = [b"0", b"1"]
    async with client.get(TAIL, headers=EVENTS | {"Last-Event-ID": f"0@{'b' * 32}"}) as answer:
        ((kind, event_id, told),) = await events(answer, 1)
    assert (kind, event_id, told["error_code"]) == ("failure", "", KAFKA_BAD_REQUEST)
    assert f"its id was {'b' * 32} and is {TOPIC_ID} now" in told["message"]


@pytest.mark.parametrize("last", ["x", "-1", "1@", "1@b", f"1@{'b' * 33}", "1" * 19])
async def test_what_is_no_id_of_an_event_is_refused(client: HttpClient, broker: FakeBroker, last: str) -> None:
    Log(broker).values = [b"0"]
    async with client.get(TAIL, headers=EVENTS | {"Last-Event-ID": last}) as answer:
        ((kind, _, told),) = await events(answer, 1)
    assert kind == "failure" and told["message"] == "Last-Event-ID must be the id of an event"


@pytest.mark.parametrize(("query", "words"), [("?offset=1&last=2", "exclude each other"), ("?limit=0", "limit is 0")])
async def test_wrong_questions_are_refused(client: HttpClient, query: str, words: str) -> None:
    async with client.get(TAIL + query, headers=EVENTS) as answer:
        assert words in await answer.text()


async def test_a_tail_says_what_it_skips_and_why_it_ends(client: HttpClient, broker: FakeBroker) -> None:
    log = Log(broker)
    log.values = [b"0"]
    async with client.get(f"{TAIL}?offset=0", headers=EVENTS) as answer:
        await events(answer, 1)
        log.start, log.values = 5, [b"x"] * 6
        skipped, row = await events(answer, 2)
        assert skipped == ("skipped", "", {"from_offset": 1, "to_offset": 5}) and row[2]["offset"] == 5
        del broker.topics["t"]
        broker.answers[requests.FetchRequest] = lambda _: responses.ErrorResponse(error=3, message="gone")
        ((kind, _, told),) = await events(answer, 1)
        assert kind == "failure" and told["error_code"] == 40403


async def test_a_reader_that_comes_back_behind_the_end_goes_on_at_the_end(
    client: HttpClient, broker: FakeBroker
) -> None:
    """The topic was made again, or has lost records: the tail told without a pause that it skips."""
    log = Log(broker)
    log.values = [b"0", b"1"]
    async with client.get(TAIL, headers=EVENTS | {"Last-Event-ID": "40"}) as answer:
        assert await events(answer, 1) == [("skipped", "", {"from_offset": 41, "to_offset": 2})]
        log.values.append(b"2")
        assert [row["offset"] for _, _, row in await events(answer, 1)] == [2]


async def test_a_registry_that_is_silent_keeps_nobody_from_reading(
    client: HttpClient, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(broker).values = [framed(7, b"pear")]
    with running_registry() as registry:
        monkeypatch.setattr(client.app[app._DECODING], "_url", registry.url)
        registry.shut()
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(client.get(f"{TAIL}?offset=0&decode=registry"))
                for _ in range(record_reading.READS_AT_ONCE)
            ]
            await until(lambda: registry.requests, "the registry is asked")
            async with client.get(f"{TAIL}?offset=0") as answer:
                assert len((await answer.json())["data"]) == 1
            assert not any(task.done() for task in waiting)
            registry.open()
    assert ["7" in (await task.result().json())["data"][0]["value"]["undecoded"] for task in waiting] == [True] * 2


async def test_a_reader_that_leaves_gives_its_place_back(
    client: HttpClient, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reading, "TICK_MS", 20)
    Log(broker)
    opened = [await client.get(TAIL, headers=EVENTS) for _ in range(record_reading.TAILS_AT_ONCE)]
    refused = await client.get(TAIL, headers=EVENTS)
    assert refused.status == 503 and "use another broker" in (await refused.json())["message"]
    for answer in opened:
        answer.close()
    await until(lambda: not client.app[app._TAILS].taken, "their places are free")


async def test_a_reader_that_reads_nothing_is_dropped(
    client: HttpClient, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WRITE_TIMEOUT_S", 0.2)
    log = Log(broker)
    log.values = [b"x" * 60_000] * 400
    answer = await client.get(f"{TAIL}?offset=0", headers=EVENTS)
    await until(lambda: not client.app[app._TAILS].taken, "its place is free")
    answer.close()
