"""Group commit: what asks while a flush is under way goes together in the next one; a failure is told, and final."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from simulation.log_building import NOW_MS, append, open_log
from unit.net.shell_world import simulated

from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.pending_flush import PendingFlush
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import StorageError, TooManyFilesError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.folder_writers import HANGS_AFTER_MS
from barnabas.net.logs.flusher import MAX_SEALED, FlushableLog, Flusher
from barnabas.net.testing.simulation.disk import SimulatedDisk


class SlowLog:
    """A log whose flushes end when the test says so."""

    def __init__(self, number: int) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.log_end_offset = self.flushed = 0
        self.begun = 0
        self.has_begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.error: StorageError | None = None

    @property
    def flushes(self) -> "SlowLog":
        return self

    def sealed(self) -> int:
        return 0

    def begin(self, now_ms: int | None = None, *, max_sealed: int | None = None) -> PendingFlush | None:
        if self.flushed == self.log_end_offset:
            return None
        self.begun += 1
        self.has_begun.release()
        return PendingFlush(
            end_offset=self.log_end_offset,
            sealed=0,
            is_whole=True,
            truncations=0,
            files=(),
            sync_names=self._wait,
            save_epochs=lambda: None,
        )

    def _wait(self) -> None:
        assert self.may_end.wait(5)
        if self.error is not None:
            raise self.error

    def finish(self, pending: PendingFlush) -> None:
        if pending.error is not None:
            raise pending.error
        self.flushed = pending.end_offset


class World:
    def __init__(self, folder_of: Callable[[TopicPartition], str] = lambda _: "/d") -> None:
        self.ended: asyncio.Queue[tuple[FlushableLog, StorageError | None]] = asyncio.Queue()
        self.fatal: list[str] = []
        self.flusher = Flusher(
            folder_of=folder_of,
            ended=lambda log, error: self.ended.put_nowait((log, error)),
            wall_ms=lambda: NOW_MS,
            fatal=self.fatal.append,
            folders=2,
        )

    async def next_end(self) -> tuple[FlushableLog, StorageError | None]:
        return await asyncio.wait_for(self.ended.get(), 5)


async def test_what_asks_meanwhile_goes_together_in_the_next_group() -> None:
    world = World()
    logs = [SlowLog(number) for number in range(5)]
    for log in logs:
        log.log_end_offset = 1
    world.flusher.ask(logs[0])
    await asyncio.sleep(0)
    for offset in range(2, 12):  # ten appends to each while the first flush is under way
        for log in logs:
            log.log_end_offset = offset
            world.flusher.ask(log)
            await asyncio.sleep(0)
    assert world.ended.empty() and [log.begun for log in logs] == [1, 0, 0, 0, 0]
    for log in logs:
        log.may_end.set()
    assert await world.next_end() == (logs[0], None) and logs[0].flushed == 1
    assert {(await world.next_end())[0] for _ in logs} == set(logs)
    assert [(log.flushed, log.begun) for log in logs] == [(11, 2), (11, 1), (11, 1), (11, 1), (11, 1)]
    assert (world.flusher.groups, world.flusher.logs) == (2, 6)
    await world.flusher.close()


async def test_a_slow_folder_does_not_hold_up_another() -> None:
    world = World(folder_of=lambda topic_partition: f"/d{topic_partition.partition}")
    slow, fast = SlowLog(0), SlowLog(1)
    slow.log_end_offset = fast.log_end_offset = 1
    world.flusher.ask(slow)
    world.flusher.ask(fast)
    fast.may_end.set()
    assert await world.next_end() == (fast, None)
    slow.may_end.set()
    assert await world.next_end() == (slow, None)
    await world.flusher.close()


async def test_a_failure_is_told_and_the_others_of_the_group_are_none_the_worse() -> None:
    world = World()
    bad, good = SlowLog(0), SlowLog(1)
    bad.error = StorageError("Input/output error")
    for log in (bad, good):
        log.log_end_offset = 1
        log.may_end.set()
        world.flusher.ask(log)
    assert await world.next_end() == (bad, bad.error)
    assert await world.next_end() == (good, None) and good.flushed == 1
    assert world.fatal == []
    await world.flusher.close()


async def test_closing_waits_for_the_thread() -> None:
    world = World()
    log = SlowLog(0)
    log.log_end_offset = 1
    world.flusher.ask(log)
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(world.flusher.close())
    await asyncio.sleep(0)
    assert not closing.done()
    log.may_end.set()
    await asyncio.wait_for(closing, 5)
    assert world.ended.empty() and world.fatal == []


async def test_a_real_log_is_durable_up_to_where_the_flush_began() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("/d/t-0")
    log = PartitionLog(
        disk, "/d/t-0", topic_partition=TopicPartition("t", 0), topic_id="t1", config=LogConfig(), now_ms=NOW_MS
    )
    append(log, b"a")
    pending = log.flushes.begin()
    assert pending is not None
    append(log, b"b")
    pending.perform()
    log.flushes.finish(pending)
    assert (log.recovery_point, log.log_end_offset) == (1, 2)

    pending = log.flushes.begin()
    assert pending is not None
    log.truncate_to(1)
    append(log, b"c")  # other data at the offset that the flush was to cover
    pending.perform()
    log.flushes.finish(pending)
    assert log.recovery_point == 1

    disk.fail_next("flush", "*.log")
    with pytest.raises(StorageError):
        log.flush()
    assert log.failed
    with pytest.raises(StorageError):
        log.flushes.begin()


async def test_a_segment_that_goes_meanwhile_is_no_failure() -> None:
    """Retention renames the file under the flush; its descriptor stays good."""
    disk = SimulatedDisk()
    disk.make_dirs("/d/t-0")
    config = LogConfig(segment_bytes=100, retention_bytes=0)
    log = PartitionLog(
        disk, "/d/t-0", topic_partition=TopicPartition("t", 0), topic_id="t1", config=config, now_ms=NOW_MS
    )
    for value in (b"a", b"b", b"c"):
        append(log, value)
    assert len(log.segments.all) > 1 and log.flushes.is_due(
        NOW_MS
    )  # a segment that grows no more is not on the disk yet
    pending = log.flushes.begin(NOW_MS)
    assert pending is not None
    log.set_high_watermark(3)
    assert log.delete_old_segments(NOW_MS)
    log.segments.remove_due_files(NOW_MS + 1_000_000)
    pending.perform()
    log.flushes.finish(pending)
    assert not log.failed and log.recovery_point == 3 and not log.flushes.is_due(NOW_MS)


@simulated
async def test_a_group_that_does_not_come_back_is_told_after_the_limit() -> None:
    world = World()
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[None] = loop.create_future()
    loop.run_in_executor = lambda *_: answer  # type: ignore[method-assign]  # a disk that hangs
    log = SlowLog(0)
    log.log_end_offset = 1
    world.flusher.ask(log)
    await asyncio.sleep(HANGS_AFTER_MS / 1000 - 1)
    assert list(world.flusher.hanging()) == []
    await asyncio.sleep(2)
    assert list(world.flusher.hanging()) == ["/d"]
    answer.set_result(None)
    assert await world.next_end() == (log, None)
    assert list(world.flusher.hanging()) == []


async def test_without_a_descriptor_a_flush_is_tried_again_and_nobody_is_told_of_a_failure() -> None:
    world, log = World(), SlowLog(0)
    log.log_end_offset = 1
    log.error = TooManyFilesError("no descriptor is left")
    log.may_end.set()
    world.flusher.ask(log)
    await asyncio.to_thread(log.has_begun.acquire, timeout=5)
    await asyncio.to_thread(log.has_begun.acquire, timeout=5)
    assert world.ended.empty()
    log.error = None
    assert await world.next_end() == (log, None)
    assert log.flushed == 1 and world.fatal == []
    await world.flusher.close()


async def test_small_segments_of_many_logs_open_few_files_at_a_time() -> None:
    """Each sealed segment is flushed with its indexes: three files. Together, they could use up all descriptors."""
    disk = SimulatedDisk()
    logs = [open_log(disk, f"/d/t-{number}", config=LogConfig(segment_bytes=100)) for number in range(3)]
    for log in logs:
        for _ in range(20):
            append(log, b"a")
    groups: list[list[tuple[int, bool]]] = []

    class Watched(Flusher):
        async def _perform(self, group: list[PendingFlush]) -> None:
            groups.append([(pending.sealed, pending.is_whole) for pending in group])
            assert sum(len(pending.files) for pending in group) <= MAX_SEALED * 3 + len(logs)
            await super()._perform(group)

    ended: asyncio.Queue[FlushableLog] = asyncio.Queue()
    flusher = Watched(
        folder_of=lambda _: "/d", ended=lambda log, _: ended.put_nowait(log), wall_ms=lambda: NOW_MS, fatal=print
    )
    for log in logs:
        flusher.ask(log)
    while not all(log.recovery_point == log.log_end_offset == 20 for log in logs):
        await asyncio.wait_for(ended.get(), 5)
    assert len(groups) > 1 and groups[0] == [(MAX_SEALED, False)]
    await flusher.close()


class _Watched(Flusher):
    """Calls `meanwhile` while each group is under way."""

    meanwhile: Callable[[], None]

    async def _perform(self, group: list[PendingFlush]) -> None:
        self.meanwhile()
        await super()._perform(group)


async def test_a_log_that_rolls_all_the_time_does_not_hold_up_the_others() -> None:
    """It is asked for again during each group, and uses up the share of sealed segments: others went behind it for ever."""
    disk = SimulatedDisk()
    busy, other = (open_log(disk, f"/d/t-{number}", config=LogConfig(segment_bytes=100)) for number in range(2))
    ended: asyncio.Queue[FlushableLog] = asyncio.Queue()
    flusher = _Watched(
        folder_of=lambda _: "/d", ended=lambda log, _: ended.put_nowait(log), wall_ms=lambda: NOW_MS, fatal=print
    )

    def roll() -> None:
        if flusher.groups < 20:
            for _ in range(MAX_SEALED + 1):
                append(busy, b"a")
            flusher.ask(busy)

    flusher.meanwhile = roll
    roll()
    for _ in range(3):
        append(other, b"a")
    flusher.ask(other)
    while (await asyncio.wait_for(ended.get(), 5)) is not other:
        pass
    assert flusher.groups <= 3 and other.recovery_point == 3
    await flusher.close()


async def test_what_a_group_has_flushed_of_a_log_counts_before_the_rest() -> None:
    """A log that rolls faster than groups end is never flushed as a whole: its producers would wait for ever."""
    disk = SimulatedDisk()
    log = open_log(disk, "/d/t-0", config=LogConfig(segment_bytes=100))
    told: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    flusher = _Watched(
        folder_of=lambda _: "/d",
        ended=lambda _log, _error: told.put_nowait((log.recovery_point, log.log_end_offset)),
        wall_ms=lambda: NOW_MS,
        fatal=print,
    )

    def roll() -> None:
        for _ in range(MAX_SEALED + 1 if flusher.groups < 3 else 0):
            append(log, b"a")

    flusher.meanwhile = roll
    for _ in range(2 * MAX_SEALED):
        append(log, b"a")
    flusher.ask(log)
    assert [await asyncio.wait_for(told.get(), 5) for _ in range(3)] == [(16, 49), (32, 66), (48, 83)]
    while (await asyncio.wait_for(told.get(), 5)) != (83, 83):
        pass
    await flusher.close()
