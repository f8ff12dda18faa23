"""What happens to users' programs: they die and are started again, stand still, and lose the network."""

from collections.abc import Callable
from random import Random
from typing import ClassVar

from .cluster import SimulatedCluster
from .fault_room import FaultPlan, FaultRoom


class ProgramFaults(FaultRoom):
    """`names`: of the programs that run now; `restart` starts one again that has died."""

    WEIGHTS: ClassVar = {"program_kill": 2, "program_stall": 1, "program_cut": 1}

    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: FaultPlan,
        rng: Random,
        names: Callable[[], list[str]],
        restart: Callable[[str], None],
    ) -> None:
        super().__init__(cluster, plan, rng)
        self._names = names
        self._restart = restart

    def _chosen(self) -> str | None:
        names = self._names()
        return self.rng.choice(names) if names else None

    def _program_kill(self, _: int) -> None:
        """kill -9, between any two of its steps."""
        name = self._chosen()
        if name is not None:
            self.cluster.kill_guest(name)
            self._later(self._duration(), self._restart, name)

    def _program_stall(self, _: int) -> None:
        name = self._chosen()
        if name is not None:
            self.cluster.stall_process(self.cluster.guests[name], self._duration())

    def _program_cut(self, node_id: int) -> None:
        name = self._chosen()
        if name is not None:
            pairs = [(name, f"node-{node_id}"), (f"node-{node_id}", name)]
            self.cluster.loop.note(f"CUT {pairs}")
            for source, target in pairs:
                self.cluster.world.cut(source, target)
            self._later(self._duration(), self.cluster.world.mend, pairs)
