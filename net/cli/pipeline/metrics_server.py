"""`barnabas pipeline run` and `barnabas connect run` with `--metrics HOST:PORT`: metrics over HTTP, for Prometheus."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:  # help must not import the pipeline's modules
    from barnabas.net.programs.pipeline.files import PipelineFile

PATH: Final = "/metrics"
READ_TIMEOUT_S: Final = 10.0  # for a request on an open connection, so that idle ones do not stay
MAX_WAITING: Final = 16  # connections that are not accepted yet


@asynccontextmanager
async def served(text: Callable[[], str], address: str) -> AsyncIterator[int]:
    """While the context is open; its value is the port. An empty address serves nothing. Raises CommandError."""
    if not address:
        yield 0
        return
    from aiohttp import web

    host, port = _place(address)
    app = web.Application()
    app.router.add_get(PATH, _handler(text))
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=READ_TIMEOUT_S, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=MAX_WAITING)
        try:
            await site.start()
        except OSError as error:
            raise CommandError(f"--metrics {address}: {error.strerror or error}: choose another address") from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def pipeline_metrics(found: "PipelineFile") -> Callable[[], str]:
    from barnabas.net.programs.pipeline.metrics import rendered

    folder, name = found.state_folder(), found.spec.name
    return lambda: rendered(name, folder.read_run(), folder.read_progress())


def _handler(text: Callable[[], str]):  # type: ignore[no-untyped-def]  # aiohttp is imported where it is needed
    from aiohttp import web

    from barnabas.net.programs.pipeline.metrics import CONTENT_TYPE

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text().encode(), headers={"Content-Type": CONTENT_TYPE})

    return answer


def _place(address: str) -> tuple[str, int]:
    """Raises CommandError. An address without a host would be on every interface, which has to be said: 0.0.0.0."""
    from barnabas.log.settings.addresses import parse_address

    try:
        host, port = parse_address(address)
    except ValueError:
        host, port = "", 0
    if not host:
        raise CommandError(f"--metrics {address}: give HOST:PORT, such as localhost:9400", ExitCode.USAGE)
    return host, port
