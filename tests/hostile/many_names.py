"""Requests that name very many topics: known to nobody, to be created by asking for them, or to be created at once."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from integration.kafka_wire import METADATA, asked, make

from .attack import Address, Attack, api_versions, ask

NAMED = 250_000  # a frame of 4 MB
REPEATED = 10
UNKNOWN = 5_000
CREATED = 500
_METADATA_VERSION = 8  # names as strings, and the broker may create topics
_CREATE_TOPICS, _CREATE_VERSION = 19, 4
_TIMEOUT_MS = 60_000


def metadata(count: int, prefix: str, *, create: bool) -> bytes:
    topics = [make("MetadataRequest", "MetadataRequestTopic", name=f"{prefix}-{number}") for number in range(count)]
    body = make("MetadataRequest", topics=topics, allow_auto_topic_creation=create)
    return asked(METADATA, _METADATA_VERSION, body, correlation_id=1, client_id=b"stranger")


def create_topics(count: int, prefix: str) -> bytes:
    topics: list[Any] = [
        make("CreateTopicsRequest", "CreatableTopic", name=f"{prefix}-{number}", num_partitions=1, replication_factor=3)
        for number in range(count)
    ]
    body = make("CreateTopicsRequest", topics=topics, timeout_ms=_TIMEOUT_MS)
    return asked(_CREATE_TOPICS, _CREATE_VERSION, body, correlation_id=1, client_id=b"stranger")


def _asking(frame: Callable[[], bytes], times: int) -> Callable[[Sequence[Address]], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def run(brokers: Sequence[Address]) -> AsyncIterator[None]:
        """To one broker after the other, each time on a connection of its own: a broker may hang up on such a request."""
        made = frame()
        for address in brokers:
            for _ in range(times):
                with suppress(OSError):
                    reader, writer = await api_versions(address)
                    try:
                        await ask(reader, writer, made)
                    finally:
                        writer.transport.abort()
        yield

    return run


ATTACKS = (
    Attack(
        name="250,000 names",
        what=f"{REPEATED} times Metadata with {NAMED} names to each broker",
        run=_asking(lambda: metadata(NAMED, "named", create=False), REPEATED),
    ),
    Attack(
        name="5,000 unknown names",
        what=f"Metadata with {UNKNOWN} unknown names, which creates topics",
        run=_asking(lambda: metadata(UNKNOWN, "unknown", create=True), 1),
    ),
    Attack(
        name="500 topics",
        what=f"CreateTopics of {CREATED} topics with 3 replicas",
        run=_asking(lambda: create_topics(CREATED, "created"), 1),
    ),
)
