"""The HTTP port: what a page in a browser could send, nonsense, and connections that never finish a request."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

from fuzz.mutations import mutated

from .attack import Address, Attack, Port

TIMEOUT_S = 20.0
UNFINISHED = 200
FUZZED = 300
_EVIL = "Host: evil.example\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n"
_NEW_TOPIC = '{"topic_name": "hostile-page", "partitions_count": 1}'


def _request(method: str, path: str, headers: str, body: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    )


async def _answer(address: Address, request: bytes) -> bytes:
    """All that comes until the broker hangs up."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                return await reader.read()
        return b""
    finally:
        writer.transport.abort()


async def _pages(address: Address) -> None:
    """Every method of a foreign page is refused."""
    own = f"Host: {address[0]}:{address[1]}\r\n"
    told = await _answer(address, _request("GET", "/v3/clusters", own))
    cluster = json.loads(told.partition(b"\r\n\r\n")[2])["data"][0]["cluster_id"]
    topics = f"/v3/clusters/{cluster}/topics"
    for request in (
        _request("GET", "/v3/clusters", _EVIL),
        _request("GET", "/metrics", _EVIL),
        _request("POST", topics, f"{_EVIL}Content-Type: text/plain\r\n", _NEW_TOPIC),
        _request("POST", topics, f"{own}Origin: http://evil.example\r\nContent-Type: text/plain\r\n", _NEW_TOPIC),
        _request("DELETE", f"{topics}/hostile-page", _EVIL),
    ):
        answer = await _answer(address, request)
        assert answer.split(b" ")[1:2] == [b"403"], f"{request[:60]!r} was answered with {answer[:60]!r}"


async def _nonsense(address: Address, rng: Random) -> None:
    whole = _request("POST", "/v3/clusters", f"Host: {address[0]}\r\nContent-Type: application/json\r\n", _NEW_TOPIC)
    requests = [mutated(rng, whole) for _ in range(FUZZED)]
    requests += [b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 5_000_000, rng.randbytes(100_000), b"\r\n" * 100_000]
    for request in requests:
        with suppress(OSError):
            writer = (await asyncio.open_connection(*address))[1]
            writer.write(request)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await writer.drain()
            writer.transport.abort()


@asynccontextmanager
async def admin_http(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Pages and nonsense on entry; then connections that announce a gigabyte, or have not finished their headers."""
    rng = Random(1)
    opened: list[asyncio.StreamWriter] = []
    try:
        for address in brokers:
            await _pages(address)
            await _nonsense(address, rng)
            for number in range(UNFINISHED):
                with suppress(OSError):
                    writer = (await asyncio.open_connection(*address))[1]
                    opened.append(writer)
                    announced = f"Host: {address[0]}\r\nContent-Length: 1000000000\r\n\r\n" + "x" * 1000
                    writer.write(f"POST /v3/clusters HTTP/1.1\r\n{announced if number % 2 else 'X: y'}".encode())
        yield
    finally:
        for writer in opened:
            writer.transport.abort()


ATTACK = Attack(
    name="admin HTTP",
    what=f"foreign Host and Origin, {FUZZED} damaged requests, {UNFINISHED} unfinished ones on every HTTP port",
    run=admin_http,
    port=Port.ADMIN,
)
