"""All partitions of this broker: created, changed and removed according to the metadata. It makes no decisions about ISRs and
does no I/O itself.

Contract: `apply` gets metadata in order, and none from before this incarnation's own registration. A broker that resumed an old
leadership of its former incarnation could append other data with the same leader epoch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..vocabulary.errors import NotLeaderOrFollowerError, StorageError, UnknownTopicOrPartitionError
from ..vocabulary.topic_partition import TopicPartition
from .effects import Effect, IsrAnswer, PartitionAssignment, ProposeIsr, StorageFailed
from .guarded_log import StorageTrouble
from .leader import DEFAULT_REPLICA_LAG_TIME_MAX_MS
from .partition import Partition
from .ports import Logs

PartitionAction = Callable[[Partition], list[Effect]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """For metrics; Kafka's names are LeaderCount, PartitionCount, UnderReplicatedPartitions, ..."""

    partitions: int
    leaders: int
    under_replicated: int  # led here, with fewer in-sync than assigned replicas
    under_min_isr: int
    at_min_isr: int
    offline: int  # their storage failed
    isr_expands: int  # proposed since the start
    isr_shrinks: int


class ReplicaManager:
    def __init__(
        self,
        node_id: int,
        logs: Logs,
        *,
        replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS,
        storage_trouble: StorageTrouble | None = None,
    ) -> None:
        """`storage_trouble` is called for every refusal of a disk, during the work on the partition: note it, act later."""
        self.node_id = node_id
        self._storage_trouble = storage_trouble
        self._logs = logs
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        self._unopened: dict[TopicPartition, StorageError] = {}  # assigned to this broker, but the disk refused
        self._reported: set[TopicPartition] = set()  # failed, and reported to the broker
        self._isr_expands = 0
        self._isr_shrinks = 0

    # --- metadata ----------------------------------------------------------------------------------------------------

    def apply(
        self, assignments: Iterable[PartitionAssignment], deleted_topics: Iterable[str], now_ms: int
    ) -> list[Effect]:
        """Apply all changes of the metadata. An error of one partition never stops the others."""
        effects: list[Effect] = []
        for topic_partition in self.known_of(deleted_topics):
            effects += self.remove(topic_partition)
        for assignment in assignments:
            effects += self.apply_one(assignment, now_ms)
        return effects + self.storage_failures()

    def known_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """The replicas of these topics."""
        wanted = frozenset(topics)
        if not wanted:
            return []
        return [known for known in (*self._partitions, *self._unopened) if known.topic in wanted]

    def apply_one(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        """Apply the change of one partition; `storage_failures` returns disk failures."""
        try:
            return self._count(self._apply_one(assignment, now_ms))
        except StorageError as error:
            self._note_unopened(assignment.topic_partition, error)
            return []

    def _apply_one(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        if self.node_id not in assignment.replicas:
            return self.remove(assignment.topic_partition)
        partition, effects = self._open(assignment)
        if assignment.leader == self.node_id:
            return effects + partition.make_leader(assignment, now_ms)
        return effects + partition.make_follower(assignment, now_ms)

    def _open(self, assignment: PartitionAssignment) -> tuple[Partition, list[Effect]]:
        """A topic that was created again with its old name is another topic: its predecessor's log is removed first."""
        topic_partition = assignment.topic_partition
        effects: list[Effect] = []
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.topic_id != assignment.topic_id:
            effects += self.remove(topic_partition)
            partition = None
        if partition is None:
            log = self._logs.get(topic_partition)
            if log is not None and log.topic_id != assignment.topic_id:
                self._logs.delete(topic_partition)
            log = self._logs.create_log(topic_partition, assignment.topic_id, is_new=assignment.is_new)
            partition = Partition(log, self.node_id, replica_lag_time_max_ms=self._replica_lag_time_max_ms)
            partition.storage.trouble = self._storage_trouble
            self._reported.discard(topic_partition)
            self._partitions[topic_partition] = partition
            self._unopened.pop(topic_partition, None)
        return partition, effects

    def remove(self, topic_partition: TopicPartition) -> list[Effect]:
        """The replica is not assigned to this broker any more; remove it and its log."""
        partition = self._partitions.pop(topic_partition, None)
        unopened = self._unopened.pop(topic_partition, None)
        self._reported.discard(topic_partition)
        if partition is None:
            if unopened is not None:
                self._logs.forget(topic_partition)
            return []
        effects = partition.stop()
        try:
            self._logs.delete(topic_partition)
        except StorageError as error:
            # Its files stay; they are no longer a partition of this broker, and the log manager will find them again.
            effects.append(StorageFailed(topic_partition=topic_partition, message=error.message))
        return effects

    def _note_unopened(self, topic_partition: TopicPartition, error: StorageError) -> None:
        if topic_partition not in self._partitions:
            self._unopened[topic_partition] = error

    def brokers_changed(self, broker_epochs: dict[int, int], now_ms: int) -> list[Effect]:
        """The active brokers and their incarnations; to be called at every change of brokers in the metadata."""
        return self._each_led(lambda partition: partition.brokers_changed(broker_epochs, now_ms))

    def configs_changed(self, topics: Iterable[str], now_ms: int) -> list[Effect]:
        """Their logs have the new configuration already."""
        changed = frozenset(topics)
        effects: list[Effect] = []
        for partition in list(self._partitions.values()):
            if partition.topic_partition.topic in changed:
                effects += partition.flushed(now_ms)  # min.insync.replicas or the flush policy may have changed
        return self._count(effects)

    # --- partitions --------------------------------------------------------------------------------------------------

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The replica on this broker. Raises UnknownTopicOrPartitionError, StorageError, or NotLeaderOrFollowerError if it has no
        role (yet)."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            unopened = self._unopened.get(topic_partition)
            if unopened is not None:
                raise StorageError(unopened.message)
            raise UnknownTopicOrPartitionError(f"broker {self.node_id} has no replica of {topic_partition}")
        if partition.storage.error is not None:
            raise StorageError(partition.storage.error.message)
        role = partition.role
        if role.leader_state is None and role.follower_state is None:
            raise NotLeaderOrFollowerError(f"broker {self.node_id} has no role for {topic_partition} yet")
        return partition

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        return self._partitions.get(topic_partition)

    def partitions(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def led(self) -> list[Partition]:
        return [partition for partition in self._partitions.values() if partition.role.is_leader]

    # --- the ISR -----------------------------------------------------------------------------------------------------

    def check_isr(self, now_ms: int) -> list[Effect]:
        """Call it every half `replica.lag.time.max.ms`, or more often; it also reports logs that failed or are damaged."""
        return (
            self.storage_failures()
            + self._each_led(lambda partition: partition.leading.check_isr(now_ms))
            + self._each_damaged()
        )

    def _each_damaged(self) -> list[Effect]:
        effects: list[Effect] = []
        for partition in list(self._partitions.values()):
            try:
                effects += partition.repair.resign_if_damaged()
            except StorageError:
                continue
        return effects

    def isr_answered(self, proposal: ProposeIsr, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        partition = self._partitions.get(proposal.topic_partition)
        return [] if partition is None else self._count(partition.leading.isr_answered(proposal, answer, now_ms))

    def isr_unanswered(self, proposal: ProposeIsr, now_ms: int) -> list[Effect]:
        """A timeout, a lost connection, or a former controller: the outcome of the proposal is not known."""
        partition = self._partitions.get(proposal.topic_partition)
        return [] if partition is None else self._count(partition.leading.isr_unanswered(proposal, now_ms))

    def _count_proposal(self, proposal: ProposeIsr) -> None:
        partition = self._partitions.get(proposal.topic_partition)
        leading = None if partition is None else partition.role.leader_state
        if leading is None:
            return
        if len(proposal.isr) > len(leading.isr.isr):
            self._isr_expands += 1
        elif len(proposal.isr) < len(leading.isr.isr):
            self._isr_shrinks += 1

    def _each_led(self, action: PartitionAction) -> list[Effect]:
        effects: list[Effect] = []
        for partition in self.led():
            if partition.storage.error is None:
                try:
                    effects += action(partition)
                except StorageError:
                    continue  # noted by the partition, reported by storage_failures
        return self._count(effects)

    def _count(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self._count_proposal(effect)
        return effects

    # --- storage, shutdown, metrics ----------------------------------------------------------------------------------

    def storage_failures(self) -> list[Effect]:
        """Partitions whose log failed since the last call: they give up their roles, and each is reported once."""
        effects: list[Effect] = []
        failed = [
            (p.topic_partition, p.storage.error) for p in self._partitions.values() if p.storage.error is not None
        ]
        for topic_partition, error in [*failed, *self._unopened.items()]:
            if topic_partition in self._reported:
                continue
            self._reported.add(topic_partition)
            partition = self._partitions.get(topic_partition)
            effects += [] if partition is None else partition.stop()
            effects.append(
                StorageFailed(topic_partition=topic_partition, message=error.message, was_in_use=partition is not None)
            )
        return effects

    def went_offline(self, topic_partitions: Iterable[TopicPartition], cause: str) -> list[Effect]:
        """Stop these replicas: their logs are offline (a data folder failed). Requests for them fail with `cause`."""
        effects: list[Effect] = []
        for topic_partition in topic_partitions:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                effects += partition.stop()
                self._unopened[topic_partition] = StorageError(cause)
                self._reported.add(topic_partition)
        return effects

    @property
    def unopened(self) -> frozenset[TopicPartition]:
        """Partitions that are assigned to this broker and cannot be opened."""
        return frozenset(self._unopened)

    def knows(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions or topic_partition in self._unopened

    def stop(self) -> list[Effect]:
        """The broker stops, after the controller has moved its leaderships: no partition has a role any more."""
        return [effect for partition in self._partitions.values() for effect in partition.stop()]

    @property
    def leads_anything(self) -> bool:
        """A controlled shutdown waits until this is False (or until its timeout)."""
        return any(partition.role.is_leader for partition in self._partitions.values())

    def counts(self) -> ReplicaCounts:
        states = [partition.role.leader_state for partition in self._partitions.values()]
        led = [state for state in states if state is not None]
        offline = sum(1 for partition in self._partitions.values() if partition.storage.error is not None)
        return ReplicaCounts(
            partitions=len(self._partitions),
            leaders=len(led),
            under_replicated=sum(1 for state in led if state.is_under_replicated),
            under_min_isr=sum(1 for state in led if state.is_under_min_isr),
            at_min_isr=sum(1 for state in led if len(state.isr.isr) == state.effective_min_isr),
            offline=offline + len(self._unopened),
            isr_expands=self._isr_expands,
            isr_shrinks=self._isr_shrinks,
        )
