"""Placement of the replicas of new partitions: striped over the brokers, spread over racks, never two on one machine.

Within one request, every broker leads, and has, as many partitions as any other (plus or minus one); ties go to brokers that lead
less in the whole cluster, then round-robin from a random start. Balance within the topic comes first on purpose: a new broker
must not become the leader of everything that is created from then on.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.log.vocabulary.errors import InvalidReplicationFactorError

from ..metadata.image import BrokerImage


class Site(NamedTuple):
    """Where a broker is. Brokers of one machine fail together, so two replicas of a partition never share one."""

    rack: str | None
    machine: str | int  # the node id of a broker whose configuration names no machine: it has one of its own

    @classmethod
    def of(cls, broker: BrokerImage) -> "Site":
        return cls(rack=broker.rack, machine=broker.machine or broker.node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementBroker:
    """A registered broker. One that is not active gets replicas only if there are not enough others."""

    node_id: int
    site: Site
    active: bool


def place_replicas(
    brokers: Sequence[PlacementBroker],
    *,
    partition_count: int,
    replication_factor: int,
    leader_counts: Mapping[int, int],
    rng: random.Random,
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each partition, the preferred leader first.

    Raises InvalidReplicationFactorError when there are too few machines.
    """
    check_machines(replication_factor, (broker.site for broker in brokers), len(brokers))
    if not any(broker.active for broker in brokers):
        raise InvalidReplicationFactorError("no broker is active, so no partition could have a leader; wait for one")
    stripe = _Stripe(brokers, leader_counts, start=rng.randrange(len(brokers)))
    return tuple(stripe.next_partition(replication_factor) for _ in range(partition_count))


def check_machines(replication_factor: int, sites: Iterable[Site], broker_count: int) -> None:
    """Raises InvalidReplicationFactorError unless each replica can have a machine of its own."""
    machine_count = len({site.machine for site in sites})
    if replication_factor <= machine_count:
        return
    if machine_count == broker_count:
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} is larger than the number of brokers, {broker_count}"
        )
    raise InvalidReplicationFactorError(
        f"replication factor {replication_factor} is larger than the number of machines, {machine_count}: the "
        f"{broker_count} brokers share them (broker.machine), and two replicas on one machine would be lost together"
    )


class _Stripe:
    """The counts of one request, and the choices that keep them even."""

    def __init__(self, brokers: Sequence[PlacementBroker], leader_counts: Mapping[int, int], start: int) -> None:
        self._brokers = [*brokers[start:], *brokers[:start]]
        self._leader_counts = leader_counts
        self._leads: Counter[int] = Counter()
        self._holds: Counter[int] = Counter()
        self._placed = 0

    def next_partition(self, replication_factor: int) -> tuple[int, ...]:
        chosen = [min(filter(_is_active, self._brokers), key=self._leader_order)]
        self._leads[chosen[0].node_id] += 1
        while len(chosen) < replication_factor:
            racks = Counter(broker.site.rack for broker in chosen)
            machines = {broker.site.machine for broker in chosen}
            free = [pair for pair in enumerate(self._brokers) if pair[1].site.machine not in machines]
            chosen.append(min(free, key=lambda item: self._follower_order(item[0], item[1], racks))[1])
        for broker in chosen:
            self._holds[broker.node_id] += 1
        self._placed += 1
        return tuple(broker.node_id for broker in chosen)

    def _leader_order(self, broker: PlacementBroker) -> tuple[int, ...]:
        return self._leads[broker.node_id], self._leader_counts.get(broker.node_id, 0), self._holds[broker.node_id]

    def _follower_order(self, place: int, broker: PlacementBroker, racks: Counter[str | None]) -> tuple[int, ...]:
        # The distance changes with every partition, and once more with every round: when a leader dies, its partitions should
        # find their next leaders on all other brokers.
        shift = self._placed + self._placed // len(self._brokers)
        distance = (place - shift) % len(self._brokers)
        return not broker.active, racks[broker.site.rack], self._holds[broker.node_id], distance


def _is_active(broker: PlacementBroker) -> bool:
    return broker.active
