"""`Collecting`: the collectors of a pipeline whose sources are log files, which send lines to topics beside the driver.

So a pipeline reads a topic in any case: lines wait there while its driver is away, and are there for other readers, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.log.vocabulary.errors import BarnabasError

from ..frame.exit_codes import CommandError

if TYPE_CHECKING:
    from barnabas.net.programs.collect.collector import Collector
    from barnabas.net.programs.pipeline.files import PipelineFile

    from ..frame.command import Context

END_LIMIT_S: Final = 45.0  # for the transaction that is running, after the pipeline has ended
_Result = TypeVar("_Result")


class Collecting:
    """`run` and `stop` are those of the pipeline, together with its collectors."""

    def __init__(self, found: "PipelineFile", context: "Context", bootstrap: str, *, is_once: bool) -> None:
        self._collectors = _collectors(found, context, bootstrap, is_once=is_once)
        self._is_once = is_once
        self._is_stopping = False
        self._stop: Callable[[], None] | None = None  # of the pipeline, while it runs

    def stop(self) -> None:
        self._is_stopping = True
        for collector in self._collectors:
            collector.stop()
        if self._stop is not None:
            self._stop()

    async def run(self, run: Callable[[], Awaitable[_Result]], stop: Callable[[], None]) -> _Result:
        """The result of `run`. Bounded work begins when all files have been read. Raises CommandError."""
        tasks = [asyncio.create_task(collector.run()) for collector in self._collectors]
        try:
            if self._is_once and tasks:
                _raise_error((await asyncio.wait(tasks))[0])
            self._stop = stop
            if self._is_stopping:
                stop()
            for task in tasks:
                task.add_done_callback(lambda task: None if self._is_once or self._is_stopping else stop())
            result = await run()
        finally:
            await self._end(tasks)
        _raise_error(set(tasks))
        return result

    async def _end(self, tasks: "list[asyncio.Task[None]]") -> None:
        self._is_stopping = True
        for collector in self._collectors:
            collector.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=END_LIMIT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _raise_error(tasks: "set[asyncio.Task[None]]") -> None:
    """Raises CommandError for a collector that has ended with an error."""
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BarnabasError):
            raise CommandError(f"the collector of the source failed: {error.message}") from error
        if error is not None:
            raise error


def _collectors(found: "PipelineFile", context: "Context", bootstrap: str, *, is_once: bool) -> "list[Collector]":
    from barnabas.net.programs.collect.collector import Collector, CollectorConfig
    from barnabas.net.programs.pipeline.spec import TopicSource

    return [
        Collector(
            CollectorConfig(
                name=f"pipeline-{found.spec.name}-{source.name}",
                patterns=tuple(str(found.base / pattern) for pattern in source.origin.collect),
                topic=source.origin.topics[0],
                bootstrap=bootstrap,
                first_line=source.origin.first_line or None,
                is_once=is_once,
                security=context.connector.security,
            )
        )
        for source in found.spec.sources
        if isinstance(source.origin, TopicSource) and source.origin.collect
    ]
