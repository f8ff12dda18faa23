"""Subscription patterns, and names of topics, on which an engine that backtracks does not come to an end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.wire.protocol.group_responses import FindCoordinatorResponse
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

from .attack import Address, Attack

PATTERNS = {
    "(a+)+b": "a" * 60,
    r"([a-z]+-?)+\.v1": "customer-orders-enriched-with-addresses-and-loyalty-points",
    r"(\w+-?)+\.orders": "payments-transaction-completed-events",
}
REFUSED = (r"(a)\1", "(?=a)b", r"\PL" * 300, "(((a{100}){100}){100})")
COPIES = 5  # of each pattern, in groups of several slots
TIMEOUT_MS = 30_000
_ATTEMPTS = 100  # coordinators are elected, and partitions of slots made, when the first group asks


async def coordinator(broker: Address, group_id: str) -> RpcConnection:
    """A connection to the group's coordinator, which this broker names."""
    connection = await RpcConnection.open(TcpNetwork(), *broker, client_id="attacker")
    try:
        found = await connection.call(FindCoordinatorRequest(group_id=group_id), timeout_ms=TIMEOUT_MS)
    finally:
        connection.abort()
    assert isinstance(found, FindCoordinatorResponse)
    return await RpcConnection.open(TcpNetwork(), found.host, found.port, client_id="attacker")


async def join(broker: Address, group_id: str, pattern: str) -> None:
    connection = await coordinator(broker, group_id)
    try:
        await connection.call(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id="attacker",
                member_epoch=0,
                subscribed_pattern=pattern,
                rebalance_timeout_ms=600_000,
                session_timeout_ms=600_000,
            ),
            timeout_ms=TIMEOUT_MS,
        )
    finally:
        connection.abort()


async def joined(broker: Address, group_id: str, pattern: str) -> None:
    """As `join`, until the coordinator is ready for it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return await join(broker, group_id, pattern)
        except BarnabasError as error:
            if not error.retriable:
                raise
        except OSError:
            pass
        await asyncio.sleep(0.1)
    return await join(broker, group_id, pattern)


@asynccontextmanager
async def patterns(brokers: Sequence[Address]) -> AsyncIterator[None]:
    for number, pattern in enumerate(PATTERNS):
        for copy in range(COPIES):
            await joined(brokers[0], f"hostile-{number}-{copy}", pattern)
    for pattern in REFUSED:
        try:
            await joined(brokers[0], "hostile-refused", pattern)
        except BarnabasError:
            continue
        raise AssertionError(f"the pattern {pattern!r} was accepted")
    async with Admin(",".join(f"{host}:{port}" for host, port in brokers), timeout_ms=TIMEOUT_MS) as admin:
        existing = {topic.name for topic in await admin.describe_topics()}
        for name in PATTERNS.values():
            if name not in existing:
                await admin.create_topic(name, partitions=1)
    yield


ATTACK = Attack(
    name="patterns",
    what="subscription patterns such as (a+)+b, and then topics whose names they do not match",
    run=patterns,
)
