"""A linearizable model of the controller for one partition: registration, fencing, elections, AlterPartition, KIP-966.

Only the messages to and from it are lossy. `bugs` plants faults of the controller itself.
"""

from random import Random

from barnabas.log.replication.effects import NO_LEADER, IsrAnswer, PartitionAssignment, ProposeIsr
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition

SESSION_S = 1.5


class ModelController:
    def __init__(self, rng: Random, node_count: int, min_isr: int, bugs: frozenset[str], added: int = 0) -> None:
        self.rng, self.min_isr, self.bugs = rng, min_isr, bugs
        self.replicas = tuple(range(node_count))
        self.leader, self.leader_epoch, self.partition_epoch, self.offset = NO_LEADER, 0, 0, 1
        self.isr, self.elr, self.fenced = set(self.replicas[: node_count - added]), set[int](), set[int]()
        self.registrations = dict.fromkeys(self.replicas, 1)
        self.incarnations: dict[int, int] = {}
        self.last_seen_s = dict.fromkeys(self.replicas, 0.0)
        self.uses_elr = "no_elr" not in bugs
        self.last_known_leader = NO_LEADER
        self.elect()

    def assignment(self, topic_partition: TopicPartition) -> PartitionAssignment:
        return PartitionAssignment(
            topic_partition=topic_partition,
            topic_id="t1",
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            replicas=self.replicas,
            isr=tuple(sorted(self.isr)),
            eligible=tuple(sorted(self.elr)),
            broker_epochs={i: epoch for i, epoch in self.registrations.items() if i not in self.fenced},
        )

    def elect(self) -> None:
        candidates = [i for i in sorted(self.isr) if i not in self.fenced]
        candidates = candidates or [i for i in sorted(self.elr) if i not in self.fenced]
        if not self.isr and not self.elr and self.last_known_leader not in self.fenced:
            candidates = [self.last_known_leader]  # the best that is left; NO_LEADER as long as there was none
        if "unclean_election" in self.bugs:
            candidates = candidates or [i for i in self.replicas if i not in self.fenced]
        if self.leader in candidates:
            return
        leader = self.rng.choice(candidates) if candidates else NO_LEADER
        if leader == self.leader == NO_LEADER:
            return
        if leader == NO_LEADER:
            self.last_known_leader = self.leader
        self.leader, self.leader_epoch = leader, self.leader_epoch + 1
        self._changed()
        if leader != NO_LEADER:
            self.last_known_leader = NO_LEADER
            self.isr.add(leader)
            self.elr.discard(leader)

    def _changed(self) -> None:
        self.partition_epoch += 1
        self.offset += 1

    def _leave_isr(self, node_id: int) -> None:
        if node_id not in self.isr or (len(self.isr) == 1 and not self.uses_elr):
            return
        self.isr.discard(node_id)
        self._changed()
        if self.uses_elr and len(self.isr) < self.min_isr:
            self.elr.add(node_id)

    def fence(self, node_id: int) -> None:
        self.fenced.add(node_id)
        self.offset += 1
        self._leave_isr(node_id)
        if self.leader == node_id:
            self.last_known_leader = node_id
            self.leader = NO_LEADER
            self.leader_epoch += 1
            self._changed()
            self.elect()

    def expire_sessions(self, now_s: float) -> None:
        for node_id in self.replicas:
            if node_id not in self.fenced and now_s - self.last_seen_s[node_id] > SESSION_S:
                self.fence(node_id)
        self.elect()

    def register(self, node_id: int, incarnation: int, lost_data: bool, now_s: float) -> tuple[int, int]:
        """Returns the broker epoch and the metadata offset of the registration; a retry gets the same ones. A late copy
        of a dead incarnation's request is told apart by its number here (its connection would be dead as well)."""
        if self.incarnations.get(node_id, 0) < incarnation:
            self.incarnations[node_id] = incarnation
            self.fence(node_id)
            if lost_data:
                self.elr.discard(node_id)
                if self.uses_elr and node_id in self.isr:
                    self.isr.discard(node_id)
                    self._changed()
            self.registrations[node_id] += 1
            self.offset += 1
            self.last_seen_s[node_id] = now_s
        return self.registrations[node_id], self.offset

    def heartbeat(self, node_id: int, broker_epoch: int, now_s: float) -> bool:
        """True when that unfenced it."""
        if broker_epoch != self.registrations[node_id]:
            return False
        self.last_seen_s[node_id] = now_s
        if node_id not in self.fenced:
            return False
        self.fenced.discard(node_id)
        self.offset += 1
        self.elect()
        return True

    def resign(self, node_id: int, broker_epoch: int, leader_epoch: int) -> bool:
        """As kraft.replication_control.resign."""
        if broker_epoch != self.registrations[node_id]:
            return False
        if node_id not in self.isr | self.elr and self.leader_epoch > leader_epoch:
            return True
        others = self.isr - {node_id} - self.fenced
        if not others:
            return False
        self.isr = others
        self._changed()
        if self.uses_elr and len(self.isr) >= self.min_isr:
            self.elr = set()
        self.elr.discard(node_id)
        self.leader = self.leader if self.leader in others else self.rng.choice(sorted(others))
        self.leader_epoch += 1
        return True

    def alter_partition(self, node_id: int, broker_epoch: int, proposal: ProposeIsr) -> IsrAnswer:
        if broker_epoch != self.registrations[node_id]:
            return IsrAnswer(error=ErrorCode.STALE_BROKER_EPOCH)
        if self.leader != node_id or self.leader_epoch != proposal.leader_epoch:
            return IsrAnswer(error=ErrorCode.FENCED_LEADER_EPOCH)
        if self.partition_epoch != proposal.partition_epoch:
            return IsrAnswer(error=ErrorCode.INVALID_UPDATE_VERSION)
        proposed = {member.node_id: member.broker_epoch for member in proposal.isr}
        for new in proposed.keys() - self.isr:
            is_ghost = proposed[new] != self.registrations[new] and "broker_epoch_ignored" not in self.bugs
            if new in self.fenced or is_ghost:
                return IsrAnswer(error=ErrorCode.INELIGIBLE_REPLICA)
        gone = self.isr - proposed.keys()
        if proposed.keys() != self.isr:
            self.isr = set(proposed)
            self._changed()
            self.elr = (self.elr | gone if len(self.isr) < self.min_isr else set()) if self.uses_elr else set()
            self.elr -= self.isr
        return IsrAnswer(
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=tuple(sorted(self.isr)),
            eligible=tuple(sorted(self.elr)),
        )
