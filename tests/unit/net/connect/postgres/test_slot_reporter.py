"""The reports of a slot, where the server of PostgreSQL answers nothing: it is paused, and its connections stay open."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from barnabas.net.client.positions.slot_reports import SlotReport
from barnabas.net.programs.connect.postgres.slot_reports import SlotReporter, rendered

LIMIT_S = 30
CANCEL = 80877102  # the code of a request to cancel a query
LOGGED_IN = (
    b"R" + struct.pack(">II", 8, 0) + b"S\0\0\0\x19client_encoding\0UTF8\0" + b"K" + struct.pack(">III", 12, 1, 1)
    + b"Z" + struct.pack(">I", 5) + b"I"
)  # fmt: skip


@asynccontextmanager
async def paused_server(queries: "asyncio.Queue[bytes]") -> AsyncIterator[int]:
    """Lets everybody in, and answers no query until it is cancelled."""
    cancelled = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size, code = struct.unpack(">II", await reader.readexactly(8))
        await reader.readexactly(size - 8)
        if code == CANCEL:
            cancelled.set()
        else:
            writer.write(LOGGED_IN)
            queries.put_nowait(await reader.read(1))
            await cancelled.wait()
            cancelled.clear()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def reporter(port: int = 1) -> SlotReporter:
    return SlotReporter(
        program="p", dsn=f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable gssencmode=disable", slot="s",
        warn_bytes=1, bootstrap="127.0.0.1:1", security={}, interval_s=0.01, limit_s=0.2,
    )  # fmt: skip


async def test_a_server_that_answers_nothing_is_asked_again() -> None:
    queries: asyncio.Queue[bytes] = asyncio.Queue()
    async with asyncio.timeout(LIMIT_S), paused_server(queries) as port, reporter(port).running():
        for _ in range(3):
            assert await queries.get()


def test_metrics_have_no_values_of_long_ago() -> None:
    newest = SlotReport(
        program="p", slot="s", server="d", at_ms=int(time.time() * 1_000), interval_ms=60_000, exists=True
    )
    asked = reporter()
    asked.newest = newest
    assert 'barnabas_postgres_slot_lost{program="p",slot="s"} 0' in rendered([asked])
    asked.newest = SlotReport(
        program="p", slot="s", server="d", at_ms=newest.at_ms - 300_000, interval_ms=60_000, exists=True
    )
    assert rendered([asked]) == ""
