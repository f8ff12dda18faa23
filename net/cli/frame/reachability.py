"""Whether brokers are reached where they say: clients go to advertised addresses, whatever address they began with."""

import asyncio
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.protocol.responses import ClusterBroker, DescribeClusterResponse

from ...wire.greeting import Greeting, mismatch
from .connector import Connector

AT_ONCE: Final = 32  # connections that are being opened; clusters have up to 1,000 brokers


async def address_causes(connector: Connector, cluster: DescribeClusterResponse) -> list[str]:
    """What is wrong with the addresses of brokers that take part, as seen from here."""
    asked = [broker for broker in cluster.brokers if not broker.fenced]
    gate = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(_cause(connector, cluster, broker, gate) for broker in asked))
    return [cause for cause in found if cause]


async def _cause(
    connector: Connector, cluster: DescribeClusterResponse, broker: ClusterBroker, gate: asyncio.Semaphore
) -> str:
    """In words; empty: all is well."""
    found: Greeting | BarnabasError
    try:
        async with gate:
            found = await connector.greet(broker.host, broker.port)
    except BarnabasError as error:
        found = error
    return mismatch(broker.node_id, cluster.cluster_id, f"{broker.host}:{broker.port}", found)
