"""What a replica is at present: the assignment that it has adopted from the metadata, and the machine of its role.

`Partition` changes the role; the other parts of the replica read it, and refuse requests that do not fit it.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

from ..vocabulary.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from .effects import NO_LEADER, PartitionAssignment
from .follower import FollowerState
from .leader import LeaderState
from .ports import ReplicatedLog

ANY_EPOCH: Final = -1
NO_LEADERSHIP: Final = -1


class CurrentRole:
    """`leadership` is the leader epoch in which the current unbroken leadership began: as long as it is the same, no record that
    was appended here has been truncated."""

    def __init__(self, log: ReplicatedLog, node_id: int, *, replica_lag_time_max_ms: int) -> None:
        self.node_id = node_id
        self.topic_partition = log.topic_partition
        self.topic_id = log.topic_id
        self.leader = NO_LEADER
        self.leader_epoch = -1  # never falls
        self.partition_epoch = -1  # never falls
        self.isr: tuple[int, ...] = ()
        self.leadership = NO_LEADERSHIP
        self.leader_state: LeaderState | None = None  # at most one of the two
        self.follower_state: FollowerState | None = None
        self._log = log
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        self._fetch_sequences: Iterator[int] = count(1)  # of this replica, in all its roles

    @property
    def is_leader(self) -> bool:
        return self.leader_state is not None

    @property
    def is_follower(self) -> bool:
        return self.follower_state is not None

    @property
    def is_in_isr(self) -> bool:
        """According to the metadata."""
        return self.node_id in self.isr

    # --- metadata ----------------------------------------------------------------------------------------------------

    def is_old(self, assignment: PartitionAssignment) -> bool:
        """Also older than our log: then a former incarnation has seen newer metadata, and appending under an old epoch
        would put epochs out of order."""
        if assignment.leader_epoch < max(self.leader_epoch, self._log.latest_epoch):
            return True
        return assignment.partition_epoch <= self.partition_epoch and assignment.leader_epoch == self.leader_epoch

    def has_epochs_of(self, assignment: PartitionAssignment) -> bool:
        return (assignment.leader_epoch, assignment.partition_epoch) == (self.leader_epoch, self.partition_epoch)

    def adopt(self, assignment: PartitionAssignment) -> None:
        assert assignment.topic_partition == self.topic_partition and assignment.topic_id == self.topic_id
        self.leader = assignment.leader
        self.leader_epoch = assignment.leader_epoch
        self.isr = assignment.isr
        self.note_partition_epoch(assignment.partition_epoch)

    def note_partition_epoch(self, partition_epoch: int) -> None:
        self.partition_epoch = max(self.partition_epoch, partition_epoch)

    def lead(self) -> LeaderState:
        """Begin to lead in the adopted epoch, or continue after another epoch of the same leader."""
        self.follower_state = None
        if self.leader_state is None:
            self.leadership = self.leader_epoch
        self.leader_state = LeaderState(self.node_id, replica_lag_time_max_ms=self._replica_lag_time_max_ms)
        return self.leader_state

    def follow(self) -> None:
        self.give_up()
        self.follower_state = FollowerState(
            leader=self.leader, leader_epoch=self.leader_epoch, sequences=self._fetch_sequences
        )

    def give_up(self) -> None:
        """No role."""
        self.leader_state, self.leadership = None, NO_LEADERSHIP
        self.follower_state = None

    # --- refusals ----------------------------------------------------------------------------------------------------

    def current_leader(self) -> LeaderState:
        """The machine of the leader, with the topic's current setting."""
        leading = self.leader_state
        if leading is None:
            raise self.does_not_lead()
        leading.min_insync_replicas = self._log.config.min_insync_replicas
        return leading

    def does_not_lead(self) -> NotLeaderOrFollowerError:
        return NotLeaderOrFollowerError(
            f"broker {self.node_id} does not lead {self.topic_partition}; its leader is {self.leader}"
        )

    def check_epoch(self, current_leader_epoch: int, *, must_be_known: bool = False) -> None:
        """KIP-320: both sides must refer to the same leadership."""
        if current_leader_epoch == self.leader_epoch or (current_leader_epoch == ANY_EPOCH and not must_be_known):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.topic_partition} is in leader epoch {self.leader_epoch}, the request in "
                f"{current_leader_epoch}; refresh the metadata"
            )
        raise UnknownLeaderEpochError(
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} here, the request in "
            f"{current_leader_epoch}; this broker does not know it yet; try again"
        )

    def check_topic_id(self, topic_id: str) -> None:
        """Offsets and leader epochs of a topic have no meaning in another one of its name. "": the client sent no id."""
        if topic_id not in ("", self.topic_id):
            raise InconsistentTopicIdError(
                f"{self.topic_partition} belongs to topic id {self.topic_id} on broker {self.node_id}, not to {topic_id}: the"
                " topic was deleted and created again; refresh the metadata"
            )
