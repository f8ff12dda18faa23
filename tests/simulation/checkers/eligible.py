"""Whoever may be elected holds everything that is committed: the ISR and the eligible leader replicas (KIP-966).

Judged by the newest committed metadata, as the voters have applied it, whenever it changes a partition and whenever a leader
has committed something. A dead process counts with what it had written; a machine that lost writes counts again from the
moment in which it is unfenced, because from then on it may be elected.
"""

from typing import Any

from simulation.cluster import SimulatedCluster, SimulatedNode, voter_machine
from simulation.process import SimulatedProcess

from barnabas.kraft.image import MetadataImage

from .partitions import History, Key, PartitionChecker, View
from .violation import Violation


class EligibleChecker:
    def __init__(self, cluster: SimulatedCluster, partitions: PartitionChecker) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.judged = 0  # eligible replicas outside of an ISR
        self._newest = MetadataImage()
        self._left: dict[int, dict[Key, View]] = {}  # what the last process of a node had written, by node
        cluster.ended.insert(0, self._ended)  # before the partition checker forgets it

    def _ended(self, node: SimulatedNode, process: SimulatedProcess, power: bool) -> None:
        left = self._left.setdefault(node.node_id, {})
        left.update(self.partitions.views.get(process, {}))  # of what it had not opened yet, an earlier process knows
        if power:
            left.clear()

    def follow(self, node: SimulatedNode) -> None:
        """Take over what this voter has applied. Of all that ran in an event, before `judge`: leaders act on it."""
        machine = voter_machine(node)
        if machine is None or machine.image.offset <= self._newest.offset:
            return
        former, self._newest = self._newest, machine.image
        if machine.image.topics is former.topics:
            return
        for name, topic in machine.image.topics.items():
            known = former.topics.get(name)
            if known is topic:
                continue
            for number, partition in enumerate(topic.partitions):
                before = known.partitions[number] if known is not None and number < len(known.partitions) else None
                if partition is not before:
                    self.partitions.concerned[topic.topic_id, number] = None

    def judge(self) -> None:
        """Every replica that may lead, of each partition about which something has changed."""
        concerned = self.partitions.concerned
        if not concerned:
            return
        keys = {
            (topic.topic_id, number): partition
            for topic in self._newest.topics.values()
            for number, partition in enumerate(topic.partitions)
        }
        for key in concerned:
            partition, history = keys.get(key), self.partitions.histories.get(key)
            if partition is not None and history is not None:
                self._judge_partition(key, partition, history)
        concerned.clear()

    def _judge_partition(self, key: Key, partition: Any, history: History) -> None:
        for node_id in (*partition.isr, *partition.eligible_leader_replicas):
            if node_id in partition.offline_replicas or (node_id in self.cluster.lossy and self._is_fenced(node_id)):
                continue
            view = self._view(node_id, key)
            if view is None:
                continue
            self.judged += node_id not in partition.isr
            missing = _missing(view, history)
            if missing is not None:
                raise Violation(
                    f"{history.name}: node-{node_id} may be elected (ISR {partition.isr}, eligible "
                    f"{partition.eligible_leader_replicas}) and has not {missing}, which is committed"
                )

    def _is_fenced(self, node_id: int) -> bool:
        """Or its process of now is not registered yet: then it is not elected either."""
        known, broker = self._newest.brokers.get(node_id), self.cluster.nodes[node_id].broker
        return known is None or known.fenced or broker is None or known.incarnation != broker.ports.incarnation

    def _view(self, node_id: int, key: Key) -> View | None:
        process = self.cluster.nodes[node_id].process
        view = self.partitions.views.get(process, {}).get(key) if process is not None else None
        return view if view is not None else self._left.get(node_id, {}).get(key)


def _missing(view: View, history: History) -> Any:
    for base_offset in reversed(history.committed):  # what is missing is missing at the end
        committed = history.committed[base_offset]
        if committed.batch.next_offset <= view.log_start:
            return None
        if view.batches.get(base_offset) != committed.batch and base_offset >= view.log_start:
            return committed.batch
    return None
