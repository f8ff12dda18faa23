"""Consumers that ask for much and read nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from integration.kafka_wire import FETCH, asked, fetch

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

from .attack import Address, Attack

TOPIC = "hostile-read"
RECORDS = 60
RECORD_BYTES = 900_000
CONNECTIONS = 50
FETCHES = 20  # of each connection, one behind the other
_FETCH_VERSION = 11
_TIMEOUT_MS = 60_000


@asynccontextmanager
async def slow_readers(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """On entry every connection has asked; nothing is read until the end."""
    bootstrap = ",".join(f"{host}:{port}" for host, port in brokers)
    async with Admin(bootstrap) as admin:
        if TOPIC not in {topic.name for topic in await admin.describe_topics()}:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=1)
            async with Producer(bootstrap, delivery_timeout_ms=_TIMEOUT_MS) as producer:
                for _ in range(RECORDS):
                    await (await producer.send(TOPIC, bytes(RECORD_BYTES)))
    body = fetch(TOPIC, 0, max_bytes=RECORDS * RECORD_BYTES)
    request = asked(FETCH, _FETCH_VERSION, body, correlation_id=1, client_id=b"stranger")
    opened: list[asyncio.StreamWriter] = []
    try:
        for address in brokers:
            for _ in range(CONNECTIONS):
                reader, writer = await asyncio.open_connection(*address)
                opened.append(writer)
                reader._transport.pause_reading()  # type: ignore[attr-defined]  # else asyncio reads into its buffer
                writer.write(request * FETCHES)
        yield
    finally:
        for writer in opened:
            writer.transport.abort()


ATTACK = Attack(
    name="slow readers",
    what=f"{CONNECTIONS} connections to each broker with {FETCHES} fetches of 54 MB each, which read nothing",
    run=slow_readers,
)
