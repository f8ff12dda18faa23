"""Passes each effect to the part of the broker that performs it.

The parts depend on each other in cycles. `BrokerEffects` represents all of them during construction: it is created first, and
receives the parts when all are built. No effect is performed before the broker starts.
"""

import asyncio
from collections.abc import Iterable

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.replication.effects import (
    FlushLog,
    ProposeIsr,
    Resign,
    ResumeFetching,
    StartFetching,
    StopFetching,
    StorageFailed,
)
from barnabas.log.replication.log_change import LogChange
from barnabas.log.replication.ports import ReplicatedLog
from barnabas.log.segment.damage import DamagedRange
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..logs.flusher import FlushableLog, Flusher
from ..logs.following.replica_fetcher import ReplicaFetcherManager
from ..logs.isr_proposer import IsrProposer
from ..logs.log_service import LogService
from ..logs.replica_repair import ReplicaRepair
from ..logs.replication_service import ReplicationService
from ..logs.storage_service import StorageService
from ..metadata.broker_lifecycle import BrokerLifecycle
from ..metadata.metadata_service import MetadataService


class BrokerEffects:
    """The `ReplicationEffects` of a broker, and the calls of its parts to parts that are built later."""

    metadata: MetadataService
    log_service: LogService
    replication: ReplicationService
    storage: StorageService
    proposer: IsrProposer
    fetchers: ReplicaFetcherManager
    flusher: Flusher
    repair: ReplicaRepair
    lifecycle: BrokerLifecycle  # set when the ports are known

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    # --- of replicas --------------------------------------------------------------------------------------------------

    def propose(self, proposals: list[ProposeIsr]) -> None:
        self.proposer.propose(proposals)

    def start_fetching(self, effect: StartFetching) -> None:
        partition = self.replication.manager.find(effect.topic_partition)
        if partition is not None:
            self.fetchers.start(effect, partition.following)

    def stop_fetching(self, effect: StopFetching) -> None:
        self.fetchers.stop(effect.topic_partition)

    def resume_fetching(self, effect: ResumeFetching) -> None:
        partition = self.replication.manager.find(effect.topic_partition)
        if partition is not None:
            self.fetchers.resume(effect.topic_partition, partition.following)

    def storage_failed(self, effect: StorageFailed) -> None:
        self.storage.storage_failed(effect)

    def flush(self, effect: FlushLog) -> None:
        log = self._logs.get(effect.topic_partition)
        if log is not None:
            self.flusher.ask(log)

    def resign(self, effect: Resign) -> None:
        self.repair.ask(effect)

    def change_log(self, topic_partition: TopicPartition, change: LogChange) -> "asyncio.Future[None]":
        return self.log_service.change_log(topic_partition, change)

    def made_ready(self, topic_partition: TopicPartition, topic_id: str) -> "asyncio.Future[None] | None":
        return self.log_service.made_ready(topic_partition, topic_id)

    def took_up(self, image: MetadataImage) -> None:
        self.storage.took_up(image)

    def progressed(self) -> None:
        self.metadata.progressed()

    # --- of disks -----------------------------------------------------------------------------------------------------

    def storage_trouble(self, log: ReplicatedLog, error: StorageError) -> None:
        self.storage.trouble(log, error)

    def folder_refused(self, path: str, error: StorageError) -> None:
        self.storage.folder_refused(path, error)

    def flush_log(self, log: FlushableLog) -> None:
        self.flusher.ask(log)

    def folder_of(self, topic_partition: TopicPartition) -> str:
        """The folder of a log, or "" if the log is gone. Folders are disks: the flushes of one need not wait for another."""
        folder = self._logs.folder_of(topic_partition)
        return "" if folder is None else folder.path

    def flush_ended(self, log: FlushableLog, error: StorageError | None) -> None:
        if self._logs.get(log.topic_partition) is not log:
            return  # deleted meanwhile, with its folder: a new log of this name may be on a healthy disk
        if error is not None and log.failed:
            self.storage.log_failed(log.topic_partition, error)  # a failed flush is an error of the disk
        self.replication.flush_ended(log.topic_partition, error)

    def damage_found(self, topic_partition: TopicPartition, damaged: DamagedRange) -> None:
        log = self._logs.get(topic_partition)
        if log is not None and log.damage.note(damaged):
            self.replication.damage_found(topic_partition)

    def hanging_folders(self) -> Iterable[str]:
        return [*self.log_service.writers.hanging(), *self.flusher.hanging()]

    # --- of metadata --------------------------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Return whether the replicas have applied metadata that shows this broker's own registration."""
        return self.replication.is_current

    def taken_up_offset(self) -> int:
        return self.replication.taken_up_offset

    def known_metadata(self) -> MetadataPosition:
        return self.log_service.known_metadata

    def holds_back(self) -> bool:
        return self.storage.reports.holds_back

    def broker_epoch(self) -> int:
        """The epoch of this incarnation's registration; -1 before it."""
        return self.lifecycle.broker_epoch
