"""`Supervisor`: starts the Spark driver of a pipeline, starts it again with growing pauses if it fails, and stops it.

The driver is a process of its own. It may die with its JVM, of memory or of kill -9, and continues from its checkpoint.
"""

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import Final

from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.base.retries import Backoff

from .disk import full_disk
from .spec import RestartPolicy
from .state import RunProgress, RunState, RunWord, StateFolder

logger = logging.getLogger("barnabas.pipeline")

DRIVER: Final = "barnabas.spark_connector.pipeline.driver"
STOP_LIMIT_S: Final = (
    90.0  # for the micro-batch that is running; then the driver is killed, and the next run repeats it
)
TICK_S: Final = 0.5


class DriverExit(IntEnum):
    """Exit codes of the driver, apart from signals and Python's own."""

    OK = 0
    MAY_PASS = 1  # another start may succeed
    FINAL = 3  # another start would fail in the same way
    NO_SPACE = 4  # as MAY_PASS; the state folder has no space for the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOrder:
    """What a driver is to do; becomes its command line."""

    state: Path
    base: Path  # the folder of the pipeline's file
    bootstrap: str
    master: str
    command_config: str = ""
    is_once: bool = False
    is_plan: bool = False

    def command(self, parent: int) -> list[str]:
        words = [sys.executable, "-P", "-m", DRIVER, "--state", str(self.state), "--base", str(self.base)]
        words += ["--bootstrap", self.bootstrap, "--master", self.master, "--parent", str(parent)]
        if self.command_config:
            words += ["--command-config", self.command_config]
        return words + ["--once"] * self.is_once + ["--plan"] * self.is_plan


class Supervisor:
    def __init__(
        self,
        order: DriverOrder,
        policy: RestartPolicy,
        folder: StateFolder,
        *,
        on_progress: Callable[[RunProgress], None],
    ) -> None:
        self._order = order
        self._policy = policy
        self._folder = folder
        self._on_progress = on_progress
        self._stop = asyncio.Event()
        self._is_urgent = False  # the user has asked twice
        self._restarts = 0
        self._last_error = ""

    def stop(self) -> None:
        """End after the micro-batch that is running; the second time, end now."""
        self._is_urgent = self._stop.is_set()
        self._stop.set()

    async def run(self) -> RunState:
        """Until the work is done, `stop` is called, or the driver has failed too often. The caller holds run.lock."""
        pause = Backoff(first_ms=self._policy.first_ms, max_ms=self._policy.max_ms)
        failures, random = 0, Random()
        self._folder.make_reserve()
        while True:
            before = self._folder.read_progress().batches
            self._become("running")
            code = await self._drive()
            if code == DriverExit.OK or self._stop.is_set():
                return self._become("stopped" if self._stop.is_set() else "finished")
            self._last_error = self._folder.take_error() or _cause(code, self._folder)
            failures = 1 if self._folder.read_progress().batches > before else failures + 1
            if code == DriverExit.FINAL or failures > self._policy.attempts:
                return self._become("failed")
            self._restarts += 1
            delay_ms = pause.delay_ms(failures, random.random)
            logger.warning("driver failed restarts=%d in_ms=%d reason=%s", self._restarts, delay_ms, self._last_error)
            self._become("restarting")
            try:
                async with asyncio.timeout(delay_ms / 1_000):
                    await self._stop.wait()
            except TimeoutError:
                pass
            # Also if the stop comes in the turn of the loop in which the pause ends.
            if self._stop.is_set():
                return self._become("stopped")

    def _become(self, word: RunWord) -> RunState:
        state = RunState(
            state=word, restarts=self._restarts, since_ms=int(time.time() * 1_000), last_error=self._last_error
        )
        try:
            self._folder.write_run(state)
        except StorageError as error:  # the disk may be full: the driver, which is tried again, says what that means
            logger.warning("state not written reason=%s", error.message)
        return state

    async def _drive(self) -> int:
        """One driver from its start to its end; returns its exit code."""
        self._folder.take_error()
        with self._folder.driver_log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._order.command(os.getpid()),
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C of the terminal reaches the supervisor only, which stops in order.
            )
        logger.info("driver started process=%d", process.pid)
        try:
            return await self._watch(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        ended = asyncio.ensure_future(process.wait())
        kill_at_s = 0.0
        while True:
            await asyncio.wait((ended,), timeout=TICK_S)
            self._on_progress(self._folder.read_progress())
            if ended.done():
                return ended.result()
            if not self._stop.is_set():
                continue
            if not kill_at_s:
                kill_at_s = time.monotonic() + STOP_LIMIT_S
                process.send_signal(signal.SIGTERM)
            elif self._is_urgent or time.monotonic() > kill_at_s:
                process.kill()


def plan(order: DriverOrder, folder: StateFolder) -> str:
    """Let a driver print the plan on stdout; returns its error, or nothing. The driver's own limits end it."""
    folder.take_error()
    with folder.driver_log.open("wb") as log:
        code = subprocess.run(order.command(os.getpid()), stdin=subprocess.DEVNULL, stderr=log, check=False).returncode
    return "" if code == DriverExit.OK else folder.take_error() or _cause(code, folder)


def _cause(code: int, folder: StateFolder) -> str:
    """In words, for a driver that could not write its error itself."""
    if code == DriverExit.NO_SPACE:
        return full_disk(os.strerror(errno.ENOSPC), [folder.path])
    log = folder.driver_log
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the Spark driver {how}; see {log}"


def sent_stop(pid: int) -> bool:
    """Whether the process could be asked to stop."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True
