"""The slots of PostgreSQL that a pipeline reads changes with: told to the cluster, for `barnabas doctor`, and in the metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.net.programs.pipeline.files import PipelineFile

    from ..frame.command import Context


@asynccontextmanager
async def reported_slots(found: "PipelineFile", context: "Context", bootstrap: str) -> AsyncIterator[Callable[[], str]]:
    """While the context is open; its value makes the metrics."""
    from barnabas.net.programs.pipeline.spec import PostgresSource

    sources = [(source, source.origin) for source in found.spec.sources if isinstance(source.origin, PostgresSource)]
    if found.spec.is_batch or not sources:
        yield str
        return
    from barnabas.net.programs.connect.postgres.changes.settings import HealthSettings
    from barnabas.net.programs.connect.postgres.slot_reports import SlotReporter, rendered

    reporters = [
        SlotReporter(
            program=f"pipeline {found.spec.name}" + (f", source {source.name}" if len(sources) > 1 else ""),
            dsn=origin.dsn,
            slot=origin.slot,
            warn_bytes=HealthSettings().warn_lag_bytes,
            bootstrap=bootstrap,
            security=context.connector.security,
        )
        for source, origin in sources
    ]
    async with AsyncExitStack() as stack:
        for reporter in reporters:
            await stack.enter_async_context(reporter.running())
        yield lambda: rendered(reporters)
