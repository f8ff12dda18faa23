"""Connections that ask nothing, or once (ApiVersions), and are silent then, as many as the broker takes, on each of its ports."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from .attack import Address, Attack, Port, api_versions

CONNECTIONS = 1_000
AT_A_TIME = 50  # connections that are being opened; the backlog of a listener has 1,024 places
SILENT = 600  # to each broker, more than twice the descriptors of `LIMITED`
LIMITED = 256  # descriptors of each broker, where they are to run out
AGAIN_S = 0.05  # until somebody who was turned away is there again


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


@asynccontextmanager
async def silent_crowd(brokers: Sequence[Address], connections: int = SILENT) -> AsyncIterator[None]:
    """So many at a time to each broker, which never say a word. Who is turned away comes back at once."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(address: Address) -> None:
        while True:
            writer: asyncio.StreamWriter | None = None
            with suppress(OSError):
                async with turns:
                    reader, writer = await asyncio.open_connection(*address)
                await reader.read()
            if writer is not None:
                writer.transport.abort()
            await asyncio.sleep(AGAIN_S)

    crowd = [asyncio.create_task(one(address)) for address in brokers for _ in range(connections)]
    try:
        await asyncio.sleep(1)  # the crowd is there before anything is measured
        yield
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


ATTACK = Attack(
    name="idle connections",
    what=f"opens {CONNECTIONS} connections to each broker, asks for ApiVersions once, and then is silent",
    run=idle_connections,
)
SILENT_ONES = tuple(
    Attack(
        name=f"silent {what}",
        what=f"{SILENT} silent connections to every {what} port of brokers that may open {LIMITED} files, again and again",
        run=silent_crowd,
        port=port,
        descriptors=LIMITED,
    )
    for what, port in (("quorum", Port.QUORUM), ("admin", Port.ADMIN))
)
