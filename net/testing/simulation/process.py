"""A simulated process: whose code runs in an event of the loop, and how that process dies.

Every handle of an asyncio loop carries a context (contextvars), and tasks, timers and callbacks inherit it from the code
that made them. `OWNER` in it says which process made it. So the death of a process is exact: its handles are passed over
from then on, no `finally`, no `except CancelledError` and no flush of it ever runs. Code of a process that is started by
the network runs in the context of the process that listens or connected (`call_in`).
"""

import asyncio
import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterator
from typing import Any

MAX_UNWINDS = 1_000  # of one coroutine; one that catches everything in a loop is left to the collector


class ProcessDied(BaseException):
    """Unwinds the code of a process that has just ended itself: what would come next must not run."""


class SimulatedProcess:
    """One incarnation of a node. `stalled_until` is SIGSTOP: its events wait for that moment."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.is_dead = False
        self.stalled_until = 0.0
        self.parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.threads: list[SimulatedThread] = []
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, self)

    @property
    def whole(self) -> "SimulatedProcess":
        """The process that this is, or is a thread of."""
        return self

    def __repr__(self) -> str:
        return f"{self.name}/{self.incarnation}"

    def bury(self, loop: asyncio.AbstractEventLoop) -> None:
        """At the end of a simulation: drop interrupted coroutines without warnings.

        Their last steps see this loop: without one, `asyncio.gather()` without arguments creates a new loop that is never closed.
        """
        with warnings.catch_warnings(), running(loop):
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines whose first step the death came before
            for task in self.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    self.context.copy().run(unwind, task.get_coro())
        self.tasks.clear()
        self.parked.clear()
        for thread in self.threads:
            thread.bury(loop)


def unwind(coroutine: Any) -> None:
    """Close it, and before it all that it awaits: what is closed from outside while its `finally` or `async with` waits for
    something is given up by its caller, and the collector would tell of it."""
    for _ in range(MAX_UNWINDS):
        innermost = coroutine
        while (awaited := _awaited_by(innermost)) is not None:
            innermost = awaited
        try:
            innermost.close()
        except RuntimeError:
            continue  # "coroutine ignored GeneratorExit", or its own: then it has ended, and the next close does nothing
        except BaseException:  # noqa: BLE001 - of the program: nobody waits for it
            pass
        if innermost is coroutine:
            return


def _awaited_by(coroutine: Any) -> Any:
    """The coroutine or generator that this one waits for, if it has begun and not ended."""
    awaited = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
    return awaited if frame is not None else None


@contextlib.contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """For code outside of any loop's steps that asks for the running one."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class SimulatedThread(SimulatedProcess):
    """A thread with a loop of its own: it lives and dies with its process, and goes on where the process's loop stands still."""

    def __init__(self, process: SimulatedProcess, name: str) -> None:
        self._process = process
        super().__init__(f"{process.name}-{name}", process.incarnation)
        process.threads.append(self)

    @property
    def whole(self) -> SimulatedProcess:
        return self._process

    @property
    def is_dead(self) -> bool:
        return self._process.is_dead

    @is_dead.setter
    def is_dead(self, is_dead: bool) -> None:
        assert not is_dead, "a thread dies with its process"


OWNER: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("OWNER", default=None)
NOBODY = contextvars.Context()  # in which the world itself runs: the network, timers of faults


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """A task factory that remembers the tasks of each process: nothing else keeps those of a dead one."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    owner = context.get(OWNER) if context is not None else OWNER.get()
    if owner is not None:
        if len(owner.tasks) >= 512:
            owner.tasks = [known for known in owner.tasks if not known.done()]
        owner.tasks.append(task)
    return task


def call_in(context: contextvars.Context, function: Callable[..., Any], *args: Any) -> Any:
    """Run code of a process from outside of its own events (the network does). A dead process runs nothing."""
    owner = context.get(OWNER)
    if owner is not None:
        if owner.is_dead:
            return None
        loop: Any = asyncio.get_running_loop()
        note = getattr(loop, "note_owner", None)
        if note is not None:
            note(owner)
    try:
        return context.copy().run(function, *args)
    except ProcessDied:
        return None
