"""The folder between a source connector and a stream of Spark: what is announced stays, and what is released is confirmed."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from integration.small_disk import SmallDisk
from tidy.source_tree import ROOT

from barnabas.log.vocabulary.errors import DiskFullError
from barnabas.net.programs.connect.postgres.changes.coverage import Range
from barnabas.net.programs.connect.postgres.changes.envelope import Outgoing
from barnabas.net.programs.connect.postgres.changes.position import Position, TableProgress
from barnabas.net.programs.connect.postgres.segment import SpoolError, read_segment, segment_file
from barnabas.net.programs.connect.postgres.spool import Spool

TABLE = TableProgress(oid=1, key=("id",), key_types=("int4",), ranges=(Range(lower=None, upper=None, lsn=1),))
UNREAD = replace(TABLE, ranges=())


def at(lsn: int, table: TableProgress = TABLE) -> Position:
    return Position(system_id="1", database="db", slot="s", lsn=lsn, tables={"public.t": table})


def records(*numbers: int) -> list[Outgoing]:
    return [Outgoing("t", b"%d" % number, b'{"n":%d}' % number) for number in numbers]


async def opened(folder: Path, max_bytes: int = 1 << 20) -> Spool:
    spool = Spool(folder, max_bytes=max_bytes)
    await spool.open()
    return spool


async def written(spool: Spool, lsn: int, *numbers: int) -> None:
    await spool.send(records(*numbers))
    await spool.commit(at(lsn))


async def test_a_position_is_confirmed_when_its_segment_is_released_and_not_before(tmp_path: Path) -> None:
    spool = await opened(tmp_path)
    await spool.commit(at(5, UNREAD))
    assert (spool.confirmable_lsn, spool.reached_lsn) == (5, 0), "the table is not read yet"
    await written(spool, 10, 1, 2)
    await written(spool, 20, 3)
    await spool.commit(at(25))
    assert (spool.newest, spool.confirmable_lsn, spool.reached_lsn) == (2, 5, 25)
    await spool.release(1)
    assert spool.confirmable_lsn == 10 and not segment_file(tmp_path, 1).exists()
    await spool.release(1)
    await spool.release(2)
    assert (spool.confirmable_lsn, spool.released) == (20, 2)
    await spool.commit(at(30))
    assert spool.confirmable_lsn == 30


async def test_after_a_crash_segments_are_the_same_and_capturing_goes_on_behind_them(tmp_path: Path) -> None:
    spool = await opened(tmp_path)
    await written(spool, 10, 1, 2)
    await written(spool, 20, 3)
    await spool.send(records(4))  # never committed
    await spool.release(1)
    segment_file(tmp_path, 1).write_bytes(b"its removal was interrupted")
    (tmp_path / f"{3:020d}.tmp").write_bytes(b"half")
    await spool.shut()

    again = await opened(tmp_path)
    assert (again.id, again.released, again.newest, again.confirmable_lsn) == (spool.id, 1, 2, 10)
    assert await again.committed_position() == at(20) and not again.is_open
    assert list(read_segment(tmp_path, 2)) == [(b"3", b'{"n":3}')]
    assert sorted(item.name for item in tmp_path.iterdir()) == [f"{2:020d}", "lock", "state.json"]
    await written(again, 40, 4)
    assert again.newest == 3


async def test_commit_waits_for_room_and_a_reader_for_news(tmp_path: Path) -> None:
    spool = await opened(tmp_path, max_bytes=1)
    await written(spool, 10, 1)
    waiting = asyncio.create_task(written(spool, 20, 2))
    await asyncio.sleep(0)
    assert not waiting.done() and spool.newest == 1
    await spool.release(1)
    await waiting
    assert spool.newest == 2
    reading = asyncio.create_task(spool.wait(60))
    await asyncio.sleep(0)
    await spool.commit(at(20))
    await reading


async def test_limits_of_a_micro_batch_are_whole_segments(tmp_path: Path) -> None:
    spool = await opened(tmp_path)
    for lsn, numbers in ((1, (1, 2)), (2, (3,)), (3, (4, 5, 6))):
        await written(spool, lsn, *numbers)
    assert [spool.newest_within(0, most) for most in (1, 2, 3, 5, 6, 99)] == [1, 1, 2, 2, 3, 3]
    assert [spool.newest_within(start, 1) for start in (1, 2, 3)] == [2, 3, 3]


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    second = asyncio.create_task(opened(tmp_path))
    await asyncio.sleep(0)
    assert not second.done()
    await written(first, 10, 1)
    await first.shut()
    assert (await second).newest == 1


async def test_a_write_that_was_cancelled_ends_before_another_process_opens_the_folder(tmp_path: Path) -> None:
    spool = await opened(tmp_path)
    writing = asyncio.create_task(spool._write(tmp_path / "file", b"x" * 1_000_000))
    await asyncio.sleep(0)
    writing.cancel()
    await spool.shut()
    assert (tmp_path / "file").stat().st_size == 1_000_000


async def test_a_folder_that_is_not_what_it_must_be_says_what_to_do(tmp_path: Path) -> None:
    spool = await opened(tmp_path)
    for lsn in (10, 20, 30):
        await written(spool, lsn, lsn)
    with pytest.raises(SpoolError, match="is not the folder that the checkpoint was written with"):
        spool.check("other", 0)
    with pytest.raises(SpoolError, match="the checkpoint is at segment 4, and .* has the segments from 1 to 3"):
        spool.check(spool.id, 4)
    await spool.shut()
    file = segment_file(tmp_path, 3)
    whole = file.read_bytes()
    file.write_bytes(whole[:-12])
    with pytest.raises(
        SpoolError, match="damaged .the checksum of its records is wrong.: begin again with a new folder"
    ):
        list(read_segment(tmp_path, 3))
    for damaged in (b"", b"BSP2", b"\x81\xa1x\x01" * 5):
        file.write_bytes(damaged)
        with pytest.raises(SpoolError, match="is damaged .*: begin again with a new folder"):
            await opened(tmp_path)
    file.write_bytes(whole)
    segment_file(tmp_path, 2).unlink()
    with pytest.raises(SpoolError, match="has no segment 2, which the checkpoint needs"):
        await opened(tmp_path)
    with pytest.raises(SpoolError, match="has no segment 2"):
        list(read_segment(tmp_path, 2))
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**state, "version": 3}))
    with pytest.raises(SpoolError, match="has version 3 of its format"):
        await opened(tmp_path)
    (tmp_path / "state.json").unlink()
    with pytest.raises(SpoolError, match="has 2 segments and no state.json: restore that file"):
        await opened(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(SpoolError, match="state.json cannot be read"):
        await opened(tmp_path)


async def reads(folder: Path, number: int) -> list[tuple[bytes, bytes]]:
    """As a query that starts: the folder is opened, then a task reads."""
    spool = await opened(folder)
    try:
        return list(read_segment(folder, number))
    finally:
        await spool.shut()


async def test_a_byte_that_is_wrong_or_missing_is_an_error_wherever_it_is(tmp_path: Path) -> None:
    spool = await opened(tmp_path)
    await spool.commit(at(5))
    await written(spool, 10, 1, 2, 3)
    await spool.shut()
    for name in (f"{1:020d}", "state.json"):
        whole = (tmp_path / name).read_bytes()
        flipped = [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))]
        shorter = [whole[:size] for size in range(len(whole))]
        for damaged in [*flipped, *shorter, whole + b"\x00"]:
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(SpoolError, match="begin again with a new folder"):
                await reads(tmp_path, 1)
        (tmp_path / name).write_bytes(whole)
    assert [key for key, _ in await reads(tmp_path, 1)] == [b"1", b"2", b"3"]


async def test_memory_has_a_limit_and_a_record_too(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1 << 20, max_open_bytes=20, max_record_bytes=50)
    await spool.open()
    await spool.send(records(1, 2))
    assert not spool.is_full
    await spool.send(records(3))
    assert spool.is_full
    await spool.commit(at(10))
    assert not spool.is_full and spool.newest == 1
    with pytest.raises(
        SpoolError, match="a change of t has 60 bytes, and a change in Spark may have 50: leave its table"
    ):
        await spool.send([Outgoing("t", b"1", b"x" * 59)])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = SmallDisk(tmp_path / "disk", mib=1)
    yield disk.path
    subprocess.run(["umount", "-l", disk.path], check=True)


async def test_a_disk_that_is_full_leaves_room_for_the_state_and_can_be_freed(small_disk: Path) -> None:
    """The segments themselves have filled it: they can only be removed after the state was written."""
    folder = small_disk / "spool"
    spool = await opened(folder, max_bytes=1 << 30)
    with pytest.raises(DiskFullError, match="No space left"):
        for lsn in range(1, 100):
            await spool.send([Outgoing("t", b"%d" % lsn, b"x" * 100_000)])
            await spool.commit(at(lsn))
    full = spool.newest
    assert full > 3 and await spool.committed_position() == at(full), "nothing is announced that is not on the disk"
    await spool.start()
    await spool.release(full - 1)
    await written(spool, full + 1, full + 1)
    assert [key for key, _ in read_segment(folder, full + 1)] == [b"%d" % (full + 1)]
    await spool.shut()


def test_every_change_is_read_once_after_a_kill_at_each_step() -> None:
    """kill -9 before each opening, renaming and removing of a file of the folder and of the query's checkpoint."""
    done = subprocess.run(
        [sys.executable, "-m", "unit.net.connect.postgres.spool_kills"],
        capture_output=True, text=True, timeout=120, cwd=ROOT / "tests", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert int(done.stdout.split()[0]) > 60, "kills"
