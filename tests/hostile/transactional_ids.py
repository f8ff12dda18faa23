"""One client that begins with very many transactional ids: each takes memory of every voter until it expires."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from integration.kafka_wire import asked, make

from .attack import Address, Attack, api_versions

IDS = 100_000
WINDOW = 200  # requests on the way, as a client with many producers has them
_INIT_PRODUCER_ID, _VERSION = 22, 4
_TIMEOUT_MS = 60_000


def init(number: int) -> bytes:
    body = make(
        "InitProducerIdRequest",
        transactional_id=f"stranger-{number}",
        transaction_timeout_ms=_TIMEOUT_MS,
        producer_id=-1,
    )
    return asked(_INIT_PRODUCER_ID, _VERSION, body, correlation_id=number, client_id=b"stranger")


async def _begin(address: Address, count: int) -> None:
    """Those of other coordinators are refused at once."""
    reader, writer = await api_versions(address)
    try:
        for first in range(0, count, WINDOW):
            numbers = range(first, min(first + WINDOW, count))
            writer.write(b"".join(map(init, numbers)))
            await writer.drain()
            for _ in numbers:
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    finally:
        writer.transport.abort()


@asynccontextmanager
async def many_transactional_ids(brokers: Sequence[Address], count: int = IDS) -> AsyncIterator[None]:
    with suppress(OSError, asyncio.IncompleteReadError):
        await asyncio.gather(*(_begin(address, count) for address in brokers))
    yield


ATTACK = Attack(
    name="100,000 transactional ids",
    what=f"InitProducerId with {IDS} transactional ids on one connection to each broker",
    run=many_transactional_ids,
)
