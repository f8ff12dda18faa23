"""Small requests that unpack to much: keyed records by the million, zeros by the megabyte, and batches to be packed anew."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import encode_batch
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

from .attack import Address, Attack

COMPACTED = "hostile-compacted"
PACKED_ANEW = "hostile-gzip"
RECORDS = 2**20  # the most that a batch may have
CONNECTIONS = 20
BATCHES = 7  # in one request, which has to be unpacked as a whole
TIMEOUT_MS = 60_000


@cache
def million_keys() -> bytes:
    """About 855 KB of zstd: the most records that a batch may have, each with a key and without a value."""
    return encode_batch([None] * RECORDS, keys=[b"k"] * RECORDS, timestamps_ms=_now_ms(), compression=Compression.ZSTD)


@cache
def zeros(size_bytes: int, codec: Compression) -> bytes:
    """One keyed record of zeros: 120 MB of them are 4 KB of zstd, or 120 KB of gzip."""
    return encode_batch([bytes(size_bytes)], keys=[b"k"], timestamps_ms=_now_ms(), compression=codec)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _topics(brokers: Sequence[Address]) -> None:
    bootstrap = ",".join(f"{host}:{port}" for host, port in brokers)
    async with Admin(bootstrap) as admin:
        existing = {topic.name for topic in await admin.describe_topics()}
        for name, config in ((COMPACTED, {"cleanup.policy": "compact"}), (PACKED_ANEW, {"compression.type": "gzip"})):
            if name not in existing:
                await admin.create_topic(name, partitions=1, replication_factor=1, configs=config)
                await _led(bootstrap, name)


async def _led(bootstrap: str, topic: str) -> None:
    """Until the partition takes records: an attack that is refused by a leader to be proves nothing."""
    async with Producer(bootstrap, delivery_timeout_ms=TIMEOUT_MS) as producer:
        await (await producer.send(topic, b"ready", key=b"ready"))


def _sending(topic: str, batch: Callable[[], bytes], times: int, connections: int) -> Callable[..., object]:
    @asynccontextmanager
    async def run(brokers: Sequence[Address]) -> AsyncIterator[None]:
        """All requests are sent to every broker on entry, and answered (or refused) in the background."""
        await _topics(brokers)
        data = await asyncio.to_thread(batch)
        request = ProduceRequest(
            acks=1,
            timeout_ms=TIMEOUT_MS,
            partitions=(ProducePartition(topic=topic, partition=0, records=data),),
        )
        opened = [
            await RpcConnection.open(TcpNetwork(), *address, client_id="stranger")
            for address in brokers
            for _ in range(connections)
        ]
        answers = [one.send(request, timeout_ms=TIMEOUT_MS) for one in opened for _ in range(times)]
        try:
            yield
            await asyncio.wait(answers)
        finally:
            for one in opened:
                await one.close()
            await asyncio.gather(*answers, return_exceptions=True)

    return run


def _attack(name: str, what: str, topic: str, batch: Callable[[], bytes], times: int, connections: int = 1) -> Attack:
    return Attack(name=name, what=what, run=_sending(topic, batch, times, connections))  # type: ignore[arg-type]


ATTACKS = (
    _attack("million keys", "2 batches of 2^20 keyed records to a compacted topic", COMPACTED, million_keys, 2),
    _attack("zstd bombs", "20 connections, each with one request of 28 KB: 7 batches of zstd that unpack to 120 MB each",
            COMPACTED, lambda: zeros(120 << 20, Compression.ZSTD) * BATCHES, 1, CONNECTIONS),
    _attack("gzip bombs", "3 connections, each with one request of 860 KB: 7 batches of gzip that unpack to 120 MB each",
            COMPACTED, lambda: zeros(120 << 20, Compression.GZIP) * BATCHES, 1, 3),
    _attack("packed anew", "60 zstd batches of 1 KB that unpack to 20 MB, for compression.type=gzip, over 20 connections",
            PACKED_ANEW, lambda: zeros(20 << 20, Compression.ZSTD), 3, CONNECTIONS),
)  # fmt: skip
