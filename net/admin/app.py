"""The HTTP server of the admin API: the only module that uses aiohttp. Import it after the broker serves its clients.

Importing aiohttp takes 0.2 seconds; clients of the broker must not wait for that.
"""

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from barnabas.log.vocabulary.errors import AuthorizationError, BarnabasError

from ..server.access.changes import DONE
from ..wire.tcp import ListeningServer, TcpListener
from . import streams
from .callers import Standing, access_of, refused
from .console import decoding, history, overview, pages, pipelines
from .frame import openapi, shapes
from .frame.backend import AdminBackend
from .frame.call import Call, DocumentsHandler, Json, Reply, Route, check_body, check_query
from .frame.connections import IDLE_S, MAX_CONNECTIONS, SWEEP_S, AdminConnections
from .frame.doubts import STALE, Doubts
from .frame.errors import ApiError, bad_request, refusal
from .frame.feed import EVENTS, Feed
from .frame.lags import LagsOfGroups
from .frame.origins import (
    SAFE_METHODS,
    check_host,
    check_media_type,
    check_origin,
    cross_origin_headers,
    is_admitted,
)
from .frame.packing import Packing
from .frame.permissions import check_body_of, check_call, shown
from .frame.places import Places
from .operations import brokers, partitions, quorum, users
from .operations import groups as group_operations
from .routes import (
    acls,
    clusters,
    configs,
    doctor,
    events,
    group_explain,
    group_seek,
    groups,
    metrics,
    quotas,
    record_reading,
    records,
    storage,
    topics,
    transactions,
)

log = logging.getLogger("barnabas.admin")
http_log = logging.getLogger("barnabas.admin.http")  # aiohttp's

MAX_BODY_BYTES: Final = (
    8 * 1024 * 1024
)  # one record in base64 and JSON, with a margin; brokers refuse larger batches anyway
LONE_SURROGATE: Final = (
    "\\ud"  # the JSON escape of half a surrogate pair; a complete pair is a character and is accepted
)
LARGE_AT_ONCE: Final = 16  # large answers that are made or written at a time; others wait
LARGE_TIMEOUT_S: Final = 30.0  # for a caller to take one
PRODUCING_AT_ONCE: Final = 16  # callers that send records one after the other
SHUTDOWN_TIMEOUT_S: Final = 2.0  # a stopping broker waits at most this long for calls in flight

_BACKEND: Final = web.AppKey("backend", AdminBackend)
_LAGS: Final = web.AppKey("lags", LagsOfGroups)
_FEED: Final = web.AppKey("feed", Feed)
_DECODING: Final = web.AppKey("decoding", decoding.Decoding)
_TAILS: Final = web.AppKey("tails", Places)
_PRODUCING: Final = web.AppKey("producing", Places)
_READS: Final = web.AppKey("reads", asyncio.Semaphore)
_LARGE: Final = web.AppKey("large", asyncio.Semaphore)
_DOUBTS: Final = web.AppKey("doubts", Doubts)
_PACKING: Final = web.AppKey("packing", Packing)
_CONNECTIONS: Final = web.AppKey("connections", AdminConnections)
_NAMES: Final = ("topic_name", "resource_name", "principal")  # fields of bodies that name what a call changes


class _ClientErrors(logging.Filter):
    """aiohttp logs a traceback for each request that is not HTTP: a client could fill the disk. The client receives 400."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            log.debug("not HTTP error=%r", str(error))
            return False
        return True


http_log.addFilter(_ClientErrors())


async def _healthz(call: Call) -> Reply:
    """Confirm only that the process is alive and its event loop runs."""
    return Reply(body={"status": "ok", "node_id": call.backend.node_id})


async def _readyz(call: Call) -> Reply:
    ready, reason = call.backend.is_ready()
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Reply(status=status, body={"ready": ready, "reason": reason, "node_id": call.backend.node_id})


async def _openapi(call: Call) -> Reply:
    return Reply(body=openapi.document(ROUTES))


ROUTES: Final[tuple[Route, ...]] = (
    *clusters.ROUTES,
    *doctor.ROUTES,
    *events.ROUTES,
    *overview.ROUTES,
    *history.ROUTES,
    *pipelines.ROUTES,
    *storage.ROUTES,
    *topics.ROUTES,
    *records.ROUTES,
    *record_reading.ROUTES,
    *configs.ROUTES,
    *groups.ROUTES,
    *group_explain.ROUTES,
    *group_seek.ROUTES,
    *transactions.ROUTES,
    *acls.ROUTES,
    *quotas.ROUTES,
    *brokers.ROUTES,
    *partitions.ROUTES,
    *group_operations.ROUTES,
    *quorum.ROUTES,
    *users.ROUTES,
    *metrics.ROUTES,
    *pages.ROUTES,
    Route(
        method="GET",
        path="/healthz",
        handler=_healthz,
        summary="Liveness: the process is alive and its event loop runs",
        answer=(shapes.text("status", "ok."), shapes.whole("node_id", "This broker.")),
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=_readyz,
        summary="Readiness: the broker can serve clients; otherwise 503 with the reason",
        answer=(
            shapes.flag("ready", "It can."),
            shapes.text("reason", "Why it cannot; empty: it can."),
            shapes.whole("node_id", "This broker."),
        ),
        also=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        handler=_openapi,
        summary="This document",
        answer=(
            shapes.text("openapi", "3.1.0."),
            shapes.mapping("info", "What it is about."),
            shapes.mapping("paths", "Operations by path."),
            shapes.mapping("components", "Schemas."),
        ),
    ),
)


def build_app(backend: AdminBackend, connections: AdminConnections | None = None) -> web.Application:
    """The application, not yet listening."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_for_pages_elsewhere])
    app[_BACKEND] = backend
    app[_LAGS] = LagsOfGroups()
    app[_FEED] = Feed(backend.image, lambda: overview.overview_of(backend.image()))
    app[_READS] = asyncio.Semaphore(record_reading.READS_AT_ONCE)
    app[_DECODING] = decoding.Decoding(backend.schema_registry)
    app[_TAILS] = Places(record_reading.TAILS_AT_ONCE, record_reading.TOO_MANY_TAILS)
    app[_PRODUCING] = Places(
        PRODUCING_AT_ONCE, f"{PRODUCING_AT_ONCE} callers send records to this broker already: use another broker"
    )
    app[_LARGE] = asyncio.Semaphore(LARGE_AT_ONCE)
    app[_DOUBTS] = Doubts()
    app[_PACKING] = Packing()
    # An empty pool is false.
    app[_CONNECTIONS] = AdminConnections(time.monotonic) if connections is None else connections
    app.on_cleanup.append(_end_looking)
    for route in ROUTES:
        answer = _adapter(route)
        app.router.add_route(route.method, route.path, answer)
        if route.method == "GET":
            app.router.add_route("HEAD", route.path, answer)  # RFC 9110, 9.1: load balancers use HEAD.
    return app


async def _end_looking(app: web.Application) -> None:
    await app[_LAGS].close()


class AdminServer:
    """The listening API of one broker."""

    def __init__(self, runner: web.AppRunner, address: tuple[str, int], connections: AdminConnections) -> None:
        self._runner = runner
        self.address = address
        self._connections = connections
        self._sweeps = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._connections.sweep()
        self._sweeps = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Stop listening, and wait briefly for calls in flight."""
        self._sweeps.cancel()
        await self._runner.cleanup()


class _BoundedSite(web.BaseSite):
    """aiohttp's SockSite for a pool of connections."""

    def __init__(
        self,
        runner: web.AppRunner,
        listening: socket.socket,
        connections: AdminConnections,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        super().__init__(runner)
        self._listening = listening
        self._connections = connections
        self._tls = tls

    @property
    def name(self) -> str:
        scheme = "https" if self._tls else "http"
        return "{}://{}:{}".format(scheme, *self._listening.getsockname()[:2])

    async def start(self) -> None:
        await super().start()
        handlers = self._runner.server
        assert handlers is not None
        self._listening.setblocking(False)
        listener = TcpListener(self._listening, lambda: self._connections.accept(handlers()), self._tls)
        self._server = cast("asyncio.AbstractServer", ListeningServer(listener, self._listening))


async def start_admin(
    backend: AdminBackend,
    listening: socket.socket,
    max_connections: int = MAX_CONNECTIONS,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AdminServer:
    """Serve on a listening socket: its port was registered with the cluster before this module was imported."""
    connections = AdminConnections(asyncio.get_running_loop().time, max_connections)
    runner = web.AppRunner(
        build_app(backend, connections),
        access_log=None,
        logger=http_log,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    await _BoundedSite(runner, listening, connections, tls).start()
    bound_host, bound_port = runner.addresses[0][:2]
    return AdminServer(runner, (bound_host, bound_port), connections)


def _adapter(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query and not route.query and route.method not in SAFE_METHODS:
            raise bad_request(f"{route.method} takes no query parameters; remove {next(iter(request.query))!r}")
        call = Call(
            backend=request.app[_BACKEND],
            base=f"{request.scheme}://{request.host}",
            path=dict(request.match_info),
            query=check_query(route.query, request.query),
            lags=request.app[_LAGS],
            feed=request.app[_FEED],
            reads=request.app[_READS],
            decoding=request.app[_DECODING],
            tails=request.app[_TAILS],
            known_etags=request.headers.get("If-None-Match", ""),
            wants_events=EVENTS in request.headers.get("Accept", ""),
            last_event_id=request.headers.get("Last-Event-ID", ""),
        )
        call.check_cluster()
        call = replace(call, access=await access_of(request, call))
        try:
            if call.access is not None:
                check_call(call.access, route.method, route.path, call)
            # Only now: the JSON of strangers would cost the loop that serves the clients.
            if route.documents is not None and await _has_several(request):
                several = await _several(request, route, route.documents, call)
                _tell(route, call, DONE)
                return several
            call = replace(call, body=await _body(request, route))
            with request.app[_CONNECTIONS].serving(request.transport):
                if route.is_large and not (call.wants_events and EVENTS in route.also_media):
                    async with request.app[_LARGE]:
                        reply = await _permitted(route, call)
                        return await _written(request, await _told(request, route, reply))
                reply = await _permitted(route, call)
                if reply.stream is not None:
                    return await streams.events(request, reply.stream, Standing(request, route, call).check)
        except AuthorizationError as error:
            _tell(route, call, _outcome_of(error))
            raise refused(error, call.access) from None
        except BaseException as error:
            _tell(route, call, _outcome_of(error))
            raise
        _tell(route, call, DONE)
        return await _told(request, route, reply)

    return answer


async def _told(request: web.Request, route: Route, reply: Reply) -> web.Response:
    if route.method == "GET" and route.path.startswith("/v3/"):
        answer = _with_doubt(reply, await request.app[_DOUBTS].now(request.app[_BACKEND]))
    else:
        answer = _response(reply)
    return await request.app[_PACKING].packed(request, answer)


async def _written(request: web.Request, response: web.Response) -> web.Response:
    """Write a large answer now, and drop a caller that does not take it: a few of them would hold much memory."""
    try:
        await response.prepare(request)
        async with asyncio.timeout(LARGE_TIMEOUT_S):
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # the caller is gone
    return response


async def _permitted(route: Route, call: Call) -> Reply:
    access = call.access
    if access is None:
        return await route.handler(call)
    check_body_of(access, route.method, route.path, call)
    reply = await route.handler(call)
    if route.method in SAFE_METHODS:  # the answer may have taken long; of a change, the caller learns how it ended
        check_call(access, route.method, route.path, call)
    return shown(access, reply)


def _tell(route: Route, call: Call, outcome: str) -> None:
    """The audit tells what was changed, and how that ended."""
    if call.access is not None and route.method not in SAFE_METHODS:
        call.access.changed(f"{route.method} {route.path}", target=_target(call), outcome=outcome)


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, ApiError):
        return f"error {error.error_code}"  # not its text, which may have a value from the body
    return error.code.name if isinstance(error, BarnabasError) else "interrupted"


def _target(call: Call) -> str:
    """What the call names, in its path and in its body; no values."""
    named = [value for key in _NAMES if isinstance(value := call.body.get(key), str)]
    return ",".join((*call.path.values(), *named))


def _with_doubt(reply: Reply, doubt: Json | None) -> web.Response:
    if doubt is None or not isinstance(reply.body, dict):
        return _response(reply)
    answer = _response(replace(reply, body={**reply.body, "unconfirmed": doubt}))
    answer.headers["Warning"] = STALE
    return answer


async def _body(request: web.Request, route: Route) -> Json:
    if not route.body:
        return {}
    check_media_type(request.content_type)
    try:
        text = await request.text()
    except (ValueError, LookupError) as error:  # LookupError: an unknown charset
        raise bad_request(f"the body is not valid JSON: {error}") from None
    return _object(route, text)


def _object(route: Route, text: str | bytes) -> Json:
    """A body. Raises ApiError."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if LONE_SURROGATE in text.lower():
            json.dumps(json.loads(text), ensure_ascii=False).encode()  # Raises for half a surrogate pair.
        return check_body(route.body, json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _response(reply: Reply) -> web.Response:
    if reply.body is None:
        return web.Response(status=reply.status, headers=reply.headers)
    if isinstance(reply.body, str | bytes):
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        headers = {**reply.headers, "Content-Type": reply.content_type}
        return web.Response(body=body, status=reply.status, headers=headers)
    return web.json_response(reply.body, status=reply.status, headers=reply.headers)


async def _has_several(request: web.Request) -> bool:
    """A body without a length, as Confluent's streaming form has it, or several JSON objects in one with a length."""
    if not request.body_exists:
        return False
    if streams.is_chunked(request):
        return True
    try:
        json.loads(await request.read())
    except json.JSONDecodeError as error:
        return error.msg == "Extra data"
    except (ValueError, RecursionError):
        return False  # `_body` says why
    return False


async def _several(request: web.Request, route: Route, handler: DocumentsHandler, call: Call) -> web.StreamResponse:
    check_media_type(request.content_type)
    leave = request.app[_PRODUCING].take(call.user)
    try:
        with request.app[_CONNECTIONS].serving(request.transport):
            return await streams.documents(
                request,
                call,
                handler,
                lambda data: _object(route, data),
                Standing(request, route, call).check,
                MAX_BODY_BYTES,
            )
    finally:
        leave()


def _error(status: int, error_code: int, message: str) -> web.Response:
    return web.json_response({"error_code": error_code, "message": message}, status=status)


@web.middleware
async def _for_pages_elsewhere(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer preflight requests of admitted pages, and let these pages read the answers to their requests, errors too."""
    origin = request.headers.get("Origin")
    path = (
        request.rel_url.raw_path
    )  # as routes see it: decoded, the name `t%2Frecords` of a topic would look like two segments
    if origin is None or not is_admitted(path, origin, request.app[_BACKEND].allowed_origins()):
        return await _errors_as_json(request, handler, checks_origin=True)
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=cross_origin_headers(origin, preflight=True))
    request[streams.CROSS_ORIGIN] = cross_origin_headers(origin)
    answer = await _errors_as_json(request, handler, checks_origin=False)
    if not answer.prepared:
        answer.headers.update(request[streams.CROSS_ORIGIN])
    return answer


async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], *, checks_origin: bool
) -> web.StreamResponse:
    """The error boundary: every error becomes one JSON object; internal errors are logged with a traceback. `checks_origin`: no
    page of another origin may change state."""
    try:
        check_host(request.path, request.headers.get("Host"), request.app[_BACKEND].host_names())
        if checks_origin:
            check_origin(request.method, request.headers, request.scheme)
        return await handler(request)
    except ApiError as error:
        return _error(error.status, error.error_code, str(error))
    except BarnabasError as failure:
        told = refusal(failure)
        answer = _error(told.status, told.error_code, str(told))
        if told.status == HTTPStatus.UNAUTHORIZED:
            answer.headers["WWW-Authenticate"] = 'Basic realm="barnabas"'
        return answer
    except web.HTTPException as error:
        answer = _error(error.status, error.status, _words(request, error))
        answer.headers.update({name: value for name, value in error.headers.items() if name == "Allow"})
        return answer
    except Exception:
        log.exception("admin request failed method=%s path=%s", request.method, request.path)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return _error(status, status, "internal error; the broker's log has the details")


def _words(request: web.Request, error: web.HTTPException) -> str:
    if error.status == HTTPStatus.NOT_FOUND:
        return f"there is no {request.path}; /openapi.json lists all paths"
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return f"the body is larger than {MAX_BODY_BYTES} bytes"
    return f"{request.method} {request.path}: {error.reason}"
