"""What goes wrong, and when: drawn from the seed. Each seed has some kinds of fault and not others (swarm testing)."""

import asyncio
from dataclasses import dataclass
from random import Random

from .cluster import PLENTY_BYTES, SimulatedCluster
from .process import NOBODY

KINDS = (
    "kill", "kill_all", "power_loss", "stop", "stall", "cut_one_way", "cut", "isolate", "slow", "reset", "disk_full",
)  # fmt: skip
MOST_LOSSY = 1  # min.insync.replicas - 1, see DESIGN.md, section 7


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    kinds: tuple[str, ...]
    interval_s: float  # between two faults, on average
    longest_s: float  # of a cut, a stall, a death

    @staticmethod
    def draw(rng: Random) -> "FaultPlan":
        kinds = tuple(kind for kind in KINDS if rng.random() < 0.45) or ("kill",)
        return FaultPlan(kinds=kinds, interval_s=rng.choice((0.15, 0.4, 1.0)), longest_s=rng.choice((0.3, 1.5, 3.0)))


class Faults:
    def __init__(self, cluster: SimulatedCluster, plan: FaultPlan, rng: Random) -> None:
        self.cluster = cluster
        self.plan = plan
        self.rng = rng
        self.count = 0
        self._is_over = False

    async def run(self, duration_s: float) -> None:
        end = self.cluster.loop.time() + duration_s
        while self.cluster.loop.time() < end:
            await asyncio.sleep(self.rng.expovariate(1 / self.plan.interval_s))
            self.cluster.update_lossy()
            kind = self.rng.choice(self.plan.kinds)
            getattr(self, f"_{kind}")(self.rng.randrange(len(self.cluster.nodes)))
            self.count += 1

    def heal(self) -> None:
        """Everything works again from now on."""
        self._is_over = True
        world = self.cluster.world
        self.cluster.loop.note("HEAL")
        for link in world._links.values():
            link.latency_s, link.jitter_s, link.loss = 0.0002, 0.0003, 0.0
        world.heal()
        for node in self.cluster.nodes:
            node.disk.capacity_bytes = PLENTY_BYTES
            if node.disk_is_limited and node.is_running:
                self.cluster.kill(node.node_id)  # a log that failed takes no more writes until its broker starts again
            node.disk_is_limited = False
            self.cluster.start(node.node_id)

    def restart_dead(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.start(node.node_id)

    def _duration(self) -> float:
        return self.rng.uniform(0.02, self.plan.longest_s)

    def _later(self, duration_s: float, work: object, *args: object) -> None:
        def act() -> None:
            if not self._is_over:
                work(*args)  # type: ignore[operator]

        self.cluster.loop.call_later(duration_s, act, context=NOBODY)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _kill(self, node_id: int) -> None:
        if self.cluster.nodes[node_id].is_running:
            self.cluster.kill(node_id)
            self._later(self._duration(), self.cluster.start, node_id)

    def _kill_all(self, _: int) -> None:
        if self.rng.random() < 0.3:
            for node in self.cluster.nodes:
                self._kill(node.node_id)

    def _power_loss(self, node_id: int) -> None:
        if len(self.cluster.lossy | {node_id}) <= MOST_LOSSY and self.cluster.nodes[node_id].is_running:
            self.cluster.power_loss(node_id)
            self._later(self._duration(), self.cluster.start, node_id)

    def _stop(self, node_id: int) -> None:
        self.cluster.stop(node_id)
        self._later(self._duration() + 2.5, self.cluster.start, node_id)

    def _stall(self, node_id: int) -> None:
        self.cluster.stall(node_id, self._duration())

    def _disk_full(self, node_id: int) -> None:
        """One node at a time; it gets room again after a while, and a new process, as its operator would do."""
        if any(node.disk_is_limited for node in self.cluster.nodes):
            return
        node = self.cluster.nodes[node_id]
        node.disk_is_limited = True
        node.disk.capacity_bytes = node.disk.used_bytes + self.rng.randrange(3_000)
        self.cluster.loop.note(f"DISK FULL {node.name}")
        self._later(self._duration(), self._make_room, node_id)

    def _make_room(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        node.disk.capacity_bytes = PLENTY_BYTES
        if node.is_running:
            self.cluster.kill(node_id)
        node.disk_is_limited = False
        self.cluster.start(node_id)

    # --- links --------------------------------------------------------------------------------------------------------

    def _cut_one_way(self, node_id: int) -> None:
        self._sever([(node_id, self._another(node_id))])

    def _cut(self, node_id: int) -> None:
        other = self._another(node_id)
        self._sever([(node_id, other), (other, node_id)])

    def _isolate(self, node_id: int) -> None:
        others = [node.node_id for node in self.cluster.nodes if node.node_id != node_id]
        pairs = [(node_id, other) for other in others]
        if self.rng.random() < 0.7:
            pairs += [(other, node_id) for other in others]
        self._sever(pairs)

    def _sever(self, pairs: list[tuple[int, int]]) -> None:
        self.cluster.loop.note(f"CUT {pairs}")
        for source, target in pairs:
            self.cluster.world.cut(f"node-{source}", f"node-{target}")
        self._later(self._duration(), self._mend, pairs)

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        self.cluster.loop.note(f"MEND {pairs}")
        for source, target in pairs:
            self.cluster.world.link(f"node-{source}", f"node-{target}").is_cut = False
        for transport in list(self.cluster.world._transports):
            transport.link_is_back()

    def _slow(self, node_id: int) -> None:
        link = self.cluster.world.link(f"node-{node_id}", f"node-{self._another(node_id)}")
        link.latency_s = self.rng.choice((0.0002, 0.01, 0.1))
        link.jitter_s = self.rng.choice((0.0003, 0.02, 0.2))
        link.loss = self.rng.choice((0.0, 0.02, 0.2))

    def _reset(self, node_id: int) -> None:
        other = self._another(node_id)
        self.cluster.loop.note(f"RESET {node_id} {other}")
        self.cluster.world.reset_connections(f"node-{node_id}", f"node-{other}")

    def _another(self, node_id: int) -> int:
        return self.rng.choice([node.node_id for node in self.cluster.nodes if node.node_id != node_id])
