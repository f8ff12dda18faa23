"""Replication in a broker: feeds the replica machines, performs effects, completes parked requests. One per broker, one loop.

Every event that may complete a parked request (an append, a follower's fetch, new metadata) marks partitions as changed; each of
them is checked once at the end of the turn. Therefore, all batches of one wake-up are appended before the followers get them, and
all requests that the followers then acknowledge are answered together.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Protocol

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import PartitionIsrAnswer
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.format.record_batch import Buffer
from barnabas.log.replication.effects import (
    ChangeLog,
    Effect,
    FlushLog,
    HighWatermarkAdvanced,
    IsrAnswer,
    LeadershipGained,
    LeadershipLost,
    LogEndAdvanced,
    LogFlushed,
    PartitionAssignment,
    ProposeIsr,
    Resign,
    ResumeFetching,
    StartFetching,
    StopFetching,
    StorageFailed,
)
from barnabas.log.replication.log_change import LogChange
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.ports import AppendInfo
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..base.clock import Clock
from ..base.slices import SlicedQueue, Steps
from ..base.turn import Turn
from .purgatory import Operation, Purgatory

logger = logging.getLogger("barnabas.replication")

Completed = Callable[[Operation], None]
NO_LEADER_HINT = (-1, -1)
# As replica.fetch.backoff.ms: after a truncation that a disk refused without damage, for example because it is full.
CHANGE_RETRY_MS = 1_000


class ReplicationEffects(Protocol):
    """Performs the effects that this object cannot perform itself."""

    def propose(self, proposals: list[ProposeIsr]) -> None: ...

    def start_fetching(self, effect: StartFetching) -> None: ...

    def stop_fetching(self, effect: StopFetching) -> None: ...

    def resume_fetching(self, effect: ResumeFetching) -> None: ...

    def storage_failed(self, effect: StorageFailed) -> None: ...

    def flush(self, effect: FlushLog) -> None: ...

    def resign(self, effect: Resign) -> None: ...

    def change_log(self, topic_partition: TopicPartition, change: LogChange) -> "asyncio.Future[None]":
        """Perform a change of a log outside the loop. The future ends when the change has ended or was dropped."""

    def made_ready(self, topic_partition: TopicPartition, topic_id: str) -> "asyncio.Future[None] | None":
        """The future to wait for before the log of a new replica can be created; None: no wait."""

    def took_up(self, image: MetadataImage) -> None:
        """Called when every replica has the role that this metadata assigns."""

    def progressed(self) -> None:
        """`taken_up_offset` has risen."""


class ReplicationService:
    def __init__(
        self,
        *,
        node_id: int,
        manager: ReplicaManager,
        clock: Clock,
        effects: ReplicationEffects,
        turn: Turn | None = None,
    ) -> None:
        self.node_id = node_id
        self.manager = manager
        self.purgatory = Purgatory(manager.partition)
        self._clock = clock
        self._effects = effects
        self._turn = turn or Turn()
        self._changed: dict[TopicPartition, None] = {}
        self._check_is_scheduled = False
        self._image = MetadataImage()
        self._newest: MetadataPublication | None = None
        self._work = SlicedQueue(clock.now_ms)
        self.taken_up_offset = 0  # of the metadata; everything before it has been applied
        self._is_stopped = False
        self._broker_epoch: int | None = None  # of the registration that the metadata must show before roles are taken

    # --- the hot path -------------------------------------------------------------------------------------------------

    def append(
        self,
        partition: Partition,
        records: Buffer,
        *,
        acks: int,
        leader_epoch: int | None = None,
        from_coordinator: bool = False,
    ) -> tuple[AppendInfo, int]:
        """Append for a client, or for a coordinator of transactions; the second value is the offset that acks=all waits for.
        Raises the refusal of the batch."""
        info, required_offset, effects = partition.leading.append(
            records,
            acks=acks,
            now_ms=self._clock.wall_ms(),
            leader_epoch=leader_epoch,
            from_coordinator=from_coordinator,
        )
        if effects:
            self.perform(effects)
        return info, required_offset

    def park(self, operation: Operation) -> None:
        """Keep an operation until it completes; its token, a callable, is then called with it (possibly at once)."""
        if not self.purgatory.park(operation, self._clock.now_ms()):
            _complete(operation)

    def forget_client(self, client: Hashable) -> None:
        self.purgatory.forget_client(client)

    def perform(self, effects: Iterable[Effect]) -> None:
        proposals: list[ProposeIsr] = []
        for effect in effects:
            kind = type(effect)
            if kind is LogEndAdvanced or kind is HighWatermarkAdvanced:
                if self._check_is_scheduled:
                    self._changed[effect.topic_partition] = None
                else:
                    self._mark_changed(effect.topic_partition)
            elif kind is ProposeIsr:
                proposals.append(effect)  # type: ignore[arg-type]
            else:
                self._perform_rare(effect)
        if proposals:
            self._effects.propose(proposals)

    def _perform_rare(self, effect: Effect) -> None:
        match effect:
            case StartFetching():
                self._effects.start_fetching(effect)
            case StopFetching():
                self._effects.stop_fetching(effect)
            case StorageFailed():
                self._effects.storage_failed(effect)
            case FlushLog():
                self._effects.flush(effect)
                return  # this alone completes no request
            case Resign():
                self._effects.resign(effect)
                return
            case ResumeFetching():
                self._effects.resume_fetching(effect)
                return
            case ChangeLog():
                self._begin_change(effect)
                return  # its consequences complete the waiting requests
            case LeadershipGained() | LeadershipLost() | LogFlushed():
                pass
        self._mark_changed(effect.topic_partition)

    def _mark_changed(self, topic_partition: TopicPartition) -> None:
        self._changed[topic_partition] = None
        if not self._check_is_scheduled:
            self._check_is_scheduled = True
            self._turn.at_end(self._check_changed)

    def _check_changed(self) -> None:
        self._check_is_scheduled = False
        changed, self._changed = self._changed, {}
        check = self.purgatory.check
        for topic_partition in changed:
            for operation in check(topic_partition):
                _complete(operation)

    # --- metadata -----------------------------------------------------------------------------------------------------

    def registered(self, broker_epoch: int) -> None:
        """From now on, apply only metadata that shows this registration, and nothing older.

        Often this metadata is here already: then it is applied now, so that a broker is not unfenced before it has applied its
        replica assignments.
        """
        self._broker_epoch = broker_epoch
        if self._newest is not None and not self._is_stopped:
            self.taken_up_offset = 0
            self._work.add(self._take_up(self._newest, as_whole=True))

    def published(self, publication: MetadataPublication) -> None:
        """Apply new images, one after the other. Thousands of partitions take time, and the loop does other work meanwhile."""
        if self._is_stopped:
            return
        self._newest = publication
        if self._work.is_idle and _changes_nothing(publication, self._image):
            self._image = publication.image  # nearly all of a busy cluster: without a piece of work
            self.taken_up_offset = publication.image.offset
            self._effects.progressed()
        else:
            self._work.add(self._take_up(publication))

    def _take_up(self, publication: MetadataPublication, *, as_whole: bool = False) -> Steps:
        """A step for each partition. Metadata older than this registration is not applied: its roles are outdated."""
        if not as_whole and _changes_nothing(publication, self._image):
            self._image = publication.image
        else:
            yield from self._apply(publication)
        self.taken_up_offset = publication.image.offset
        self._effects.progressed()

    def _apply(self, publication: MetadataPublication) -> Steps:
        before, self._image = self._image, publication.image
        image = publication.image
        own = image.brokers.get(self.node_id)
        if own is None or own.broker_epoch != self._broker_epoch:
            self._image = MetadataImage()  # then the next image is applied as a whole
            return
        is_first = not before.brokers
        # A set has no defined order.
        topics: Iterable[str] = image.topics if is_first else sorted(publication.changes.topics)
        broker_epochs = _active_broker_epochs(image)
        yield from self._remove(self._gone(before, topics, is_first=is_first))
        for assignment in self._ours(before, topics, broker_epochs):
            if not self.manager.knows(assignment.topic_partition):
                yield self._effects.made_ready(assignment.topic_partition, assignment.topic_id)
            self.perform(self.manager.apply_one(assignment, self._clock.now_ms()))
            if _has_another_isr(
                assignment, before
            ):  # then nothing may rest in a fetch session, here or at the other side
                self._mark_changed(assignment.topic_partition)
                self._effects.resume_fetching(ResumeFetching(topic_partition=assignment.topic_partition))
            yield None
        effects = self.manager.storage_failures()
        if is_first or publication.changes.brokers:
            effects += self.manager.brokers_changed(broker_epochs, self._clock.now_ms())
        of_all = CLUSTER_DEFAULT in publication.changes.broker_configs
        if of_all or publication.changes.topic_configs:
            effects += self.manager.configs_changed(
                image.topics if of_all else publication.changes.topic_configs, self._clock.now_ms()
            )
        self.perform(effects)
        if is_first:
            self._effects.took_up(image)

    def _ours(
        self, before: MetadataImage, topics: Iterable[str], broker_epochs: dict[int, int]
    ) -> Iterable[PartitionAssignment]:
        """The assignments of these topics to this broker. A replica that the cluster considers offline has no role, even if its
        log is intact by now: it may be elected again only after the controller has learned that."""
        image, node_id = self._image, self.node_id
        for name in topics:
            if name not in image.topics:
                continue
            for assignment in _assignments(name, image, broker_epochs):
                topic_partition = assignment.topic_partition
                if node_id not in assignment.replicas:
                    if self.manager.knows(topic_partition):
                        yield assignment
                elif node_id not in image.topics[name].partitions[topic_partition.partition].offline_replicas:
                    yield replace(assignment, is_new=_is_new(assignment, before, node_id))

    def take_up_again(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Give these replicas the roles that the metadata assigns to them: their logs can be opened now."""
        wanted = set(topic_partitions)
        topics = sorted({topic_partition.topic for topic_partition in wanted})
        ours = self._ours(self._image, topics, _active_broker_epochs(self._image))
        assignments = [assignment for assignment in ours if assignment.topic_partition in wanted]
        self.perform(self.manager.apply(assignments, (), self._clock.now_ms()))

    def went_offline(self, topic_partitions: Iterable[TopicPartition], cause: str) -> None:
        """The data folder of these replicas has failed; requests that wait for them are refused."""
        gone = list(topic_partitions)
        self.perform(self.manager.went_offline(gone, cause))
        for topic_partition in gone:
            self._mark_changed(topic_partition)

    @property
    def is_current(self) -> bool:
        """Return whether the applied metadata shows this broker's registration, and therefore everything committed before it."""
        return bool(self._image.brokers)

    def _gone(self, before: MetadataImage, changed: Iterable[str], *, is_first: bool) -> list[str]:
        """Topics that were deleted, and possibly created again under the same name. During a new registration, no changes were
        applied: then the local replicas are compared with the image instead."""
        topics = self._image.topics
        if is_first:
            held = {partition.topic_partition.topic: partition.topic_id for partition in self.manager.partitions()}
            return [name for name, topic_id in held.items() if name not in topics or topics[name].topic_id != topic_id]
        return [name for name in changed if name not in topics or _is_another(name, before, self._image)]

    def _remove(self, deleted: list[str]) -> Steps:
        """Requests for a deleted topic are answered before another topic gets its name, and possibly its leader epoch."""
        for topic_partition in self.manager.known_of(deleted):
            self.perform(self.manager.remove(topic_partition))
            yield None
        if deleted:
            self.perform(self.manager.storage_failures())
            self._check_changed()

    def leader_hint(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """(leader, leader epoch) according to the newest metadata, for a client that asked the wrong broker."""
        partition = self._image.partition(topic_partition)
        return NO_LEADER_HINT if partition is None else (partition.leader, partition.leader_epoch)

    def replica(self, topic_partition: TopicPartition) -> Partition:
        """As `manager.partition`, but it raises the error that the client gets."""
        try:
            return self.manager.partition(topic_partition)
        except UnknownTopicOrPartitionError as error:
            raise self.as_told(topic_partition, error) from None

    def as_told(self, topic_partition: TopicPartition, error: BarnabasError) -> BarnabasError:
        """The error for a client: a partition that exists on other brokers only is not unknown, but has another leader."""
        found = self._image.partition(topic_partition) if isinstance(error, UnknownTopicOrPartitionError) else None
        if found is None:
            return error
        return NotLeaderOrFollowerError(
            f"broker {self.node_id} has no replica of {topic_partition}; its leader is {found.leader}"
        )

    # --- flushing -----------------------------------------------------------------------------------------------------

    def flush_ended(self, topic_partition: TopicPartition, error: StorageError | None) -> None:
        """Acknowledge the requests that waited for the disk; after a failure, they are never acknowledged."""
        partition = self.manager.find(topic_partition)
        if partition is None:
            return
        if error is None:
            self.perform(partition.flushed(self._clock.now_ms()))
            return
        partition.storage.flush_failed(error)
        self.perform(self.manager.storage_failures())

    # --- changes of logs that wait for the disk -------------------------------------------------------------------------

    def _begin_change(self, effect: ChangeLog) -> None:
        partition, change = self.manager.find(effect.topic_partition), effect.change
        assert partition is not None and partition.storage.change is change
        logger.info("replica_changes partition=%s change=%s", effect.topic_partition, change.what)
        ended = self._effects.change_log(effect.topic_partition, change)
        ended.add_done_callback(lambda _: self._change_ended(partition, change))

    def _change_ended(self, partition: Partition, change: LogChange) -> None:
        effects = partition.log_changed(change, now_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())
        self.perform(effects)
        if change.error is not None:
            told = (partition.topic_partition, change.what, change.error)
            logger.error("replica_stalled partition=%s change=%s reason=%s", *told)
            self.perform(self.manager.storage_failures())
            delay_s = CHANGE_RETRY_MS / 1000
            asyncio.get_running_loop().call_later(delay_s, lambda: self.perform(partition.following.fetch_again()))

    # --- damage -------------------------------------------------------------------------------------------------------

    def damage_found(self, topic_partition: TopicPartition) -> None:
        """A part of the partition's log cannot be read; the log knows which part."""
        partition = self.manager.find(topic_partition)
        if partition is not None:
            self.perform(partition.repair.resign_if_damaged())

    def resigned(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """The controller has agreed that the cluster does not count on this broker's replica."""
        partition = self.manager.find(topic_partition)
        if partition is not None:
            try:
                self.perform(partition.repair.resigned(leader_epoch))
            except StorageError:
                self.perform(self.manager.storage_failures())

    # --- the ISR ------------------------------------------------------------------------------------------------------

    def isr_answered(self, proposal: ProposeIsr, answer: PartitionIsrAnswer | None) -> None:
        now_ms = self._clock.now_ms()
        if answer is None:
            self.perform(self.manager.isr_unanswered(proposal, now_ms))
            return
        told = IsrAnswer(
            error=answer.error,
            leader=answer.leader,
            leader_epoch=answer.leader_epoch,
            partition_epoch=answer.partition_epoch,
            isr=answer.isr,
            eligible=answer.eligible_leader_replicas,
        )
        self.perform(self.manager.isr_answered(proposal, told, now_ms))

    def check_isr(self) -> None:
        self.perform(self.manager.check_isr(self._clock.now_ms()))

    # --- time and the end ---------------------------------------------------------------------------------------------

    def expire(self) -> int | None:
        """Complete the requests that have timed out, and return the next deadline."""
        for operation in self.purgatory.expire(self._clock.now_ms()):
            _complete(operation)
        return self.purgatory.next_deadline_ms()

    def stop(self) -> None:
        """Give up every role, and take no more roles; waiting requests are refused."""
        self._is_stopped = True
        self._work.clear()
        self.perform(self.manager.stop())
        self._check_changed()


def _changes_nothing(publication: MetadataPublication, image: MetadataImage) -> bool:
    """Not so after metadata that did not show this registration: then the image is to be applied as a whole."""
    return publication.keeps_image and publication.image.brokers is image.brokers


def _complete(operation: Operation) -> None:
    """An internal error while completing an operation affects only its own client."""
    callback: Completed = operation.token  # type: ignore[assignment]
    try:
        callback(operation)
    except Exception:
        logger.exception("a parked request could not be completed")


def _is_another(name: str, before: MetadataImage, image: MetadataImage) -> bool:
    known = before.topics.get(name)
    return known is not None and known.topic_id != image.topics[name].topic_id


def _is_new(assignment: PartitionAssignment, before: MetadataImage, node_id: int) -> bool:
    """Return whether the replica was assigned while this broker was running (KIP-112's `isNew`): then it has no log yet."""
    topic_partition = assignment.topic_partition
    if not before.brokers:
        return False
    known = before.partition(topic_partition)
    is_same_topic = before.topic_names.get(assignment.topic_id) == topic_partition.topic
    return known is None or not is_same_topic or node_id not in known.replicas


def _has_another_isr(assignment: PartitionAssignment, before: MetadataImage) -> bool:
    """The change of one partition comes with all assignments of its topic."""
    known = before.partition(assignment.topic_partition)
    return known is not None and known.isr != assignment.isr


def _active_broker_epochs(image: MetadataImage) -> dict[int, int]:
    return {broker.node_id: broker.broker_epoch for broker in image.brokers.values() if broker.is_active}


def _assignments(name: str, image: MetadataImage, broker_epochs: dict[int, int]) -> Iterable[PartitionAssignment]:
    topic = image.topics[name]
    for number, partition in enumerate(topic.partitions):
        yield PartitionAssignment(
            topic_partition=TopicPartition(name, number),
            topic_id=topic.topic_id,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            broker_epochs=broker_epochs,
            eligible=partition.eligible_leader_replicas,
        )
