"""A fault that holds: undone by `undo`, or at the end of its `with` or `async with` block."""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Self


class Fault:
    """What the methods of a cluster return."""

    def __init__(self, name: str, undo: Callable[[], None]) -> None:
        self.name = name
        self._undo: Callable[[], None] | None = undo
        self._process_id = os.getpid()

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self._undo else ', undone'}>"

    @property
    def holds(self) -> bool:
        """Whether it is not undone yet."""
        return self._undo is not None

    def undo(self) -> None:
        """Returns when the fault has ended. A second call does nothing; nor does a forked child, whose parent has the fault."""
        if self._process_id != os.getpid():
            return
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.undo)


class HoldingFaults:
    """The faults of a cluster that are not undone yet. Any thread may use it."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def new(self, name: str, undo: Callable[[], None]) -> Fault:
        """A fault that `Cluster.heal` undoes."""
        fault = Fault(name, undo)
        with self._lock:
            self._faults = [*(known for known in self._faults if known.holds), fault]
        return fault

    def newest_first(self) -> list[Fault]:
        with self._lock:
            return [fault for fault in reversed(self._faults) if fault.holds]

    def __str__(self) -> str:
        """For error messages."""
        return ", ".join(repr(fault) for fault in reversed(self.newest_first())) or "none"
