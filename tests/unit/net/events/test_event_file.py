"""Events outlive a restart; a torn or damaged line costs that line; the file is bounded; a disk that refuses costs nothing."""

from pathlib import Path

import pytest

from barnabas.log.disk.files import AppendFile, RealFiles
from barnabas.log.vocabulary.errors import DiskFullError
from barnabas.log.vocabulary.message import decode, encode
from barnabas.net.base.clock import SystemClock
from barnabas.net.metadata.events.event_file import FILE_NAME, EventFile
from barnabas.net.metadata.events.event_log import EventLog
from barnabas.net.wire.protocol.event_messages import EventKind, EventsRequest, EventsResponse

LIMIT_S = 30.0
MAX_WAITING = 7


class RefusingFiles(RealFiles):
    refuses = False

    def open_append(self, path: str, *, create: bool = True) -> AppendFile:
        if self.refuses:
            raise DiskFullError(f"cannot open {path}: no space")
        return super().open_append(path, create=create)

    def write_atomically(self, path: str, data: bytes | bytearray | memoryview) -> None:
        if self.refuses:
            raise DiskFullError(f"cannot write {path}: no space")
        super().write_atomically(path, data)


class World:
    """One process after another on the same folder."""

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.files = RefusingFiles()
        self.max_bytes = max_bytes
        self.fatal: list[str] = []
        self.kept = 1_000  # of all events, when the file is rewritten

    async def start(self) -> None:
        self.log = EventLog(0, SystemClock(), lambda event: self.file.written(event))
        self.file = EventFile(
            str(self.folder),
            self.files,
            everything=lambda: self.log.all()[-self.kept :],
            fatal=self.fatal.append,
            max_bytes=self.max_bytes,
            max_unwritten=MAX_WAITING,
        )
        self.log.restore(await self.file.load())

    def record(self, name: str, count: int = 1) -> None:
        for _ in range(count):
            self.log.record(EventKind.TOPIC, name, {"topic": "t"})

    async def restart(self) -> list[str]:
        """The names of all events that are known afterwards."""
        before = self.log.all()
        await self.file.close()
        await self.start()
        assert self.log.all() == before
        return [event.name for event in self.log.all()]

    @property
    def path(self) -> Path:
        return self.folder / FILE_NAME


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    await made.start()
    return made


async def test_events_outlive_restarts(world: World) -> None:
    world.record("a")
    assert await world.restart() == ["a"]
    world.record("b", 3)
    assert await world.restart() == ["a", "b", "b", "b"]
    assert await world.restart() == ["a", "b", "b", "b"]
    await world.file.close()


async def test_damaged_lines_are_skipped_and_removed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.record("a", 2)
    await world.file.close()
    whole = world.path.read_bytes()
    first, second = whole.splitlines(keepends=True)
    world.path.write_bytes(first + b"\x00\xff nonsense\n" + b'["no event"]\n' + second + first[:-9])
    await world.start()
    assert [event.name for event in world.log.all()] == ["a", "a"]
    assert "event=damaged_lines" in caplog.text and "count=3 first=2" in caplog.text
    world.record("b")
    assert await world.restart() == ["a", "a", "b"]
    assert b"nonsense" not in world.path.read_bytes()
    await world.file.close()


async def test_the_file_is_bounded_by_what_the_rings_hold(tmp_path: Path) -> None:
    world = World(tmp_path, max_bytes=2_000)
    await world.start()
    for number in range(300):
        world.record(f"event-{number}")
        await world.file.settled(LIMIT_S)
    size = world.path.stat().st_size
    assert size > 2_000  # the rings hold all 300
    world.kept = 5
    for number in range(5):
        world.record(f"last-{number}")
        await world.file.settled(LIMIT_S)
    assert world.path.stat().st_size < size / 10
    await world.file.close()
    await world.start()
    assert [event.name for event in world.log.all()][-5:] == [f"last-{number}" for number in range(5)]
    await world.file.close()


async def test_a_disk_that_refuses_costs_nothing_once_it_accepts_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.record("a")
    await world.restart()
    world.files.refuses = True
    world.record("b")
    await world.file.settled(LIMIT_S)
    for _ in range(3):
        world.record("c")
        await world.file.settled(LIMIT_S)
    assert caplog.text.count("event=not_written") == 1 and not world.fatal
    world.files.refuses = False
    assert await world.restart() == ["a", "b", "c", "c", "c"]
    await world.file.close()


async def test_more_events_than_may_wait_for_the_disk_are_written_from_the_rings(world: World) -> None:
    world.record("a", 10 * MAX_WAITING)  # at once: the thread may have no turn in between
    assert await world.restart() == ["a"] * 10 * MAX_WAITING
    await world.file.close()


async def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).mkdir()
    world = World(tmp_path)
    await world.start()
    assert world.log.all() == [] and "event=not_read" in caplog.text
    world.record("a")
    await world.file.close()
    assert (tmp_path / FILE_NAME).is_dir() and not world.fatal


@pytest.mark.parametrize(
    "damaged",
    [
        '[99999999999999999999999,1000,"isr","isr"]',
        '[9223372036854775807,1000,"isr","isr"]',
        '[5,999999999999999999,"isr","isr"]',
        '[5,1000,"isr","isr",{},"",[],99999999999999999999]',
    ],
)
async def test_a_number_that_is_damaged_costs_its_event_only(tmp_path: Path, damaged: str) -> None:
    """The next event is numbered behind the last one: no answer could have its number."""
    (tmp_path / FILE_NAME).write_text(f'{damaged}\n[6,1000,"isr","kept"]\n')
    world = World(tmp_path)
    await world.start()
    world.record("a")
    answer = world.log.select(EventsRequest())
    assert [event.name for event in answer.events] == ["kept", "a"]
    assert decode(EventsResponse, encode(answer)) == answer
    await world.file.close()
