"""Lag in seconds by the leader's clock, for groups of five kinds, on virtual time; and what a restart leaves of it."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from simulation.log_building import DIRECTORY, batch_of, open_log
from unit.net.handlers.handler_world import HandlerWorld, answer_of
from unit.net.shell_world import partition, simulated, topic

from barnabas.log.disk.files import RealFiles
from barnabas.log.segment.append_times import RESOLUTION_MS
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.records.unread import UnreadHandler
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.testing.simulation.loop import run_simulated
from barnabas.net.wire.protocol.group_responses import UnreadPartitionResponse
from barnabas.net.wire.protocol.lag import NOTHING_COMMITTED, Lag, lag_behind
from barnabas.net.wire.protocol.requests import UnreadPartition, UnreadRequest

ALONE = topic("t", partition(0, replicas=(0,)))
REPLICATED = topic("t", partition(0))
LED_ELSEWHERE = topic("u", partition(1, epoch=7))


def unread(world: HandlerWorld, offset: int, *, name: str = "t", epoch: int = -1) -> UnreadPartitionResponse:
    item = UnreadPartition(topic=name, partition=0, offset=offset, current_leader_epoch=epoch)
    found: UnreadPartitionResponse = answer_of(
        UnreadHandler(world.services), UnreadRequest(partitions=(item,))
    ).partitions[0]
    assert (found.topic, found.partition) == (name, 0)
    return found


class Group:
    """Appends, reads and commits on virtual time, remembers when each record was truly appended, and judges lags."""

    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        self.appended_ms: list[int] = []
        self.committed = NOTHING_COMMITTED
        self.rng = Random(11)

    def append(self, count: int = 1) -> None:
        """The producer's clock lies: by up to a day into the past, by up to half an hour into the future."""
        at_ms = self.rng.randrange(-86_400_000, 1_800_000)
        self.world.append(*[b"x"] * count, at_ms=at_ms)
        self.appended_ms += [self.world.shell.clock.wall_ms()] * count

    def check(self) -> Lag:
        lag = lag_behind(self.committed, unread(self.world, self.committed))
        first = max(self.committed, 0)
        assert lag.lag == len(self.appended_ms) - first
        true_ms = self.world.shell.clock.wall_ms() - self.appended_ms[first] if first < len(self.appended_ms) else 0
        assert abs(lag.lag_ms - true_ms) <= max(1_000, true_ms // 100), (lag, true_ms)
        assert not lag.is_estimate
        return lag


async def steady(group: Group) -> None:
    """A record every 200 ms, read two seconds later."""
    for step in range(3_000):
        group.append()
        group.committed = max(step - 10, 0)
        if step % 7 == 0:
            assert group.check().lag == min(step + 1, 11)
        await asyncio.sleep(0.2)


async def bursty(group: Group) -> None:
    """A thousand records within a moment, then minutes of silence in which half of them are read."""
    for burst in range(60):
        for _ in range(10):
            group.append(100)
            await asyncio.sleep(0.02)
        await asyncio.sleep(group.rng.randrange(1, 300))
        group.committed = 1_000 * burst + group.rng.randrange(0, 1_000)
        group.check()


async def idle_producer(group: Group) -> None:
    """Everything is read, and nothing new comes: no lag, however long it takes. Then one record."""
    group.append(5)
    group.committed = 5
    for _ in range(50):
        await asyncio.sleep(600)
        assert group.check().lag_ms == 0
    group.append()
    await asyncio.sleep(40)
    assert 40_000 <= group.check().lag_ms <= 41_000


async def stopped_consumer(group: Group) -> None:
    """Read for a while and then no more: lag grows with the clock, also when the producer has stopped too."""
    for _ in range(600):
        group.append()
        await asyncio.sleep(1)
    group.committed = 300
    for _ in range(100):
        await asyncio.sleep(1_000)
        group.check()
    for offset in range(0, 600, 13):
        group.committed = offset
        group.check()


async def never_committed(group: Group) -> None:
    """Counts from the start of the log, and from there on as its records are deleted."""
    for _ in range(100):
        group.append()
        await asyncio.sleep(3)
    lag = group.check()
    assert not lag.has_committed and (lag.lag, lag.lag_ms) == (100, 300_000)
    group.world.partition().leading.delete_records(60)
    lag = lag_behind(NOTHING_COMMITTED, unread(group.world, NOTHING_COMMITTED))
    assert (lag.lag, lag.log_start_offset, lag.lag_ms) == (40, 60, 120_000)


@pytest.mark.parametrize("kind", [steady, bursty, idle_producer, stopped_consumer, never_committed])
def test_lag_is_right_within_a_second_or_a_hundredth(kind: Callable[[Group], object]) -> None:
    async def run(loop: asyncio.AbstractEventLoop) -> None:
        world = await HandlerWorld.start(ALONE)
        await kind(Group(world))  # type: ignore[misc]

    run_simulated(run)


@simulated
async def test_records_that_are_not_committed_yet_are_not_unread() -> None:
    world = await HandlerWorld.start(REPLICATED)
    for _ in range(4):
        world.append(b"a")
    world.follower_has(3)
    found = unread(world, 1)
    assert (found.log_start_offset, found.log_end_offset) == (0, 3)
    assert lag_behind(1, found).lag == 2
    assert lag_behind(9, unread(world, 9)).lag == 0


@simulated
async def test_who_does_not_lead_says_so_and_answers_the_rest() -> None:
    world = await HandlerWorld.start(ALONE, LED_ELSEWHERE)
    world.append(b"a")
    items = tuple(
        UnreadPartition(topic=name, partition=0, offset=0, current_leader_epoch=epoch)
        for name, epoch in (("u", -1), ("t", 9), ("t", -1), ("none", -1))
    )
    found = answer_of(UnreadHandler(world.services), UnreadRequest(partitions=items)).partitions
    assert [item.error for item in found] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert all(item.message for item in found if item.error)


# --- what is kept, and what is made up ----------------------------------------------------------------------------------

T0_MS = 1_700_000_000_000


def appended(log, *times_ms: int, timestamp_ms: int | None = None) -> None:
    for time_ms in times_ms:
        log.append_as_leader(
            batch_of(b"v" * 100, timestamp_ms=time_ms if timestamp_ms is None else timestamp_ms),
            leader_epoch=0,
            now_ms=time_ms,
        )


def test_a_clean_restart_keeps_the_times() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    appended(log, *range(T0_MS, T0_MS + 50_000, 1_000), timestamp_ms=T0_MS)
    before = [log.append_time_of(offset) for offset in range(51)]
    log.close()
    again = open_log(disk, was_stopped_cleanly=True)
    assert [again.append_time_of(offset) for offset in range(51)] == before
    assert before[50] is None and before[49].is_exact


def test_after_a_crash_honest_producers_times_are_right_and_marked_as_estimates(tmp_path) -> None:
    directory = str(tmp_path / "orders-0")
    files = RealFiles()
    config = LogConfig(segment_bytes=2_000, index_interval_bytes=100)
    log = open_log(files, directory, config=config)
    now_ms = files.modified_ms(str(tmp_path))
    appended(log, *range(now_ms - 100_000, now_ms - 50_000, 1_000))
    log.tail.save(log.recovery_point)
    appended(log, *range(now_ms - 50_000, now_ms, 1_000))
    again = open_log(files, directory, config=config)  # as kill -9 leaves it
    for offset in range(100):
        found = again.append_time_of(offset)
        assert found.is_exact == (False if offset >= 50 else found.is_exact)
        assert abs(found.time_ms - (now_ms - 100_000 + 1_000 * offset)) <= 2_000, offset
    appended(again, now_ms + 7_000)
    assert again.append_time_of(100).is_exact


def test_a_producers_clock_that_runs_ahead_cannot_make_records_younger_than_their_file(tmp_path) -> None:
    directory = str(tmp_path / "orders-0")
    files = RealFiles()
    log = open_log(files, directory)
    now_ms = files.modified_ms(str(tmp_path))
    appended(log, now_ms, timestamp_ms=now_ms + 3_000_000)
    again = open_log(files, directory)
    assert again.append_time_of(0).time_ms <= now_ms + 60_000


def test_a_damaged_file_costs_exactness_only() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    appended(log, T0_MS, T0_MS + 5_000)
    log.close()
    path = f"{DIRECTORY}/append-times"
    disk.write_atomically(path, disk.read_bytes(path)[:-1])
    found = open_log(disk, was_stopped_cleanly=True).append_time_of(1)
    assert found is not None and not found.is_exact


def test_a_follower_that_keeps_up_notes_its_own_clock_and_one_that_catches_up_the_batches() -> None:
    leader = open_log(SimulatedDisk())
    appended(leader, T0_MS, T0_MS + 5_000, T0_MS + 10_000, timestamp_ms=T0_MS - 77_000)
    follower = open_log(SimulatedDisk())
    old = leader.read(0, max_bytes=1 << 20, up_to_offset=2).read()
    follower.append_as_follower(old, now_ms=T0_MS + 10_000, is_fresh=False)
    new = leader.read(2, max_bytes=1 << 20, up_to_offset=3).read()
    follower.append_as_follower(new, now_ms=T0_MS + 10_020, is_fresh=True)
    found = [follower.append_time_of(offset) for offset in range(3)]
    assert [item.is_exact for item in found] == [False, False, True]
    assert found[0].time_ms == T0_MS - 77_000
    assert found[2].time_ms == T0_MS + 10_020


def test_a_truncation_takes_the_times_along() -> None:
    log = open_log(SimulatedDisk())
    appended(log, T0_MS, T0_MS + 5_000, T0_MS + 10_000)
    log.truncate_to(1)
    appended(log, T0_MS + 10_000 + RESOLUTION_MS // 2)
    assert log.append_time_of(1).time_ms == T0_MS + 10_000 + RESOLUTION_MS // 2
    log.truncate_fully_and_start_at(40)
    assert log.append_time_of(39) is None and log.append_time_of(40) is None
