"""What a fault works with: the cluster, the dice, who plays which role; and what was hit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from barnabas.net.client.admin.admin import Admin

from .cluster import BROKERS, FaultBroker, FaultCluster
from .history import Partition
from .network import NamespaceNetwork

HOLD_S: Final = (0.5, 6.0)  # shorter and longer than a broker's session of 3 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The roles of the brokers, as the cluster reports them. -1: no broker has the role."""

    controller: int
    leaders: dict[Partition, int]

    def led_by(self, node_id: int) -> tuple[Partition, ...]:
        return tuple(partition for partition, leader in self.leaders.items() if leader == node_id)


class Injector:
    """What faults work with: the cluster, the dice, who plays which role; and what was hit, for the history."""

    def __init__(
        self,
        cluster: FaultCluster,
        rng: Random,
        roles: Roles,
        admin: Admin,
        until_whole: Callable[[], Awaitable[object]],
    ) -> None:
        self.cluster = cluster
        self.admin = admin
        self.until_whole = until_whole  # every ISR is full
        self.rng = rng
        self.roles = roles
        self.targets: list[int] = []

    @property
    def network(self) -> NamespaceNetwork:
        assert self.cluster.network is not None
        return self.cluster.network

    def affected(self) -> tuple[Partition, ...]:
        return tuple(partition for target in self.targets for partition in self.roles.led_by(target))

    def broker(self, node_id: int) -> FaultBroker:
        self.targets.append(node_id)
        return self.cluster.brokers[node_id]

    def leader(self) -> FaultBroker:
        """One that leads something; of several, any."""
        leading = sorted({leader for leader in self.roles.leaders.values() if leader >= 0})
        return self.broker(self.rng.choice(leading or range(BROKERS)))

    def follower(self) -> FaultBroker:
        """The one that leads least."""
        return self.broker(min(range(BROKERS), key=lambda node_id: len(self.roles.led_by(node_id))))

    def controller(self) -> FaultBroker:
        return self.broker(self.roles.controller if self.roles.controller >= 0 else self.rng.randrange(BROKERS))

    def anyone(self) -> FaultBroker:
        return self.broker(self.rng.randrange(BROKERS))

    def others(self, broker: FaultBroker) -> list[int]:
        return [node_id for node_id in range(BROKERS) if node_id != broker.node_id]

    async def hold(self, shortest_s: float = HOLD_S[0], longest_s: float = HOLD_S[1]) -> None:
        """How long a fault lasts."""
        await asyncio.sleep(self.rng.uniform(shortest_s, longest_s))


Fault = Callable[[Injector], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a fault needs of the machine (None: nothing), and how often it is drawn compared with others."""

    inflict: Fault
    need: str | None
    weight: float = 1.0


async def restarted_if_ended(broker: FaultBroker) -> None:
    if not broker.is_running:
        broker.launch()
