"""Batches with a sound header, the right CRC, and records that nobody can read."""

import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from crc32c import crc32c

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import CRC_COVERS_FROM, CRC_POSITION, HEADER_SIZE
from barnabas.log.format.record_codec import encode_batch
from barnabas.net.client.admin.admin import Admin
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import ProducePartitionResponse
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

from .attack import Address, Attack

TOPIC = "hostile-nonsense"
RECORDS = 10
TIMEOUT_MS = 30_000


def nonsense(codec: Compression, *, from_byte: int = HEADER_SIZE) -> bytes:
    """A batch that is nonsense from this byte on."""
    made = bytearray(encode_batch([b"value"] * RECORDS, timestamps_ms=int(time.time() * 1000), compression=codec))
    made[from_byte:] = b"\xa5" * (len(made) - from_byte)
    struct.pack_into(">I", made, CRC_POSITION, crc32c(memoryview(made)[CRC_COVERS_FROM:]))
    return bytes(made)


async def send(address: Address, topic: str, batch: bytes) -> ProducePartitionResponse:
    connection = await RpcConnection.open(TcpNetwork(), *address, client_id="stranger")
    try:
        items = (ProducePartition(topic=topic, partition=0, records=batch),)
        response = await connection.call(
            ProduceRequest(acks=1, timeout_ms=TIMEOUT_MS, partitions=items), timeout_ms=TIMEOUT_MS
        )
    finally:
        await connection.close()
    answer: ProducePartitionResponse = response.partitions[0]
    return answer


@asynccontextmanager
async def nonsense_batches(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Every codec, to every broker. What a broker should refuse it refuses before the context is entered."""
    async with Admin(",".join(f"{host}:{port}" for host, port in brokers)) as admin:
        if TOPIC not in {topic.name for topic in await admin.describe_topics()}:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=1)
    for address in brokers:
        for codec in Compression:
            await send(address, TOPIC, nonsense(codec))
    yield


ATTACK = Attack(
    name="nonsense batches",
    what="batches of every codec with a sound header, the right CRC, and nonsense for records",
    run=nonsense_batches,
)
