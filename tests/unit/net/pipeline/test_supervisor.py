"""The supervisor with drivers that are small Python programs: restarts, their limit, errors that are final, stops."""

import asyncio
import errno
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from unit.net.pipeline.failing_files import FailingFiles

from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.programs.pipeline.disk import CURE
from barnabas.net.programs.pipeline.spec import RestartPolicy
from barnabas.net.programs.pipeline.state import LockedError, RunProgress, RunState, StateFolder
from barnabas.net.programs.pipeline.supervisor import DriverExit, DriverOrder, Supervisor

QUICK = RestartPolicy(attempts=2, first_ms=1, max_ms=2)
COUNT = "import pathlib, sys; runs = pathlib.Path(sys.argv[1], 'runs'); open(runs, 'a').write('x'); n = len(runs.read_text())\n"
FAIL = "pathlib.Path(sys.argv[1], 'error').write_text(f'failure {n}'); sys.exit(%s)"
UNTIL_TERM = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


@dataclass(frozen=True, kw_only=True)
class ProgramOrder(DriverOrder):
    """A driver that runs a program instead of Spark."""

    program: str

    def command(self, parent: int) -> list[str]:
        return [sys.executable, "-c", COUNT + self.program, str(self.state)]


def supervisor(
    folder: StateFolder,
    program: str,
    on_progress: Callable[[RunProgress], None] = lambda _: None,
    policy: RestartPolicy = QUICK,
) -> Supervisor:
    folder.prepare()
    order = ProgramOrder(state=folder.path, base=folder.path, bootstrap="", master="", program=program)
    return Supervisor(order, policy, folder, on_progress=on_progress)


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def runs(folder: StateFolder) -> int:
    return len((folder.path / "runs").read_text())


async def test_a_driver_that_fails_is_started_again_until_it_succeeds(folder: StateFolder) -> None:
    state = await supervisor(folder, f"if n < 3: {FAIL % 1}").run()
    assert (state.state, state.restarts, state.last_error) == ("finished", 2, "failure 2")
    assert runs(folder) == 3 and folder.read_run() == state


async def test_after_too_many_failures_in_a_row_it_stays_down(folder: StateFolder) -> None:
    state = await supervisor(folder, FAIL % 1).run()
    assert (state.state, state.last_error, runs(folder)) == ("failed", "failure 3", 3)


async def test_progress_between_failures_begins_the_count_again(folder: StateFolder) -> None:
    progress = "pathlib.Path(sys.argv[1], 'progress.json').write_text('{\"batches\": %d}' % n)\n"
    state = await supervisor(folder, progress + f"if n < 6: {FAIL % 1}").run()
    assert (state.state, state.restarts) == ("finished", 5)


async def test_an_error_that_would_be_repeated_is_final(folder: StateFolder) -> None:
    state = await supervisor(folder, FAIL % 3).run()
    assert (state.state, state.restarts, runs(folder)) == ("failed", 0, 1)


async def test_a_driver_that_is_killed_is_named_so(folder: StateFolder) -> None:
    state = await supervisor(folder, "import os; os.kill(os.getpid(), 9)").run()
    assert state.last_error.startswith("the Spark driver was killed by signal 9; see ")


async def test_a_driver_without_space_for_its_reason_is_told_by_its_exit_code(folder: StateFolder) -> None:
    state = await supervisor(folder, f"sys.exit({int(DriverExit.NO_SPACE)})").run()
    assert (state.state, state.restarts) == ("failed", 2), "there may be space later"
    assert state.last_error.startswith("a disk is full (No space left on device): " + str(folder.path))
    assert state.last_error.endswith(CURE)


async def test_a_full_disk_does_not_end_the_supervisor(folder: StateFolder) -> None:
    program = supervisor(folder, f"if n < 3: {FAIL % 1}")
    folder._files = FailingFiles(errno.ENOSPC)
    state = await program.run()
    assert (state.state, state.restarts, state.last_error) == ("finished", 2, "failure 2")
    assert folder.read_run() is None


@pytest.mark.parametrize(("code", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_what_a_full_disk_refuses_is_told_with_the_cure(folder: StateFolder, code: int, is_full: bool) -> None:
    folder._files = FailingFiles(code)
    with pytest.raises(StorageError) as caught:
        folder.write_error("reason")
    assert (CURE in caught.value.message, str(folder.path) in caught.value.message) == (is_full, True)


class StoppedInThePause(StateFolder):
    """Has `stop` called when the pause before the next driver begins, or in the turn of the loop in which it ends."""

    stop: Callable[[], None]
    when: Callable[[Callable[[], None]], object]

    def write_run(self, state: RunState) -> None:
        super().write_run(state)
        if state.state == "restarting":
            self.when(self.stop)


@pytest.mark.parametrize("pause_ms", [60_000, 0], ids=["as it begins", "as it ends"])
async def test_a_stop_between_two_drivers_starts_no_other_one(tmp_path: Path, pause_ms: int) -> None:
    folder = StoppedInThePause(tmp_path / "state")
    program = supervisor(folder, FAIL % 1, policy=RestartPolicy(attempts=2, first_ms=pause_ms, max_ms=pause_ms))
    # A pause of 0 ms ends in the next turn, behind what was called for that turn before.
    folder.stop, folder.when = program.stop, asyncio.get_running_loop().call_soon
    async with asyncio.timeout(30):
        assert (await program.run()).state == "stopped"
    assert runs(folder) == 1


async def test_stop_asks_the_driver_to_end(folder: StateFolder) -> None:
    state = await stopped(folder, UNTIL_TERM, times=1)
    assert state.state == "stopped" and runs(folder) == 1


async def test_a_driver_that_does_not_end_is_killed_when_it_is_asked_twice(folder: StateFolder) -> None:
    state = await stopped(
        folder, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()", times=2
    )
    assert state.state == "stopped" and runs(folder) == 1


async def stopped(folder: StateFolder, program: str, *, times: int) -> RunState:
    """The last state of a pipeline that is stopped as soon as its driver runs."""

    def stop(_: RunProgress) -> None:
        if (folder.path / "runs").exists():
            for _number in range(times):
                running.stop()

    running = supervisor(folder, program, stop)
    return await asyncio.wait_for(running.run(), 30)


def test_a_lock_is_held_once_and_freed(folder: StateFolder) -> None:
    folder.prepare()
    assert not folder.is_locked("run")
    with folder.locked("run"):
        assert folder.is_locked("run") and not folder.is_locked("driver")
        with pytest.raises(LockedError), folder.locked("run", wait_s=0):
            pass
    assert not folder.is_locked("run")


def test_a_reset_forgets_everything_and_gives_another_generation(folder: StateFolder) -> None:
    folder.prepare()
    before = folder.generation()
    assert folder.generation() == before
    folder.write_run(RunState(state="failed", last_error="x"))
    folder.write_progress(RunProgress(batches=3))
    folder.write_schema("input", "{}")
    (folder.checkpoint / "main").mkdir(parents=True)
    folder.write_error("a\nb")
    assert folder.take_error() == "a b" and folder.take_error() == ""
    folder.remove()
    assert folder.read_run() is None and folder.read_progress() == RunProgress() and folder.read_schema("input") == ""
    assert not folder.checkpoint.exists() and folder.generation() != before


def test_an_error_that_quotes_a_record_does_not_control_the_terminal(folder: StateFolder) -> None:
    folder.prepare()
    folder.write_error("the value \x1b[2J\udc80\u202e\nis no number")
    assert folder.take_error() == "the value \\x1b[2J\\udc80\\u202e is no number"
