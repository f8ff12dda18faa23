"""Reports where the logs of this broker end, of partitions without a leader.

If none of their replicas is in sync or eligible, or if an operator demands an unclean election, the controller makes the replica
with the longest log the leader (`kraft/controller/memory/log_ends`). It keeps reports in memory, so they are repeated until there
is a leader. A replica reports when it has taken up the state without a leader: nothing is appended to its log from then on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.kraft.metadata.image import NO_LEADER, MetadataImage
from barnabas.kraft.metadata.requests import LogEnd, ReportLogEnds
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.metadata_service import MetadataService

logger = logging.getLogger("barnabas.replication")

REPORT_TIMEOUT_MS: Final = 10_000
REPORT_INTERVAL_MS: Final = 1_000
# For 100,000 partitions, a report takes the controller a second: then it is repeated after ten, but for what has changed.
PAUSE_RATIO: Final = 10
MAX_INTERVAL_MS: Final = 15_000
MAX_ENDS_PER_REQUEST: Final = 2_000  # Between two of them, this broker and the controller do other work.
NOT_READY_RETRY_MS: Final = 100  # the log is still being opened, or this broker is not registered yet


class LogEndReports:
    """Belongs to the broker's loop."""

    def __init__(
        self,
        *,
        node_id: int,
        replicas: ReplicaManager,
        metadata: MetadataService,
        controller: ControllerChannel,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._metadata = metadata
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._wanted: dict[str, list[TopicPartition]] = {}  # by topic: replicas of this broker whose end is asked for
        self._new: dict[str, None] = {}  # topics among them that were not reported since they changed
        self._told: tuple[int | None, int] = (None, 0)  # the leader of the quorum that the reports go to, and its term
        self._work = asyncio.Event()
        self._seen = MetadataImage()

    def published(self, publication: MetadataPublication) -> None:
        before, self._seen = self._seen, publication.image
        is_whole = publication.restored or not before.topics
        topics: Iterable[str] = publication.image.topics if is_whole else publication.changes.topics
        node_id = self._node_id
        for name in topics:  # inline, because it concerns every topic that changes
            topic = publication.image.topics.get(name)
            wanted = None
            for number, partition in enumerate(topic.partitions if topic is not None else ()):
                if (
                    partition.leader == NO_LEADER
                    and node_id in partition.replicas
                    and node_id not in partition.offline_replicas
                ):
                    wanted = wanted or []
                    wanted.append(TopicPartition(name, number))
            if wanted:
                self._wanted[name] = wanted
                self._new[name] = None
            elif self._wanted:
                self._wanted.pop(name, None)
                self._new.pop(name, None)
        asked = publication.leader
        if self._told != (asked.leader_id, asked.term):  # a new controller knows nothing
            self._told = (asked.leader_id, asked.term)
            self._new.update(dict.fromkeys(self._wanted))
        if self._new:
            self._work.set()

    async def run(self) -> None:
        """Until cancelled. What has changed is reported at once, all of it in intervals."""
        loop = asyncio.get_running_loop()
        all_at_s = loop.time()
        while True:
            if not self._wanted:
                await self._work.wait()
            self._work.clear()
            is_all, began_s = loop.time() >= all_at_s, loop.time()
            topics, self._new = list(self._wanted if is_all else self._new), {}
            is_answered = await self._report(topics)
            now_s = loop.time()
            pause_s = min(PAUSE_RATIO * (now_s - began_s), MAX_INTERVAL_MS / 1000) if is_answered else 0
            if is_all:
                all_at_s = now_s + max(pause_s, REPORT_INTERVAL_MS / 1000)
            wait_s = max(0, all_at_s - now_s)
            if self._new:
                wait_s = min(wait_s, max(pause_s, NOT_READY_RETRY_MS / 1000))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._work.wait()

    async def _report(self, topics: Iterable[str]) -> bool:
        """Partitions that are not ready stay new. Return whether the controller has taken all reports."""
        is_answered = True
        found: list[LogEnd] = []
        for name in topics:
            for topic_partition in self._wanted.get(name, ()):
                end = self._end(topic_partition)
                if end is None:
                    self._new[name] = None
                    continue
                found.append(end)
                if len(found) == MAX_ENDS_PER_REQUEST:
                    is_answered = await self._send(tuple(found)) and is_answered
                    found = []
        if found:
            is_answered = await self._send(tuple(found)) and is_answered
        return is_answered

    def _end(self, topic_partition: TopicPartition) -> LogEnd | None:
        """None if the log is not ready."""
        partition = self._seen.partition(topic_partition)
        replica = self._replicas.find(topic_partition)
        if partition is None or partition.leader != NO_LEADER:
            return None
        if replica is None or not _has_taken_up(replica, partition.leader_epoch):
            return None
        log = replica.log
        end_offset = log.log_end_offset
        has_records = end_offset > log.log_start_offset
        return LogEnd(
            topic_id=replica.topic_id,
            partition=topic_partition.partition,
            leader_epoch=partition.leader_epoch,
            last_epoch=log.epoch_at(end_offset - 1) if has_records else log.latest_epoch,
            end_offset=end_offset,
        )

    async def _send(self, ends: tuple[LogEnd, ...]) -> bool:
        request = ReportLogEnds(node_id=self._node_id, broker_epoch=self._broker_epoch(), ends=ends)
        try:
            await self._controller.call(request, timeout_ms=REPORT_TIMEOUT_MS)
        except BarnabasError as error:  # of a controller that is just changing, or a registration that is not done
            logger.info("log ends of %d partitions are not reported yet: %s", len(ends), error)
            return False
        return True


def _has_taken_up(replica: Partition, leader_epoch: int) -> bool:
    return replica.role.leader_epoch == leader_epoch and replica.storage.is_usable
