"""Produce one record over HTTP, for scripts and tests without a client. Not optimized for speed."""

import base64
import binascii
import json
import random
import time
from datetime import UTC, datetime
from typing import Any, Final

from barnabas.kraft.metadata.image import TopicImage
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.murmur2 import murmur2_positive
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.protocol.requests import ProducePartition, ProduceRequest
from barnabas.net.protocol.responses import ProduceResponse

from ..frame.call import Call, Field, Json, Reply, Route, objects, text_of
from ..frame.errors import SHOWN_CHARS, bad_request, kafka_error, unknown_topic_or_partition
from .topics import TOPIC

PRODUCE_TIMEOUT_MS: Final = 30_000
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


async def _produce(call: Call) -> Reply:
    topic = call.topic()
    key, value = decode_data("key", call.body.get("key")), decode_data("value", call.body.get("value"))
    timestamp_ms = _timestamp_ms(call.body)
    partition = _partition(call.body, topic, key)
    batch = encode_batch([value], timestamps_ms=timestamp_ms, keys=[key], headers=[_headers(call.body)])
    request = ProduceRequest(
        acks=_ALL_IN_SYNC,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        partitions=(ProducePartition(topic=topic.name, partition=partition, records=bytearray(batch)),),
    )

    async def produce(admin: Admin) -> ProduceResponse:
        """Send the record once: it is not sent again if it may have been written."""
        admin.client.want_topic(topic.name)
        await admin.client.refresh()
        response: ProduceResponse = await admin.client.call_leader(TopicPartition(topic.name, partition), request)
        return response

    (answer,) = (await call.ask(produce)).partitions
    if answer.error:
        raise kafka_error(answer.error, answer.message)
    stamped_ms = answer.log_append_time_ms if answer.log_append_time_ms >= 0 else timestamp_ms
    moment = datetime.fromtimestamp(stamped_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return Reply(
        body={
            "error_code": 200,
            "cluster_id": call.image.cluster_id,
            "topic_name": topic.name,
            "partition_id": partition,
            "offset": answer.base_offset,
            "timestamp": moment.replace("+00:00", "Z"),
            "key": None if key is None else {"size": len(key)},
            "value": None if value is None else {"size": len(value)},
        }
    )


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

ROUTES = (
    Route(method="POST", path=f"{TOPIC}/records", handler=_produce, summary="Produce one record, acks=all", body=_BODY),
)
