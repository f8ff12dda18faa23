"""What rooms of faults share: the cluster, the dice, and work that happens later unless everything was healed by then.

A room holds the faults of one noun (nodes, links, disks, operations). A kind of fault is a method `_name(node_id)` and a
line in the room's `WEIGHTS`; everything else follows from that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from .cluster import SimulatedCluster
from .process import NOBODY

PROBABILITY = 0.35  # of a kind that it is among those of a seed (swarm testing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """`kinds` holds each kind as often as it weighs."""

    kinds: tuple[str, ...]
    interval_s: float  # between two faults, on average
    longest_s: float  # of a cut, a stall, a death

    @staticmethod
    def draw(rng: Random, weights: dict[str, int]) -> "FaultPlan":
        """Whether a seed has a kind depends on nothing but the two, so that a new kind leaves most seeds as they were."""
        bits = rng.getrandbits(64)
        kinds = tuple(
            kind
            for kind, weight in weights.items()
            if Random(f"{bits}/{kind}").random() < PROBABILITY
            for _ in range(weight)
        )
        interval_s, longest_s = rng.choice((0.15, 0.4, 1.0)), rng.choice((0.3, 1.5, 3.0))
        return FaultPlan(kinds=kinds or ("kill",), interval_s=interval_s, longest_s=longest_s)

    @staticmethod
    def draw_of_first_era(rng: Random, kinds: tuple[str, ...]) -> "FaultPlan":
        """As it was drawn at first; the seeds that failed then keep their course by it."""
        chosen = tuple(kind for kind in kinds if rng.random() < 0.45) or ("kill",)
        return FaultPlan(kinds=chosen, interval_s=rng.choice((0.15, 0.4, 1.0)), longest_s=rng.choice((0.3, 1.5, 3.0)))


class FaultRoom:
    WEIGHTS: ClassVar[dict[str, int]]

    def __init__(self, cluster: SimulatedCluster, plan: FaultPlan, rng: Random) -> None:
        self.cluster = cluster
        self.plan = plan
        self.rng = rng
        self._is_over = False

    def strike(self, kind: str, node_id: int) -> None:
        self.cluster.disturbed()
        getattr(self, f"_{kind}")(node_id)

    def heal(self) -> None:
        """Everything works again from now on."""
        self._is_over = True
        self.cluster.disturbed()

    def _duration(self) -> float:
        return self.rng.uniform(0.02, self.plan.longest_s)

    def _later(self, duration_s: float, work: Callable[..., object], *args: object) -> None:
        def act() -> None:
            if not self._is_over:
                self.cluster.disturbed()
                work(*args)

        self.cluster.loop.call_later(duration_s, act, context=NOBODY)

    def _another(self, node_id: int) -> int:
        return self.rng.choice([node.node_id for node in self.cluster.nodes if node.node_id != node_id])
