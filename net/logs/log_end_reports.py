"""Reports where the logs of this broker end, of partitions without a leader.

If none of their replicas is in sync or eligible, or if an operator demands an unclean election, the controller makes the replica
with the longest log the leader (`kraft/controller/memory/log_ends`). It keeps reports in memory, so they are repeated until there
is a leader. A replica reports when it has taken up the state without a leader: nothing is appended to its log from then on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.kraft.metadata.controller_settings import MAX_PARTITIONS_PER_REQUEST
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
        self._wanted: dict[str, list[int]] = {}  # replicas of this broker whose end is asked for, by topic
        self._work = asyncio.Event()
        self._seen = MetadataImage()

    def published(self, publication: MetadataPublication) -> None:
        before, self._seen = self._seen, publication.image
        is_whole = publication.restored or not before.topics
        topics: Iterable[str] = publication.image.topics if is_whole else publication.changes.topics
        node_id, wanted = self._node_id, self._wanted
        for name in topics:  # inline, because it concerns every topic that changes
            if wanted:
                wanted.pop(name, None)
            topic = publication.image.topics.get(name)
            for number, partition in enumerate(topic.partitions if topic is not None else ()):
                if (
                    partition.leader == NO_LEADER
                    and node_id in partition.replicas
                    and node_id not in partition.offline_replicas
                ):
                    wanted.setdefault(name, []).append(number)
                    self._work.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            if not self._wanted:
                continue
            ends = self._ends()
            for first in range(0, len(ends), MAX_PARTITIONS_PER_REQUEST):
                await self._send(tuple(ends[first : first + MAX_PARTITIONS_PER_REQUEST]))
            are_all_ready = len(ends) == sum(map(len, self._wanted.values()))
            wait_ms = REPORT_INTERVAL_MS if are_all_ready else NOT_READY_RETRY_MS
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._work.wait()  # more partitions
            except TimeoutError:
                self._work.set()

    def _ends(self) -> list[LogEnd]:
        """Of the logs that are ready."""
        found = []
        for topic_partition in (
            TopicPartition(name, number) for name, numbers in self._wanted.items() for number in numbers
        ):
            partition = self._seen.partition(topic_partition)
            replica = self._replicas.find(topic_partition)
            if partition is None or replica is None or not _has_taken_up(replica, partition.leader_epoch):
                continue
            log = replica.log
            end_offset = log.log_end_offset
            has_records = end_offset > log.log_start_offset
            found.append(
                LogEnd(
                    topic_id=replica.topic_id,
                    partition=topic_partition.partition,
                    leader_epoch=partition.leader_epoch,
                    last_epoch=log.epoch_at(end_offset - 1) if has_records else log.latest_epoch,
                    end_offset=end_offset,
                )
            )
        return found

    async def _send(self, ends: tuple[LogEnd, ...]) -> None:
        request = ReportLogEnds(node_id=self._node_id, broker_epoch=self._broker_epoch(), ends=ends)
        try:
            await self._controller.call(request, timeout_ms=REPORT_TIMEOUT_MS)
        except BarnabasError as error:  # of a controller that is just changing, or a registration that is not done
            logger.info("log ends of %d partitions are not reported yet: %s", len(ends), error)


def _has_taken_up(replica: Partition, leader_epoch: int) -> bool:
    return replica.role.leader_epoch == leader_epoch and replica.storage.is_usable
