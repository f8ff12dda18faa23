"""Which logs a broker reports the ends of, what it says, and how often."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from unit.net.shell_world import broker, image_of, partition, simulated, topic

from barnabas.kraft.metadata.image import NO_LEADER, PartitionImage
from barnabas.kraft.metadata.requests import LogEnd, ReportLogEnds
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.errors import NotControllerError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.log_end_reports import REPORT_INTERVAL_MS, LogEndReports

LEADERSHIP = Leadership(leader_id=0, term=1, is_self=True)
LOST = partition(NO_LEADER, epoch=5, isr=())


@dataclass
class Log:
    """Of records of epoch 2, after an election of epoch 4 without records."""

    log_end_offset: int
    log_start_offset: int = 0
    latest_epoch: int = 4

    def epoch_at(self, offset: int) -> int:
        assert self.log_start_offset <= offset < self.log_end_offset
        return 2


@dataclass
class World:
    replicas: dict[TopicPartition, Any] = field(default_factory=dict)
    sent: list[ReportLogEnds] = field(default_factory=list)
    is_away: bool = False

    def __post_init__(self) -> None:
        self.reports = LogEndReports(
            node_id=0,
            replicas=SimpleNamespace(find=self.replicas.get),  # type: ignore[arg-type]
            metadata=None,  # type: ignore[arg-type]
            controller=self,  # type: ignore[arg-type]
            broker_epoch=lambda: 100,
        )

    async def call(self, request: ReportLogEnds, *, timeout_ms: int) -> None:
        self.sent.append(request)
        if self.is_away:
            raise NotControllerError("moved")

    def has(self, number: int, log: Log, *, epoch: int = 5, is_usable: bool = True) -> None:
        self.replicas[TopicPartition("t", number)] = SimpleNamespace(
            topic_id="id-t",
            role=SimpleNamespace(leader=NO_LEADER, leader_epoch=epoch),
            storage=SimpleNamespace(is_usable=is_usable),
            log=log,
        )

    def show(self, *partitions: PartitionImage) -> None:
        image = image_of(broker(0), broker(1), topics=[topic("t", *partitions)])
        changes = SimpleNamespace(topics={"t": None})
        self.reports.published(SimpleNamespace(image=image, restored=False, changes=changes, leader=LEADERSHIP))  # type: ignore[arg-type]

    async def told(self, wait_ms: int = 0) -> list[dict[int, tuple[int, int, int]]]:
        """The reports of this time: leader epoch, last epoch and end offset of each partition."""
        self.sent.clear()
        await asyncio.sleep(wait_ms / 1000 + 0.001)
        return [{end.partition: _short(end) for end in request.ends} for request in self.sent if request.ends]


def _short(end: LogEnd) -> tuple[int, int, int]:
    return end.leader_epoch, end.last_epoch, end.end_offset


@simulated
async def test_the_end_of_each_log_without_a_leader_is_repeated_until_there_is_one() -> None:
    world = World()
    running = asyncio.create_task(world.reports.run())
    for number, log in enumerate((Log(7), Log(9), Log(3, 3), Log(5), Log(6))):
        world.has(number, log)
    world.show(
        LOST,
        LOST,
        LOST,  # an empty log: it begins where it ends
        replace(LOST, offline_replicas=(0,)),
        partition(1, epoch=5),
    )
    ends = {0: (5, 2, 7), 1: (5, 2, 9), 2: (5, 4, 3)}
    assert await world.told() == [ends]
    world.is_away = True
    assert await world.told(3 * REPORT_INTERVAL_MS) == [ends] * 3
    world.show(partition(1, epoch=6), LOST, partition(1, epoch=6))
    assert await world.told() == [{1: (5, 2, 9)}]
    world.show(*[partition(1, epoch=6)] * 3)
    assert await world.told(3 * REPORT_INTERVAL_MS) == []
    running.cancel()


@simulated
async def test_a_log_is_reported_when_nothing_is_appended_to_it_any_more() -> None:
    world = World()
    running = asyncio.create_task(world.reports.run())
    world.has(0, Log(7), epoch=4)  # it still follows the last leader
    world.has(1, Log(8), is_usable=False)
    world.show(LOST, LOST)
    assert await world.told(REPORT_INTERVAL_MS) == []
    world.has(0, Log(9))
    assert (await world.told(REPORT_INTERVAL_MS))[0] == {0: (5, 2, 9)}
    world.has(1, Log(8))
    assert (await world.told(REPORT_INTERVAL_MS))[-1] == {0: (5, 2, 9), 1: (5, 2, 8)}
    running.cancel()
