"""What a broker reports to the controller about its disks: the replicas that it cannot serve, and those that others should lead.

One report covers everything that is known when it is sent. The controller numbers reports by the registration of the broker, so
that a delayed one changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from barnabas.kraft.metadata.image import FolderTrouble, MetadataImage, PartitionImage
from barnabas.kraft.metadata.requests import Done, ReportOfflineReplicas, TopicNumbers
from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError, StaleBrokerEpochError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.metadata_service import MetadataService

logger = logging.getLogger("barnabas.storage")

REPORT_TIMEOUT_MS = 10_000
REPORT_RETRY_MS = 200
BRING_BACK_TIMEOUT_MS = 60_000  # for the controller to accept the reports; the recovery itself has no limit

Place = tuple[str, int]  # topic id, partition: a topic that is created again under the same name is another one


class DiskReports:
    """Belongs to the broker's loop. `wake` asks for a report; `lost` and `hand_over` are for the next one."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataService,
        controller: ControllerChannel,
        broker_epoch: Callable[[], int],
        is_offline: Callable[[TopicPartition], bool],
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._is_offline = is_offline
        self._epoch = -1  # of the registration for which the reports are numbered
        self._report_number = 0
        self._told = asyncio.Condition()
        self.work = asyncio.Event()
        self.lost: set[Place] = set()
        self.hand_over: set[Place] = set()
        self.holds_back = False  # the controller must get the report on the disks before it unfences this broker

    def wake(self) -> None:
        self.work.set()

    async def send(self, troubled_folders: tuple[FolderTrouble, ...]) -> None:
        self.work.clear()
        epoch = self._broker_epoch()
        if epoch != self._epoch:
            self._epoch, self._report_number = epoch, 0
        self._report_number += 1
        lost, hand_over = frozenset(self.lost), frozenset(self.hand_over)
        request = ReportOfflineReplicas(
            node_id=self._node_id,
            broker_epoch=epoch,
            report=self._report_number,
            troubled_folders=troubled_folders,
            offline=_grouped(self.offline_places()),
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
            self.work.set()
            await asyncio.sleep(REPORT_RETRY_MS / 1000)
            return
        self.lost -= lost
        self.hand_over -= hand_over
        self.holds_back = False
        logger.info("reported offline_replicas=%d troubled_folders=%d lost=%d", len(self.offline_places()),
                    len(request.troubled_folders), len(lost))  # fmt: skip
        async with self._told:
            self._told.notify_all()

    def offline_places(self) -> set[Place]:
        """The replicas of this broker that it cannot serve."""
        return {
            place
            for topic_partition, place, _ in replicas_of(self._metadata.image, self._node_id)
            if self._is_offline(topic_partition)
        }

    async def until_told(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(BRING_BACK_TIMEOUT_MS / 1000), self._told:
                while not is_so() or self.work.is_set():
                    await self._told.wait()
        except TimeoutError:
            raise RequestTimedOutError(f"the controller has not confirmed {what}; try again when it answers") from None

    def places_of(self, topic_partitions: Iterable[TopicPartition]) -> set[Place]:
        wanted = set(topic_partitions)
        ours = replicas_of(self._metadata.image, self._node_id)
        return {place for topic_partition, place, _ in ours if topic_partition in wanted}

    def marked_places(self) -> set[Place]:
        ours = replicas_of(self._metadata.image, self._node_id)
        return {place for _, place, partition in ours if self._node_id in partition.offline_replicas}


def replicas_of(image: MetadataImage, node_id: int) -> Iterable[tuple[TopicPartition, Place, PartitionImage]]:
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                yield TopicPartition(topic.name, number), (topic.topic_id, number), partition


def _grouped(places: Iterable[Place]) -> tuple[TopicNumbers, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, number in sorted(places):
        by_topic.setdefault(topic_id, []).append(number)
    return tuple(TopicNumbers(topic_id=topic_id, partitions=tuple(found)) for topic_id, found in by_topic.items())
