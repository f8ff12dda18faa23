"""Whether brokers are reached where they say: clients go to advertised addresses, whatever address they began with."""

import asyncio
from typing import Final

from barnabas.log.errors import BarnabasError
from barnabas.net.protocol.responses import ClusterBroker, DescribeClusterResponse

from .sdk import Connector

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
    where = f"broker {broker.node_id} advertises {broker.host}:{broker.port}"
    try:
        async with gate:
            greeting = await connector.greet(broker.host, broker.port)
    except BarnabasError as error:
        return f"{where}, which cannot be reached from here ({error.message}): {_CURE}"
    if greeting.cluster_id != cluster.cluster_id:
        return (
            f"{where}, where a broker of another cluster answers ({greeting.cluster_id or 'not joined yet'}): {_CURE}"
        )
    if greeting.node_id != broker.node_id:
        return f"{where}, where broker {greeting.node_id} answers: {_CURE}"
    return ""


_CURE: Final = "clients are sent there; is the broker up, and its advertised.listeners right?"
