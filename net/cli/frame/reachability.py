"""Are brokers reachable at their advertised addresses? Clients connect there, whatever bootstrap address they use."""

import asyncio
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.wire.protocol.responses import ClusterBroker, DescribeClusterResponse

from ...wire.greeting import Greeting, mismatch
from .connector import Connector

AT_ONCE: Final = 32  # connection attempts in parallel; clusters have up to 1,000 brokers


async def address_causes(connector: Connector, cluster: DescribeClusterResponse) -> list[str]:
    """Problems with the addresses of unfenced brokers, as seen from this host."""
    asked = [broker for broker in cluster.brokers if not broker.fenced]
    gate = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(_cause(connector, cluster, broker, gate) for broker in asked))
    return [cause for cause in found if cause]


async def _cause(
    connector: Connector, cluster: DescribeClusterResponse, broker: ClusterBroker, gate: asyncio.Semaphore
) -> str:
    """The problem in words; empty if there is none."""
    found: Greeting | BarnabasError
    try:
        async with gate:
            found = await connector.greet(broker.host, broker.port)
    except BarnabasError as error:
        found = error
    return mismatch(broker.node_id, cluster.cluster_id, f"{broker.host}:{broker.port}", found)
