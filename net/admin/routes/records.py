"""Produce records over HTTP, for web pages, scripts and tests without a client. Not optimized for speed."""

import base64
import binascii
import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from barnabas.kraft.metadata.image import TopicImage
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.murmur2 import murmur2_positive
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import ProduceResponse

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route, objects, text_of
from ..frame.errors import (
    SHOWN_CHARS,
    ApiError,
    bad_request,
    kafka_error,
    refusal,
    unknown_topic_or_partition,
)
from .topics import TOPIC

PRODUCE_TIMEOUT_MS: Final = 30_000
# Nothing of such a batch was written, and some of its records may be right: they are sent again in halves.
_REFUSED_WHOLE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP})
MAX_BATCH: Final = 1_000  # records of one request
MAX_TIMESTAMP_MS: Final = (
    253_402_300_799_999  # the end of the year 9999, the last that ISO 8601 and datetime can express
)
_ALL_IN_SYNC: Final = -1


def decode_data(name: str, item: Any) -> bytes | None:
    """The bytes of `{"type": "STRING" | "JSON" | "BINARY", "data": ...}`; without a type, JSON, as in Confluent's proxy."""
    if item is None:
        return None
    if not isinstance(item, dict):
        raise bad_request(f"{name} must be an object with type and data")
    kind, data = item.get("type", "JSON"), item.get("data")
    if kind not in ("BINARY", "STRING", "JSON"):
        raise bad_request(f"{name}.type must be BINARY, STRING or JSON, not {kind!r}")
    if kind == "JSON":
        return _json_bytes(name, data) if "data" in item else None
    if data is None:
        return None
    if not isinstance(data, str):
        raise bad_request(f"{name}.data must be a string for type {kind}")
    return _base64(f"{name}.data", data) if kind == "BINARY" else data.encode()


def _json_bytes(name: str, data: Any) -> bytes:
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:  # JSON that can be parsed may still be too deep to write.
        raise bad_request(f"{name}.data is nested too deeply") from None


def _base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{name} is not valid base64") from None


def _headers(body: Json) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for item in objects(body, "headers"):
        value = item.get("value")
        found.append((text_of(item, "name"), None if value is None else _base64("header value", value)))
    return found


def _timestamp_ms(body: Json) -> int:
    text: str | None = body.get("timestamp")
    if text is None:
        return int(time.time() * 1000)
    try:
        moment = datetime.fromisoformat(text)
        at_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        if not 0 <= at_ms <= MAX_TIMESTAMP_MS:
            raise ValueError(text)
    except (ValueError, OverflowError):
        raise bad_request(
            f"timestamp must have the form 2026-11-21T12:00:00Z, from 1970 to 9999, not {text[:SHOWN_CHARS]!r}"
        ) from None
    return at_ms


def _partition(body: Json, topic: TopicImage, key: bytes | None) -> int:
    count = len(topic.partitions)
    wanted: int | None = body.get("partition_id")
    if wanted is not None:
        if not 0 <= wanted < count:
            raise unknown_topic_or_partition(f"partition {topic.name}-{wanted} does not exist")
        return wanted
    if key is not None:
        return murmur2_positive(key) % count
    led = [index for index, partition in enumerate(topic.partitions) if partition.leader >= 0]
    return random.choice(led or range(count))


class _Record(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


def _record(body: Json, topic: TopicImage) -> _Record:
    key, value = decode_data("key", body.get("key")), decode_data("value", body.get("value"))
    return _Record(_partition(body, topic, key), key, value, _timestamp_ms(body), _headers(body))


async def _written(call: Call, topic: TopicImage, records: Sequence[_Record]) -> list[Json | ApiError]:
    """Send the records, if possible one batch for each partition; the outcomes in their order."""
    by_partition: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        by_partition.setdefault(record.partition, []).append(index)

    async def produce(admin: Admin) -> list[tuple[list[int], ProduceResponse | BarnabasError]]:
        """Send each batch once: it is not sent again if it may have been written."""
        admin.client.want_topic(topic.name)
        await admin.client.refresh()
        waiting = list(reversed(by_partition.values()))  # the next one last
        found = []
        while waiting:
            indexes = waiting.pop()
            together = [records[index] for index in indexes]
            response = await _sent(admin, topic.name, together[0].partition, together)
            if len(indexes) > 1 and _code_of(response) in _REFUSED_WHOLE:
                middle = len(indexes) // 2
                waiting += indexes[middle:], indexes[:middle]
            else:
                found.append((indexes, response))
        return found

    outcomes: dict[int, Json | ApiError] = {}
    for indexes, response in await call.ask(produce):
        for place, index in enumerate(indexes):
            outcomes[index] = _outcome(call, topic, records[index], response, place)
    return [outcomes[index] for index in range(len(records))]


def _code_of(response: ProduceResponse | BarnabasError) -> int:
    return response.code if isinstance(response, BarnabasError) else response.partitions[0].error


async def _sent(
    admin: Admin, topic: str, partition: int, records: Sequence[_Record]
) -> ProduceResponse | BarnabasError:
    batch = encode_batch(
        [record.value for record in records],
        timestamps_ms=[record.timestamp_ms for record in records],
        keys=[record.key for record in records],
        headers=[record.headers for record in records],
    )
    request = ProduceRequest(
        acks=_ALL_IN_SYNC,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        partitions=(ProducePartition(topic=topic, partition=partition, records=bytearray(batch)),),
    )
    try:
        response: ProduceResponse = await admin.client.call_leader(TopicPartition(topic, partition), request)
    except BarnabasError as error:
        return error
    return response


def _outcome(
    call: Call, topic: TopicImage, record: _Record, response: ProduceResponse | BarnabasError, place: int
) -> Json | ApiError:
    if isinstance(response, BarnabasError):
        return refusal(response)
    (answer,) = response.partitions
    if answer.error:
        return kafka_error(answer.error, answer.message)
    stamped_ms = answer.log_append_time_ms if answer.log_append_time_ms >= 0 else record.timestamp_ms
    moment = datetime.fromtimestamp(stamped_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "error_code": 200,
        "cluster_id": call.image.cluster_id,
        "topic_name": topic.name,
        "partition_id": record.partition,
        "offset": answer.base_offset + place,
        "timestamp": moment.replace("+00:00", "Z"),
        "key": None if record.key is None else {"size": len(record.key)},
        "value": None if record.value is None else {"size": len(record.value)},
    }


async def _produce(call: Call) -> Reply:
    topic = call.topic()
    (outcome,) = await _written(call, topic, [_record(call.body, topic)])
    if isinstance(outcome, ApiError):
        raise outcome
    return Reply(body=outcome)


async def _produce_several(call: Call, bodies: Sequence[Json | ApiError]) -> list[Json | ApiError]:
    """Confluent's streaming form: those that arrived together are written together."""
    topic = call.topic()
    outcomes: list[Json | ApiError | None] = []
    records: list[_Record] = []
    for body in bodies:
        try:
            if isinstance(body, ApiError):
                raise body
            records.append(_record(body, topic))
            outcomes.append(None)
        except ApiError as error:
            outcomes.append(error)
    written = iter(await _written(call, topic, records) if records else ())
    return [next(written) if outcome is None else outcome for outcome in outcomes]


async def _produce_batch(call: Call) -> Reply:
    """Each entry has an outcome of its own, as in Confluent's API. A wrong entry keeps no other one back."""
    topic = call.topic()
    entries = objects(call.body, "entries")
    if not 1 <= len(entries) <= MAX_BATCH:
        raise bad_request(f"entries must have 1 to {MAX_BATCH} records, not {len(entries)}")
    ids = [text_of(entry, "id") for entry in entries]
    if len(set(ids)) < len(ids):
        raise bad_request("two entries have the same id; the answer names outcomes by it")
    records: dict[str, _Record] = {}
    failures: dict[str, ApiError] = {}
    for name, entry in zip(ids, entries, strict=True):
        try:
            records[name] = _record(entry, topic)
        except ApiError as error:
            failures[name] = error
    successes = []
    if records:
        for name, outcome in zip(records, await _written(call, topic, list(records.values())), strict=True):
            if isinstance(outcome, ApiError):
                failures[name] = outcome
            else:
                successes.append({"id": name, **outcome})
    told = [{"id": name, "error_code": error.error_code, "message": str(error)} for name, error in failures.items()]
    return Reply(status=HTTPStatus.MULTI_STATUS, body={"successes": successes, "failures": told})


_HEADER: Final = (
    Field(name="name", type="string", description="name of the header", required=True),
    Field(name="value", type="string", description="value in base64"),
)
_DATA: Final = (
    Field(name="type", type="string", description="STRING, JSON or BINARY"),
    Field(name="data", type="any", description="the data; its form depends on the type"),
)
_BODY = (
    Field(name="partition_id", type="integer", description="the partition; default: by the key, else any"),
    Field(name="headers", type="array", description="[{name, value in base64}]", fields=_HEADER),
    Field(name="key", type="object", description="{type: STRING|JSON|BINARY, data}; BINARY in base64", fields=_DATA),
    Field(name="value", type="object", description="{type: STRING|JSON|BINARY, data}; BINARY in base64", fields=_DATA),
    Field(name="timestamp", type="string", description="ISO 8601; default: now"),
)

_ENTRY = (Field(name="id", type="string", description="names the record in the answer", required=True), *_BODY)

_SIZE: Final = shapes.whole("size", "Its bytes.")
_WRITTEN: Final = (
    shapes.whole("error_code", "200."),
    shapes.text("cluster_id", "The cluster."),
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.whole("offset", "Its offset."),
    shapes.text("timestamp", "Its time (RFC 3339)."),
    shapes.part("key", "The key; null: none.", _SIZE, null=True),
    shapes.part("value", "The value; null: none.", _SIZE, null=True),
)
_ID: Final = shapes.text("id", "As the entry has it.")
_OUTCOMES: Final = (
    shapes.rows("successes", "Records that are written.", _ID, *_WRITTEN),
    shapes.rows(
        "failures",
        "Records that are not written.",
        _ID,
        shapes.whole("error_code", "As in an error."),
        shapes.text("message", "What is wrong."),
    ),
)


ROUTES = (
    Route(
        method="POST",
        path=f"{TOPIC}/records",
        handler=_produce,
        documents=_produce_several,
        summary="Produce one record, or several JSON objects one after the other, each with an answer of its own; acks=all",
        body=_BODY,
        answer=_WRITTEN,
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/records:batch",
        handler=_produce_batch,
        summary=f"Produce up to {MAX_BATCH} records, acks=all; each has an outcome of its own",
        body=(Field(name="entries", type="array", description="the records", required=True, fields=_ENTRY),),
        answer=_OUTCOMES,
        status=HTTPStatus.MULTI_STATUS,
    ),
)
