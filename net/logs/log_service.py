"""Creates, finds and deletes the logs of a broker, and maintains them: retention, checkpoints, flushes, configuration.

Work that waits for a disk runs in the folders' own threads (`writers`): checkpoints, deletions, truncations. Retention and new
segments, which rename and create files without a flush, run in the loop, in slices.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from barnabas.kraft.metadata.cluster_settings import PRODUCER_ID_EXPIRATION
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.folders.log_upkeep import Refusals
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.replication.log_change import LogChange
from barnabas.log.settings.config import LogConfig
from barnabas.log.settings.without_effect import with_effect
from barnabas.log.vocabulary.errors import BarnabasError, InconsistentClusterIdError, StorageError
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..base.clock import Clock
from ..base.folder_writers import HANGS_AFTER_MS, FolderWriters, ended_future
from ..base.settings.cluster_settings import cluster_values
from ..base.settings.config import BrokerConfig
from ..base.settings.dynamic_config import topic_defaults_of_image
from ..base.slices import in_slices
from ..metadata.metadata_service import MetadataService

logger = logging.getLogger("barnabas.log")

UPKEEP_INTERVAL_MS = 1_000


class LogService:
    """Creates, finds and deletes logs with the topic's configuration, and maintains them."""

    def __init__(
        self,
        *,
        logs: LogManager,
        metadata: MetadataService,
        config: BrokerConfig,
        clock: Clock,
        fatal: Callable[[str], None],
        is_current: Callable[[], bool],
        flush: Callable[[PartitionLog], None],
        folder_refused: Callable[[str, StorageError], None] = lambda path, error: None,
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._config = config
        self._clock = clock
        self._fatal = fatal
        self._noted_metadata = MetadataPosition()  # in this process
        self._is_current = is_current  # whether the metadata shows this broker's own registration
        self._flush = flush
        self._defaults = config.topics  # until the metadata has the cluster's values
        self._folder_refused = folder_refused
        self.writers = FolderWriters(refused=self._refused, fatal=fatal)
        self.made_anew: set[TopicPartition] = set()  # created empty, although the cluster may count on older records

    # --- what replication asks for (log.replication.ports.Logs) -------------------------------------------------------

    def made_ready(self, topic_partition: TopicPartition, topic_id: str) -> "asyncio.Future[None] | None":
        """Delete a log of this name that belongs to another topic. Wait for the future before `create_log`, which then raises the
        error of a refused deletion. The future ends in any case: waiting for a disk that hangs would block the other disks."""
        log = self._logs.get(topic_partition)
        if log is not None and log.topic_id != topic_id:
            try:
                self.delete(topic_partition)
            except StorageError:
                return None
        folder = self._logs.removals.unsettled_folder(topic_partition)
        if folder is None:
            return None
        settled = self._settle(folder)
        return None if folder.path in self.writers.hanging() else _until(settled, HANGS_AFTER_MS)

    def create_log(self, topic_partition: TopicPartition, topic_id: str, *, is_new: bool = True) -> PartitionLog:
        """Raises StorageError."""
        was_there = self._logs.get(topic_partition) is not None
        unsettled = None if was_there else self._logs.removals.unsettled_folder(topic_partition)
        if unsettled is not None:
            self._settle(unsettled)
            raise StorageError(
                f"cannot create {topic_partition} before {unsettled.path} has flushed the deletion of the former log"
            )
        log = self._logs.get_or_create(
            topic_partition,
            topic_id=topic_id,
            config=self.config_of(topic_partition.topic),
            now_ms=self._clock.wall_ms(),
            is_new=is_new,
        )
        if not was_there and not is_new:
            self.made_anew.add(topic_partition)
        log.config = self.config_of(topic_partition.topic)
        return log

    def forget(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self._logs.offline and self._logs.get(topic_partition) is None:
            self.delete(topic_partition)

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def delete(self, topic_partition: TopicPartition) -> None:
        folder = self._logs.folder_of(topic_partition)
        self._logs.delete(topic_partition, now_ms=self._clock.wall_ms())
        if folder is not None and not self.writers.is_waiting(folder.path, "deletions"):
            self._settle(folder)

    def _settle(self, folder: LogFolder) -> "asyncio.Future[None]":
        """One flush for all logs that are deleted together."""
        return self.writers.ask(folder.path, "deletions", partial(self._logs.removals.settle, folder))

    def change_log(self, topic_partition: TopicPartition, change: LogChange) -> "asyncio.Future[None]":
        """Perform the change in the thread of the log's folder. Deletions of logs wait behind it, so no other log gets its name
        before the change has ended. The future ends in any case, also if the change is dropped."""
        log, folder = self._logs.get(topic_partition), self._logs.folder_of(topic_partition)
        if log is None or folder is None:
            return ended_future()

        def perform() -> None:
            if not log.is_released:  # deleted meanwhile, or its folder has failed
                change.perform()

        return self.writers.ask(folder.path, f"change of {topic_partition}", perform)

    def give_up(self, path: str) -> "asyncio.Future[None]":
        """When no thread uses the failed folder any more, record in it that writes may be lost, and unlock it. The future ends
        then, or when its disk has hung for too long."""
        return _until(self.writers.ask(path, "failure", partial(self._logs.give_up, path)), HANGS_AFTER_MS)

    def config_of(self, topic: str) -> LogConfig:
        overrides = with_effect(self._metadata.image.topic_configs.get(topic, {}))
        if not overrides:  # most topics; a change of a default asks for all topics
            return self._defaults
        try:
            return LogConfig.from_map(overrides, self._defaults)
        except BarnabasError as error:
            # The controller checks values before it accepts them; a value from a newer version must not stop this broker.
            logger.error("invalid configuration, using the defaults topic=%s: %s", topic, error)
            return self._defaults

    # --- metadata -----------------------------------------------------------------------------------------------------

    def published(self, publication: MetadataPublication) -> None:
        cluster_id = publication.image.cluster_id
        if cluster_id and self._logs.cluster_id != cluster_id:
            try:
                self._logs.join_cluster(cluster_id)
            except InconsistentClusterIdError as error:
                self._fatal(error.message)
                return
            for folder in self._logs.folders:
                self.writers.ask(folder.path, "cluster", folder.write_meta, refused=self._cannot_join)
        if self._metadata.is_current:
            self._note_metadata(publication.image.position)
        if publication.keeps_image:
            return
        is_for_all = bool(publication.changes.broker_configs) and self._read_defaults(publication.image)
        if is_for_all or publication.changes.topic_configs:
            for topic_partition, log in self._logs.logs.items():
                if is_for_all or topic_partition.topic in publication.changes.topic_configs:
                    log.config = self.config_of(topic_partition.topic)

    def _read_defaults(self, image: MetadataImage) -> bool:
        """Read the defaults of topics, and return whether they have changed."""
        before = self._defaults
        try:
            self._defaults = LogConfig.from_map(topic_defaults_of_image(self._config, image))
        except BarnabasError as error:  # as in config_of
            logger.error("invalid defaults of topics, keeping the former ones: %s", error)
        return self._defaults != before

    def _producer_expiration_ms(self) -> int:
        text = cluster_values(self._metadata.image).get(PRODUCER_ID_EXPIRATION, "")
        return int(text) if text.isdecimal() else self._config.producer_id_expiration_ms

    def _cannot_join(self, path: str, error: StorageError) -> None:
        self._fatal(error.message)

    @property
    def known_metadata(self) -> MetadataPosition:
        """The newest position of the metadata that this broker has known, in this process or an earlier one."""
        return max((folder.known_metadata for folder in self._logs.folders), default=MetadataPosition())

    def _note_metadata(self, position: MetadataPosition) -> None:
        """The cluster has registered this broker, so its current position is valid, even if it was higher before a recovery. A
        new term is written at once, because a restored quorum begins with another term; offsets are written with the high
        watermarks."""
        is_urgent = self._noted_metadata.claim != position.claim or not self._noted_metadata.offset
        self._noted_metadata = position
        for folder in self._logs.folders:
            folder.known_metadata = position
            if is_urgent:
                self._write_known_metadata(folder)

    def _write_known_metadata(self, folder: LogFolder) -> None:
        self.writers.ask(folder.path, "metadata", folder.write_known_metadata, refused=self._refused)

    def loss_was_told(self) -> None:
        """The cluster has learned that this broker may have lost writes."""
        for folder in self._logs.folders:
            self.writers.ask(folder.path, "loss", folder.loss_was_told, refused=self._loss_stays)

    def _loss_stays(self, path: str, error: StorageError) -> None:
        logger.warning("folder=%s will report its lost writes again at the next start: %s", path, error)

    def set_strays_aside(self, image: MetadataImage) -> None:
        """Set aside the logs of topics that were deleted, and of replicas that were moved away, while this broker was down.

        `image` shows this broker's own registration, and therefore everything committed before: a replica that it does not
        assign to this broker is a stray. Its files are kept, as in Kafka: metadata from an old backup does not have newer topics.
        """
        for topic_partition, log in list(self._logs.logs.items()):
            if log.topic_id and not _is_replica(image, topic_partition, log.topic_id, self._config.node_id):
                try:
                    self._logs.removals.set_stray_aside(topic_partition, now_ms=self._clock.wall_ms())
                except StorageError as error:
                    logger.error("cannot set aside the stray log partition=%s: %s", topic_partition, error)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Maintain the logs until cancelled. An error is logged, and the work is retried in the next round."""
        config = self._config
        high_watermarks_ms = config.replica_high_watermark_checkpoint_interval_ms
        checkpoint_ms = (
            config.log_flush_offset_checkpoint_interval_ms
        )  # for all checkpoints, including the high watermarks
        next_high_watermarks_ms = self._clock.now_ms() + high_watermarks_ms
        next_checkpoint_ms = self._clock.now_ms() + checkpoint_ms
        next_retention_ms = self._clock.now_ms() + config.log_retention_check_interval_ms
        try:
            while True:
                await asyncio.sleep(min(UPKEEP_INTERVAL_MS, high_watermarks_ms, checkpoint_ms) / 1000)
                now_ms = self._clock.now_ms()
                wall_ms = self._clock.wall_ms()
                self._make_folders_durable()
                self._flush_due(wall_ms)
                # Before the overrides of topics are known, the broker's defaults could delete records that must be kept.
                if now_ms >= next_retention_ms and self._is_current():
                    next_retention_ms = now_ms + config.log_retention_check_interval_ms
                    await self._run_retention(wall_ms)
                    self._logs.upkeep.expire_producers(wall_ms, expiration_ms=self._producer_expiration_ms())
                if now_ms >= next_checkpoint_ms:
                    next_checkpoint_ms = now_ms + checkpoint_ms
                    await self._checkpoint()
                if now_ms >= next_high_watermarks_ms:
                    next_high_watermarks_ms = now_ms + high_watermarks_ms
                    self._checkpoint_high_watermarks()
                # The removal of a file that cannot be removed is retried in every round.
                for folder in self._logs.folders:
                    self.writers.ask(folder.path, "due", partial(self._logs.removals.remove_due, folder, wall_ms))
        finally:
            await self.writers.close()

    async def _run_retention(self, wall_ms: int) -> None:
        refused: Refusals = {}
        await in_slices(self._logs.upkeep.run_retention(wall_ms, refused), self._clock.now_ms)
        for path, error in refused.items():
            self._refused(path, error)

    def _make_folders_durable(self) -> None:
        for folder in self._logs.folders:
            self.writers.ask(folder.path, "durable", partial(self._logs.upkeep.make_folders_durable, folder))

    def _flush_due(self, wall_ms: int) -> None:
        for log in self._logs.upkeep.due_for_flush(wall_ms):
            try:
                self._flush(log)
            except StorageError as error:
                logger.error("upkeep failed: %s", error)

    async def _checkpoint(self) -> None:
        for folder in list(self._logs.folders):
            try:
                await in_slices(self._logs.checkpoints.save_indexes(folder), self._clock.now_ms)
            except StorageError as error:
                self._refused(folder.path, error)
                continue
            self._logs.checkpoints.note_offsets(folder)
            self.writers.ask(folder.path, "checkpoint", partial(self._logs.removals.settle, folder))

    def _checkpoint_high_watermarks(self) -> None:
        for folder in self._logs.folders:
            self._logs.checkpoints.note_high_watermarks(folder)
            self.writers.ask(
                folder.path, "high_watermarks", partial(self._logs.checkpoints.write_high_watermarks, folder)
            )
            self._write_known_metadata(folder)

    def _refused(self, path: str, error: StorageError) -> None:
        logger.error("upkeep failed: %s", error)
        self._folder_refused(path, error)


def _until(done: "asyncio.Future[None]", limit_ms: int) -> "asyncio.Future[None]":
    """Return a future that ends when `done` ends, or after this time."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end() -> None:
        timer.cancel()
        if not ended.done():
            ended.set_result(None)

    timer = loop.call_later(limit_ms / 1000, end)
    done.add_done_callback(lambda _: end())
    return ended


def _is_replica(image: MetadataImage, topic_partition: TopicPartition, topic_id: str, node_id: int) -> bool:
    partition = image.partition(topic_partition)
    is_same_topic = image.topic_names.get(topic_id) == topic_partition.topic
    return is_same_topic and partition is not None and node_id in partition.replicas
