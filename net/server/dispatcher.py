"""From a request to its handler, and the one place where exceptions become answers.

A handler is a synchronous function `handler(request, context, reply)`: it calls `reply` exactly once, now or later, or
`context.no_reply()`. Record batches of the request are views into the receive buffer: they must not be kept.
`answering` makes a handler of a coroutine function.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, UnsupportedVersionError

from ..protocol.apis import api_name, key_of
from ..protocol.kafka.apis import KafkaRequest, KafkaResponse
from ..protocol.requests import Request
from ..protocol.responses import ErrorResponse, Response

logger = logging.getLogger("barnabas.network")


class RequestContext(Protocol):
    """Who asks, and whether they are still there."""

    def __hash__(self) -> int: ...
    @property
    def client_host(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def is_connected(self) -> bool: ...
    @property
    def connection(self) -> object:
        """The same for all requests of one connection."""

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call `callback` if the client goes before the reply; it is forgotten with the reply."""

    def no_reply(self) -> None:
        """In place of `reply`: this request (acks=0) gets no answer."""

    def hang_up(self) -> None:
        """In place of `reply`: this request gets no answer, and the connection ends once the others have theirs."""


Reply = Callable[[Response | KafkaResponse[object]], None]
Handler = Callable[[Any, RequestContext, Reply], None]


class Dispatcher:
    """Hands requests to handlers. What a handler raises is answered; nothing that it does ends the connection."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers: dict[int, Handler] = {int(api): handler for api, handler in handlers.items()}

    def dispatch(self, request: Request | KafkaRequest[object], context: RequestContext, reply: Reply) -> None:
        try:
            api: int = request.api_key if isinstance(request, KafkaRequest) else key_of(type(request))
            handler = self._handlers.get(api)
            if handler is None:
                raise UnsupportedVersionError(f"this broker does not serve {api_name(api)}")
            handler(request, context, reply)
        except Exception as error:  # noqa: BLE001 - the error boundary
            reply(error_response(error, request))

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The coroutines that still work on an answer."""
        handlers: list[object] = list(self._handlers.values())
        return [task for handler in handlers if isinstance(handler, HasTasks) for task in handler.tasks]

    async def close(self) -> None:
        """Cancel the coroutines that still work on an answer, and wait until they have ended."""
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def error_response(error: Exception, request: object = None) -> ErrorResponse:
    """Return what the client is told. A bug of ours is logged here with its traceback, and not explained outside."""
    if isinstance(error, BarnabasError):
        return ErrorResponse(error=int(error.code), message=error.message)
    name = type(request).__name__ if request is not None else "-"
    logger.error("request failed by a bug request=%s error=%r", name, error, exc_info=error)
    return ErrorResponse(
        error=int(ErrorCode.UNKNOWN_SERVER_ERROR),
        message="the broker failed to answer because of an error of its own; its log has the details",
    )


def answering(
    function: Callable[[Any, RequestContext], Coroutine[Any, Any, Response | KafkaResponse[object]]],
    *,
    survives_disconnect: bool = False,
) -> Handler:
    """Make a handler of `async def function(request, context) -> Response`.

    It runs as a task that is cancelled when the client goes, unless `survives_disconnect`.
    """
    return _Answering(function, survives_disconnect)


@runtime_checkable
class HasTasks(Protocol):
    @property
    def tasks(self) -> Iterable[asyncio.Task[Any]]:
        """What still works on an answer."""


class _Answering:
    def __init__(
        self,
        function: Callable[[Any, RequestContext], Awaitable[Response | KafkaResponse[object]]],
        survives_disconnect: bool,
    ) -> None:
        self._function = function
        self._survives_disconnect = survives_disconnect
        self._tasks: dict[asyncio.Task[None], None] = {}  # The loop keeps weak references only. In order, unlike a set.

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The answers that are made, and what the function does beside them."""
        own: list[asyncio.Task[Any]] = list(self._tasks)
        return [*own, *self._function.tasks] if isinstance(self._function, HasTasks) else own

    def __call__(self, request: Any, context: RequestContext, reply: Reply) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(request, context, reply))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if not self._survives_disconnect:
            context.on_disconnect(task.cancel)

    async def _answer(self, request: Any, context: RequestContext, reply: Reply) -> None:
        try:
            response = await self._function(request, context)
        except Exception as error:  # noqa: BLE001 - the error boundary, as in Dispatcher.dispatch
            response = error_response(error, request)
        reply(response)
