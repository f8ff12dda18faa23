"""Patterns that stop an engine which backtracks, beside an honest group, on real brokers: nothing stops, restarts included."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from hostile.patterns import PATTERNS, REFUSED, joined
from hostile.watch import Waits
from integration.cluster import Cluster, until
from integration.group_reader import Reader, places, shared_out
from integration.load import send

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRegularExpressionError
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

LONGEST_ANSWER_S = 2.0  # of a busy test machine; it was for ever


async def longest_answer_s(cluster: Cluster, duration_s: float) -> float:
    """Ask every broker again and again; return the longest time that one took, waiting for a processor left out."""
    longest_s = 0.0
    until_s = time.monotonic() + duration_s
    for node in cluster.nodes:
        connection = await RpcConnection.open(TcpNetwork(), node.host, node.port, client_id="probe")
        try:
            while True:
                waits = Waits(node.process.pid)
                await connection.call(MetadataRequest(topics=()), timeout_ms=10_000)
                longest_s = max(longest_s, waits.held_s())
                if time.monotonic() > until_s - duration_s * (len(cluster.nodes) - 1 - node.node_id) / 3:
                    break
                await asyncio.sleep(0)
        finally:
            connection.abort()
    return longest_s


async def test_hostile_patterns_stop_neither_the_cluster_nor_an_honest_group(
    new_cluster: Callable[..., Cluster], report_line: Callable[[str], None]
) -> None:
    cluster = await new_cluster().ready()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(cluster.admin())
        await admin.create_topic("orders", partitions=3, replication_factor=3)
        reader = await stack.enter_async_context(Reader(cluster.bootstrap, "honest", pattern=r"\Qorders\E|late-\pL+"))
        wanted = places(orders=3)
        await until(lambda: shared_out([reader], wanted), "the honest group reads")

        first = (cluster.nodes[0].host, cluster.nodes[0].port)
        for number, pattern in enumerate(PATTERNS):
            for copy in range(5):  # on the coordinators of several slots
                await joined(first, f"evil-{number}-{copy}", pattern)
        for pattern in REFUSED:
            with pytest.raises(InvalidRegularExpressionError) as caught:
                await joined(first, "refused", pattern)
            assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        for name in PATTERNS.values():
            await admin.create_topic(name, partitions=1, replication_factor=3)
        alive_s = await longest_answer_s(cluster, 3.0)

        await admin.create_topic("late-orders", partitions=1, replication_factor=3)
        wanted |= places(**{"late-orders": 1})
        await until(lambda: shared_out([reader], wanted), "the honest group gets the new topic")
        await send(cluster.bootstrap, "orders", [b"one"], partition=0)
        await until(lambda: sum(reader.read.values()) == 1, "records are acknowledged and read")

        cluster.kill(0, 1, 2)
        cluster.start(0, 1, 2)
        await cluster.ready()
        again_s = await longest_answer_s(cluster, 3.0)
        await send(cluster.bootstrap, "orders", [b"two"], partition=1)
        await until(lambda: sum(reader.read.values()) == 2, "records are acknowledged and read after the restart")
        await until(lambda: shared_out([reader], wanted), "the honest group reads after the restart")
        report_line(f"hostile patterns: longest answer of a broker {alive_s:.2f} s, after a restart {again_s:.2f} s")
        assert max(alive_s, again_s) < LONGEST_ANSWER_S
