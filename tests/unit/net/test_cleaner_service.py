"""When the cleaner runs: what is due is cleaned and noted, what fails is set aside, and a stop waits for the thread."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import pytest
from simulation.compaction import append_keyed, records_in
from unit.net.shell_world import simulated

from barnabas.log.compaction.batch_cleaning import BatchCleaner
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import SimulatedClock
from barnabas.net.base.settings.config import load
from barnabas.net.logs.cleaner_service import LONGEST_PASS_S, STRETCH_S, CleanerService, LoopPass, Throttle
from barnabas.net.testing.simulation.disk import SimulatedDisk

DIRTY, DAMAGED = TopicPartition("dirty", 0), TopicPartition("damaged", 0)
COMPACT = LogConfig(cleanup_policy=("compact",), segment_bytes=600, delete_retention_ms=30_000)
ASKED_S = 30.0  # in which a thread has come to ask a loop for something
SETTINGS = {"node.id": "0", "log.dirs": "/data", "log.cleaner.backoff.ms": "1000"}


class World:
    def __init__(self, disk: SimulatedDisk, stopping: threading.Event | None = None, **settings: str) -> None:
        self.disk = disk
        self.clock = SimulatedClock(asyncio.get_running_loop())
        self.logs = LogManager(disk, ["/data"], node_id=0)
        self.logs.load(now_ms=self.clock.wall_ms(), config_for=lambda _: COMPACT)
        self.is_current = True
        self.service = CleanerService(
            logs=self.logs,
            files=disk,
            config=load(None, SETTINGS | settings, {}),
            clock=self.clock,
            is_current=lambda: self.is_current,
            stopping=stopping,
        )
        self.running = asyncio.create_task(self.service.run())

    @property
    def totals(self):  # type: ignore[no-untyped-def]
        return self.service.cleaner.totals

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        log = self.logs.get_or_create(topic_partition, topic_id="id", now_ms=self.clock.wall_ms(), config=COMPACT)
        for number in range(30):
            append_keyed(log, (b"k%d" % (number % 3), b"v" * 60), timestamp_ms=self.clock.wall_ms())
        return log


@simulated
async def test_what_is_due_is_cleaned_after_the_backoff_and_noted_for_the_next_start() -> None:
    disk = SimulatedDisk()
    world = World(disk)
    log = world.log(DIRTY)
    await asyncio.sleep(0.9)
    totals, sealed_bytes = world.totals, sum(segment.size_bytes for segment in log.segments.all[:-1])
    assert (totals.runs, totals.bytes_read, totals.bytes_written, totals.bytes_freed) == (0, 0, 0, 0)
    await asyncio.sleep(0.2)
    assert totals.runs == 1 and len(records_in(log)) < 10
    assert totals.bytes_written + totals.bytes_freed == sealed_bytes
    assert world.totals.bytes_freed > 0 and 0 < world.totals.last_ratio < 0.5
    await asyncio.sleep(5)
    assert world.totals.runs == 1, "nothing is dirty any more"
    cleaned = world.logs.checkpoints.cleaned_up_to(DIRTY)
    assert cleaned == log.segments.all[-1].base_offset
    assert b"dirty 0 %d" % cleaned in disk.read_bytes("/data/cleaner-offset-checkpoint")
    world.running.cancel()
    world.logs.close()
    disk.kill()
    again = World(disk)
    assert again.logs.checkpoints.cleaned_up_to(DIRTY) == cleaned
    again.logs.logs[DIRTY].truncate_to(cleaned - 3)
    assert again.logs.checkpoints.cleaned_up_to(DIRTY) <= cleaned - 3
    again.running.cancel()


@simulated
async def test_a_tombstone_goes_by_itself_when_its_time_has_come() -> None:
    world = World(SimulatedDisk())
    log = world.logs.get_or_create(DIRTY, topic_id="id", now_ms=world.clock.wall_ms(), config=COMPACT)
    append_keyed(log, (b"gone", None), timestamp_ms=world.clock.wall_ms())
    world.log(DIRTY)
    await asyncio.sleep(2)
    assert b"gone" in [key for _, key, _ in records_in(log)]
    await asyncio.sleep(31)
    assert b"gone" not in [key for _, key, _ in records_in(log)]
    world.running.cancel()


@simulated
async def test_a_log_that_cannot_be_cleaned_is_set_aside_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    world = World(SimulatedDisk())
    damaged, log = world.log(DAMAGED), world.log(DIRTY)
    world.disk.flip_bit(damaged.segments.all[1].path, 100)
    await asyncio.sleep(3)
    assert len(records_in(log)) < 10
    assert list(world.totals.uncleanable) == [DAMAGED] and world.totals.failures == 1
    assert "is damaged at position" in world.totals.uncleanable[DAMAGED].cause
    assert "event=uncleanable partition=damaged-0" in caplog.text
    world.running.cancel()


@simulated
async def test_a_fault_of_the_cleaner_sets_a_log_aside_and_does_not_end_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(SimulatedDisk())
    world.log(DAMAGED)
    log = world.log(DIRTY)
    clean = BatchCleaner.clean
    failing: list[bool] = [True]

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if failing:
            failing.clear()
            raise struct.error("int too large to convert")
        return clean(*arguments, **options)

    monkeypatch.setattr(BatchCleaner, "clean", fail_once)
    await asyncio.sleep(3)
    (aside,) = world.totals.uncleanable
    cleaned = log if aside == DAMAGED else world.logs.logs[DAMAGED]
    assert len(records_in(cleaned)) < 10 and not world.running.done()
    assert "int too large to convert" in world.totals.uncleanable[aside].cause
    assert f"event=failed partition={aside}" in caplog.text and "Traceback" in caplog.text
    world.running.cancel()


@simulated
async def test_an_offer_that_was_refused_waits_for_the_folders_thread() -> None:
    """Withdrawing it flushes the folder; the loop only gives it up, and retention leaves the log alone meanwhile."""
    world = World(SimulatedDisk())
    log = world.log(DIRTY)
    world.disk.fail_next("rename", "*.index.cleaned", error=StorageError)
    await asyncio.sleep(3)
    assert list(world.totals.uncleanable) == [DIRTY] and log.segments.swaps.is_outstanding
    names = world.disk.list_dir(log.directory)
    assert [name for name in names if name.endswith(".log.swap")], "nothing was withdrawn on the loop"
    world.totals.uncleanable.clear()
    await asyncio.sleep(3)
    assert world.totals.runs == 0 and len(records_in(log)) == 30, "its files are not mixed with those of another one"
    world.logs.removals.remove_due(world.logs.folders[0], world.clock.wall_ms())
    assert not log.segments.swaps.is_outstanding
    await asyncio.sleep(3)
    assert world.totals.runs == 1 and len(records_in(log)) < 10
    world.running.cancel()


@simulated
async def test_nothing_is_cleaned_where_it_is_switched_off_or_before_the_metadata_is_current() -> None:
    off = World(SimulatedDisk(), **{"log.cleaner.enable": "false"})
    log = off.log(DIRTY)
    await asyncio.sleep(5)
    assert off.running.done() and len(records_in(log)) == 30
    world = World(SimulatedDisk())
    world.is_current = False
    log = world.log(DIRTY)
    await asyncio.sleep(5)
    assert len(records_in(log)) == 30
    world.is_current = True
    await asyncio.sleep(1.1)
    assert len(records_in(log)) < 10
    world.running.cancel()


def test_the_throttle_keeps_the_rate_and_gives_way_after_each_stretch() -> None:
    now, slept, given_way = [0.0], [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def give_way() -> None:
        given_way.append(now[0])

    throttle = Throttle(1_000.0, give_way=give_way, now_s=lambda: now[0], sleep=sleep)
    for _ in range(100):
        now[0] += 2 * STRETCH_S
        throttle.worked(100)
    assert now[0] == pytest.approx(10.0, rel=0.02), "10,000 bytes at 1,000 a second"
    assert len(given_way) == 100
    slept.clear()
    given_way.clear()
    free = Throttle(1e300, give_way=give_way, now_s=lambda: now[0], sleep=sleep)
    for _ in range(10):
        now[0] += STRETCH_S / 2
        free.worked(1 << 20)
    assert not slept and len(given_way) == 5


class Waiting(threading.Event):
    """Tells when a thread waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


async def test_a_stop_ends_the_wait_of_a_throttled_thread() -> None:
    stopping = Waiting()
    settings = {"log.cleaner.backoff.ms": "5", "log.cleaner.io.max.bytes.per.second": "1"}
    world = World(SimulatedDisk(), stopping, **settings)
    log = world.log(DIRTY)
    assert await asyncio.to_thread(stopping.begun.wait, 60), (
        "a batch has more than a hundred bytes, one of them a second"
    )
    world.running.cancel()
    await asyncio.wait([world.running], timeout=20)
    assert world.running.cancelled() and len(records_in(log)) == 30


class TellingLoop(asyncio.SelectorEventLoop):
    """Tells when it has been asked for something from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()

    def call_soon_threadsafe(self, callback, *args, context=None):  # type: ignore[no-untyped-def]
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self.is_asked.set()
        return handle


def in_a_telling_loop(test: Callable[[TellingLoop], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=TellingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, TellingLoop)
            runner.run(test(loop))

    del run.__wrapped__  # type: ignore[attr-defined]  # it would show pytest the loop as a fixture
    return run


@in_a_telling_loop
async def test_a_thread_that_gives_way_goes_on_when_the_loop_has_run_what_was_due(loop: TellingLoop) -> None:
    """What the sockets have for a loop goes behind what it was asked for before it looked at them."""
    loop_pass = LoopPass(loop, longest_pass_s=60)
    for _ in range(2):
        assert await order_beside(loop_pass, loop) == ["ready", "socket", "thread"]


async def order_beside(loop_pass: LoopPass, loop: TellingLoop) -> list[str]:
    order, has_gone_on = list[str](), threading.Event()
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(1) as threads:

        def work() -> None:
            loop_pass.give_way()
            order.append("thread")
            has_gone_on.set()

        def read() -> None:
            loop.remove_reader(near)
            has_gone_on.wait(0.02)  # in vain
            order.append("socket")

        loop.add_reader(near, read)
        loop.call_soon(order.append, "ready")
        loop.is_asked.clear()
        working = threads.submit(work)
        assert loop.is_asked.wait(ASKED_S), "in the middle of a pass"
        far.send(b"due")
        await asyncio.wrap_future(working)
    return order


@in_a_telling_loop
async def test_a_loop_that_stands_still_holds_a_thread_for_a_limited_time_and_its_own_thread_not_at_all(
    loop: TellingLoop,
) -> None:
    loop_pass = LoopPass(loop)
    loop_pass.give_way()
    assert not loop.is_asked.is_set()
    with ThreadPoolExecutor(1) as threads:
        stood = threads.submit(loop_pass.give_way)
        stood.result(timeout=200 * LONGEST_PASS_S)  # blocks this loop


@in_a_telling_loop
async def test_a_cleaning_in_another_thread_gives_way_to_the_loop_of_its_service(loop: TellingLoop) -> None:
    world = World(SimulatedDisk())
    for _ in range(10):  # takes longer than a stretch
        world.log(DIRTY)
    cleaning = world.service.cleaner.next_cleaning(world.clock.wall_ms())
    assert cleaning is not None
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(next(cleaning.steps()))
        assert loop.is_asked.wait(ASKED_S)
        await asyncio.wrap_future(working)
    world.running.cancel()
