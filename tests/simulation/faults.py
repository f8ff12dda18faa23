"""What goes wrong, and when: drawn from the seed. Each seed has some kinds of fault and not others (swarm testing).

The kinds are in rooms by their noun: `node_faults`, `link_faults`, `disk_faults`, `operations`. To add one: a method and a
line in `WEIGHTS` of its room.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from barnabas.net.testing.simulation.cluster import SimulatedCluster
from barnabas.net.testing.simulation.fault_room import FaultPlan, FaultRoom
from barnabas.net.testing.simulation.link_faults import LinkFaults
from barnabas.net.testing.simulation.node_faults import NodeFaults

from .disk_faults import DiskFaults
from .folder_faults import FolderFaults
from .operations import Operations
from .promise_faults import PromiseFaults
from .workload import Workload

ROOMS: tuple[type[FaultRoom], ...] = (NodeFaults, LinkFaults, DiskFaults, Operations, FolderFaults, PromiseFaults)
WEIGHTS = {kind: weight for room in ROOMS for kind, weight in room.WEIGHTS.items()}
# The kinds that there were at first, in the order in which they were drawn. Seeds that failed then are run with these.
FIRST_ERA = (
    "kill", "kill_all", "power_loss", "stop", "stall", "cut_one_way", "cut", "isolate", "slow", "reset", "disk_full",
)  # fmt: skip


class Faults:
    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: FaultPlan,
        rng: Random,
        workload: Workload,
        permit_start: Callable[[str, int, float], None],
        node_faults: type[NodeFaults] = NodeFaults,
        more_rooms: Sequence[FaultRoom] = (),
    ) -> None:
        self.cluster = cluster
        self.plan = plan
        self.rng = rng
        self.count = 0
        links, disks, nodes = (
            LinkFaults(cluster, plan, rng),
            DiskFaults(cluster, plan, rng),
            node_faults(cluster, plan, rng),
        )
        self._rooms = (
            links,
            disks,
            nodes,
            Operations(cluster, plan, rng, workload, permit_start),
            FolderFaults(cluster, plan, rng, workload),
            PromiseFaults(cluster, plan, rng, workload),
            *more_rooms,
        )  # as they are healed
        self._room_of = {kind: room for room in self._rooms for kind in room.WEIGHTS}

    async def run(self, duration_s: float) -> None:
        end = self.cluster.loop.time() + duration_s
        while self.cluster.loop.time() < end:
            await asyncio.sleep(self.rng.expovariate(1 / self.plan.interval_s))
            self.cluster.update_lossy()
            kind = self.rng.choice(self.plan.kinds)
            self._room_of[kind].strike(kind, self.rng.randrange(len(self.cluster.nodes)))
            self.count += 1

    def heal(self) -> None:
        self.cluster.loop.note("HEAL")
        for room in self._rooms:
            room.heal()

    def restart_dead(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.start(node.node_id)
