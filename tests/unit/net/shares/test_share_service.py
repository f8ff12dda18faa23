"""Reads of share groups on a leader with a real log: who may have records, what wakes a waiting read, what waiting costs."""

import asyncio
from typing import Any, cast

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, now_ms, partition, simulated, topic

from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, ErrorCode
from barnabas.log.vocabulary.principal import Principal
from barnabas.log.vocabulary.share.errors import ShareSessionNotFoundError
from barnabas.log.vocabulary.share.messages import (
    AcknowledgedBatch,
    Acknowledgement,
    LoadedShareState,
    LoadShareStatesRequest,
    LoadShareStatesResponse,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareStateOutcome,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.shares.led_partitions import LedSharePartitions
from barnabas.net.shares.share_service import ShareService
from barnabas.net.shares.state_store import ShareStateStore

ALONE = topic("t", partition(0, replicas=(0,)))
EARLIEST = {"share.auto.offset.reset": "earliest"}
LOCK_MS = 30_000


class Store:
    """A coordinator that keeps nothing, because nothing here is loaded twice."""

    is_away = False

    async def load(self, request: LoadShareStatesRequest) -> LoadShareStatesResponse:
        if self.is_away:
            raise CoordinatorNotAvailableError("moving")
        states = [LoadedShareState(load_id=1, start_offset=item.initial_offset) for item in request.states]
        return LoadShareStatesResponse(states=tuple(states))

    async def write(self, request: WriteShareStatesRequest) -> WriteShareStatesResponse:
        return WriteShareStatesResponse(outcomes=tuple(ShareStateOutcome() for _ in request.states))


class World:
    def __init__(self, broker: HandlerWorld) -> None:
        self.broker = broker
        self.denied: set[str] = set()
        self.passes = 0  # over the partition of a session
        self.service = ShareService(broker, broker.shell.clock, pytest.fail, may_read=self._may_read)
        self.store = Store()
        self.service.store = cast(ShareStateStore, self.store)
        self.service.led = LedSharePartitions(store=self.service.store, spawn=asyncio.create_task)
        self.ticks = asyncio.create_task(self._tick())
        self.epochs: dict[str, int] = {}
        self.clients: dict[str, Client] = {}

    @classmethod
    async def start(cls, **group: str) -> "World":
        broker = await HandlerWorld.start(ALONE)
        settings = EARLIEST | {key.replace("_", "."): value for key, value in group.items()}
        broker.show(ALONE, group_configs={"g": settings}, offset=11)
        return cls(broker)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.broker.replication.expire()
            self.service.tick()

    def _may_read(self, client: RequestContext, topic: str) -> bool:
        self.passes += 1
        return topic not in self.denied

    async def fetch(
        self,
        member: str = "m",
        *,
        wait_ms: int = 0,
        acknowledged: tuple[AcknowledgedBatch, ...] = (),
        names_partition: bool = True,
        **more: Any,
    ) -> ShareFetchResponse:
        epoch = self.epochs.get(member, 0)
        self.epochs[member] = epoch + 1
        named = ShareFetchPartition(topic_id="id-t", partition=0, acknowledged=acknowledged)
        request = ShareFetchRequest(
            group_id="g",
            member_id=member,
            session_epoch=epoch,
            partitions=(named,) if names_partition else (),
            max_wait_ms=wait_ms,
            **more,
        )
        client = self.clients.setdefault(member, Client())
        return await self.service.fetch(request, cast(RequestContext, client))


def offsets(answer: ShareFetchResponse) -> list[int]:
    acquired = [item for partition in answer.partitions for item in partition.acquired]
    return [offset for item in acquired for offset in range(item.first_offset, item.last_offset + 1)]


def one(offset: int, kind: int) -> tuple[AcknowledgedBatch, ...]:
    return (AcknowledgedBatch(first_offset=offset, last_offset=offset, kinds=(kind,)),)


async def parked(task: "asyncio.Task[ShareFetchResponse]") -> None:
    """It waits now."""
    await asyncio.sleep(0.5)
    assert not task.done()


@simulated
async def test_nothing_is_locked_for_a_member_that_may_no_longer_read() -> None:
    """Each lock counts as a delivery: the records would be archived, though no member that may read them has seen them."""
    world = await World.start()
    world.broker.append(b"a")
    assert offsets(await world.fetch("m", acknowledged=())) == [0]
    await world.fetch("m", acknowledged=one(0, Acknowledgement.RELEASE), max_bytes=0)
    world.denied = {"t"}
    for _ in range(10):
        (refused,) = (await world.fetch("m", names_partition=False)).partitions
        assert refused.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED and not refused.records
    world.denied = set()
    (read,) = (await world.fetch("other")).partitions
    assert read.acquired[0].delivery_count == 2


@simulated
async def test_another_user_cannot_end_the_session_of_a_member_whose_id_it_knows() -> None:
    world = await World.start()
    world.broker.append(b"a")
    assert offsets(await world.fetch()) == [0]
    stranger = Client()
    stranger.principal = Principal(name="mallory")
    last = ShareAcknowledgeRequest(group_id="g", member_id="m", session_epoch=-1, partitions=())
    with pytest.raises(ShareSessionNotFoundError):
        await world.service.acknowledge(last, cast(RequestContext, stranger))
    first = ShareFetchRequest(group_id="g", member_id="m", session_epoch=0)
    await world.service.fetch(first, cast(RequestContext, stranger))
    answer = await world.fetch(acknowledged=one(0, Acknowledgement.ACCEPT))
    assert answer.partitions[0].acknowledge_error == 0


@simulated
async def test_a_waiting_read_wakes_at_once_for_new_and_for_released_records() -> None:
    world = await World.start()
    waiting = asyncio.create_task(world.fetch(wait_ms=60_000))
    await parked(waiting)
    world.broker.append(b"a")
    assert offsets(await waiting) == [0]
    other = asyncio.create_task(world.fetch("other", wait_ms=60_000))
    await parked(other)
    began_ms = now_ms()
    await world.fetch(acknowledged=one(0, Acknowledgement.RELEASE), max_bytes=0)
    assert offsets(await other) == [0] and now_ms() - began_ms < 100


@simulated
async def test_a_waiting_read_wakes_when_a_lock_is_over_or_its_connection_lost() -> None:
    world = await World.start()
    world.broker.append(b"a")
    assert offsets(await world.fetch()) == [0]
    for holder, reader in (("m", "b"), ("b", "c")):
        waiting = asyncio.create_task(world.fetch(reader, wait_ms=60_000))
        await parked(waiting)
        if holder == "m":
            await asyncio.sleep(LOCK_MS / 1000)
        else:
            world.clients[holder].is_connected = False
        assert offsets(await asyncio.wait_for(waiting, 1)) == [0]


@simulated
async def test_a_waiting_read_ends_with_the_leadership() -> None:
    world = await World.start()
    waiting = asyncio.create_task(world.fetch(wait_ms=60_000))
    await parked(waiting)
    moved = topic("t", partition(1, epoch=2, replicas=(0, 1)))
    world.broker.show(moved, group_configs={"g": EARLIEST}, offset=12)
    (refused,) = (await asyncio.wait_for(waiting, 1)).partitions
    assert (refused.error, refused.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)


@simulated
async def test_waiting_costs_no_passes() -> None:
    """Whatever it waits for: records, locks of others, room, or the coordinator."""
    world = await World.start(share_partition_max_record_locks="10")
    await world.fetch("m", wait_ms=5_000)
    assert world.passes <= 2
    for _ in range(20):
        world.broker.append(b"a" * 100)
    assert len(offsets(await world.fetch("m", names_partition=False))) == 10
    world.passes = 0
    await world.fetch("no-room", wait_ms=5_000)
    await world.fetch("nothing", wait_ms=5_000, names_partition=False)
    assert world.passes <= 4
    world = await World.start()
    world.store.is_away = True
    world.broker.append(b"a")
    await world.fetch(wait_ms=1_000)
    assert world.passes <= 12
    world.store.is_away = False
    assert offsets(await world.fetch(names_partition=False)) == [0]


@simulated
async def test_a_batch_that_is_larger_than_asked_for_comes_alone() -> None:
    world = await World.start()
    for _ in range(2):
        world.broker.append(b"a" * 5_000)
    assert offsets(await world.fetch(max_bytes=1, wait_ms=1_000)) == [0]
    assert world.passes == 1
