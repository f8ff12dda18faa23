"""Requests that are announced large, sent for the most part, and never finished."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from .attack import Address, Attack

ANNOUNCED_BYTES = 95 << 20
SENT_BYTES = 90 << 20
CONNECTIONS = 10
ABORTED = 40  # connections, one after the other
_CHUNK = bytes(1 << 20)
# Kafka's Produce, version 7: enough for a broker to know whose protocol it is.
_HEAD = struct.pack(">ihhi", ANNOUNCED_BYTES, 0, 7, 1)


async def _begin(address: Address) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection(*address)
    writer.write(_HEAD)
    return writer


async def _send(writer: asyncio.StreamWriter, size_bytes: int) -> None:
    """Until so much was sent, or the broker closes the connection; waits while the broker does not read."""
    with suppress(OSError):
        for _ in range(size_bytes // len(_CHUNK)):
            writer.write(_CHUNK)
            await writer.drain()


@asynccontextmanager
async def unfinished_requests(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """All connections at the same time; on entry the first megabytes have been sent."""
    writers = [await _begin(address) for address in brokers for _ in range(CONNECTIONS)]
    sending = [asyncio.create_task(_send(writer, SENT_BYTES)) for writer in writers]
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


@asynccontextmanager
async def aborted_requests(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """One connection after the other, each closed before its request is whole."""
    for address in brokers:
        for _ in range(ABORTED):
            writer = await _begin(address)
            await _send(writer, SENT_BYTES)
            writer.transport.abort()
    yield


UNFINISHED = Attack(
    name="unfinished requests",
    what=f"{CONNECTIONS} connections, each with 90 MB of a request of 95 MB, and then silence",
    run=unfinished_requests,
)
ABORTED_ONES = Attack(
    name="aborted requests",
    what=f"{ABORTED} times 90 MB of a request of 95 MB, and then the connection is closed",
    run=aborted_requests,
)
