"""Machines and processes: they die, stop, stand still, and their wall clocks jump."""

from typing import ClassVar

from .fault_room import FaultRoom

MOST_LOSSY = 1  # min.insync.replicas - 1: with more losses a record may go (docs/guarantees.md)
LONGEST_CLOCK_JUMP_MS = 3_600_000


class NodeFaults(FaultRoom):
    WEIGHTS: ClassVar = {"kill": 1, "kill_all": 1, "power_loss": 1, "stop": 1, "stall": 1, "clock_jump": 1}

    def heal(self) -> None:
        super().heal()
        for node in self.cluster.nodes:
            # Jumps add up; a clock that is further off than message.timestamp.after.max.ms rightly refuses good records.
            self.cluster.jump_clock(node.node_id, -node.clock_skew_ms)
            self.cluster.start(node.node_id)

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

    def _clock_jump(self, node_id: int) -> None:
        """Someone set the clock, or the network time service did. Monotonic time is not touched by that."""
        longest_ms = self.rng.choice((1_000, 60_000, LONGEST_CLOCK_JUMP_MS))
        self.cluster.jump_clock(node_id, self.rng.randint(-longest_ms, longest_ms))
