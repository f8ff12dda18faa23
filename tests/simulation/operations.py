"""Operations of administrators during the faults: replicas move, topics are created and deleted, records are deleted, brokers
join and leave.

`ask` sends a request to some broker without waiting for its answer. The topics of `workload.EXTRAS` exist for this purpose.
"""

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    ConfigEntryChange,
    DecommissionBrokerRequest,
    ElectLeaderRequest,
    UnregisterBrokerRequest,
)
from barnabas.net.testing.simulation.cluster import SimulatedCluster
from barnabas.net.testing.simulation.fault_room import FaultPlan, FaultRoom
from barnabas.net.wire.protocol.requests import (
    AlterVotersRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteTopicRequest,
)

from .workload import LATEST_VALUES, PHOENIX, SHORT, Workload

TOPIC_RESOURCE = 2
MOST_PARTITIONS = 4


class Operations(FaultRoom):
    WEIGHTS: ClassVar = {
        "reassign": 1, "elect": 1, "recreate": 1, "add_partitions": 1, "delete_records": 1, "retention": 1,
        "join_or_leave": 1, "unregister": 1, "compact": 1, "decommission": 1,
        "alter_voters": 1,
    }  # fmt: skip

    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: FaultPlan,
        rng: Random,
        workload: Workload,
        permit_start: Callable[[str, int, float], None],
    ) -> None:
        super().__init__(cluster, plan, rng)
        self.workload = workload
        self._permit_start = permit_start  # topic, partition, the highest log start from now on

    def _ask(self, *requests: Any) -> None:
        self.cluster.loop.note(f"OPERATION {requests[0]}")
        self.workload.operate(*requests)

    def _partitions(self) -> list[tuple[str, int, Any]]:
        topics = self.cluster.newest_image().topics.values()
        return [(topic.name, number, it) for topic in topics for number, it in enumerate(topic.partitions)]

    def _reassign(self, _: int) -> None:
        """To a random set of brokers, sometimes while an earlier move is under way; sometimes a move is called off."""
        partitions = self._partitions()
        if not partitions:
            return
        topic, number, partition = self.rng.choice(partitions)
        count = max(min(len(partition.replicas) - len(partition.adding_replicas), len(self.cluster.nodes)), 1)
        chosen = self.rng.sample(range(len(self.cluster.nodes)), count)
        if partition.adding_replicas and self.rng.random() < 0.3:
            chosen = []
        self._ask(AssignReplicasRequest(topic=topic, partition=number, replicas=tuple(chosen)))

    def _elect(self, node_id: int) -> None:
        """The preferred leader, or a certain one."""
        partitions = self._partitions()
        if partitions:
            topic, number, _ = self.rng.choice(partitions)
            target = node_id if self.rng.random() < 0.6 else None
            self._ask(ElectLeaderRequest(topic=topic, partition=number, target=target))

    def _recreate(self, _: int) -> None:
        """A topic goes, and at once another one has its name."""
        replicas = min(3, len(self.cluster.nodes))
        again = CreateTopicRequest(name=PHOENIX, partition_count=self.rng.randint(1, 2), replication_factor=replicas)
        self._ask(DeleteTopicRequest(name=PHOENIX), again)

    def _add_partitions(self, _: int) -> None:
        for topic in self.cluster.newest_image().topics.values():
            if topic.name in ("clicks", PHOENIX) and len(topic.partitions) < MOST_PARTITIONS:
                self._ask(AddPartitionsRequest(name=topic.name, total_count=len(topic.partitions) + 1))
                return

    def _delete_records(self, _: int) -> None:
        for name, number, partition in self._partitions():
            if name == SHORT and partition.leader >= 0:
                ends = [end for (topic, at), end in self.workload.ends.items() if (topic, at) == (SHORT, number)]
                before = self.rng.randint(0, max(ends, default=0))
                self._permit_start(SHORT, number, before)
                self.workload.operate_at(
                    partition.leader, DeleteRecordsRequest(topic=SHORT, partition=number, before_offset=before)
                )

    def _retention(self, _: int) -> None:
        for number in range(MOST_PARTITIONS):
            self._permit_start(SHORT, number, float("inf"))
        change = ConfigEntryChange(key="retention.bytes", value=str(self.rng.choice((1, 2_000, 10_000, -1))))
        self._ask(AlterConfigRequest(resource_type=TOPIC_RESOURCE, resource=SHORT, changes=(change,)))

    def _compact(self, _: int) -> None:
        """The cleaner works all the time; from now on it does so more or less eagerly, on larger or smaller segments."""
        changes = (
            ConfigEntryChange(key="min.cleanable.dirty.ratio", value=str(self.rng.choice((0.01, 0.3, 0.8)))),
            ConfigEntryChange(key="segment.bytes", value=str(self.rng.choice((1_024, 2_048, 8_192)))),
        )
        self._ask(AlterConfigRequest(resource_type=TOPIC_RESOURCE, resource=LATEST_VALUES, changes=changes))

    def _decommission(self, node_id: int) -> None:
        """Its replicas, its slots and its vote go elsewhere; it is given back at times, and at the end."""
        leaving = [it.node_id for it in self.cluster.newest_image().brokers.values() if it.decommissioning]
        if leaving:
            self._ask(DecommissionBrokerRequest(node_id=leaving[0], cancel=self.rng.random() < 0.5))
        else:
            self._ask(DecommissionBrokerRequest(node_id=node_id))

    def _alter_voters(self, node_id: int) -> None:
        self._ask(AlterVotersRequest(node_id=node_id, add=self.rng.random() < 0.6, timeout_ms=1_500))

    def _join_or_leave(self, _: int) -> None:
        """The last node is the one that leaves and returns: killed, stopped, or removed from the cluster permanently."""
        spare = self.cluster.nodes[-1]
        if not spare.is_running:
            self.cluster.start(spare.node_id)
        elif self.rng.random() < 0.5:
            self.cluster.kill(spare.node_id)
        else:
            self.cluster.stop(spare.node_id)
        if not spare.is_running and self.rng.random() < 0.7:
            self._ask(UnregisterBrokerRequest(node_id=spare.node_id))

    def _unregister(self, node_id: int) -> None:
        """Unregister a broker that is down; it registers again when it returns."""
        if not self.cluster.nodes[node_id].is_running:
            self._ask(UnregisterBrokerRequest(node_id=node_id))
