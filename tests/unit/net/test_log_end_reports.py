"""Brokers report where their logs end: at once what has changed, all of it in intervals, as fast as a controller takes it."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from unit.net.shell_world import simulated

from barnabas.kraft.metadata.image import NO_LEADER
from barnabas.kraft.metadata.requests import ReportLogEnds
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.net.logs.log_end_reports import LogEndReports

ME = 0


def topic(partitions: int, *, leader: int = NO_LEADER) -> Any:
    one = SimpleNamespace(leader=leader, replicas=(ME, 1), offline_replicas=(), leader_epoch=5)
    return SimpleNamespace(partitions=(one,) * partitions)


class World:
    def __init__(self, *, answer_s: float = 0.0) -> None:
        self.answer_s = answer_s
        self.topics: dict[str, Any] = {}
        self.leader = 0
        self.sent: list[tuple[float, int]] = []  # when, of how many partitions
        log = SimpleNamespace(log_start_offset=0, log_end_offset=7, epoch_at=lambda offset: 5, latest_epoch=5)
        self.replica = SimpleNamespace(
            topic_id="id", log=log, role=SimpleNamespace(leader_epoch=5), storage=SimpleNamespace(is_usable=True)
        )
        self.reports = LogEndReports(
            node_id=ME,
            replicas=cast(Any, SimpleNamespace(find=lambda topic_partition: self.replica)),
            metadata=cast(Any, None),
            controller=cast(Any, self),
            broker_epoch=lambda: 1,
        )

    async def call(self, request: ReportLogEnds, *, timeout_ms: int) -> None:
        self.sent.append((asyncio.get_running_loop().time(), len(request.ends)))
        await asyncio.sleep(self.answer_s)

    def publish(self, **changed: Any) -> None:
        self.topics = self.topics | changed
        image = SimpleNamespace(topics=self.topics, partition=lambda place: self.topics[place[0]].partitions[place[1]])
        changes = SimpleNamespace(topics=tuple(changed))
        self.reports.published(
            cast(
                Any,
                SimpleNamespace(
                    image=image,
                    changes=changes,
                    restored=False,
                    leader=Leadership(leader_id=self.leader, term=self.leader, is_self=False),
                ),
            )
        )

    async def run(self, seconds: float) -> None:
        """For so long."""
        running = asyncio.create_task(self.reports.run())
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.wait({running})

    @property
    def partitions_sent(self) -> int:
        return sum(count for _, count in self.sent)


@simulated
async def test_reports_are_repeated_while_there_is_no_leader() -> None:
    world = World()
    world.publish(t=topic(3))
    await world.run(4.5)
    assert [count for _, count in world.sent] == [3] * 5
    world.publish(t=topic(3, leader=1))
    await world.run(3)
    assert len(world.sent) == 5


@simulated
async def test_changes_of_other_topics_are_no_reason_to_report_all_again() -> None:
    """Each change of the metadata made all brokers report all partitions without a leader."""
    world = World()
    world.publish(waiting=topic(500))
    running = asyncio.create_task(world.run(0.95))
    for _ in range(90):
        await asyncio.sleep(0.01)
        world.publish(other=topic(1, leader=1))
    await running
    assert world.partitions_sent == 500


@simulated
async def test_what_has_changed_is_reported_at_once_and_alone() -> None:
    world = World()
    world.publish(waiting=topic(500))
    running = asyncio.create_task(world.run(0.9))
    await asyncio.sleep(0.3)
    world.publish(late=topic(2))
    await asyncio.sleep(0.01)
    assert [count for _, count in world.sent] == [500, 2]
    await running


@simulated
async def test_a_controller_that_needs_long_for_the_reports_has_time_for_other_work() -> None:
    world = World(answer_s=0.1)
    world.publish(t=topic(10_000))
    await world.run(30)
    busy_s = world.answer_s * len(world.sent)
    assert 1 < busy_s < 4 and max(count for _, count in world.sent) <= 2_000


@simulated
async def test_a_new_controller_hears_all_at_once() -> None:
    world = World(answer_s=0.1)
    world.publish(t=topic(10_000))
    running = asyncio.create_task(world.run(3))
    await asyncio.sleep(1)
    assert world.partitions_sent == 10_000
    world.leader = 1
    world.publish()
    await asyncio.sleep(0.6)
    assert world.partitions_sent == 20_000
    await running


@simulated
async def test_a_log_that_is_not_ready_is_reported_as_soon_as_it_is() -> None:
    world = World()
    world.replica.storage.is_usable = False
    world.publish(t=topic(2))
    running = asyncio.create_task(world.run(0.9))
    await asyncio.sleep(0.5)
    assert not world.sent
    world.replica.storage.is_usable = True
    await asyncio.sleep(0.15)
    assert world.partitions_sent == 2
    await running


@simulated
async def test_many_topics_without_a_leader_do_not_hold_up_the_broker() -> None:
    """It was quadratic: 100,000 partitions took 13 s."""
    world = World()
    many = {f"t{number}": topic(10) for number in range(3_000)}
    began = time.thread_time()
    world.publish(**many)
    assert time.thread_time() - began < 0.5
