"""Online data folders that serve badly: full ones, which refuse writes without damage, and those whose disk hangs in a flush.

No data is lost, but requests would wait for them forever. A folder that is full for some seconds, or that hangs, hands over its
leaderships: other brokers have the same records on disks that answer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.vocabulary.errors import StorageError

from ..base.clock import Clock
from .disk_reports import DiskReports
from .replication_service import ReplicationService

logger = logging.getLogger("barnabas.storage")

CHECK_INTERVAL_MS = 1_000  # how often full folders are looked at, and replicas that could not be made are tried again
HAND_OVER_AFTER_MS = 3_000  # a full folder keeps its leaderships for this time: an operator may be freeing space
ROOM_BYTES = 4 << 20  # a folder with this much free space is not full; the next fetch would use up less
ROOM_SETTLES_MS = 2_000  # time without a refusal before "full" ends: quotas refuse although the disk has space


@dataclass(slots=True)
class Impaired:
    since_wall_ms: int
    since_ms: int
    refused_ms: int
    cause: str
    asked_ms: int = 0  # when its leaderships were last offered to others


class ImpairedFolders:
    """Belongs to the broker's loop."""

    def __init__(
        self,
        *,
        logs: LogManager,
        replication: ReplicationService,
        reports: DiskReports,
        clock: Clock,
        hanging: Callable[[], Iterable[str]],
    ) -> None:
        """`hanging`: the folders whose disk does not answer."""
        self._logs = logs
        self._replication = replication
        self._reports = reports
        self._clock = clock
        self._hanging_now = hanging
        self.full: dict[str, Impaired] = {}
        self.hanging: dict[str, Impaired] = {}

    def note_full(self, folder: LogFolder, error: StorageError) -> None:
        now_ms = self._clock.now_ms()
        full = self.full.get(folder.path)
        if full is not None:
            full.refused_ms = now_ms
            return
        folder.is_full = True
        self.full[folder.path] = Impaired(self._clock.wall_ms(), now_ms, now_ms, error.message)
        logger.warning("folder=%s is full: %s", folder.path, error.message)
        self._reports.wake()

    async def look_at_full(self) -> None:
        for path, full in list(self.full.items()):
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
        if self.full.pop(path, None) is not None:
            for folder in self._logs.folders:
                folder.is_full = folder.is_full and folder.path != path
            logger.info("folder=%s has room again", path)
            self._reports.wake()

    def look_at_hanging(self) -> None:
        now_ms, hanging = self._clock.now_ms(), set(self._hanging_now())
        for path in sorted(hanging - self.hanging.keys()):
            cause = "its disk does not complete a flush: check the kernel log, and replace the disk"
            self.hanging[path] = Impaired(self._clock.wall_ms(), now_ms, now_ms, cause, now_ms - CHECK_INTERVAL_MS)
            logger.error("folder=%s hangs: %s", path, cause)
            self._reports.wake()
        ended = self.hanging.keys() - hanging
        for path in sorted(ended):
            del self.hanging[path]
            logger.info("folder=%s answers again", path)
            self._reports.wake()
        due = [path for path, known in self.hanging.items() if now_ms - known.asked_ms >= CHECK_INTERVAL_MS]
        if ended or due:
            self._tell_replicas(hanging)
        for path in due:  # repeatedly: a former leader may wait as a follower now
            self.hanging[path].asked_ms = now_ms
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
                self._reports.hand_over.add((partition.topic_id, partition.topic_partition.partition))
        if self._reports.hand_over:
            logger.warning("folder=%s accepts no writes, handing over %d replicas", path, len(self._reports.hand_over))
            self._reports.wake()
