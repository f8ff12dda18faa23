"""The loop of whole-cluster simulations: virtual time, events by process, and an observer after every event."""

import asyncio
import hashlib
import heapq
from collections.abc import Callable
from typing import Any, TypeVar

from .loop import SimulatedLoop, SimulationDeadlock
from .process import NOBODY, OWNER, SimulatedProcess, make_task

_MAX_CANCELLED_TIMERS = 1_000
T = TypeVar("T")
Observer = Callable[[list[SimulatedProcess]], None]


class ObservedLoop(SimulatedLoop):
    """`observer` is called after every event with the processes whose code ran in it. An exception of it ends the run.

    The trace is a line per event (time, process, what ran); its hash is always kept, its text goes to `trace_line`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.observer: Observer | None = None
        self.trace_line: Callable[[str], None] | None = None
        self.event_count = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._ran: list[SimulatedProcess] = []
        self.is_in_executor = False  # what is called now runs in another thread than its loop
        self.executor_s = 0.0  # and takes so long
        self.set_task_factory(make_task)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """A line of the trace that is no event: a fault, an answer that a client got."""
        line = f"{self._virtual_time:.6f} {text}"
        self._hash.update(line.encode())
        if self.trace_line is not None:
            self.trace_line(line)

    def note_owner(self, owner: SimulatedProcess) -> None:
        if owner.whole not in self._ran:
            self._ran.append(owner.whole)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """As `SimulatedLoop`'s; the time that its disk takes passes before the future is done, and not for the loop."""
        self.is_in_executor, self.executor_s = True, 0.0
        try:
            ended = super().run_in_executor(executor, func, *args)
        finally:
            self.is_in_executor = False
        if not self.executor_s:
            return ended
        late: asyncio.Future[T] = self.create_future()
        self.call_later(self.executor_s, _pass_on, ended, late)
        return late

    def resume(self, process: SimulatedProcess) -> None:
        """The process goes on where it was stopped."""
        process.stalled_until = 0.0
        parked, process.parked = process.parked, []
        self._ready.extend(parked)  # type: ignore[attr-defined]

    def block(self, process: SimulatedProcess, taken_s: float) -> None:
        """The process waits for its disk for this much longer."""
        until = max(process.stalled_until, self._virtual_time) + taken_s
        if process.stalled_until <= self._virtual_time:
            self.call_at(until, self._unblock, process, context=NOBODY)
        process.stalled_until = until

    def _unblock(self, process: SimulatedProcess) -> None:
        if process.is_dead:
            return
        if process.stalled_until > self._virtual_time:  # more operations followed
            self.call_at(process.stalled_until, self._unblock, process, context=NOBODY)
        else:
            self.note(f"RESUME {process}")
            self.resume(process)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._forget_cancelled(scheduled)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise SimulationDeadlock(f"at {self._virtual_time:.6f} s nothing can happen any more")
            self._virtual_time = max(self._virtual_time, scheduled[0].when())
        end = self._virtual_time + self._clock_resolution
        while scheduled and scheduled[0].when() < end:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self._run_event(handle)

    def _forget_cancelled(self, scheduled: list[asyncio.TimerHandle]) -> None:
        cancelled: int = self._timer_cancelled_count  # type: ignore[has-type]
        if cancelled > _MAX_CANCELLED_TIMERS and cancelled * 2 > len(scheduled):
            for timer in scheduled:
                if timer._cancelled:
                    timer._scheduled = False  # type: ignore[attr-defined]
            scheduled[:] = [timer for timer in scheduled if not timer._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]

    def _run_event(self, handle: Any) -> None:
        owner = handle._context.get(OWNER)
        ran = self._ran
        if owner is not None:
            if owner.is_dead:
                return
            if owner.stalled_until > self._virtual_time:
                owner.parked.append(handle)
                return
            ran.append(owner.whole)
        self.event_count += 1
        line = f"{self._virtual_time:.6f} {owner or '-'} {_name(handle._callback)}"
        self._hash.update(line.encode())
        if self.trace_line is not None:
            self.trace_line(line)
        handle._run()
        if ran:
            if self.observer is not None:
                self.observer(ran)
            ran.clear()


def _pass_on(ended: "asyncio.Future[T]", late: "asyncio.Future[T]") -> None:
    error = ended.exception()
    if late.done():
        return
    if error is not None:
        late.set_exception(error)
    else:
        late.set_result(ended.result())


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        work = owner.get_coro()  # the close of an asynchronous generator has no name
        return str(getattr(work, "__qualname__", type(work).__name__))
    name = getattr(callback, "__qualname__", None)
    if name is None:
        name = getattr(getattr(callback, "func", None), "__qualname__", type(callback).__name__)
    return str(name)
