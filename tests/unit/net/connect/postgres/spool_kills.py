"""A process that captures into a spool and reads from it as Spark does, killed before its first, second, third ... step.

A step is the opening, renaming or removing of a file (Python's audit events). After each kill, a second process goes on from what
is on the disk. Prints the number of kills; ends with an assertion if a change is lost or doubled.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from barnabas.log.disk.files import RealFiles
from barnabas.net.programs.connect.postgres.changes.envelope import Outgoing
from barnabas.net.programs.connect.postgres.changes.position import Position
from barnabas.net.programs.connect.postgres.segment import read_segment
from barnabas.net.programs.connect.postgres.spool import Spool

CHANGES = 5
IN_SEGMENT = 2
ROOM_BYTES = 300  # for about two segments: capturing waits for the reader
MEMORY = Path("/dev/shm")  # a kill loses no page of a file, so the disk need not take part
STEPS = frozenset(("open", "os.rename", "os.remove"))
FILES = RealFiles()


def kill_before(step: int, folder: Path) -> None:
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


class Server:
    """Keeps its log from the confirmed position on."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "confirmed"

    @property
    def confirmed(self) -> int:
        return int(self._file.read_text()) if self._file.exists() else 0

    def confirm(self, lsn: int) -> None:
        if lsn > self.confirmed:
            FILES.write_atomically(str(self._file), b"%d" % lsn)


async def capture(spool: Spool, server: Server) -> None:
    position = await spool.committed_position()
    start = position.lsn if position is not None else 0
    assert server.confirmed <= start, "the server has forgotten changes that were not captured"
    await spool.start()
    for lsn in range(start + 1, CHANGES + 1):
        await spool.send([Outgoing("t", b"%d" % lsn, b"x" * 50)])
        if lsn % IN_SEGMENT == 0 or lsn == CHANGES:
            await spool.commit(Position(system_id="1", database="d", slot="s", lsn=lsn))
            server.confirm(spool.confirmable_lsn)


async def query(spool: Spool, server: Server, folder: Path, checkpoint: Path) -> None:
    """Spark's order: offsets, the sink, the commit; the source learns of the commit with the next micro-batch."""
    checkpoint.mkdir(exist_ok=True)
    batch, start = max((int(item.name.partition("-")[2]) for item in checkpoint.glob("offsets-*[0-9]")), default=0), 0
    while True:
        offsets, commit, sink = (checkpoint / f"{name}-{batch}" for name in ("offsets", "commit", "sink"))
        if not offsets.exists():
            if batch:
                spool.check(spool.id, start)
                await spool.release(start)
                server.confirm(spool.confirmable_lsn)
            while (end := spool.newest_within(start, IN_SEGMENT * 2)) == start:
                position = await spool.committed_position()
                if position is not None and position.lsn == CHANGES:
                    return
                await spool.wait(1)
            FILES.write_atomically(str(offsets), json.dumps([spool.id, start, end]).encode())
        spool_id, start, end = json.loads(offsets.read_bytes())
        if not commit.exists():
            spool.check(spool_id, start)
            spool.check(spool_id, end)
            numbers = [segment.number for segment in spool.segments(start, end)]
            keys = [int(key) for number in numbers for key, _ in read_segment(folder, number)]
            assert not sink.exists() or json.loads(sink.read_bytes()) == keys, (
                "a micro-batch was repeated with other changes"
            )
            FILES.write_atomically(str(sink), json.dumps(keys).encode())
            FILES.write_atomically(str(commit), b"")
        batch, start = batch + 1, end


async def run(folder: Path) -> None:
    spool, server = Spool(folder / "spool", max_bytes=ROOM_BYTES), Server(folder)
    await spool.open()
    capturing = asyncio.create_task(capture(spool, server))
    await query(spool, server, folder / "spool", folder / "checkpoint")
    await capturing
    await spool.shut()


def process(folder: Path, step: int | None) -> bool:
    """Whether it ran to its end."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return False
        assert os.WEXITSTATUS(status) == 0, f"killed before step {step}"
        return True
    code = 1
    try:
        if step is not None:
            kill_before(step, folder)
        asyncio.run(run(folder))
        code = 0
    except BaseException as error:  # a forked child must not go on with the parent's code
        print(f"{error!r}", file=sys.stderr)
    os._exit(code)


def main() -> None:
    step, is_over = 0, False
    while not is_over:
        folder = Path(tempfile.mkdtemp(prefix="barnabas-spool-", dir=MEMORY if MEMORY.is_dir() else None))
        try:
            is_over = process(folder, step)
            assert process(folder, None)
            sinks = sorted(
                (folder / "checkpoint").glob("sink-*[0-9]"), key=lambda item: int(item.name.partition("-")[2])
            )
            found = [key for item in sinks for key in json.loads(item.read_bytes())]
            assert found == list(range(1, CHANGES + 1)), f"killed before step {step}: {found}"
        finally:
            shutil.rmtree(folder)
        step += 1
    print(step - 1, "kills")


if __name__ == "__main__":
    main()
