"""Checks which broker answers at an address that a broker advertises to clients."""

from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError

from .network import Network
from .rpc import RpcConnection

GREETING_TIMEOUT_MS: Final = 2_000  # a live broker sends its hello at once; a frozen one, or a packet filter, never
CURE: Final = "clients are sent there; is the broker up, and its advertised.listeners right?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The identity of a broker in its hello."""

    cluster_id: str  # "": it has not joined its cluster yet
    node_id: int


async def greet(network: Network, host: str, port: int, *, client_id: str) -> Greeting:
    """Raises BarnabasError if no broker answers in time."""
    connection = await RpcConnection.open(
        network, host, port, client_id=client_id, connect_timeout_ms=GREETING_TIMEOUT_MS, only_greet=True
    )
    await connection.close()
    return Greeting(cluster_id=connection.hello.cluster_id, node_id=connection.hello.node_id)


def mismatch(node_id: int, cluster_id: str, address: str, found: Greeting | BarnabasError) -> str:
    """The problem of the address that a broker advertises, as text; "" if there is none."""
    where = f"broker {node_id} advertises {address}"
    if isinstance(found, BarnabasError):
        return f"{where}, which cannot be reached from here ({found.message}): {CURE}"
    if found.cluster_id and cluster_id and found.cluster_id != cluster_id:
        return f"{where}, where a broker of another cluster answers ({found.cluster_id}): {CURE}"
    if found.node_id != node_id:
        return f"{where}, where broker {found.node_id} answers: {CURE}"
    return ""
