"""Calls the handler of a request; the only place where exceptions become responses.

A handler is a synchronous function `handler(request, context, reply)`: it calls `reply` exactly once, now or later, or
`context.no_reply()`. Record batches of the request are views into the receive buffer: handlers must not keep them.
`answering` turns a coroutine function into a handler.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, UnsupportedVersionError
from barnabas.log.vocabulary.principal import Principal

from ..wire.protocol.apis import KEY_OF, api_name
from ..wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from ..wire.protocol.requests import Request
from ..wire.protocol.responses import ErrorResponse, Response
from .logins.login import Login

logger = logging.getLogger("barnabas.network")


class RequestContext(Protocol):
    """The client of a request, and whether it is still connected."""

    def __hash__(self) -> int: ...
    @property
    def client_host(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def principal(self) -> Principal:
        """Who sends the request: ANONYMOUS before a certificate or a login says otherwise."""

    @property
    def certified_node(self) -> int | None:
        """The broker that the client's certificate names; None: it is no broker's."""

    @property
    def login(self) -> Login | None:
        """None: the listener has no SASL."""

    def logged_in(self, principal: Principal) -> None:
        """The client has proved who it is."""

    def drain(self) -> None:
        """Take no more requests, and close the connection when those in flight have been answered."""

    @property
    def is_connected(self) -> bool: ...
    @property
    def connection(self) -> object:
        """The same for all requests of one connection."""

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call `callback` if the client disconnects before the reply; the reply removes the callback."""

    def no_reply(self) -> None:
        """Called instead of `reply`: this request (acks=0) has no response."""

    def hang_up(self) -> None:
        """Called instead of `reply`: this request gets no response, and the connection closes after the other responses."""


Reply = Callable[[Response | KafkaResponse[object]], None]
Handler = Callable[[Any, RequestContext, Reply], None]


class Guard(Protocol):
    def admit(self, api: int, request: Any, client: RequestContext, reply: Reply) -> tuple[Any, Reply] | None:
        """The request for the handler, or a part of it, and where its response goes; None: it is answered. Raises an
        AuthorizationError."""


class Dispatcher:
    """Passes requests to handlers. An exception of a handler becomes a response; it never closes the connection."""

    def __init__(self, handlers: Mapping[int, Handler], guard: Guard | None = None) -> None:
        """Without a guard, every client may do everything."""
        self._handlers: dict[int, Handler] = {int(api): handler for api, handler in handlers.items()}
        self._guard = guard

    def dispatch(self, request: Request | KafkaRequest[object], context: RequestContext, reply: Reply) -> None:
        try:
            api: int = request.api_key if isinstance(request, KafkaRequest) else KEY_OF[type(request)]
            handler = self._handlers.get(api)
            if handler is None:
                raise UnsupportedVersionError(f"this broker does not serve {api_name(api)}")
            if self._guard is not None:
                admitted = self._guard.admit(api, request, context, reply)
                if admitted is None:
                    return
                request, reply = admitted
            handler(request, context, reply)
        except Exception as error:  # noqa: BLE001 - the error boundary
            reply(error_response(error, request))

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The coroutines that still work on a response."""
        handlers: list[object] = list(self._handlers.values())
        return [task for handler in handlers if isinstance(handler, HasTasks) for task in handler.tasks]

    async def close(self) -> None:
        """Cancel the coroutines that still work on a response, and wait until they have ended."""
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def error_response(error: Exception, request: object = None) -> ErrorResponse:
    """Return the response to an error. Internal errors are logged with a traceback; the client receives a generic message."""
    if isinstance(error, BarnabasError):
        return ErrorResponse(error=int(error.code), message=error.message)
    name = type(request).__name__ if request is not None else "-"
    logger.error("request failed with an internal error request=%s error=%r", name, error, exc_info=error)
    return ErrorResponse(
        error=int(ErrorCode.UNKNOWN_SERVER_ERROR),
        message="the request failed with an internal error of the broker; see the broker's log",
    )


def answering(
    function: Callable[[Any, RequestContext], Coroutine[Any, Any, Response | KafkaResponse[object] | None]],
    *,
    survives_disconnect: bool = False,
) -> Handler:
    """Turn `async def function(request, context) -> Response` into a handler.

    None is no response: the connection closes. The function runs as a task that is cancelled when the client disconnects, unless
    `survives_disconnect`.
    """
    return _Answering(function, survives_disconnect)


@runtime_checkable
class HasTasks(Protocol):
    @property
    def tasks(self) -> Iterable[asyncio.Task[Any]]:
        """The tasks that still work on a response."""


class _Answering:
    def __init__(
        self,
        function: Callable[[Any, RequestContext], Awaitable[Response | KafkaResponse[object] | None]],
        survives_disconnect: bool,
    ) -> None:
        self._function = function
        self._survives_disconnect = survives_disconnect
        self._tasks: dict[asyncio.Task[None], None] = {}  # The loop keeps only weak references. Ordered, unlike a set.

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that make responses, and the function's own tasks."""
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
            response: Response | KafkaResponse[object] | None = await self._function(request, context)
        except Exception as error:  # noqa: BLE001 - the error boundary, as in Dispatcher.dispatch
            response = error_response(error, request)
        if response is None:
            context.hang_up()
        else:
            reply(response)
