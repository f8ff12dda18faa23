"""Clients that are there before a broker has found its cluster: what they are told has brokers in it."""

import asyncio
import socket
from collections.abc import Callable

from integration.cluster import DEADLINE_S, Cluster
from integration.kafka_wire import METADATA, call, make, metadata

DESCRIBE_CLUSTER = 60
Maker = Callable[..., Cluster]


async def test_the_first_answer_of_a_broker_names_a_broker(new_cluster: Maker) -> None:
    """Connected as soon as the port is open, which is before the quorum has a leader."""
    cluster = new_cluster(1)
    sockets = [await _connected(cluster) for _ in range(2)]
    try:
        described = make("DescribeClusterRequest")
        asked = (
            asyncio.to_thread(call, sockets[0], METADATA, 1, metadata("early")),
            asyncio.to_thread(call, sockets[1], DESCRIBE_CLUSTER, 0, described),
        )
        first, second = await asyncio.gather(*asked)
        assert [broker.node_id for broker in first.brokers] == [0]
        assert [broker.broker_id for broker in second.brokers] == [0]
    finally:
        for sock in sockets:
            sock.close()


async def _connected(cluster: Cluster) -> socket.socket:
    """As soon as that is possible: a poll every few milliseconds could come too late to be early."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return socket.create_connection(("127.0.0.1", cluster.nodes[0].port), timeout=DEADLINE_S)
            except OSError:
                await asyncio.sleep(0)
