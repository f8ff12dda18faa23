"""Folders load in threads of their own: the loop turns meanwhile, and a start that is given up stops them."""

import asyncio
import logging
import threading

import pytest
from simulation.log_building import NOW_MS, append

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.vocabulary.errors import StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import SystemClock
from barnabas.net.logs import log_loading
from barnabas.net.logs.log_loading import close_logs, load_logs
from barnabas.net.testing.simulation.disk import SimulatedDisk

FOLDERS = ("/one", "/two")
COUNT = 8


class GatedDisk(SimulatedDisk):
    """Whoever looks at a log of the second folder waits for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.gate = threading.Event()
        self.looked_at: list[str] = []

    def drop_cached(self, path: str) -> None:
        self.looked_at.append(path)
        if path.startswith("/two"):
            self.reached.set()
            assert self.gate.wait(60)


def crashed() -> GatedDisk:
    disk = GatedDisk()
    disk.gate.set()
    logs = LogManager(disk, FOLDERS, node_id=0)
    logs.load(now_ms=NOW_MS)
    for number in range(COUNT):
        append(logs.get_or_create(TopicPartition("t", number), topic_id="i", now_ms=NOW_MS), b"x")
    disk.kill()
    disk.gate.clear()
    disk.reached.clear()
    disk.looked_at.clear()
    return disk


async def reached(disk: GatedDisk) -> None:
    await asyncio.get_running_loop().run_in_executor(None, disk.reached.wait, 60)


async def test_a_slow_folder_holds_up_neither_the_loop_nor_the_others_and_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = crashed()
    logs = LogManager(disk, FOLDERS, node_id=0)
    told = asyncio.Event()
    caplog.set_level(logging.INFO, "barnabas.log")
    caplog.handler.addFilter(
        lambda record: "loading folder=/two partitions=0/4" not in record.getMessage() or told.set() is None
    )
    loading = asyncio.create_task(load_logs(logs, SystemClock()))
    await reached(disk)
    async with asyncio.timeout(60):
        await told.wait()
    assert sum(path.startswith("/one") for path in disk.looked_at) == 4 and not loading.done()
    disk.gate.set()
    await loading
    assert len(logs.logs) == COUNT and log_loading.MAX_THREADS >= 2


async def test_a_start_that_is_given_up_stops_its_threads() -> None:
    disk = crashed()
    logs = LogManager(disk, FOLDERS, node_id=0)
    loading = asyncio.create_task(load_logs(logs, SystemClock()))
    await reached(disk)
    loading.cancel()
    await asyncio.sleep(0)
    assert not loading.done(), "nobody may unlock the folders while a thread is at them"
    disk.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert sum(path.startswith("/two") for path in disk.looked_at) == 1
    logs.close()
    assert not disk.locks and not LogManager(disk, FOLDERS, node_id=0).was_stopped_cleanly


async def test_a_start_with_no_folder_left_fails_with_the_cause() -> None:
    disk = crashed()
    disk.gate.set()
    logs = LogManager(disk, FOLDERS, node_id=0)
    for path in FOLDERS:
        disk.fail_next("list", path)
    with pytest.raises(StorageError, match="cannot list /one.*cannot list /two"):
        await load_logs(logs, SystemClock())


class MeetingDisk(SimulatedDisk):
    """The folders of that many logs are flushed at the same time, or not at all."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(count)
        self.met = set[str]()

    def sync_dir(self, path: str) -> None:
        if path.rpartition("/")[2].startswith("t-") and path not in self.met:
            self.met.add(path)
            self.barrier.wait(60)
        super().sync_dir(path)


async def test_logs_of_one_folder_are_closed_several_at_a_time() -> None:
    """On a disk that takes 0.3 s for each step, a broker with six partitions took a minute to stop."""
    disk = MeetingDisk(log_loading.CLOSING_THREADS_PER_FOLDER)
    logs = LogManager(disk, ["/one"], node_id=0)
    logs.load(now_ms=NOW_MS)
    for number in range(2 * log_loading.CLOSING_THREADS_PER_FOLDER):
        append(logs.get_or_create(TopicPartition("t", number), topic_id="i", now_ms=NOW_MS), b"x")
    await close_logs(logs)
    assert len(disk.met) == 2 * log_loading.CLOSING_THREADS_PER_FOLDER
    assert LogManager(disk, ["/one"], node_id=0).was_stopped_cleanly


async def test_a_log_that_cannot_be_closed_makes_the_stop_of_its_folder_unclean() -> None:
    disk = SimulatedDisk()
    logs = LogManager(disk, FOLDERS, node_id=0)
    logs.load(now_ms=NOW_MS)
    for number in range(COUNT):
        append(logs.get_or_create(TopicPartition("t", number), topic_id="i", now_ms=NOW_MS), b"x")
    bad = next(number for number in range(COUNT) if disk.exists(f"/two/t-{number}"))
    disk.fail_next("sync_dir", f"/two/t-{bad}")
    await close_logs(logs)
    again = LogManager(disk, FOLDERS, node_id=0)
    assert {folder.path: folder.was_stopped_cleanly for folder in again.folders} == {"/one": True, "/two": False}
