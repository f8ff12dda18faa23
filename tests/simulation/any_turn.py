"""A program is disturbed before one of its events, in a process of its own for each event: `AnyTurn`.

The undisturbed program takes N events of the loop (steps of tasks, timers, arrivals). Each trial repeats it and, before event k,
cancels its task, cancels it twice, or closes what it has open from another task. Whatever k is:

- the program ends within a limit of virtual time, and a task that was cancelled is cancelled;
- no task of it goes on, no connection stays open, and nothing is reported to the loop's exception handler.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.testing.simulation.process import SimulatedProcess
from barnabas.net.testing.simulation.simulate import Simulation

from .checkers.violation import Violation

LIMIT_S: Final = 13.0  # of virtual time: the longest that a close is documented to take
FROZEN_LIMIT_S: Final = 80.0  # where the broker stands still: a call of the API (60 s), and a close
FREEZE_S: Final = 1_000.0
BACK_S: Final = 3.0  # for the broker to register again, and to find its clients gone
SETTLE_S: Final = 0.05  # for the last bytes of connections
SECOND_CANCELS: Final = (1, 2, 3, 5, 8, 13, 40)  # so many events after the first one


class Closable(Protocol):
    async def close(self) -> None: ...


@dataclass(eq=False)
class Trial:
    """What a program is given, and what it tells: what another task may close, and what was acknowledged."""

    number: int
    open: Closable | None = None
    offsets: dict[Any, int] = field(default_factory=dict)  # committed, by partition
    stored: list[bytes] = field(default_factory=list)
    absent: list[bytes] = field(default_factory=list)  # aborted

    @property
    def name(self) -> str:
        return f"user-{self.number}"


Program = Callable[[Trial], Coroutine[Any, Any, None]]
Act = Callable[["asyncio.Task[None]", Trial, SimulatedProcess], None]


class AnyTurn:
    """`trials` are those that have passed."""

    def __init__(self, simulation: Simulation, program: Program) -> None:
        self._simulation = simulation
        self._loop = simulation.loop
        self._program = program
        self._count = 0
        self._unseen: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self._unseen.append(context))
        self.trials: list[Trial] = []

    async def undisturbed(self) -> int:
        """How many events it takes."""
        events, _ = await self._run({})
        return events

    async def cancelled(self, before: int, *, again: int = 0, is_frozen: bool = False) -> None:
        """`again`: a second time, so many events later. `is_frozen`: the broker stands still from then on, for a while."""
        accepted: list[bool] = []

        def cancel(task: "asyncio.Task[None]", trial: Trial, process: SimulatedProcess) -> None:
            if is_frozen and not accepted:
                self._simulation._cluster.stall(0, FREEZE_S)
            accepted.append(task.cancel())

        acts: dict[int, Act] = {before: cancel, before + again: cancel}
        _, task = await self._run(acts, limit_s=FROZEN_LIMIT_S if is_frozen else LIMIT_S)
        if any(accepted) and not task.cancelled():
            raise Violation(f"the cancellation was lost: {task}")

    async def closed(self, before: int, *, is_frozen: bool = False) -> None:
        """By another task. The program may see that."""
        closing: list[asyncio.Task[None]] = []

        def close(task: "asyncio.Task[None]", trial: Trial, process: SimulatedProcess) -> None:
            if trial.open is not None:
                if is_frozen:
                    self._simulation._cluster.stall(0, FREEZE_S)
                closing.append(self._loop.create_task(trial.open.close(), context=process.context.copy()))

        await self._run({before: close}, closing, limit_s=FROZEN_LIMIT_S if is_frozen else LIMIT_S)

    async def _run(
        self, acts: dict[int, Act], others: Sequence["asyncio.Task[None]"] = (), *, limit_s: float = LIMIT_S
    ) -> "tuple[int, asyncio.Task[None]]":
        """`others` are begun by `acts`."""
        self._count += 1
        trial = Trial(number=self._count)
        process = self._simulation._guest(trial.name, 1)
        task = self._loop.create_task(self._program(trial), context=process.context.copy())
        mark, events = f" {process} ", 0

        def event(line: str) -> None:
            nonlocal events
            if mark in line and not task.done():
                if events in acts:
                    acts[events](task, trial, process)
                events += 1

        self._loop.trace_line = event
        await asyncio.wait([task], timeout=limit_s)
        self._loop.trace_line = None
        if others:
            await asyncio.wait(others, timeout=limit_s)
        await asyncio.sleep(SETTLE_S)
        self._check(trial, process)
        await self._thaw()
        for other in others:
            other.result()
        if not (task.cancelled() or (others and isinstance(task.exception(), BarnabasError))):
            task.result()
        self._simulation._cluster.kill_guest(trial.name)
        self.trials.append(trial)
        return events, task

    async def _thaw(self) -> None:
        broker = self._simulation._cluster.nodes[0].process
        assert broker is not None
        if broker.stalled_until > self._loop.time():
            self._loop.resume(broker)
            await asyncio.sleep(BACK_S)

    def _check(self, trial: Trial, process: SimulatedProcess) -> None:
        world = self._simulation._cluster.world
        if left := [task for task in process.tasks if not task.done()]:
            raise Violation(f"{trial.name} does not end, or leaves tasks: {left}")
        if left_open := [it.peer_node for it in world._transports if it.node == trial.name]:
            raise Violation(f"{trial.name} leaves connections to {left_open}")
        if self._unseen:
            raise Violation(f"{trial.name} is reported: {self._unseen}")
