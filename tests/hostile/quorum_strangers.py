"""Somebody who reaches the quorum ports and is no voter: forged hellos of voters, huge terms, forged leaders, garbage."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

from barnabas.kraft.quorum.config import MAX_TERM
from barnabas.kraft.quorum.formation import VoterState
from barnabas.kraft.raft.net.wire import Hello, encode_hello, frame

from .attack import Address, Attack, Port

ROUNDS = 20
TIMEOUT_S = 20.0
LARGE_TERMS = (MAX_TERM - 1, MAX_TERM, 2**63 - 2)
LIKELY_TERMS = range(1, 4)  # of a young cluster: its own term is among them
GARBAGE_BYTES = 20_000


async def speak(address: Address, claimed: int, message: dict[str, object], tls: ssl.SSLContext | None = None) -> bytes:
    """What a voter answers to somebody who says that it is voter `claimed`, until it hangs up. Raises OSError."""
    hello = Hello(voter_id=claimed, state=VoterState.VOTER, token=1 << 40)
    return await _say(address, encode_hello(hello) + frame(message), tls)


async def _say(address: Address, data: bytes, tls: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    try:
        writer.write(data)
        with suppress(ConnectionError):
            async with asyncio.timeout(TIMEOUT_S):
                return await reader.read()
        return b""
    finally:
        writer.transport.abort()


def append_entries(term: int) -> dict[str, object]:
    message = {"type": "append_entries", "term": term, "commit_index": 1}
    return {**message, "prevLogIdx": 1, "prevLogTerm": 0, "entries": ()}


def forgeries() -> list[dict[str, object]]:
    large: list[dict[str, object]] = [{"type": "stale_term", "term": term} for term in LARGE_TERMS]
    votes: list[dict[str, object]] = [
        {"type": "request_vote", "term": term, "last_log_index": 1 << 62, "last_log_term": 1 << 62, "transfer": True}
        for term in (*LARGE_TERMS, *LIKELY_TERMS)
    ]
    return [*large, *votes, *(append_entries(term) for term in (*LARGE_TERMS, *LIKELY_TERMS))]


@asynccontextmanager
async def quorum_strangers(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """All forgeries, in the name of every other voter, to every voter, in rounds; garbage between them."""
    rng = Random(1)
    for _ in range(ROUNDS):
        for victim, address in enumerate(brokers):
            for claimed in set(range(len(brokers))) - {victim}:
                with suppress(OSError):
                    await asyncio.gather(*(speak(address, claimed, message) for message in forgeries()))
            with suppress(OSError, TimeoutError):
                writer = (await asyncio.open_connection(*address))[1]
                writer.write(rng.randbytes(GARBAGE_BYTES))
                writer.transport.abort()
    yield


ATTACK = Attack(
    name="quorum strangers",
    what=f"{ROUNDS} rounds of forged hellos, huge terms, votes and append_entries to every quorum port",
    run=quorum_strangers,
    port=Port.QUORUM,
)
