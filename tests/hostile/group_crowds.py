"""Crowds in groups: members that join at the same time, and joins of classic members that wait for a rebalance without end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from integration.kafka_wire import JOIN_GROUP, asked, make

from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.protocol.group_responses import FindCoordinatorResponse
from barnabas.net.protocol.requests import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

from .attack import Address, Attack
from .patterns import TIMEOUT_MS, coordinator, joined

STORM_GROUP = "hostile-storm"
STORM = 1_000
STORM_CONNECTIONS = 20
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


def _join(number: int) -> bytes:
    protocols = [make("JoinGroupRequest", "JoinGroupRequestProtocol", name="range", metadata=b"\0" * 100)]
    body: Any = make(
        "JoinGroupRequest",
        group_id=PARKED_GROUP,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=_JOIN_TIMEOUT_MS,
        protocol_type="consumer",
        protocols=protocols,
    )
    return asked(JOIN_GROUP, _JOIN_VERSION, body, correlation_id=number, client_id=b"stranger")


@asynccontextmanager
async def parked_joins(brokers: Sequence[Address]) -> AsyncIterator[None]:
    """Joins of so many members, none of which ever sends SyncGroup or reads an answer. On entry all have been sent."""
    await joined(brokers[0], f"{PARKED_GROUP}-elsewhere", "hostile-.*")  # the coordinators exist
    asking = await RpcConnection.open(TcpNetwork(), *brokers[0], client_id="stranger")
    try:
        found = await asking.call(FindCoordinatorRequest(group_id=PARKED_GROUP), timeout_ms=TIMEOUT_MS)
    finally:
        asking.abort()
    assert isinstance(found, FindCoordinatorResponse)
    opened = [await asyncio.open_connection(found.host, found.port) for _ in range(PARKED_CONNECTIONS)]
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
    Attack(name="parked joins", what=f"{PARKED} joins of classic members of one group", run=parked_joins),
)
