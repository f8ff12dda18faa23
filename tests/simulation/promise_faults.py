"""What touches the promise itself: how many copies an acknowledged record has is changed, and a machine loses all of its copies.

As everywhere, at most `MOST_LOSSY` machines have lost writes at a time; `min.insync.replicas` is one more at least, where a
history has machines that lose any.
"""

from random import Random
from typing import ClassVar

from barnabas.kraft.metadata.records import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS
from barnabas.log.vocabulary.cluster_changes import AlterConfigRequest, ConfigEntryChange
from barnabas.net.testing.simulation.cluster import SimulatedCluster
from barnabas.net.testing.simulation.fault_room import FaultPlan, FaultRoom
from barnabas.net.testing.simulation.node_faults import MOST_LOSSY

from .workload import Workload

LOSES_WRITES = frozenset({"power_loss", "folder_failure", "wipe"})
CHANGES_VOTERS = frozenset({"alter_voters", "decommission"})
MOST_IN_SYNC = 3


class PromiseFaults(FaultRoom):
    WEIGHTS: ClassVar = {"min_insync": 2, "wipe": 1}

    def __init__(self, cluster: SimulatedCluster, plan: FaultPlan, rng: Random, workload: Workload) -> None:
        super().__init__(cluster, plan, rng)
        self.workload = workload

    def _min_insync(self, _: int) -> None:
        """Of a topic, of all topics that do not say, or a topic takes the cluster's value again."""
        topics = sorted(self.cluster.newest_image().topics)
        least = 1 + (MOST_LOSSY if LOSES_WRITES.intersection(self.plan.kinds) else 0)
        value = str(self.rng.randint(least, MOST_IN_SYNC))
        change = ConfigEntryChange(key=MIN_INSYNC_REPLICAS, value=value)
        if not topics or self.rng.random() < 0.4:
            request = AlterConfigRequest(resource_type=BROKER_RESOURCE, resource=CLUSTER_DEFAULT, changes=(change,))
        else:
            if self.rng.random() < 0.3:
                change = ConfigEntryChange(key=MIN_INSYNC_REPLICAS, value=None)
            topic = self.rng.choice(topics)
            request = AlterConfigRequest(resource_type=TOPIC_RESOURCE, resource=topic, changes=(change,))
        self.cluster.loop.note(f"OPERATION {request}")
        self.workload.operate(request)

    def _wipe(self, node_id: int) -> None:
        """A quorum of two cannot lose a disk, so nothing is wiped where voters leave."""
        if CHANGES_VOTERS.intersection(self.plan.kinds) or len(self.cluster.lossy | {node_id}) > MOST_LOSSY:
            return
        if self.cluster.nodes[node_id].is_running:
            self.cluster.wipe(node_id)
            self._later(self._duration(), self.cluster.start, node_id)
