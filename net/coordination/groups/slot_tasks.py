"""The tasks of the hosted slots: appends, loads, renewals of epochs."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger("barnabas.groups")


class SlotTasks:
    """An internal error of a task stops the broker: its callers would wait forever, while another broker can take over."""

    def __init__(self, fatal: Callable[[str], None]) -> None:
        self._fatal = fatal
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, unlike a set

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("the work of a group slot failed", exc_info=error)
            self._fatal(f"the work of a group slot failed: {error!r}")

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
