"""Handles failed data folders of a broker, and connects what is known of its disks: `impaired_folders`, `disk_reports`.

A failed folder affects only its own replicas: they give up their roles here, and one report to the controller moves their
leaderships and removes them from their ISRs (KIP-112, KIP-858). The process ends only if no folder is left, or if the folder with
the quorum's journal fails. An operator must request `bring_back`: a disk that failed once is not trusted again only because it
answers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from barnabas.kraft.metadata.image import (
    FOLDER_FULL,
    FOLDER_HANGING,
    FOLDER_OFFLINE,
    FolderTrouble,
    MetadataImage,
    PartitionImage,
)
from barnabas.log.folders.folder_loading import LoadedFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.replication.effects import StorageFailed
from barnabas.log.replication.ports import ReplicatedLog
from barnabas.log.vocabulary.errors import (
    BrokerNotAvailableError,
    DiskFailedError,
    DiskFullError,
    InvalidRequestError,
    StorageError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..base.clock import Clock
from ..base.turn import Turn
from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.metadata_service import MetadataService
from ..wire.protocol.responses import StorageFolder
from .disk_reports import REPORT_RETRY_MS, DiskReports, Place, replicas_of
from .impaired_folders import CHECK_INTERVAL_MS, ImpairedFolders
from .log_end_reports import LogEndReports
from .log_service import LogService
from .replication_service import ReplicationService

logger = logging.getLogger("barnabas.storage")

HANG_LOOK_INTERVAL_MS = 250  # how often hanging folders are checked: a request must wait for them for 10 s at most


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedFolder:
    """A data folder as operators see it, with the sizes of its logs in bytes."""

    folder: StorageFolder
    sizes: Mapping[TopicPartition, int]


class StorageService:
    """Belongs to the broker's loop."""

    def __init__(
        self,
        *,
        node_id: int,
        logs: LogManager,
        log_service: LogService,
        replication: ReplicationService,
        metadata: MetadataService,
        controller: ControllerChannel,
        broker_epoch: Callable[[], int],
        clock: Clock,
        turn: Turn,
        fatal: Callable[[str], None],
        journal_folder: str | None,
        hanging: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`journal_folder`: the folder of this node's quorum journal; None on a node that is not a voter. `hanging`: the folders
        whose disk does not answer."""
        self._node_id = node_id
        self._logs = logs
        self._log_service = log_service
        self._replication = replication
        self._metadata = metadata
        self._clock = clock
        self._turn = turn
        self._fatal = fatal
        self._journal_folder = journal_folder
        self._failures: dict[str, str] = {}  # folders that failed in this turn, and why
        self._bringing_back = asyncio.Lock()
        self.reports = DiskReports(node_id=node_id, metadata=metadata, controller=controller, broker_epoch=broker_epoch,
                                    is_offline=self._is_offline)  # fmt: skip
        self.log_ends = LogEndReports(node_id=node_id, replicas=replication.manager, metadata=metadata,
                                      controller=controller, broker_epoch=broker_epoch)  # fmt: skip
        self._impaired = ImpairedFolders(
            logs=logs, replication=replication, reports=self.reports, clock=clock, hanging=hanging
        )

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def trouble(self, log: ReplicatedLog, error: StorageError) -> None:
        """A disk refused an operation on a log, which is still in progress: the consequences are handled after it."""
        folder = self._logs.folder_of(log.topic_partition)
        if folder is None or self._logs.get(log.topic_partition) is not log:
            return
        cannot_be_undone = isinstance(error, DiskFullError) and log.failed
        if isinstance(error, DiskFailedError) or cannot_be_undone:
            self.folder_failed(folder.path, error.message)
        elif isinstance(error, DiskFullError):
            self._impaired.note_full(folder, error)

    def storage_failed(self, effect: StorageFailed) -> None:
        """A log has failed, or could not be opened."""
        logger.error("partition=%s went offline: %s", effect.topic_partition, effect.message)
        folder = self._logs.folder_of(effect.topic_partition)
        if effect.was_in_use and folder is not None and folder.path not in self._failures:
            if self._has_one_place:
                self._fatal(f"the log of {effect.topic_partition} has failed: {effect.message}")
                return
            self._logs.fail_log(effect.topic_partition, effect.message)
            self._turn.at_end(lambda: self._replication.went_offline([effect.topic_partition], effect.message))
        self.reports.wake()

    def log_failed(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """A background flush failed."""
        folder = self._logs.folder_of(topic_partition)
        if folder is not None:
            self.folder_failed(folder.path, error.message)

    def folder_refused(self, path: str, error: StorageError) -> None:
        """Maintenance could not write to a folder. Its logs may be intact, but a disk that returns EIO has failed."""
        if isinstance(error, DiskFailedError):
            self.folder_failed(path, error.message)

    def folder_failed(self, path: str, cause: str) -> None:
        if not self._failures:
            self._turn.at_end(self._take_out)
        self._failures.setdefault(path, cause)

    def _take_out(self) -> None:
        failures, self._failures = self._failures, {}
        for path, cause in failures.items():
            gone = self._logs.fail_folder(path, cause, now_ms=self._clock.wall_ms())
            self._impaired.full.pop(path, None)
            self._replication.went_offline(gone, f"the data folder {path} is offline: {cause}")
            given_up = self._log_service.give_up(path)
            if end := self._why_to_end(path):
                reason = f"{end} has failed: {path}: {cause}"
                given_up.add_done_callback(lambda _, reason=reason: self._fatal(reason))  # type: ignore[misc]
                return
        self.reports.wake()

    def _why_to_end(self, path: str) -> str:
        """The reason to end the process after the failure of this folder; "" if the broker can continue without it."""
        if not self._logs.folders:
            return "the data folder" if self._has_one_place else "the last data folder that was left"
        is_journals = self._journal_folder is not None and f"{self._journal_folder}/".startswith(f"{path}/")
        return "the data folder with the quorum's journal" if is_journals else ""

    @property
    def _has_one_place(self) -> bool:
        return len(self._logs.folders) + len(self._logs.offline_folders) == 1

    # --- reports to the controller ------------------------------------------------------------------------------------

    def took_up(self, image: MetadataImage) -> None:
        """Called with the first metadata after a registration. Its state of this broker's disks may be outdated."""
        self._log_service.set_strays_aside(image)
        marked: set[Place] = set()
        for topic_partition, place, partition in replicas_of(image, self._node_id):
            if self._node_id in partition.offline_replicas:
                marked.add(place)
                folder = self._logs.folder_of(topic_partition)
                if folder is not None and not folder.was_stopped_cleanly:
                    self.reports.lost.add(place)  # its disk failed in a former incarnation, so its content is unknown
            if topic_partition in self._log_service.made_anew and _counts_on(partition, self._node_id):
                self.reports.lost.add(place)
        self._log_service.made_anew.clear()
        if marked != self.reports.offline_places() or self.reports.lost or self._troubled_folders():
            self.reports.holds_back = bool(marked != self.reports.offline_places() or self.reports.lost)
            self.reports.wake()

    def _is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker cannot serve a replica that the cluster has assigned to it."""
        is_known = topic_partition in self._logs.offline or topic_partition in self._replication.manager.unopened
        return is_known and self._logs.get(topic_partition) is None

    async def run(self) -> None:
        """Report changes, and check folders with problems, until cancelled."""
        looked_ms = self._clock.now_ms()
        while True:
            try:
                async with asyncio.timeout(HANG_LOOK_INTERVAL_MS / 1000):
                    await self.reports.work.wait()
            except TimeoutError:
                self._impaired.look_at_hanging()
                if self._clock.now_ms() - looked_ms >= CHECK_INTERVAL_MS:
                    looked_ms = self._clock.now_ms()
                    await self._impaired.look_at_full()
                    self._make_missing_logs()
            if self.reports.work.is_set() and self._replication.is_current:
                await self.reports.send(self._troubled_folders())
            elif self.reports.work.is_set():
                await asyncio.sleep(REPORT_RETRY_MS / 1000)  # not registered yet

    def _make_missing_logs(self) -> None:
        """Create the replicas for which no disk had space when they were assigned. They start empty, so the cluster must not
        count on them."""
        image = self._metadata.image
        for topic_partition in sorted(self._replication.manager.unopened):  # a set has no defined order
            topic = image.topics.get(topic_partition.topic)
            if topic is None or topic_partition in self._logs.offline or self._logs.get(topic_partition) is not None:
                continue
            try:
                self._log_service.create_log(topic_partition, topic.topic_id)
            except StorageError:
                continue  # tried again later
            self.reports.lost.add((topic.topic_id, topic_partition.partition))
            self.reports.wake()

    def _troubled_folders(self) -> tuple[FolderTrouble, ...]:
        offline = [
            FolderTrouble(
                path=path,
                directory_id=folder.directory_id,
                state=FOLDER_OFFLINE,
                cause=folder.cause,
                since_ms=folder.since_ms,
            )
            for path, folder in self._logs.offline_folders.items()
        ]
        impaired = [
            FolderTrouble(
                path=folder.path,
                directory_id=folder.directory_id,
                state=state,
                cause=known[folder.path].cause,
                since_ms=known[folder.path].since_wall_ms,
            )
            for state, known in ((FOLDER_FULL, self._impaired.full), (FOLDER_HANGING, self._impaired.hanging))
            for folder in self._logs.folders
            if folder.path in known
        ]
        return (*offline, *impaired)

    # --- the way back -------------------------------------------------------------------------------------------------

    async def bring_back(self, path: str) -> StorageFolder:
        """Recover an offline folder (or the offline logs of an online folder); its replicas become followers again.

        First, the cluster must know that they were offline: a replica must not lead again in a former leader epoch, because
        records of that epoch may be missing on the disk. Raises InvalidRequestError, StorageError, RequestTimedOutError, and
        BrokerNotAvailableError while the broker is starting.
        """
        async with self._bringing_back:
            if not self._replication.is_current:  # all logs in the folder would count as strays
                raise BrokerNotAvailableError(
                    f"broker {self._node_id} is starting, and does not know its replicas yet; try again"
                )
            known = {folder.path for folder in self._logs.folders} | set(self._logs.offline_folders)
            if path not in known:
                raise InvalidRequestError(
                    f"{path} is not one of this broker's data folders: {', '.join(sorted(known))}"
                )
            affected = self._logs.offline.in_folder(path)
            await self.reports.until_told(
                lambda: self.reports.places_of(affected) <= self.reports.marked_places(), "that they were offline"
            )
            await self._log_service.give_up(path)  # after the remaining work of its former thread
            loaded = await asyncio.get_running_loop().run_in_executor(None, self._reopen, path)
            is_sound = loaded.folder.was_stopped_cleanly and not loaded.folder.may_have_lost_writes
            self._logs.attach(loaded, now_ms=self._clock.wall_ms())
            self._log_service.set_strays_aside(self._metadata.image)
            back = {topic_partition for topic_partition in affected if topic_partition not in self._logs.offline}
            self._make_again(back)
            if not is_sound:
                self.reports.lost |= self.reports.places_of(back)
            self.reports.wake()
            await self.reports.until_told(
                lambda: not self.reports.places_of(back) & self.reports.marked_places(), "that they are back"
            )
            await asyncio.get_running_loop().run_in_executor(None, loaded.folder.loss_was_told)
            self._replication.take_up_again(back)
            logger.info("folder=%s is back partitions=%d lost_writes=%s", path, len(loaded.logs), not is_sound)
            return next(found.folder for found in await self.describe() if found.folder.path == path)

    def _reopen(self, path: str) -> LoadedFolder:
        now_ms, config_for = self._clock.wall_ms(), self._log_service.config_of
        if path in self._logs.offline_folders:
            return self._logs.reopen_folder(path, now_ms=now_ms, config_for=config_for)
        return self._logs.reload_offline(path, now_ms=now_ms, config_for=config_for)

    def _make_again(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """If the disk was replaced by an empty one, the replicas are created empty."""
        for topic_partition in topic_partitions:
            topic = self._metadata.image.topics.get(topic_partition.topic)
            if topic is not None and self._logs.get(topic_partition) is None:
                try:
                    self._log_service.create_log(topic_partition, topic.topic_id)
                except StorageError:
                    continue  # `_make_missing_logs` tries again
                self.reports.lost.add((topic.topic_id, topic_partition.partition))

    # --- for operators ------------------------------------------------------------------------------------------------

    async def describe(self) -> tuple[DescribedFolder, ...]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: tuple(map(self._describe, self._logs.places)))

    def _describe(self, path: str) -> DescribedFolder:
        offline = self._logs.offline_folders.get(path)
        impaired = self._impaired.full.get(path) or self._impaired.hanging.get(path)
        folder = next((folder for folder in self._logs.folders if folder.path == path), None)
        logs = [] if folder is None else self._logs.registry.in_folder(folder)
        sizes = {log.topic_partition: log.size_bytes for log in logs}
        try:
            usage = None if offline is not None else self._logs.disk_usage(path)
            strays = () if folder is None else self._logs.removals.strays(path)
        except StorageError:
            usage, strays = None, ()
        trouble = offline.cause if offline is not None else impaired.cause if impaired is not None else ""
        since_ms = offline.since_ms if offline is not None else impaired.since_wall_ms if impaired is not None else -1
        state = FOLDER_FULL if path in self._impaired.full else FOLDER_HANGING if impaired is not None else "online"
        described = StorageFolder(
            path=path,
            directory_id=folder.directory_id if folder is not None else offline.directory_id if offline else "",
            state=FOLDER_OFFLINE if folder is None else state,
            cause=trouble,
            since_ms=since_ms,
            partitions=len(sizes),
            offline_partitions=tuple(sorted(map(str, self._logs.offline.in_folder(path)))),
            size_bytes=sum(sizes.values()) if folder is not None else -1,
            free_bytes=usage.free_bytes if usage is not None else -1,
            total_bytes=usage.total_bytes if usage is not None else -1,
            strays=strays,
        )
        return DescribedFolder(folder=described, sizes=sizes)


def _counts_on(partition: PartitionImage, node_id: int) -> bool:
    """Return whether the cluster could elect this replica because of records that it is expected to have."""
    return node_id in (*partition.isr, *partition.eligible_leader_replicas)
