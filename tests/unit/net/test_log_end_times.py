"""What a broker reports of partitions without a leader, when, and how often."""

import asyncio

from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import partition, simulated, topic

from barnabas.kraft.metadata.image import NO_LEADER, PartitionImage
from barnabas.kraft.metadata.requests import Done, ReportLogEnds
from barnabas.log.vocabulary.errors import NotControllerError
from barnabas.net.logs.log_end_reports import REPORT_INTERVAL_MS, LogEndReports


def leaderless(epoch: int = 2, **changed: object) -> PartitionImage:
    return replace(partition(0, epoch=epoch, isr=()), leader=NO_LEADER, **changed)


class World(HandlerWorld):
    @property
    def reports(self) -> list[ReportLogEnds]:
        return [request for request in self.shell.source.requests if isinstance(request, ReportLogEnds)]

    def begin(self) -> "asyncio.Task[None]":
        """The leader has written two records in its epoch 1."""
        self.append(b"a", b"b")
        reports = LogEndReports(
            node_id=0,
            replicas=self.replication.manager,
            metadata=self.shell.metadata,
            controller=self.shell.controller,
            broker_epoch=lambda: 100,
        )
        self.shell.metadata.subscribe(reports.published)
        return asyncio.create_task(reports.run())


async def world_of() -> tuple[World, "asyncio.Task[None]"]:
    world = await World.start(topic("t", partition(0)))
    assert isinstance(world, World)
    world.shell.source.script(Done())
    return world, world.begin()


@simulated
async def test_the_end_of_a_partition_without_a_leader_is_reported_until_it_has_one() -> None:
    world, running = await world_of()
    await asyncio.sleep(5)
    assert world.reports == []
    world.show(topic("t", leaderless()), offset=11)
    await asyncio.sleep(0.01)
    (report,) = world.reports
    (end,) = report.ends
    assert (report.node_id, report.broker_epoch) == (0, 100)
    assert (end.topic_id, end.partition, end.leader_epoch, end.last_epoch, end.end_offset) == ("id-t", 0, 2, 1, 2)
    await asyncio.sleep(3 * REPORT_INTERVAL_MS / 1000)
    assert len(world.reports) == 4
    world.show(topic("t", partition(0, epoch=3)), offset=12)
    await asyncio.sleep(5)
    assert len(world.reports) == 4
    running.cancel()


@simulated
async def test_busy_metadata_makes_no_more_reports() -> None:
    world, running = await world_of()
    world.show(topic("t", leaderless()), offset=11)
    for number in range(50):
        await asyncio.sleep(0.01)
        world.show(topic("t", leaderless()), topic(f"other-{number}", partition(0)), offset=12 + number)
    assert len(world.reports) == 1
    running.cancel()


@simulated
async def test_replicas_of_others_and_offline_ones_are_not_reported() -> None:
    world, running = await world_of()
    world.show(topic("t", leaderless(offline_replicas=(0,))), topic("far", leaderless(replicas=(1, 2))), offset=11)
    await asyncio.sleep(5)
    assert world.reports == []
    running.cancel()


@simulated
async def test_a_refused_report_is_repeated() -> None:
    world, running = await world_of()
    world.shell.source.script(*[NotControllerError("another one")] * 5, Done())
    world.show(topic("t", leaderless()), offset=11)
    await asyncio.sleep(5)
    assert len(world.reports) > 5
    running.cancel()
