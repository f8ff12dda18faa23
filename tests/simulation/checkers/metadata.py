"""Brokers at the same metadata offset hold equal images, and what those say of partitions and groups makes sense."""

from typing import Any

from barnabas.kraft.group_state.group_slots import GroupSlots, partition_keys
from barnabas.kraft.metadata.image import NO_LEADER, MetadataImage
from barnabas.net.testing.simulation.cluster import SimulatedCluster, SimulatedNode, is_serving, voter_machine
from barnabas.net.testing.simulation.process import SimulatedProcess

from .violation import Violation

GROUPS_EVERY = 8  # metadata offsets: comparing all group state at each would cost more than the simulation itself
MAX_REMEMBERED = 4_000  # images, by offset


class MetadataChecker:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.images: dict[int, MetadataImage] = {}
        self.groups: dict[int, GroupSlots] = {}
        self.group_states = 0  # that were looked at
        self.seen: dict[SimulatedProcess, MetadataImage] = {}
        self.leaders: dict[tuple[str, int, int], int] = {}  # topic id, partition, leader epoch -> node
        self.former_topics: set[str] = set()  # the ids of topics that were deleted
        self._newest = MetadataImage()
        cluster.ended.append(self._ended)

    def _ended(self, node: SimulatedNode, process: SimulatedProcess, power: bool) -> None:
        self.seen.pop(process, None)

    def check(self, node: SimulatedNode) -> None:
        if not is_serving(node) or node.broker is None or node.process is None:
            return
        image = node.broker.metadata.image
        before = self.seen.get(node.process)
        if image is before:
            return
        self.seen[node.process] = image
        if before is not None and image.offset < before.offset:
            raise Violation(f"{node.process}: the metadata went back from {before.offset} to {image.offset}")
        known = self.images.get(image.offset)
        if known is None:
            self._new_image(image)
        elif known is not image and known != image:
            raise Violation(f"{node.process}: its metadata at {image.offset} differs: {_difference(known, image)}")
        if image.offset % GROUPS_EVERY == 0:
            self._check_groups(node, image.offset)

    def _new_image(self, image: MetadataImage) -> None:
        self.images[image.offset] = image
        if len(self.images) > MAX_REMEMBERED:
            del self.images[next(iter(self.images))]
        newest = self._newest
        if image.offset < newest.offset or image.topics is newest.topics:
            return
        self.former_topics.update(newest.topic_names.keys() - image.topic_names.keys())
        returned = self.former_topics.intersection(image.topic_names)
        if returned:
            raise Violation(f"the ids of deleted topics belong to topics again: {sorted(returned)}")
        for topic in image.topics.values():
            former = newest.topics.get(topic.name)
            if former is topic:
                continue
            for number, partition in enumerate(topic.partitions):
                self._check_partition(topic.topic_id, f"{topic.name}-{number}", number, partition)
                if former is not None and former.topic_id == topic.topic_id and number < len(former.partitions):
                    earlier = former.partitions[number]
                    if (partition.leader_epoch, partition.partition_epoch) < (
                        earlier.leader_epoch,
                        earlier.partition_epoch,
                    ):
                        raise Violation(f"{topic.name}-{number}: its epochs went back")
        self._newest = image

    def _check_partition(self, topic_id: str, name: str, number: int, partition: Any) -> None:
        if not set(partition.isr) <= set(partition.replicas) or len(set(partition.replicas)) < len(partition.replicas):
            raise Violation(f"{name}: replicas {partition.replicas}, but ISR {partition.isr}")
        if partition.leader == NO_LEADER:
            return
        if partition.leader not in partition.isr:
            raise Violation(f"{name}: {partition.leader} leads, but the ISR is {partition.isr}")
        known = self.leaders.setdefault((topic_id, number, partition.leader_epoch), partition.leader)
        if known != partition.leader:
            raise Violation(f"{name}: leader epoch {partition.leader_epoch} has two leaders in the metadata")

    def _check_groups(self, node: SimulatedNode, offset: int) -> None:
        """Only voters hold all slots; their state may be ahead of the image that has been handed to the broker."""
        machine = voter_machine(node)
        if machine is None or machine.image.offset != offset:
            return
        groups = machine.state.groups
        assert isinstance(groups, GroupSlots)
        self.group_states += 1
        known = self.groups.get(offset)
        if known is None:
            self.groups[offset] = groups.copy()
            if len(self.groups) > 64:
                del self.groups[next(iter(self.groups))]
            check_owners(groups)
        elif known != groups:
            raise Violation(f"{node.process}: its groups at {offset} differ from those of another voter")


def check_owners(groups: GroupSlots) -> None:
    for slot in groups._slots:
        for group_id, group in slot.groups.items():
            owners: dict[tuple[str, int], str] = {}
            for member_id, current in group.currents.items():
                for key in partition_keys(current):
                    other = owners.setdefault(key, member_id)
                    if other != member_id:
                        raise Violation(f"group {group_id}: {key} belongs to {other} and to {member_id}")


def _difference(one: MetadataImage, other: MetadataImage) -> str:
    names = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    return ", ".join(f"{name}: {getattr(one, name)!r:.200} / {getattr(other, name)!r:.200}" for name in names)
