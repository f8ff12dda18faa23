"""The fetcher with a leader that the test plays: each call waits until the test answers it."""

import asyncio
from random import Random
from types import SimpleNamespace

from simulation.isr_log import RECORD, MemoryLog

from barnabas.log.replication.effects import (
    Effect,
    FlushLog,
    LogEndAdvanced,
    PartitionAssignment,
    StartFetching,
    StopFetching,
)
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import ErrorCode, NetworkError, StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.following.replica_fetcher import (
    FIRST_PARTITION_BACKOFF_MS,
    FetchSettings,
    FetchThrottle,
    NoThrottle,
    ReplicaFetcher,
    ReplicaFetcherManager,
)
from barnabas.net.wire.protocol.requests import FetchRequest, Request
from barnabas.net.wire.protocol.responses import ErrorResponse, FetchPartitionResponse, FetchResponse, Response

ME, LEADER = 2, 1


class NoDelay(Random):
    """Back-off without time: the jitter factor is nil."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Leader:
    """A ConnectionToLeader: calls pile up here, and wait."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[tuple[FetchRequest, asyncio.Future[Response]]] = asyncio.Queue()
        self.is_closed = False
        self.timeout_ms = 0  # of the last call

    async def send(self, request: Request, timeout_ms: int) -> "asyncio.Future[Response]":
        assert isinstance(request, FetchRequest)
        self.timeout_ms = timeout_ms
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.calls.put_nowait((request, future))
        return future

    async def close(self) -> None:
        self.is_closed = True

    async def next_call(self) -> tuple[FetchRequest, "asyncio.Future[Response]"]:
        return await asyncio.wait_for(self.calls.get(), 5)


def assignment(number: int = 0, *, isr: tuple[int, ...] = (LEADER, ME)) -> PartitionAssignment:
    return PartitionAssignment(
        topic_partition=TopicPartition("t", number),
        topic_id="t1",
        leader=LEADER,
        leader_epoch=5,
        partition_epoch=1,
        replicas=(1, 2),
        isr=isr,
    )


def replica(number: int = 0, *, isr: tuple[int, ...] = (LEADER, ME)) -> Partition:
    partition = Partition(MemoryLog(TopicPartition("t", number)), ME)
    partition.make_follower(assignment(number, isr=isr), 0)
    return partition


def data(number: int = 0, offset: int = 0, *, high_watermark: int = 0, epoch: int = 5) -> FetchPartitionResponse:
    record = bytearray(RECORD.pack(offset, epoch, 0, offset))
    return FetchPartitionResponse(
        topic="t", partition=number, records=record, high_watermark=high_watermark, log_start_offset=0
    )


def response(*partitions: FetchPartitionResponse) -> FetchResponse:
    return FetchResponse(partitions=partitions)


class World:
    """A fetcher that runs for the length of a test."""

    def __init__(self, settings: FetchSettings | None = None, throttle: FetchThrottle | None = None) -> None:
        self.leader = Leader()
        self.effects: list[Effect] = []
        self.fetcher = ReplicaFetcher(
            LEADER,
            self.leader,
            identity=SimpleNamespace(node_id=ME, broker_epoch=77),
            settings=settings or FetchSettings(),
            rng=NoDelay(1),
            wall_ms=lambda: 1_000,
            on_effects=self.effects.extend,
            throttle=throttle or NoThrottle(),
        )

    async def __aenter__(self) -> "World":
        self.task = asyncio.ensure_future(self.fetcher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.task.cancelled() and self.leader.is_closed


async def test_the_next_fetch_follows_the_data_at_once_and_acknowledges_it():
    async with World() as world:
        partition = replica()
        world.fetcher.add(partition.topic_partition, partition.following)
        request, reply = await world.leader.next_call()
        assert (request.replica_id, request.broker_epoch, request.min_bytes) == (ME, 77, 1)
        assert request.max_wait_ms <= 500
        reply.set_result(response(data(high_watermark=1)))
        request, _ = await world.leader.next_call()
        (asked,) = request.partitions
        assert (asked.fetch_offset, asked.current_leader_epoch, asked.last_fetched_epoch, asked.topic_id) == (
            1,
            5,
            5,
            "t1",
        )
        assert partition.high_watermark == 1
        assert LogEndAdvanced(topic_partition=partition.topic_partition, log_end_offset=1) in world.effects


async def test_the_settings_are_what_is_asked_for():
    settings = FetchSettings(
        max_wait_ms=70, min_bytes=9, max_bytes=5_000, max_partition_bytes=400, call_timeout_ms=90, max_backoff_ms=100
    )
    async with World(settings) as world:
        world.fetcher.add(TopicPartition("t", 0), replica().following)
        request, _ = await world.leader.next_call()
        assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (70, 9, 5_000)
        assert [part.max_bytes for part in request.partitions] == [400]
        assert world.leader.timeout_ms == 90


async def test_who_has_everything_asks_less_often_until_there_is_news():
    nothing = FetchPartitionResponse(topic="t", partition=0, high_watermark=0, log_start_offset=0)
    async with World(FetchSettings(max_wait_ms=100, max_idle_wait_ms=500)) as world:
        world.fetcher.add(TopicPartition("t", 0), replica().following)
        waits = []
        for answer in (nothing, nothing, nothing, nothing, data(), nothing):
            request, reply = await world.leader.next_call()
            waits.append(request.max_wait_ms)
            reply.set_result(response(answer))
        # The last answer does not know yet that the record is committed: the high watermark must not come late.
        request, _ = await world.leader.next_call()
        assert [*waits, request.max_wait_ms] == [100, 200, 400, 500, 500, 100, 100]


async def test_news_of_one_partition_count_whatever_the_last_one_says():
    async with World(FetchSettings(max_wait_ms=100, max_idle_wait_ms=500)) as world:
        for number in range(2):
            world.fetcher.add(TopicPartition("t", number), replica(number).following)
        nothing = [
            FetchPartitionResponse(topic="t", partition=number, high_watermark=0, log_start_offset=0)
            for number in range(2)
        ]
        waits = []
        for answers in (nothing, [data(0), nothing[1]], nothing):
            request, reply = await world.leader.next_call()
            waits.append(request.max_wait_ms)
            reply.set_result(response(*answers))
        request, _ = await world.leader.next_call()
        assert [*waits, request.max_wait_ms] == [100, 200, 100, 100]


async def test_a_new_partition_does_not_wait_for_a_parked_fetch():
    async with World() as world:
        world.fetcher.add(TopicPartition("t", 0), replica(0).following)
        await world.leader.next_call()
        world.fetcher.add(TopicPartition("t", 1), replica(1).following)
        world.fetcher.add(TopicPartition("t", 2), replica(2).following)
        request, _ = await world.leader.next_call()
        assert sorted(part.partition for part in request.partitions) == [0, 1, 2]
        assert world.leader.calls.empty()


async def test_a_removed_partition_takes_no_answer_any_more():
    async with World() as world:
        first, second = replica(0), replica(1)
        world.fetcher.add(first.topic_partition, first.following)
        world.fetcher.add(second.topic_partition, second.following)
        _, reply = await world.leader.next_call()
        world.fetcher.remove(first.topic_partition)
        reply.set_result(response(data(0), data(1)))
        request, _ = await world.leader.next_call()
        assert [part.partition for part in request.partitions] == [1]
        assert (first.log_end_offset, second.log_end_offset) == (0, 1)


async def test_partitions_with_data_go_to_the_end_of_the_line():
    async with World() as world:
        for number in (2, 1, 0):
            world.fetcher.add(TopicPartition("t", number), replica(number).following)
        request, reply = await world.leader.next_call()
        assert [part.partition for part in request.partitions] == [0, 1, 2]
        reply.set_result(response(data(0)))
        request, _ = await world.leader.next_call()
        assert [part.partition for part in request.partitions] == [1, 2, 0]


async def test_a_lost_connection_and_a_refusal_are_tried_again():
    async with World() as world:
        world.fetcher.add(TopicPartition("t", 0), replica().following)
        for failure in (NetworkError("reset"), TimeoutError()):
            _, reply = await world.leader.next_call()
            reply.set_exception(failure)
        _, reply = await world.leader.next_call()
        reply.set_result(ErrorResponse(error=1, message="no"))
        _, reply = await world.leader.next_call()
        assert world.fetcher._failures == 3
        reply.set_result(response())
        await world.leader.next_call()
        assert world.fetcher._failures == 0


async def test_the_trouble_of_one_partition_stops_no_other():
    async with World() as world:
        broken, sound = replica(0), replica(1)
        assert isinstance(broken.log, MemoryLog)
        broken.log.fail_next, broken.log.failed = StorageError("EIO"), True
        world.fetcher.add(sound.topic_partition, sound.following)
        world.fetcher.add(broken.topic_partition, broken.following)
        _, reply = await world.leader.next_call()
        reply.set_result(response(data(0), data(1)))
        request, _ = await world.leader.next_call()
        assert [part.partition for part in request.partitions] == [1]
        assert sound.log_end_offset == 1 and broken.storage.error is not None


async def test_an_error_of_a_partition_delays_that_partition():
    async with World() as world:
        world.fetcher._rng = Random(1)
        world.fetcher.add(TopicPartition("t", 0), replica(0).following)
        world.fetcher.add(TopicPartition("t", 1), replica(1).following)
        _, reply = await world.leader.next_call()
        refused = FetchPartitionResponse(topic="t", partition=0, error=ErrorCode.FENCED_LEADER_EPOCH)
        reply.set_result(response(refused))
        request, reply = await world.leader.next_call()
        assert [part.partition for part in request.partitions] == [1]
        world.fetcher.remove(TopicPartition("t", 1))
        reply.set_result(response())
        request, _ = await world.leader.next_call()  # when its time has come, though nothing else happened
        assert [part.partition for part in request.partitions] == [0]


async def test_a_partition_whose_leader_did_not_know_yet_is_asked_for_again_at_once():
    """The answers of the other partitions may be half a second away, and acks=all waits for this one."""
    async with World() as world:
        world.fetcher._rng = Random(1)
        world.fetcher.add(TopicPartition("t", 0), replica(0).following)
        world.fetcher.add(TopicPartition("t", 1), replica(1).following)
        waits_ms = []
        for _ in range(9):
            _, reply = await world.leader.next_call()
            refused = FetchPartitionResponse(topic="t", partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            reply.set_result(response(refused))
            request, reply = await world.leader.next_call()
            assert [part.partition for part in request.partitions] == [1]
            waits_ms.append(request.max_wait_ms)
            await asyncio.sleep(request.max_wait_ms / 1000)  # the leader parks it for so long
            reply.set_result(response())
        assert waits_ms[0] <= 6 and all(wait_ms <= 240 for wait_ms in waits_ms)
        assert waits_ms[-1] >= 150  # what does not pass is asked for less and less often
        request, reply = await world.leader.next_call()
        reply.set_result(response(data(0)))
        request, _ = await world.leader.next_call()
        assert request.max_wait_ms >= 500


async def test_a_batch_of_a_newer_epoch_than_the_leaders_is_refused():
    """KAFKA-18723: the leader was deposed and its file rewritten while the answer was being sent."""
    async with World() as world:
        partition = replica()
        world.fetcher.add(partition.topic_partition, partition.following)
        _, reply = await world.leader.next_call()
        header = bytearray(61)
        header[8:12] = (49).to_bytes(4, "big")
        header[12:16] = (6).to_bytes(4, "big")
        answer = FetchPartitionResponse(topic="t", partition=0, records=header, high_watermark=0, log_start_offset=0)
        reply.set_result(response(answer))
        await world.leader.next_call()
        assert partition.log_end_offset == 0


async def test_the_manager_keeps_one_fetcher_for_each_leader():
    leaders: dict[int, Leader] = {}

    def connect(leader: int) -> Leader:
        return leaders.setdefault(leader, Leader())

    manager = ReplicaFetcherManager(
        identity=SimpleNamespace(node_id=ME, broker_epoch=1),
        settings=FetchSettings(),
        connect=connect,
        rng=NoDelay(1),
        wall_ms=lambda: 1_000,
        on_effects=lambda _: None,
    )
    partitions = {TopicPartition("t", number): replica(number) for number in range(3)}
    start = [StartFetching(topic_partition=tp, leader=LEADER, leader_epoch=5) for tp in partitions]
    manager.apply(start, lambda at: partitions[at].following)
    assert manager.leaders == (LEADER,)
    request, _ = await leaders[LEADER].next_call()
    assert len(request.partitions) == 3
    moved = TopicPartition("t", 0)
    manager.apply([StartFetching(topic_partition=moved, leader=3, leader_epoch=6)], lambda at: partitions[at].following)
    assert manager.leaders == (LEADER, 3)
    manager.apply([StopFetching(topic_partition=moved)], lambda at: partitions[at].following)
    manager.apply([StopFetching(topic_partition=moved)], lambda at: partitions[at].following)
    assert manager.leaders == (LEADER,)
    await manager.close()
    assert manager.leaders == () and leaders[LEADER].is_closed


async def test_partitions_that_are_flushed_first_have_a_fetcher_of_their_own_which_waits_for_the_disk():
    leaders: list[Leader] = []

    def connect(_: int) -> Leader:
        leaders.append(Leader())
        return leaders[-1]

    effects: list[Effect] = []
    manager = ReplicaFetcherManager(
        identity=SimpleNamespace(node_id=ME, broker_epoch=1),
        settings=FetchSettings(),
        connect=connect,
        rng=NoDelay(1),
        wall_ms=lambda: 1_000,
        on_effects=effects.extend,
    )
    partitions = {TopicPartition("t", number): replica(number) for number in range(3)}
    _, *flushed = partitions.values()
    for partition in flushed:
        partition.log.config.flush_messages = 1
    start = [StartFetching(topic_partition=tp, leader=LEADER, leader_epoch=5) for tp in partitions]
    manager.apply(start, lambda at: partitions[at].following)
    assert manager.leaders == (LEADER,) and len(leaders) == 2
    request, reply = await leaders[1].next_call()
    assert len(request.partitions) == 2
    reply.set_result(response(data(1)))
    request, reply = await leaders[0].next_call()
    reply.set_result(response(data(0)))
    request, _ = await leaders[0].next_call()  # the usual one does not wait for the disk of the others
    assert request.partitions[0].fetch_offset == 1
    assert FlushLog(topic_partition=flushed[0].topic_partition) in effects and leaders[1].calls.empty()

    flushed[0].log.flush()
    manager.resume(flushed[0].topic_partition, flushed[0].following)
    request, reply = await leaders[1].next_call()
    assert {item.partition: item.fetch_offset for item in request.partitions} == {1: 1, 2: 0}

    flushed[0].log.config.flush_messages = 9  # its topic's policy is another one now
    manager.resume(flushed[0].topic_partition, flushed[0].following)
    request, _ = await leaders[0].next_call()
    assert {item.partition for item in request.partitions} == {0, 1}
    await manager.close()


async def test_a_partition_whose_disk_hangs_holds_up_no_other_one_of_its_leader():
    async with World() as world:
        on_bad_disk, other = replica(0), replica(1)
        for partition in (on_bad_disk, other):
            partition.log.config.flush_messages = 1
            world.fetcher.add(partition.topic_partition, partition.following)
        request, reply = await world.leader.next_call()
        while len(request.partitions) < 2:
            request, reply = await world.leader.next_call()
        reply.set_result(response(data(0), data(1)))
        for _ in range(5):  # until it is handled
            await asyncio.sleep(0)
        other.log.flush()
        world.fetcher.resume(other.topic_partition)
        await asyncio.sleep(0)
        assert world.leader.calls.empty()  # a moment later one request names both
        on_bad_disk.following.disk_hung(True)
        world.fetcher.resume(other.topic_partition)
        request, _ = await world.leader.next_call()
        assert [item.partition for item in request.partitions] == [1]


async def test_a_partition_that_comes_during_a_back_off_waits_for_its_end():
    """The wait of the call that failed is over: there is nothing to interrupt (simulation seed 4)."""
    async with World() as world:
        world.fetcher._rng = Random(1)
        first, second = replica(0), replica(1)
        world.fetcher.add(first.topic_partition, first.following)
        _, reply = await world.leader.next_call()
        reply.set_exception(NetworkError("gone"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.fetcher.add(second.topic_partition, second.following)
        request, _ = await world.leader.next_call()
        assert {part.partition for part in request.partitions} == {0, 1}


async def test_a_new_leader_that_does_not_know_it_yet_is_asked_again_in_milliseconds():
    """acks=all waits for us: in a planned transfer the other partitions' parked fetch held us up for half a second."""
    async with World() as world:
        world.fetcher._rng = Random(1)
        waiting, other = replica(0), replica(1)
        world.fetcher.add(waiting.topic_partition, waiting.following)
        world.fetcher.add(other.topic_partition, other.following)
        _, reply = await world.leader.next_call()
        reply.set_result(response(FetchPartitionResponse(topic="t", partition=0, error=ErrorCode.UNKNOWN_LEADER_EPOCH)))
        request, reply = await world.leader.next_call()
        assert [part.partition for part in request.partitions] == [1]
        assert request.max_wait_ms <= 2 * FIRST_PARTITION_BACKOFF_MS
        await asyncio.sleep(3 * FIRST_PARTITION_BACKOFF_MS / 1000)  # as the leader parks it
        reply.set_result(response())
        request, _ = await world.leader.next_call()
        assert {part.partition for part in request.partitions} == {0, 1}
        assert request.max_wait_ms >= 500


class Throttle:
    """Holds partition 0 back after its first bytes, until it is told otherwise."""

    def __init__(self) -> None:
        self.delay_ms = 0
        self.bytes: list[tuple[TopicPartition, int]] = []

    def fetch_delay_ms(self, topic_partition: TopicPartition) -> int:
        return self.delay_ms if self.bytes and topic_partition.partition == 0 else 0

    def fetched(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        self.bytes.append((topic_partition, size_bytes))


async def test_a_partition_that_is_held_back_is_not_asked_for_until_its_time():
    throttle = Throttle()
    async with World(throttle=throttle) as world:
        throttle.delay_ms = 20
        added, in_sync = replica(0, isr=(LEADER,)), replica(1)
        world.fetcher.add(added.topic_partition, added.following)
        world.fetcher.add(in_sync.topic_partition, in_sync.following)
        _, reply = await world.leader.next_call()
        reply.set_result(response(data(0)))
        request, reply = await world.leader.next_call()
        assert [place.partition for place, _ in throttle.bytes] == [0] and throttle.bytes[0][1] > 0
        assert [part.partition for part in request.partitions] == [1]
        throttle.delay_ms = 0
        await asyncio.sleep(0.03)
        reply.set_result(response())
        request, _ = await world.leader.next_call()
        assert {part.partition for part in request.partitions} == {0, 1}
