"""One of several data folders of a broker fails, and comes back: nothing is lost, and the broker serves the rest meanwhile."""

from random import Random
from typing import ClassVar

from barnabas.net.testing.simulation.cluster import SECOND_FOLDER, SimulatedCluster
from barnabas.net.testing.simulation.fault_room import FaultPlan, FaultRoom
from barnabas.net.testing.simulation.node_faults import MOST_LOSSY
from barnabas.net.wire.protocol.requests import BringBackFolderRequest

from .workload import Workload


class FolderFaults(FaultRoom):
    WEIGHTS: ClassVar = {"folder_failure": 1}

    def __init__(self, cluster: SimulatedCluster, plan: FaultPlan, rng: Random, workload: Workload) -> None:
        super().__init__(cluster, plan, rng)
        self.workload = workload

    def heal(self) -> None:
        """An answer to who asked for a folder may have been lost: a start looks at all of them."""
        super().heal()
        if "folder_failure" not in self.plan.kinds:
            return
        for node in self.cluster.nodes:
            if SECOND_FOLDER in node.disk.failed:
                node.disk.mend_folder(SECOND_FOLDER)
            self.cluster.kill(node.node_id)
            self.cluster.start(node.node_id)

    def _folder_failure(self, node_id: int) -> None:
        """Everything in the folder with no journal answers EIO. The process must not end by it, so no disk may refuse.

        A broker takes a folder that failed for one that may have lost writes, so it counts as a loss of power does.
        """
        disk = self.cluster.nodes[node_id].disk
        if SECOND_FOLDER in disk.failed or len(self.cluster.lossy | {node_id}) > MOST_LOSSY:
            return
        self.cluster.lossy.add(node_id)
        self.cluster.loop.note(f"FOLDER FAILS node-{node_id}")
        disk.fail_folder(SECOND_FOLDER)
        self._later(self._duration(), self._mend, node_id)

    def _mend(self, node_id: int) -> None:
        """What was written before is there. The operator asks for the folder, or starts the broker again."""
        self.cluster.loop.note(f"FOLDER MENDED node-{node_id}")
        self.cluster.nodes[node_id].disk.mend_folder(SECOND_FOLDER)
        if self.rng.random() < 0.7:
            self.workload.operate_at(node_id, BringBackFolderRequest(node_id=node_id, path=SECOND_FOLDER))
        else:
            self.cluster.kill(node_id)
            self.cluster.start(node_id)
