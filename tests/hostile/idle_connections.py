"""Connections that ask once (ApiVersions) and then say nothing, as many as the broker takes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from .attack import Address, Attack, api_versions

CONNECTIONS = 1_000
AT_A_TIME = 50  # connections that are being opened; the backlog of a listener has 1,024 places


@asynccontextmanager
async def idle_connections(brokers: Sequence[Address], connections: int = CONNECTIONS) -> AsyncIterator[None]:
    """So many to each broker. What is refused is not tried again."""
    turns = asyncio.Semaphore(AT_A_TIME)
    writers: list[asyncio.StreamWriter] = []

    async def one(address: Address) -> None:
        async with turns:
            try:
                writers.append((await api_versions(address))[1])
            except OSError:
                return

    try:
        await asyncio.gather(*(one(address) for address in brokers for _ in range(connections)))
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


ATTACK = Attack(
    name="idle connections",
    what=f"opens {CONNECTIONS} connections to each broker, asks for ApiVersions once, and then is silent",
    run=idle_connections,
)
