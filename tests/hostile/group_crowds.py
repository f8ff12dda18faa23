"""Crowds in groups: members that join at the same time, and joins of classic members that wait for a rebalance without end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from integration.kafka_wire import JOIN_GROUP, asked, make

from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.wire.protocol.group_responses import FindCoordinatorResponse
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

from .attack import Address, Attack
from .patterns import TIMEOUT_MS, coordinator, joined

STORM_GROUP = "hostile-storm"
STORM = 1_000
STORM_CONNECTIONS = 20
CLASSIC_GROUP = "hostile-classic-storm"
POLL_GROUP = "hostile-long-polls"
_POLL_MS = 5_000
_AGAIN_S = 0.1  # until a member that was refused joins again
PARKED_GROUP = "hostile-parked"
PARKED = 10_000
PARKED_CONNECTIONS = 50
_JOIN_VERSION = 3  # a member id is not asked for first
_JOIN_TIMEOUT_MS = 300_000


@asynccontextmanager
async def join_storm(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Members with a pattern, all at once. On entry each of them was answered."""
    await joined(brokers[0], STORM_GROUP, "hostile-.*")
    connections = [await coordinator(brokers[0], STORM_GROUP) for _ in range(STORM_CONNECTIONS)]

    def heartbeat(number: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=STORM_GROUP,
            member_id=f"member-{number}",
            member_epoch=0,
            subscribed_pattern="hostile-.*|no-such.*",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=45_000,
        )

    async def one(connection: RpcConnection, number: int) -> None:
        with suppress(BarnabasError, OSError):
            await connection.call(heartbeat(number), timeout_ms=TIMEOUT_MS)

    try:
        await asyncio.gather(*(one(connections[number % STORM_CONNECTIONS], number) for number in range(STORM)))
        yield
    finally:
        for connection in connections:
            connection.abort()


@asynccontextmanager
async def long_polls(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Members of our own protocol that join one group and wait for its news in long polls, each of which all others cause."""
    await joined(brokers[0], POLL_GROUP, "hostile-.*")
    connections = [await coordinator(brokers[0], POLL_GROUP) for _ in range(STORM_CONNECTIONS)]

    async def one(connection: RpcConnection, number: int) -> None:
        epoch, owned = 0, None
        while True:
            asked = ConsumerGroupHeartbeatRequest(
                group_id=POLL_GROUP,
                member_id=f"member-{number}",
                member_epoch=epoch,
                subscribed_topics=("honest",) if epoch == 0 else None,
                rebalance_timeout_ms=60_000,
                session_timeout_ms=45_000,
                owned=() if epoch == 0 else owned,
                max_wait_ms=0 if epoch == 0 else _POLL_MS,
            )
            try:
                told = await connection.call(asked, timeout_ms=TIMEOUT_MS)
            except (BarnabasError, OSError):
                epoch = 0
                await asyncio.sleep(_AGAIN_S)
                continue
            assert isinstance(told, ConsumerGroupHeartbeatResponse)
            epoch, owned = told.member_epoch, told.assignment

    polls = [asyncio.create_task(one(connections[number % STORM_CONNECTIONS], number)) for number in range(STORM)]
    try:
        yield
    finally:
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        for connection in connections:
            connection.abort()


def _join(number: int, group_id: str = PARKED_GROUP) -> bytes:
    protocols = [make("JoinGroupRequest", "JoinGroupRequestProtocol", name="range", metadata=b"\0" * 100)]
    body: Any = make(
        "JoinGroupRequest",
        group_id=group_id,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=_JOIN_TIMEOUT_MS,
        protocol_type="consumer",
        protocols=protocols,
    )
    return asked(JOIN_GROUP, _JOIN_VERSION, body, correlation_id=number, client_id=b"stranger")


async def _opened(
    brokers: Sequence[Address], group_id: str, count: int
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections to the coordinator of this group."""
    await joined(brokers[0], f"{group_id}-elsewhere", "hostile-.*")  # the coordinators exist
    asking = await RpcConnection.open(TcpNetwork(), *brokers[0], client_id="stranger")
    try:
        found = await asking.call(FindCoordinatorRequest(group_id=group_id), timeout_ms=TIMEOUT_MS)
    finally:
        asking.abort()
    assert isinstance(found, FindCoordinatorResponse)
    return [await asyncio.open_connection(found.host, found.port) for _ in range(count)]


@asynccontextmanager
async def classic_storm(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Classic members, all at once, who read their answers. On entry each has one: the generation that all of them are in."""
    opened = await _opened(brokers, CLASSIC_GROUP, STORM_CONNECTIONS)
    each = STORM // STORM_CONNECTIONS
    try:
        for _, writer in opened:
            writer.write(b"".join(_join(turn, CLASSIC_GROUP) for turn in range(each)))
        for reader, _ in opened:
            for _ in range(each):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        yield
    finally:
        for _, writer in opened:
            writer.transport.abort()


@asynccontextmanager
async def parked_joins(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Joins of so many members, none of which ever sends SyncGroup or reads an answer. On entry all have been sent."""
    opened = await _opened(brokers, PARKED_GROUP, PARKED_CONNECTIONS)
    try:
        for number, (_, writer) in enumerate(opened):
            each = PARKED // PARKED_CONNECTIONS
            writer.write(b"".join(_join(number * each + turn) for turn in range(each)))
        yield
    finally:
        for _, writer in opened:
            writer.transport.abort()


ATTACKS = (
    Attack(name="join storm", what=f"{STORM} members join one group at the same time", run=join_storm),
    Attack(name="long polls", what=f"{STORM} members of one group wait for news in long polls", run=long_polls),
    Attack(name="classic storm", what=f"{STORM} classic members join one group at the same time", run=classic_storm),
    Attack(name="parked joins", what=f"{PARKED} joins of classic members of one group", run=parked_joins),
)
