"""Handles failed, full and hanging data folders of a broker, and reports them to the controller.

A failed folder affects only its own replicas: they give up their roles here, and one report to the controller moves their
leaderships and removes them from their ISRs (KIP-112, KIP-858). The process ends only if no folder is left, or if the folder with
the quorum's journal fails. An operator must request `bring_back`: a disk that failed once is not trusted again only because it
answers.

A full folder stays online, because it refuses writes without damage, and only hands over its leaderships. So does a folder whose
disk hangs in a flush: no data is lost, but requests would wait for it forever.
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
from barnabas.kraft.metadata.requests import Done, ReportOfflineReplicas, TopicNumbers
from barnabas.log.folders.folder_loading import LoadedFolder
from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.replication.effects import StorageFailed
from barnabas.log.replication.ports import ReplicatedLog
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    DiskFailedError,
    DiskFullError,
    InvalidRequestError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    StorageError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..base.clock import Clock
from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.metadata_service import MetadataService
from ..protocol.responses import StorageFolder
from ..server.turn import Turn
from .log_service import LogService
from .replication_service import ReplicationService

logger = logging.getLogger("barnabas.storage")

CHECK_INTERVAL_MS = 1_000  # how often full folders are looked at, and replicas that could not be made are tried again
HANG_LOOK_INTERVAL_MS = 250  # how often hanging folders are checked: a request must wait for them for 10 s at most
HAND_OVER_AFTER_MS = 3_000  # a full folder keeps its leaderships for this time: an operator may be freeing space
ROOM_BYTES = 4 << 20  # a folder with this much free space is not full; the next fetch would use up less
ROOM_SETTLES_MS = 2_000  # time without a refusal before "full" ends: quotas refuse although the disk has space
REPORT_TIMEOUT_MS = 10_000
REPORT_RETRY_MS = 200
BRING_BACK_TIMEOUT_MS = 60_000  # for the controller to accept the reports; the recovery itself has no limit

Place = tuple[str, int]  # topic id, partition: a topic that is created again under the same name is another one


@dataclass(slots=True)
class _Full:
    since_wall_ms: int
    since_ms: int
    refused_ms: int
    cause: str
    asked_ms: int = 0  # when its leaderships were last offered to others


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
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._turn = turn
        self._fatal = fatal
        self._journal_folder = journal_folder
        self._failures: dict[str, str] = {}  # folders that failed in this turn, and why
        self._full: dict[str, _Full] = {}
        self._hanging: dict[str, _Full] = {}
        self._hanging_now = hanging
        self._lost: set[Place] = set()  # for the next report
        self._hand_over: set[Place] = set()
        self._epoch = -1  # of the registration for which the reports are numbered
        self._report_number = 0
        self._work = asyncio.Event()
        self._told = asyncio.Condition()
        self._bringing_back = asyncio.Lock()
        self.holds_back = False  # the controller must get the report on the disks before it unfences this broker

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
            self._note_full(folder, error)

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
        self._work.set()

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
            self._full.pop(path, None)
            self._replication.went_offline(gone, f"the data folder {path} is offline: {cause}")
            given_up = self._log_service.give_up(path)
            if end := self._why_to_end(path):
                reason = f"{end} has failed: {path}: {cause}"
                given_up.add_done_callback(lambda _, reason=reason: self._fatal(reason))  # type: ignore[misc]
                return
        self._work.set()

    def _why_to_end(self, path: str) -> str:
        """The reason to end the process after the failure of this folder; "" if the broker can continue without it."""
        if not self._logs.folders:
            return "the data folder" if self._has_one_place else "the last data folder that was left"
        is_journals = self._journal_folder is not None and f"{self._journal_folder}/".startswith(f"{path}/")
        return "the data folder with the quorum's journal" if is_journals else ""

    @property
    def _has_one_place(self) -> bool:
        return len(self._logs.folders) + len(self._logs.offline_folders) == 1

    # --- full folders -------------------------------------------------------------------------------------------------

    def _note_full(self, folder: LogFolder, error: StorageError) -> None:
        now_ms = self._clock.now_ms()
        full = self._full.get(folder.path)
        if full is not None:
            full.refused_ms = now_ms
            return
        folder.is_full = True
        self._full[folder.path] = _Full(self._clock.wall_ms(), now_ms, now_ms, error.message)
        logger.warning("folder=%s is full: %s", folder.path, error.message)
        self._work.set()

    async def _look_at_full_folders(self) -> None:
        for path, full in list(self._full.items()):
            now_ms = self._clock.now_ms()
            has_settled = now_ms - full.refused_ms >= ROOM_SETTLES_MS
            if has_settled and await self._free_bytes(path) >= ROOM_BYTES:
                self._end_full(path)
            elif now_ms - max(full.since_ms, full.asked_ms) >= HAND_OVER_AFTER_MS:
                full.asked_ms = now_ms
                self._offer_leaderships(path)

    async def _free_bytes(self, path: str) -> int:
        try:
            usage = await asyncio.get_running_loop().run_in_executor(None, self._logs.disk_usage, path)
        except StorageError:
            return 0
        return usage.free_bytes

    def _end_full(self, path: str) -> None:
        if self._full.pop(path, None) is not None:
            for folder in self._logs.folders:
                folder.is_full = folder.is_full and folder.path != path
            logger.info("folder=%s has room again", path)
            self._work.set()

    def _look_at_hanging_folders(self) -> None:
        now_ms, hanging = self._clock.now_ms(), set(self._hanging_now())
        for path in sorted(hanging - self._hanging.keys()):
            cause = "its disk does not complete a flush: check the kernel log, and replace the disk"
            self._hanging[path] = _Full(self._clock.wall_ms(), now_ms, now_ms, cause, now_ms - CHECK_INTERVAL_MS)
            logger.error("folder=%s hangs: %s", path, cause)
            self._work.set()
        ended = self._hanging.keys() - hanging
        for path in sorted(ended):
            del self._hanging[path]
            logger.info("folder=%s answers again", path)
            self._work.set()
        due = [path for path, known in self._hanging.items() if now_ms - known.asked_ms >= CHECK_INTERVAL_MS]
        if ended or due:
            self._tell_replicas(hanging)
        for path in due:  # repeatedly: a former leader may wait as a follower now
            self._hanging[path].asked_ms = now_ms
            self._offer_leaderships(path, with_followers=True)

    def _tell_replicas(self, hanging: set[str]) -> None:
        """Called every second, because replicas may have been added since the last call."""
        for partition in self._replication.manager.partitions():
            folder = self._logs.folder_of(partition.topic_partition)
            self._replication.perform(partition.following.disk_hung(folder is not None and folder.path in hanging))

    def _offer_leaderships(self, path: str, *, with_followers: bool = False) -> None:
        """`with_followers`: in-sync followers that wait for the disk must leave the ISR, too, because their leaders wait for
        them."""
        for partition in self._replication.manager.partitions():
            folder = self._logs.folder_of(partition.topic_partition)
            is_waited_for = len(partition.in_sync_when_leading) > 1 or (
                with_followers and partition.following.waits_for_disk
            )
            if folder is not None and folder.path == path and is_waited_for:
                self._hand_over.add((partition.topic_id, partition.topic_partition.partition))
        if self._hand_over:
            logger.warning("folder=%s accepts no writes, handing over %d replicas", path, len(self._hand_over))
            self._work.set()

    # --- reports to the controller ------------------------------------------------------------------------------------

    def took_up(self, image: MetadataImage) -> None:
        """Called with the first metadata after a registration. Its state of this broker's disks may be outdated."""
        self._log_service.set_strays_aside(image)
        marked: set[Place] = set()
        for topic_partition, place, partition in _replicas_of(image, self._node_id):
            if self._node_id in partition.offline_replicas:
                marked.add(place)
                folder = self._logs.folder_of(topic_partition)
                if folder is not None and not folder.was_stopped_cleanly:
                    self._lost.add(place)  # its disk failed in a former incarnation, so its content is unknown
            if topic_partition in self._log_service.made_anew and _counts_on(partition, self._node_id):
                self._lost.add(place)
        self._log_service.made_anew.clear()
        if marked != self._offline_places() or self._lost or self._troubled_folders():
            self.holds_back = bool(marked != self._offline_places() or self._lost)
            self._work.set()

    async def run(self) -> None:
        """Report changes, and check folders with problems, until cancelled."""
        looked_ms = self._clock.now_ms()
        while True:
            try:
                await asyncio.wait_for(self._work.wait(), HANG_LOOK_INTERVAL_MS / 1000)
            except TimeoutError:
                self._look_at_hanging_folders()
                if self._clock.now_ms() - looked_ms >= CHECK_INTERVAL_MS:
                    looked_ms = self._clock.now_ms()
                    await self._look_at_full_folders()
                    self._make_missing_logs()
            if self._work.is_set() and self._replication.is_current:
                await self._report()
            elif self._work.is_set():
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
            self._lost.add((topic.topic_id, topic_partition.partition))
            self._work.set()

    async def _report(self) -> None:
        self._work.clear()
        epoch = self._broker_epoch()
        if epoch != self._epoch:
            self._epoch, self._report_number = epoch, 0
        self._report_number += 1
        lost, hand_over = frozenset(self._lost), frozenset(self._hand_over)
        request = ReportOfflineReplicas(
            node_id=self._node_id,
            broker_epoch=epoch,
            report=self._report_number,
            troubled_folders=self._troubled_folders(),
            offline=_grouped(self._offline_places()),
            lost=_grouped(lost),
            hand_over=_grouped(hand_over),
        )
        try:
            answer = await self._controller.call(request, timeout_ms=REPORT_TIMEOUT_MS)
            assert isinstance(answer, Done)
            await self._metadata.wait_for_offset(answer.offset, timeout_ms=REPORT_TIMEOUT_MS)
        except StaleBrokerEpochError:
            return  # the report follows the next registration
        except BarnabasError as error:
            logger.warning("cannot report the state of the disks, trying again: %s", error)
            self._work.set()
            await asyncio.sleep(REPORT_RETRY_MS / 1000)
            return
        self._lost -= lost
        self._hand_over -= hand_over
        self.holds_back = False
        logger.info("reported offline_replicas=%d troubled_folders=%d lost=%d", len(self._offline_places()),
                    len(request.troubled_folders), len(lost))  # fmt: skip
        async with self._told:
            self._told.notify_all()

    def _offline_places(self) -> set[Place]:
        """The replicas of this broker that it cannot serve."""
        unopened, offline = self._replication.manager.unopened, self._logs.offline
        return {
            place
            for topic_partition, place, _ in _replicas_of(self._metadata.image, self._node_id)
            if (topic_partition in offline or topic_partition in unopened) and self._logs.get(topic_partition) is None
        }

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
            for state, known in ((FOLDER_FULL, self._full), (FOLDER_HANGING, self._hanging))
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
            await self._until_told(lambda: self._places_of(affected) <= self._marked_places(), "that they were offline")
            await self._log_service.give_up(path)  # after the remaining work of its former thread
            loaded = await asyncio.get_running_loop().run_in_executor(None, self._reopen, path)
            is_sound = loaded.folder.was_stopped_cleanly and not loaded.folder.may_have_lost_writes
            self._logs.attach(loaded, now_ms=self._clock.wall_ms())
            self._log_service.set_strays_aside(self._metadata.image)
            back = {topic_partition for topic_partition in affected if topic_partition not in self._logs.offline}
            self._make_again(back)
            if not is_sound:
                self._lost |= self._places_of(back)
            self._work.set()
            await self._until_told(lambda: not self._places_of(back) & self._marked_places(), "that they are back")
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
                self._lost.add((topic.topic_id, topic_partition.partition))

    async def _until_told(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(BRING_BACK_TIMEOUT_MS / 1000), self._told:
                while not is_so() or self._work.is_set():
                    await self._told.wait()
        except TimeoutError:
            raise RequestTimedOutError(f"the controller has not confirmed {what}; try again when it answers") from None

    def _places_of(self, topic_partitions: Iterable[TopicPartition]) -> set[Place]:
        wanted = set(topic_partitions)
        ours = _replicas_of(self._metadata.image, self._node_id)
        return {place for topic_partition, place, _ in ours if topic_partition in wanted}

    def _marked_places(self) -> set[Place]:
        ours = _replicas_of(self._metadata.image, self._node_id)
        return {place for _, place, partition in ours if self._node_id in partition.offline_replicas}

    # --- for operators ------------------------------------------------------------------------------------------------

    async def describe(self) -> tuple[DescribedFolder, ...]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: tuple(map(self._describe, self._logs.places)))

    def _describe(self, path: str) -> DescribedFolder:
        offline = self._logs.offline_folders.get(path)
        impaired = self._full.get(path) or self._hanging.get(path)
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
        state = FOLDER_FULL if path in self._full else FOLDER_HANGING if impaired is not None else "online"
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


def _replicas_of(image: MetadataImage, node_id: int) -> Iterable[tuple[TopicPartition, Place, PartitionImage]]:
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                yield TopicPartition(topic.name, number), (topic.topic_id, number), partition


def _counts_on(partition: PartitionImage, node_id: int) -> bool:
    """Return whether the cluster could elect this replica because of records that it is expected to have."""
    return node_id in (*partition.isr, *partition.eligible_leader_replicas)


def _grouped(places: Iterable[Place]) -> tuple[TopicNumbers, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, number in sorted(places):
        by_topic.setdefault(topic_id, []).append(number)
    return tuple(TopicNumbers(topic_id=topic_id, partitions=tuple(found)) for topic_id, found in by_topic.items())
