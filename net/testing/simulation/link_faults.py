"""The network between brokers: cut, cut in one direction, slow and lossy, connections that break.

Bytes of a connection arrive once and in order, as TCP promises; across connections anything may overtake anything.
"""

from typing import ClassVar

from .fault_room import FaultRoom


class LinkFaults(FaultRoom):
    WEIGHTS: ClassVar = {"cut_one_way": 1, "cut": 1, "isolate": 1, "slow": 1, "reset": 1, "late_reset": 1}

    def heal(self) -> None:
        super().heal()
        for link in self.cluster.world.links():
            link.latency_s, link.jitter_s, link.loss = 0.0002, 0.0003, 0.0
        self.cluster.world.heal()

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
        self.cluster.world.mend([(f"node-{source}", f"node-{target}") for source, target in pairs])

    def _slow(self, node_id: int) -> None:
        link = self.cluster.world.link(f"node-{node_id}", f"node-{self._another(node_id)}")
        link.latency_s = self.rng.choice((0.0002, 0.01, 0.1))
        link.jitter_s = self.rng.choice((0.0003, 0.02, 0.2))
        link.loss = self.rng.choice((0.0, 0.02, 0.2))

    def _reset(self, node_id: int) -> None:
        other = self._another(node_id)
        self.cluster.loop.note(f"RESET {node_id} {other}")
        self.cluster.world.reset_connections(f"node-{node_id}", f"node-{other}")

    def _late_reset(self, node_id: int) -> None:
        """What was asked is done, its answer is lost, and who asked will ask again: how a frame comes twice."""
        peer = f"node-{self._another(node_id)}"
        if self.rng.random() < 0.5 and self.cluster.client_names:
            peer = self.rng.choice(self.cluster.client_names)
        self.cluster.loop.note(f"LATE RESET {peer} {node_id}")
        self.cluster.world.reset_after_arrival(peer, f"node-{node_id}")
