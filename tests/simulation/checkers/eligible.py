"""Every replica that may be elected holds everything that is committed: the ISR and the eligible leader replicas (KIP-966).

Checked against the newest committed metadata that the voters have applied, whenever it changes a partition and whenever a leader
has committed something. A dead process counts with the data that it had written; a machine that lost writes counts again from
the moment in which it is unfenced, because from then on it may be elected. And only machines that lost writes may reduce the
number of these replicas below the smallest `min.insync.replicas` that was ever in force.
"""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from barnabas.kraft.metadata.image import MetadataImage, PartitionImage, TopicImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS
from barnabas.net.testing.simulation.cluster import SimulatedCluster, SimulatedNode, voter_machine
from barnabas.net.testing.simulation.process import SimulatedProcess

from .partitions import History, Key, PartitionChecker, View
from .violation import Violation


class EligibleChecker:
    """`counts_copies`: no disk refuses anything, after which a broker rightly gives up what it may still hold."""

    def __init__(self, cluster: SimulatedCluster, partitions: PartitionChecker, *, counts_copies: bool) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.judged = 0  # eligible replicas outside of an ISR
        self.isr_changes = self.elections = self.moves_ended = 0
        self.newest = MetadataImage()  # that a voter has applied
        self._counts_copies = counts_copies
        self._least: dict[str, int] = {}  # the smallest min.insync.replicas that a topic ever had, by its id
        self._copies: dict[Key, int] = {}  # the most replicas that ever surely had everything
        self._left: dict[int, dict[Key, View]] = {}  # what the last process of a node had written, by node
        cluster.ended.insert(0, self._ended)  # before the partition checker forgets it

    def _ended(self, node: SimulatedNode, process: SimulatedProcess, power: bool) -> None:
        left = self._left.setdefault(node.node_id, {})
        left.update(self._held_by(process))  # of what it had not opened yet, an earlier process knows
        if power:
            left.clear()

    def follow(self, node: SimulatedNode) -> None:
        """Take over what this voter has applied. Of all that ran in an event, before `judge`: leaders act on it."""
        machine = voter_machine(node)
        if machine is None or machine.image.offset <= self.newest.offset:
            return
        former, self.newest = self.newest, machine.image
        self._note_promise(former)
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
                    self._count_copies(topic, number)
                    self._count_changes(before, partition)

    def _count_changes(self, before: PartitionImage | None, partition: PartitionImage) -> None:
        if before is not None:
            self.isr_changes += before.isr != partition.isr
            self.elections += before.leader != partition.leader >= 0
            self.moves_ended += before.is_moving and not partition.is_moving

    def _note_promise(self, former: MetadataImage) -> None:
        image = self.newest
        if all(getattr(image, name) is getattr(former, name) for name in ("topics", "topic_configs", "broker_configs")):
            return
        default = image.broker_configs.get(CLUSTER_DEFAULT, {}).get(MIN_INSYNC_REPLICAS, "1")
        for topic in image.topics.values():
            now = int(image.topic_configs.get(topic.name, {}).get(MIN_INSYNC_REPLICAS, default))
            self._least[topic.topic_id] = min(self._least.get(topic.topic_id, now), now)

    def _count_copies(self, topic: TopicImage, number: int) -> None:
        partition = topic.partitions[number]
        holders = {*partition.isr, *partition.eligible_leader_replicas}
        copies = len(holders | self.cluster.lossy.intersection(partition.replicas))
        most = self._copies[topic.topic_id, number] = max(self._copies.get((topic.topic_id, number), 0), copies)
        history = self.partitions.histories.get((topic.topic_id, number))
        if not self._counts_copies or history is None or not history.committed_end:
            return  # a replica that never learned of a new partition reports that, and no replica has lost anything
        if copies < min(self._least[topic.topic_id], len(partition.replicas), most):
            raise Violation(
                f"{topic.name}-{number}: only {sorted(holders)} may still have what was acknowledged, "
                f"min.insync.replicas was never below {self._least[topic.topic_id]}: {partition}"
            )

    def judge(self) -> None:
        """Every replica that may lead, of each partition about which something has changed."""
        concerned = self.partitions.concerned
        if not concerned:
            return
        keys = {
            (topic.topic_id, number): partition
            for topic in self.newest.topics.values()
            for number, partition in enumerate(topic.partitions)
        }
        for key in concerned:
            partition, history = keys.get(key), self.partitions.histories.get(key)
            if partition is not None and history is not None:
                self._judge_partition(key, partition, history)
        concerned.clear()

    def _judge_partition(self, key: Key, partition: PartitionImage, history: History) -> None:
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
        known, broker = self.newest.brokers.get(node_id), self.cluster.nodes[node_id].broker
        return known is None or known.fenced or broker is None or known.incarnation != broker.ports.incarnation

    def _view(self, node_id: int, key: Key) -> View | None:
        process = self.cluster.nodes[node_id].process
        view = self._held_by(process).get(key) if process is not None else None
        return view if view is not None else self._left.get(node_id, {}).get(key)

    def _held_by(self, process: SimulatedProcess) -> Mapping[Key, View]:
        """Also in a folder that has failed: until the quorum hears of it, its replicas may be elected."""
        return ChainMap(self.partitions.views.get(process, {}), self.partitions.given_up.get(process, {}))


def _missing(view: View, history: History) -> Any:
    for base_offset in reversed(history.committed):  # what is missing is missing at the end
        committed = history.committed[base_offset]
        if committed.batch.next_offset <= view.log_start:
            return None
        if view.batches.get(base_offset) != committed.batch and base_offset >= view.log_start:
            return committed.batch
    return None
