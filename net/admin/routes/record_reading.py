"""Read records over HTTP: a page of one partition, from an offset, from a time, or the last ones.

For people and scripts. A call reads a bounded number of bytes: the answer has `next_offset` for the next call. Few calls read at
a time, and records are decoded in a thread, so that a page of large or compressed records costs other clients nothing.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from barnabas.log.settings.kinds import MAX_INT64
from barnabas.log.vocabulary.errors import InconsistentTopicIdError
from barnabas.log.vocabulary.murmur2 import murmur2_positive
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError, OffsetOutOfRangeError, RequestTimedOutError
from barnabas.net.client.connection.records import OffsetAndTimestamp
from barnabas.net.client.consumer.range_reader import Chunk, RangeReader, batches_of
from barnabas.net.client.positions.offset_lookup import EARLIEST, LATEST, list_offsets, topic_id_of
from barnabas.net.wire.protocol.requests import READ_COMMITTED, READ_UNCOMMITTED

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route
from ..frame.errors import SHOWN_CHARS, ApiError, bad_request, refusal
from ..frame.feed import EVENTS, HEARTBEAT, HEARTBEAT_S, MAX_STREAM_S, Follower, event_of
from .topics import PARTITION, TOPIC

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1_000  # records of an answer
MAX_CELL_BYTES: Final = 65_536  # of a key, a value or a header in an answer; the rest is cut, and its size is told
MAX_HEADERS: Final = 1_000  # of a record in an answer; they take little room in a batch, and much in JSON
MAX_HEADERS_BYTES: Final = 256 * 1024  # of a record in an answer
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024  # of an answer, as JSON; the last record may exceed it
FRAME_BYTES: Final = 64  # of JSON around a key, a value or a header
MAX_SCANNED_BYTES: Final = 16 * 1024 * 1024  # of batches that a call fetches, in vain where a transaction was aborted
CHUNK_BYTES: Final = 1024 * 1024
TIMEOUT_MS: Final = 10_000
READS_AT_ONCE: Final = 2  # of one broker; others wait for their turn
TAILS_AT_ONCE: Final = (
    16  # of one broker: each holds a chunk and a part of an answer, and asks its leader twice a second
)
TOO_MANY_TAILS: Final = f"{TAILS_AT_ONCE} readers follow records at this broker already: use another broker"
TAIL_BYTES: Final = 256 * 1024  # of JSON that waits for the reader of a tail
TICK_MS: Final = 1_000  # A reader that has gone is noticed within this time.
_EVENT_ID: Final = re.compile(
    r"([0-9]{1,18})(?:@([0-9a-f]{32}))?"
)  # an offset, and the id of the topic that it belongs to
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")


def cell(data: bytes | None) -> Json | None:
    """Text where it is UTF-8, else base64; `size` is that of the whole."""
    if data is None:
        return None
    shown = data[:MAX_CELL_BYTES]
    found: Json = {"size": len(data)}
    if len(shown) < len(data):
        found["cut"] = True
    try:
        # A cut may be in the middle of a character.
        return {**found, "text": shown.decode("utf-8", "ignore" if "cut" in found else "strict")}
    except UnicodeDecodeError:
        return {**found, "base64": base64.b64encode(shown).decode()}


def _row(record: Any) -> tuple[Json, int]:
    """A record of an answer, and its size there."""
    key, value = cell(record.key), cell(record.value)
    headers, size = _headers(record.headers)
    row = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": key,
        "value": value,
        "headers": headers,
    }
    if len(headers) < len(record.headers):
        row["headers_cut"] = len(record.headers)
    return row, _size(key) + _size(value) + size


def _headers(given: Any) -> tuple[list[Json], int]:
    """The first ones, up to the limits, and their size."""
    found: list[Json] = []
    size = 0
    for name, value in given:
        if len(found) >= MAX_HEADERS or size >= MAX_HEADERS_BYTES:
            break
        shown = {"name": name[:MAX_CELL_BYTES], "value": cell(value)}
        found.append(shown)
        size += _text_size(shown["name"]) + _size(shown["value"])
    return found, size


def _size(shown: Json | None) -> int:
    if shown is None:
        return FRAME_BYTES
    return FRAME_BYTES + (_text_size(shown["text"]) if "text" in shown else len(shown["base64"]))


def _text_size(text: str) -> int:
    """In JSON, where one character may become six."""
    return len(json.encoder.encode_basestring_ascii(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """`key`: only records with it; None: all."""

    key: bytes | None
    is_committed_only: bool


class _Page:
    """The records of an answer, until it is full."""

    def __init__(self, limit: int, max_bytes: int = 0, key: bytes | None = None) -> None:
        """`max_bytes` of its JSON; 0: MAX_ANSWER_BYTES. `key`: only records with it."""
        self._key = key
        self._limit = limit
        self._max_bytes = max_bytes or MAX_ANSWER_BYTES
        self.rows: list[Json] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._limit or self._size_bytes >= self._max_bytes

    def add(self, records: Iterator[Any]) -> None:
        """For a thread, of a page that is not full. What does not fit stays in the iterator."""
        for record in records:
            if self._key is not None and record.key != self._key:
                continue
            row, size = _row(record)
            self._size_bytes += size
            self.rows.append(row)
            if self.is_full:
                return


async def _key_of(call: Call, topic: str) -> tuple[bytes | None, int | None]:
    """The key that is looked for, None: all records; and the id of the schema that it was written with here."""
    given = [name for name in _KEYS if name in call.query]
    if len(given) > 1:
        raise bad_request(f"give {given[0]} or {given[1]}, not both")
    if not given:
        return None, None
    text = str(call.query[given[0]])
    if given == ["key"]:
        return text.encode(), None
    if given == ["key_json"]:
        schema_id, key = await call.decoding.encode_key(topic, text)
        return key, schema_id
    try:
        return base64.b64decode(text, validate=True), None
    except ValueError:
        raise bad_request("key_base64 is not valid base64; in a URL, + is written %2B") from None


async def _partition_of(call: Call) -> Reply:
    topic = call.topic()
    key, schema_id = await _key_of(call, topic.name)
    if key is None:
        raise bad_request("the parameter key is missing; key_base64 and key_json are other forms of it")
    number = murmur2_positive(key) % len(topic.partitions)
    found: Json = {"topic_name": topic.name, "partition_id": number, "key_base64": base64.b64encode(key).decode()}
    return Reply(body=found if schema_id is None else {**found, "schema_id": schema_id})


def _records_of(chunk: Chunk, end: int) -> Iterator[Any]:
    for _, records in batches_of(chunk, end=end):
        yield from records


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    first_offset: int  # of the log
    start: int  # where to read
    end: int
    topic_id: str  # that these offsets belong to


async def _range(call: Call, admin: Admin, place: TopicPartition, level: int) -> _Range:
    """Raises ApiError, TopicRecreatedError."""
    query = call.query
    planned = query.get("topic_id", "")
    if planned and not _TOPIC_ID.fullmatch(planned):
        raise bad_request(f"topic_id is {planned[:SHOWN_CHARS]!r}; it must be the topic_id of an answer, 32 hex digits")
    given = [name for name in ("offset", "timestamp_ms", "last") if name in query]
    if len(given) > 1:
        raise bad_request(f"{given[0]} and {given[1]} exclude each other")

    times_ms = dict.fromkeys((EARLIEST, LATEST, query.get("timestamp_ms", LATEST)))
    found = {time_ms: await _offset_at(admin, place, time_ms, level) for time_ms in times_ms}
    topic_id = topic_id_of(place.topic, [{place: item} for item in found.values()], planned=planned)
    first, end = found[EARLIEST].offset, found[LATEST].offset
    if "timestamp_ms" in query:
        at = found[query["timestamp_ms"]].offset
        start = end if at < 0 else min(at, end)
    elif "offset" in query:
        start = min(max(query["offset"], first), end)
    else:
        start = max(first, end - query.get("last", DEFAULT_LIMIT))
    return _Range(first_offset=first, start=start, end=end, topic_id=topic_id)


async def _offset_at(admin: Admin, place: TopicPartition, time_ms: int, level: int) -> OffsetAndTimestamp:
    found = await list_offsets(admin.client, {place: time_ms}, timeout_ms=TIMEOUT_MS, isolation_level=level)
    return found[place]


async def _read(call: Call) -> Reply:
    topic, index, _ = call.partition()
    limit = call.query.get("limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        raise bad_request(f"limit is {limit}; it must be an integer from 1 to {MAX_LIMIT}")
    isolation = call.query.get("isolation", "read_committed")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise bad_request(f"isolation is {isolation!r}; it must be read_committed or read_uncommitted")
    decode = call.query.get("decode", "registry")
    if decode != "registry":
        raise bad_request(f"decode is {decode[:SHOWN_CHARS]!r}; it must be registry")
    place = TopicPartition(topic.name, index)
    wanted = _Wanted(key=(await _key_of(call, topic.name))[0], is_committed_only=isolation == "read_committed")
    if call.wants_events:
        return Reply(stream=_follow(call, place, wanted))
    async with call.reads:
        body = await call.ask(lambda admin: _page(call, admin, place, limit, wanted))
    await _decode(call, place, body["data"])  # here, a slow registry keeps nobody from reading
    return Reply(body={"topic_name": topic.name, "partition_id": index, **body})


async def _page(call: Call, admin: Admin, place: TopicPartition, limit: int, wanted: _Wanted) -> Json:
    await admin.client.wait_for_topic(place.topic, timeout_ms=TIMEOUT_MS)
    level = READ_COMMITTED if wanted.is_committed_only else READ_UNCOMMITTED
    found = await _range(call, admin, place, level)
    start, end = found.start, found.end
    reader = RangeReader(
        admin.client,
        place,
        start=start,
        end=end,
        max_bytes=CHUNK_BYTES,
        is_committed_only=wanted.is_committed_only,
        topic_id=found.topic_id,
        timeout_ms=TIMEOUT_MS,
    )
    page = _Page(limit, key=wanted.key)
    scanned = 0
    try:
        while not page.is_full and scanned < MAX_SCANNED_BYTES and (chunk := await reader.next_chunk()) is not None:
            scanned += len(chunk.data)
            await asyncio.to_thread(page.add, _records_of(chunk, end))
    except OffsetOutOfRangeError:
        if not page.rows:
            raise
    if page.is_full:
        next_offset = page.rows[-1]["offset"] + 1
    else:
        next_offset = min(max(reader.position, start), end)
    return {
        "topic_id": found.topic_id,
        "start_offset": found.first_offset,
        "end_offset": end,
        "next_offset": next_offset,
        "data": page.rows,
    }


def _follow(call: Call, place: TopicPartition, wanted: _Wanted) -> Follower:
    leave = call.tails.take(call.user)
    return Follower(_events(call, place, wanted), leave)


async def _events(call: Call, place: TopicPartition, wanted: _Wanted) -> AsyncGenerator[str, None]:
    """Records as they become visible, as server-sent events. Errors are the last event. "": ask whether the reader is there."""
    try:
        async with call.backend.admin() as admin:
            async for event in _tail(call, admin, place, wanted):
                yield event
    except (ApiError, BarnabasError) as error:
        told = refusal(error) if isinstance(error, BarnabasError) else error
        yield event_of({"error_code": told.error_code, "message": str(told)}, "failure")


async def _tail(call: Call, admin: Admin, place: TopicPartition, wanted: _Wanted) -> AsyncGenerator[str, None]:
    await admin.client.wait_for_topic(place.topic, timeout_ms=TIMEOUT_MS)
    level = READ_COMMITTED if wanted.is_committed_only else READ_UNCOMMITTED
    start, topic_id = await _first(call, admin, place, level)
    reader = RangeReader(
        admin.client,
        place,
        start=start,
        end=MAX_INT64,
        max_bytes=CHUNK_BYTES,
        is_committed_only=wanted.is_committed_only,
        topic_id=topic_id,
        timeout_ms=TICK_MS,
    )
    clock = asyncio.get_running_loop()
    ends_s, left = clock.time() + MAX_STREAM_S, call.query.get("limit", MAX_INT64)
    beats_s = clock.time() + HEARTBEAT_S
    yield HEARTBEAT  # the headers are on their way at once
    while clock.time() < ends_s:
        try:
            chunk = await reader.next_chunk()
        except (RequestTimedOutError, InconsistentTopicIdError):  # nothing new, or no leader now, or one that is behind
            yield HEARTBEAT if clock.time() >= beats_s else ""
            beats_s = clock.time() + HEARTBEAT_S if clock.time() >= beats_s else beats_s
            continue
        except OffsetOutOfRangeError:
            nearest = await _nearest(admin, place, reader, level)
            if nearest == reader.position:  # it is there now
                await asyncio.sleep(TICK_MS / 1000)
                yield ""
            else:
                yield event_of({"from_offset": reader.position, "to_offset": nearest}, "skipped")
                reader.go_to(nearest)
            continue
        assert chunk is not None, "there is no end"
        records = _records_of(chunk, MAX_INT64)
        while True:
            page = _Page(min(left, MAX_LIMIT), TAIL_BYTES, wanted.key)
            async with call.reads:
                await asyncio.to_thread(page.add, records)
            await _decode(call, place, page.rows)
            for row in page.rows:
                yield event_of(row, event_id=f"{row['offset']}@{topic_id}")
            left -= len(page.rows)
            if not left:
                return
            if not page.is_full:
                break


async def _nearest(admin: Admin, place: TopicPartition, reader: RangeReader, level: int) -> int:
    """Behind the end, the topic has lost records. If it is another topic, the reader finds that out."""
    first, end = [await _offset_at(admin, place, at, level) for at in (EARLIEST, LATEST)]
    if {first.topic_id, end.topic_id} != {reader.topic_id}:
        return reader.position
    return min(max(reader.position, first.offset), end.offset)


async def _first(call: Call, admin: Admin, place: TopicPartition, level: int) -> tuple[int, str]:
    """Where to begin: behind the last event that a browser has; else as a page does, or at the end. And in which topic.

    Raises ApiError, TopicRecreatedError.
    """
    if call.last_event_id:
        event = _EVENT_ID.fullmatch(call.last_event_id)
        if event is None:
            raise bad_request("Last-Event-ID must be the id of an event")
        end = await _offset_at(admin, place, LATEST, level)
        return int(event[1]) + 1, topic_id_of(place.topic, [{place: end}], planned=event[2] or "")
    if not {"offset", "timestamp_ms", "last"} & call.query.keys():
        call = replace(call, query={**call.query, "last": 0})
    found = await _range(call, admin, place, level)
    return found.start, found.topic_id


async def _decode(call: Call, place: TopicPartition, rows: list[Json]) -> None:
    if "decode" in call.query:
        await call.decoding.fill(place.topic, rows)


_KEY_FIELDS: Final = (
    Field(
        name="key",
        type="string",
        description="The key, as text. Of records: only those with it; go on from next_offset, also after no record.",
    ),
    Field(name="key_base64", type="string", description="As key, for a key that is no text: its bytes as base64."),
    Field(
        name="key_json",
        type="string",
        description="As key, as JSON that the broker writes with the newest schema of TOPIC-key: Avro or Protobuf.",
    ),
)
_KEYS: Final = tuple(field.name for field in _KEY_FIELDS)
_QUERY: Final = (
    Field(name="offset", type="integer", description="The first offset to read; the nearest one if it does not exist."),
    Field(
        name="topic_id",
        type="string",
        description="The topic_id of the answer that the offset is from: an error if the topic was made again since.",
    ),
    Field(name="timestamp_ms", type="integer", description="Begin with the first record of this time or later."),
    Field(name="last", type="integer", description=f"Begin so many offsets before the end; default: {DEFAULT_LIMIT}."),
    Field(name="limit", type="integer", description=f"At most so many records, up to {MAX_LIMIT}."),
    *_KEY_FIELDS,
    Field(
        name="decode",
        type="string",
        description="registry: also decode what was written with the schema registry of the broker.",
    ),
    Field(name="isolation", type="string", description="read_committed (default) or read_uncommitted."),
)
_CELL: Final = (
    shapes.whole("size", "Bytes of the whole."),
    shapes.flag("cut", f"True: it is longer than {MAX_CELL_BYTES} bytes, and only its start is here.", optional=True),
    shapes.text("text", "It, if it is text.", optional=True),
    shapes.text("base64", "It, if it is not.", optional=True),
    Field(name="decoded", type="any", description="It as JSON, if it was decoded."),
    shapes.whole("schema_id", "The id of its schema in the registry.", optional=True),
    shapes.text("undecoded", "Why it was not decoded.", optional=True),
)
_RECORD: Final = (
    shapes.whole("offset", "Its offset."),
    shapes.whole("timestamp_ms", "Milliseconds since 1970."),
    shapes.part("key", "The key, or null.", *_CELL, null=True),
    shapes.part("value", "The value, or null for a tombstone.", *_CELL, null=True),
    shapes.rows(
        "headers",
        "Headers in their order.",
        shapes.text("name", "The name."),
        shapes.part("value", "The value, or null.", *_CELL, null=True),
    ),
    shapes.whole("headers_cut", "How many headers it has, if not all of them are here.", optional=True),
)
_ANSWER: Final = (
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.text("topic_id", "Its id, for `topic_id` of the next call: a topic that is made again has another one."),
    shapes.whole("start_offset", "The first offset of the log."),
    shapes.whole("end_offset", "The end that the reader may read up to."),
    shapes.whole("next_offset", "For `offset` of the next call."),
    shapes.rows("data", "The records, in their order.", *_RECORD),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{TOPIC}/barnabas/partition",
        handler=_partition_of,
        summary="Where records with a key are, if their producers choose partitions as Kafka's do",
        query=_KEY_FIELDS,
        answer=(
            shapes.text("topic_name", "The topic."),
            shapes.whole("partition_id", "The partition."),
            shapes.text("key_base64", "The bytes of the key."),
            shapes.whole("schema_id", "The id of the schema, for key_json.", optional=True),
        ),
    ),
    Route(
        method="GET",
        path=f"{PARTITION}/records",
        handler=_read,
        summary="Records of a partition: from an offset, from a time, or the last ones; as server-sent events, also new ones",
        query=_QUERY,
        answer=_ANSWER,
        also_media=(EVENTS,),
        is_large=True,
    ),
)
