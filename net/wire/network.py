"""The network as a port: asyncio's transports and protocols, without the loop. `tcp` is the real one, simulation has its own.

Protocols are `asyncio.BufferedProtocol` (data ports: they read into their own buffer) or `asyncio.Protocol`. A transport
offers at least: write, writelines, close, abort, is_closing, get_extra_info("peername"), pause_reading, resume_reading,
set_write_buffer_limits, get_write_buffer_size; real ones also get_extra_info("socket"), which simulation answers with None.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    """A bound port that accepts connections until it is closed."""

    @property
    def address(self) -> tuple[str, int]:
        """The real address, also if port 0 was requested."""

    async def close(self) -> None:
        """Stop accepting connections; open connections are not affected."""


class Network(Protocol):
    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        """Raises OSError (address in use, not an address of this machine, not permitted)."""

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        """Connect and return the protocol. Raises OSError; the caller sets a timeout."""


def stream_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """What a loop passes to `connection_made` of a stream. Its class is the loop's own business: uvloop's does not extend
    asyncio.Transport."""
    return cast("asyncio.Transport", transport)
