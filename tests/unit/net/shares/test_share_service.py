"""Reads of share groups on a leader with a real log: who may have records, what wakes a waiting read, what waiting costs."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from simulation.log_building import NOW_MS, end_transaction, transactional
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
    ShareRange,
    ShareStateOutcome,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)
from barnabas.net.coordination.shares.led_partitions import LedSharePartitions
from barnabas.net.coordination.shares.share_loading import ShareLoading
from barnabas.net.coordination.shares.share_service import ShareService
from barnabas.net.coordination.shares.state_store import ShareStateStore
from barnabas.net.server.dispatcher import RequestContext

ALONE = topic("t", partition(0, replicas=(0,)))
EARLIEST = {"share.auto.offset.reset": "earliest"}
LOCK_MS = 30_000


class Store:
    """A coordinator that keeps one state."""

    def __init__(self) -> None:
        self.is_away = False
        self.loads = 0
        self.writes = 0
        self.load_id = 0
        self.start_offset: int | None = None
        self.ranges: Sequence[ShareRange] = ()
        self.written_epoch = -1
        self.gate = asyncio.Event()
        self.gate.set()
        self.loading = asyncio.Event()
        self.loading.set()

    async def load(self, request: LoadShareStatesRequest) -> LoadShareStatesResponse:
        if self.is_away:
            raise CoordinatorNotAvailableError("moving")
        await self.loading.wait()
        self.loads += 1
        self.load_id += 1
        (item,) = request.states
        if self.start_offset is None:
            self.start_offset = item.initial_offset
        state = LoadedShareState(
            load_id=self.load_id,
            start_offset=self.start_offset,
            ranges=tuple(self.ranges),
            written_epoch=self.written_epoch,
        )
        return LoadShareStatesResponse(states=(state,))

    async def write(self, request: WriteShareStatesRequest) -> WriteShareStatesResponse:
        await self.gate.wait()
        self.writes += 1
        (item,) = request.states
        if item.load_id != self.load_id:
            return WriteShareStatesResponse(outcomes=(ShareStateOutcome(error=ErrorCode.FENCED_STATE_EPOCH),))
        self.start_offset, self.ranges = item.start_offset, item.ranges
        return WriteShareStatesResponse(outcomes=(ShareStateOutcome(),))

    def reset(self, offset: int) -> None:
        """By an operator, who sees that the group has no members."""
        self.load_id += 1
        self.start_offset, self.ranges = offset, ()


class World:
    def __init__(self, broker: HandlerWorld) -> None:
        self.broker = broker
        self.denied: set[str] = set()
        self.passes = 0  # over the partition of a session
        self.service = ShareService(broker, broker.shell.clock, pytest.fail, may_read=self._may_read)
        self.store = Store()
        self.service.store = cast(ShareStateStore, self.store)
        self.service.led = LedSharePartitions(store=self.service.store, spawn=asyncio.create_task)
        self.service.loading = ShareLoading(
            store=self.service.store, led=self.service.led, sessions=self.service.sessions
        )
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
        assert self.passes < 1_000, "a read spins: virtual time stands still"
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
async def test_another_user_can_neither_end_the_session_nor_use_the_locks_of_a_member_whose_id_it_knows() -> None:
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
    named = ShareFetchPartition(topic_id="id-t", partition=0, acknowledged=one(0, Acknowledgement.ACCEPT))
    theft = ShareAcknowledgeRequest(group_id="g", member_id="m", session_epoch=1, partitions=(named,))
    stolen = await world.service.acknowledge(theft, cast(RequestContext, stranger))
    assert stolen.partitions[0].acknowledge_error == ErrorCode.INVALID_RECORD_STATE
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


# --- acknowledgements and their state ---------------------------------------------------------------------------------


@simulated
async def test_an_acknowledgement_is_answered_when_it_is_stored() -> None:
    world = await World.start()
    world.broker.append(b"a")
    assert offsets(await world.fetch()) == [0]
    world.store.gate.clear()
    acknowledging = asyncio.create_task(world.fetch(acknowledged=one(0, Acknowledgement.ACCEPT), max_bytes=0))
    await asyncio.sleep(5)
    assert not acknowledging.done()
    world.store.gate.set()
    assert (await acknowledging).partitions[0].acknowledge_error == 0 and world.store.start_offset == 1


@simulated
async def test_locks_end_with_the_leadership_though_the_leader_is_the_same() -> None:
    """Another leader may have been there meanwhile: the state is loaded again."""
    world = await World.start()
    for _ in range(2):
        world.broker.append(b"a")
    assert offsets(await world.fetch()) == [0, 1]
    await world.fetch(acknowledged=one(1, Acknowledgement.ACCEPT), max_bytes=0)
    again = topic("t", partition(0, epoch=2, replicas=(0,)))
    world.broker.show(again, group_configs={"g": EARLIEST}, offset=12)
    (refused,) = (await world.fetch(acknowledged=one(0, Acknowledgement.ACCEPT), max_bytes=0)).partitions
    assert refused.acknowledge_error == ErrorCode.INVALID_RECORD_STATE
    assert offsets(await world.fetch("other")) == [0] and world.store.loads == 2


@simulated
async def test_a_partition_that_is_led_elsewhere_is_forgotten() -> None:
    world = await World.start()
    world.broker.append(b"a")
    await world.fetch()
    assert len(world.service.led) == 1
    moved = topic("t", partition(1, epoch=2, replicas=(0, 1)))
    world.broker.show(moved, group_configs={"g": EARLIEST}, offset=12)
    await asyncio.sleep(2)
    assert not len(world.service.led) and not world.service.led.locked


@simulated
async def test_records_at_offsets_that_the_log_had_lost_are_delivered() -> None:
    """An unclean election: the stored state knows records that do not exist any more."""
    world = await World.start()
    world.broker.append(b"a")
    world.store.start_offset = 0
    world.store.ranges = [ShareRange(first_offset=0, last_offset=9, state=2, delivery_count=1)]
    assert offsets(await world.fetch()) == []
    world.broker.append(b"new")
    assert offsets(await world.fetch(names_partition=False, wait_ms=1_000)) == [1]


@simulated
@pytest.mark.parametrize(("written_epoch", "given"), [(1, [2, 3, 4]), (-1, []), (2, []), (0, [0, 1, 2, 3, 4])])
async def test_records_of_a_later_leader_at_offsets_that_were_acknowledged_are_delivered(
    written_epoch: int, given: list[int]
) -> None:
    """An unclean election: the leader of epoch 1 had five records, which the group has accepted. The next leader has two of
    them, and wrote three others before the group asked it."""
    world = await World.start()
    for _ in range(2):
        world.broker.append(b"a")
    world.broker.show(topic("t", partition(0, epoch=2, replicas=(0,))), group_configs={"g": EARLIEST}, offset=12)
    for _ in range(3):
        world.broker.append(b"new")
    world.store.start_offset, world.store.written_epoch = 5, written_epoch
    assert offsets(await world.fetch()) == given


@simulated
async def test_deleted_records_free_their_locks() -> None:
    world = await World.start(share_partition_max_record_locks="10")
    for _ in range(12):
        world.broker.append(b"a")
    assert len(offsets(await world.fetch())) == 10
    world.broker.partition().leading.delete_records(5)
    assert offsets(await world.fetch("other")) == [10, 11]


@simulated
async def test_committed_records_only_and_no_passes_while_a_transaction_is_open() -> None:
    world = await World.start(share_isolation_level="read_committed")
    log = world.broker.log()
    log.append_as_leader(transactional(9, 0, b"aborted"), leader_epoch=1, now_ms=NOW_MS)
    world.broker.append(b"plain")
    assert offsets(await world.fetch(wait_ms=2_000)) == []
    assert world.passes <= 2
    end_transaction(log, 9, commits=False, leader_epoch=1)
    world.broker.append(b"after")
    assert offsets(await world.fetch(names_partition=False, wait_ms=1_000)) == [1, 3]


@simulated
@pytest.mark.parametrize(
    "is_lost", [False, True], ids=["the session ended", "its member is lost, and the session is not"]
)
async def test_a_session_begins_where_an_operator_has_set_the_group(is_lost: bool) -> None:
    world = await World.start()
    for value in (b"a", b"b", b"c"):
        world.broker.append(value)
    assert offsets(await world.fetch()) == [0, 1, 2]
    everything = (AcknowledgedBatch(first_offset=0, last_offset=2, kinds=(Acknowledgement.ACCEPT,)),)
    await world.fetch(acknowledged=everything, max_bytes=0)
    if not is_lost:
        last = ShareAcknowledgeRequest(group_id="g", member_id="m", session_epoch=-1, partitions=())
        await world.service.acknowledge(last, cast(RequestContext, world.clients["m"]))
    world.broker.append(b"d")
    world.store.reset(0)
    assert offsets(await world.fetch("other")) == [0, 1, 2, 3]


@simulated
async def test_what_sessions_read_is_confirmed_once_for_each_of_them() -> None:
    world = await World.start()
    world.broker.append(b"a")
    await world.fetch()
    assert (world.store.loads, world.store.writes) == (1, 0)  # the load came behind the session
    for writes in (1, 2):
        for _ in range(3):
            await world.fetch(f"other-{writes}")
        assert (world.store.loads, world.store.writes) == (1, writes)


@simulated
async def test_a_session_that_begins_while_an_earlier_one_loads_waits_for_a_confirmation() -> None:
    world = await World.start()
    world.broker.append(b"a")
    world.store.loading.clear()
    first = asyncio.create_task(world.fetch())
    await asyncio.sleep(0.1)
    second = asyncio.create_task(world.fetch("other"))
    await asyncio.sleep(0.1)
    world.store.loading.set()
    await asyncio.gather(first, second)
    assert (world.store.loads, world.store.writes) == (1, 1)
