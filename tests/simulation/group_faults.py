"""What goes wrong with groups: members die, stand still, hang, are cut off, come and go in storms; coordinators and quorum
leaders die; topics grow and appear; offsets are reset."""

from collections.abc import Callable
from random import Random
from typing import ClassVar

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest
from barnabas.log.vocabulary.group_messages import OffsetToCommit
from barnabas.net.testing.simulation.cluster import SimulatedCluster, is_serving
from barnabas.net.testing.simulation.fault_room import FaultPlan, FaultRoom
from barnabas.net.wire.protocol.requests import CreateTopicRequest, ResetOffsetsRequest

from .checkers.groups import GroupChecker
from .group_members import LONGEST_HANG_S, SimulatedMember
from .workload import Workload

MOST_PARTITIONS = 6
MOST_FRESH_TOPICS = 2
STORM = 3  # members at once


class GroupFaults(FaultRoom):
    WEIGHTS: ClassVar = {
        "member_kill": 2, "member_stall": 1, "member_hang": 1, "member_cut": 1, "member_close": 1, "join_storm": 1,
        "leave_storm": 1, "coordinator_kill": 1, "quorum_leader_kill": 1, "grow_topic": 1, "new_topic": 1,
        "reset_offsets": 1,
    }  # fmt: skip

    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: FaultPlan,
        rng: Random,
        workload: Workload,
        checker: GroupChecker,
        members: list[SimulatedMember],
        disturbed: Callable[[SimulatedMember], None],
    ) -> None:
        super().__init__(cluster, plan, rng)
        self.workload = workload
        self.checker = checker
        self.members = members
        self._disturbed = disturbed
        self._cuts: list[tuple[str, str]] = []

    def heal(self) -> None:
        super().heal()
        for member in self.members:
            member.heal()
            if member.has_lived:  # others would change the group, and hide what it did not notice before
                member.start()

    def _some(self, count: int = 1, *, alive: bool = True) -> list[SimulatedMember]:
        found = [member for member in self.members if member.is_alive == alive]
        chosen = self.rng.sample(found, min(count, len(found)))
        for member in chosen:
            self._disturbed(member)
        return chosen

    def _member_kill(self, _: int) -> None:
        for member in self._some():
            member.kill()
            self._later(self._duration(), member.start)

    def _member_stall(self, _: int) -> None:
        for member in self._some():
            member.stall(self._duration())

    def _member_hang(self, _: int) -> None:
        for member in self._some():
            member.hang(self.rng.uniform(0.1, LONGEST_HANG_S))

    def _member_cut(self, node_id: int) -> None:
        """Off from one broker, in one direction or both."""
        for member in self._some():
            pairs = [(member.name, f"node-{node_id}"), (f"node-{node_id}", member.name)]
            pairs = pairs if self.rng.random() < 0.6 else [self.rng.choice(pairs)]
            self.cluster.loop.note(f"CUT {pairs}")
            for source, target in pairs:
                self.cluster.world.cut(source, target)
            self._later(self._duration(), self.cluster.world.mend, pairs)

    def _member_close(self, _: int) -> None:
        for member in self._some():
            member.close()
            self._later(self._duration() + 0.5, member.start)

    def _join_storm(self, _: int) -> None:
        for member in self._some(STORM, alive=False):
            member.start()

    def _leave_storm(self, _: int) -> None:
        for member in self._some(STORM):
            if self.rng.random() < 0.5:
                member.close()
            else:
                member.kill()
            if self.rng.random() < 0.6:
                self._later(self._duration(), member.start)

    def _coordinator_kill(self, _: int) -> None:
        slot = slot_of(self.rng.choice(self.checker.groups))
        self._kill_broker(self.cluster.newest_image().slots[slot].coordinator)

    def _quorum_leader_kill(self, _: int) -> None:
        leaders = [
            node.node_id
            for node in self.cluster.nodes
            if is_serving(node) and node.broker is not None and node.broker.metadata.leadership.is_self
        ]
        if leaders:
            self._kill_broker(leaders[0])

    def _kill_broker(self, node_id: int) -> None:
        if node_id >= 0 and self.cluster.nodes[node_id].is_running:
            self.cluster.kill(node_id)
            self._later(self._duration(), self.cluster.start, node_id)

    def _grow_topic(self, _: int) -> None:
        for topic in self.cluster.newest_image().topics.values():
            if topic.name in ("clicks", "events") and len(topic.partitions) < MOST_PARTITIONS:
                request = AddPartitionsRequest(name=topic.name, total_count=len(topic.partitions) + 1)
                self.cluster.loop.note(f"OPERATION {request}")
                self.workload.operate(request)
                return

    def _new_topic(self, _: int) -> None:
        name = f"fresh-{self.rng.randrange(MOST_FRESH_TOPICS)}"
        request = CreateTopicRequest(name=name, partition_count=self.rng.randint(1, 2), replication_factor=3)
        self.cluster.loop.note(f"OPERATION {request}")
        self.workload.operate(request)

    def _reset_offsets(self, _: int) -> None:
        """Some way back, of a group that runs."""
        known = [(key, item) for key, item in sorted(self.checker.progress.items()) if item.committed]
        if not known:
            return
        (group, (topic, number)), progress = self.rng.choice(known)
        offset = max((progress.committed or 0) - self.rng.randint(1, 20), 0)
        progress.allowed.add(offset)
        item = OffsetToCommit(topic=topic, partition=number, offset=offset)
        request = ResetOffsetsRequest(group_id=group, partitions=(item,))
        self.cluster.loop.note(f"OPERATION {request}")
        self.workload.operate_at(self.cluster.newest_image().slots[slot_of(group)].coordinator, request)
