"""States are stored before anybody is told, again and again until they are, and never by a leader that was replaced."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.msgpack import encode
from unit.net.shell_world import simulated

from barnabas.consumer_groups.share.settings import ShareSettings
from barnabas.consumer_groups.share.share_partition import BatchSpan, SharePartition
from barnabas.kraft.quorum.memory_quorum import MAX_COMMAND_BYTES
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CoordinatorNotAvailableError,
    ErrorCode,
    GroupIdNotFoundError,
    NetworkError,
    NotLeaderOrFollowerError,
)
from barnabas.log.vocabulary.share.messages import (
    AcknowledgedBatch,
    ShareStateOutcome,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.coordination.shares.led_partitions import MAX_STATES_PER_WRITE, LedSharePartition, LedSharePartitions
from barnabas.net.coordination.shares.state_store import ShareStateStore


class Store:
    def __init__(self) -> None:
        self.requests: list[WriteShareStatesRequest] = []
        self.failures: list[BarnabasError] = []
        self.errors: dict[int, int] = {}  # by partition
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, request: WriteShareStatesRequest) -> WriteShareStatesResponse:
        self.requests.append(request)
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        outcomes = (ShareStateOutcome(error=self.errors.get(item.partition, 0)) for item in request.states)
        return WriteShareStatesResponse(outcomes=tuple(outcomes))


class World:
    def __init__(self, partitions: int = 1) -> None:
        self.store = Store()
        self.tasks: list[asyncio.Task[None]] = []
        self.led = LedSharePartitions(
            store=cast(ShareStateStore, self.store), spawn=lambda work: self.tasks.append(asyncio.create_task(work))
        )
        self.all = [self.put(number) for number in range(partitions)]

    def put(self, number: int) -> LedSharePartition:
        partition: Any = SimpleNamespace(topic_id="t1", topic_partition=TopicPartition("t", number))
        machine = SharePartition(start_offset=0, ranges=(), settings=ShareSettings())
        led = LedSharePartition(
            group_id="g", partition=cast(Partition, partition), leader_epoch=1, load_id=7, machine=machine
        )
        self.led.put(led)
        machine.acquire("m", [BatchSpan(first_offset=0, last_offset=9)], max_records=10, now_ms=0)
        return led

    @staticmethod
    def accept(led: LedSharePartition, offset: int) -> None:
        batch = AcknowledgedBatch(first_offset=offset, last_offset=offset, kinds=(1,))
        led.machine.acknowledge("m", [batch], 1)


@simulated
async def test_changes_that_come_meanwhile_are_stored_together() -> None:
    world = World()
    (led,) = world.all
    world.store.gate.clear()
    waiting = []
    for offset in range(3):
        world.accept(led, offset)
        waiting.append(asyncio.create_task(world.led.store(led)))
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    world.store.gate.set()
    await asyncio.gather(*waiting)
    first, second = [item for request in world.store.requests for item in request.states]
    assert (first.sequence, second.sequence, second.start_offset) == (1, 2, 3) and first.start_offset < 3
    await world.led.store(led)  # nothing to do
    assert len(world.store.requests) == 2


@simulated
async def test_a_write_is_repeated_with_a_higher_sequence() -> None:
    world = World()
    (led,) = world.all
    world.store.failures = [NetworkError("lost"), CoordinatorNotAvailableError("moving")]
    world.accept(led, 0)
    await world.led.store(led)
    assert [item.sequence for request in world.store.requests for item in request.states] == [1, 2, 3]


@simulated
async def test_an_answer_is_not_awaited_without_end() -> None:
    world = World()
    (led,) = world.all
    world.store.gate.clear()
    world.accept(led, 0)
    with pytest.raises(CoordinatorNotAvailableError, match="not known whether"):
        await world.led.store(led)
    world.store.gate.set()
    await world.led.store(led)


@simulated
async def test_what_another_leader_has_loaded_is_dropped() -> None:
    world = World(2)
    fenced, other = world.all
    world.store.errors = {0: ErrorCode.FENCED_STATE_EPOCH}
    reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    fenced.readers[reader] = None
    for led in world.all:
        world.accept(led, 0)
    lost = asyncio.create_task(world.led.store(fenced))
    await world.led.store(other)
    with pytest.raises(NotLeaderOrFollowerError):
        await lost
    assert reader.done() and fenced.is_dropped and len(world.led) == 1
    world.accept(fenced, 1)
    world.led.store_later(fenced)
    await asyncio.sleep(1)
    assert all(task.done() for task in world.tasks)


@simulated
async def test_a_deleted_group_drops_all_of_its_partitions() -> None:
    world = World(3)
    world.store.failures = [GroupIdNotFoundError("gone")]
    for led in world.all:
        world.accept(led, 0)
    outcomes = await asyncio.gather(*(world.led.store(led) for led in world.all), return_exceptions=True)
    assert all(isinstance(item, NotLeaderOrFollowerError) for item in outcomes) and not len(world.led)


@simulated
async def test_a_request_fits_into_a_command_of_the_quorum() -> None:
    """States with many ranges are written in several requests: one of 20 such states would be refused for its size."""
    world = World(5)
    for led in world.all:
        led.machine.settings = ShareSettings(max_record_locks=10_000)
        batch = BatchSpan(first_offset=led.machine.end_offset, last_offset=9_999)
        led.machine.acquire("m", [batch], max_records=10_000, now_ms=0)
        kinds = tuple(1 + number % 2 for number in range(9_000))
        led.machine.acknowledge("m", [AcknowledgedBatch(first_offset=1, last_offset=9_000, kinds=kinds)], 1)
    await asyncio.gather(*(world.led.store(led) for led in world.all))
    assert [len(request.states) for request in world.store.requests] == [2, 2, 1]
    for request in world.store.requests:
        states = [encode(item) for item in request.states]
        assert sum(len(item) for item in states) < MAX_COMMAND_BYTES


@simulated
async def test_requests_are_of_limited_size() -> None:
    world = World(2 * MAX_STATES_PER_WRITE + 1)
    for led in world.all:
        world.accept(led, 0)
    await asyncio.gather(*(world.led.store(led) for led in world.all))
    assert [len(request.states) for request in world.store.requests] == [MAX_STATES_PER_WRITE, MAX_STATES_PER_WRITE, 1]
