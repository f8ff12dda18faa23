"""The client side of Barnabas's protocol, for connections between brokers and for the SDK.

`RpcConnection` is one connection: requests are sent in the order of `send`, responses arrive in any order and are matched by
correlation id. There is no task and no timer per request. `RpcPool` keeps one connection per address.

A peer that is frozen, or behind a broken link, does not reset its connections: they stay open and silent, and after the link is
repaired, TCP may wait for as long again. Therefore, if responses are due and no byte arrives, the connection sends a probe, which
every server answers at once, whatever its other requests wait for. Without an answer, the connection is closed (`silence`).
"""

import asyncio
import os
import weakref
from collections.abc import Iterable
from random import Random
from typing import Any, Final

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BufferExhaustedError,
    InvalidRequestError,
    NetworkError,
    UnsupportedVersionError,
    error_for,
)

from ..base.limits import ClientLimits
from .login import ClientLogin, logged_in
from .network import Network, stream_transport
from .outbox import Outbox
from .pending import PendingRequests
from .protocol.codec import Chunk
from .protocol.framing import FrameReader
from .protocol.msgpack import PREAMBLE, VERSION, ClientHello, MsgpackCodec, ServerHello, read_hello, write_hello
from .protocol.requests import MetadataRequest, Request
from .protocol.responses import ErrorResponse, Response
from .silence import SilenceWatch
from .tls import explain_handshake

SOFTWARE = "barnabas-python"
MOST_CLOSE_WAITS: Final = 10  # of `close_ms`, for a peer that reads slowly
_SIGN_OF_LIFE = MetadataRequest(topics=())  # Cheap, harmless, and answered by every broker; an error is an answer, too.

_OPEN: Final[weakref.WeakSet["RpcConnection"]] = weakref.WeakSet()


def leave_to_parent(loop: asyncio.AbstractEventLoop) -> None:
    """In a forked child: give up its copies of the sockets of this loop of the parent. With them, brokers would not see the
    end of the parent as long as the child lives. /dev/null takes their numbers, which objects in the child believe to own."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_OPEN):
        if connection._loop is loop:
            for descriptor in connection._outbox.descriptors():
                if descriptor >= 0:
                    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


class RpcConnection(asyncio.BufferedProtocol):
    """Created by `open`. All methods belong to the loop's thread."""

    def __init__(self, address: tuple[str, int], limits: ClientLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self.address = address
        self.closed: asyncio.Future[None] = self._loop.create_future()  # Done when the connection is lost.
        self.hello = ServerHello()  # The server's hello.
        self._greeting: asyncio.Future[None] = self._loop.create_future()
        self._is_greeted = False
        self._where = f"{address[0]}:{address[1]}"
        self._close_s = limits.close_ms / 1000
        self._is_closing = False
        self._reader = FrameReader(limits.max_frame_bytes)
        self._codec = MsgpackCodec()
        self._last_correlation_id = 0
        self._pending = PendingRequests(self._where, max_requests=limits.max_requests_in_flight, loop=self._loop)
        self._silence = SilenceWatch(
            limits.silence_ms, is_due=self._has_requests_in_flight, probe=self._ask_for_life, dead=self._is_dead
        )
        self._is_corked = False
        self._login: ClientLogin | None = None
        self._is_ready = False  # Requests may be sent: the greeting and the login are over.

    @classmethod
    async def open(
        cls,
        network: Network,
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_ms: int = 10_000,
        limits: ClientLimits | None = None,
        only_greet: bool = False,
    ) -> "RpcConnection":
        """Connect, shake hands, and log in if the network says how. Raises NetworkError, UnsupportedVersionError if there is no
        common version, and SaslAuthenticationError or IllegalSaslStateError if the broker does not accept this side."""
        connection: RpcConnection | None = None
        is_ours = True  # to close, until the caller has it
        limits = limits or ClientLimits()
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                connected = await network.connect(lambda: cls((host, port), limits), host, port)
                assert isinstance(connected, cls)
                connection = connected
                await connection._greet(client_id)
                if not only_greet:
                    connection._login = await logged_in(connection, network)
                    connection._is_ready = True
            is_ours = False
            return connection
        except TimeoutError as error:
            raise NetworkError(f"{host}:{port} did not answer within {connect_timeout_ms} ms") from error
        except OSError as error:
            raise NetworkError(f"cannot connect to {host}:{port}: {error.strerror or error}") from error
        finally:
            # Also if a cancellation came together with the hello: then the caller does not get the connection.
            if connection is not None and is_ours:
                connection.abort()

    @property
    def is_open(self) -> bool:
        return not self.closed.done() and not self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        return len(self._pending.by_id)

    @property
    def has_room(self) -> bool:
        return len(self._pending.by_id) < self._pending.max_requests

    def send(self, request: Request, *, timeout_ms: int) -> asyncio.Future[Response]:
        """Send, and return a future of the response, which may be an ErrorResponse; a lost or late response raises.

        Raises NetworkError at once if the connection is closed, BufferExhaustedError if too much is in flight. The
        request's buffers must not change until the response has arrived.
        """
        pending = self._pending
        in_flight = len(pending.by_id)
        if in_flight >= pending.max_requests:
            raise BufferExhaustedError(f"{in_flight} requests to {self._where} are in flight; wait for answers")
        future = pending.add(self._write(request), type(request), timeout_ms)
        if self._silence.timer is None:
            self._silence.start()
        return future

    def send_oneway(self, request: Request) -> None:
        """Send a request without a response (acks=0). Raises the same errors as `send`."""
        self._write(request)

    async def call(self, request: Request, *, timeout_ms: int) -> Any:
        """Send, after waiting for room if necessary, and return the response. Raises the error that the response names."""
        if not self.has_room:
            await self.drained(timeout_ms=timeout_ms)
        response = await self.send(request, timeout_ms=timeout_ms)
        if type(response) is ErrorResponse:
            raise error_for(response.error, response.message)
        return response

    async def drained(self, *, timeout_ms: int | None = None) -> None:
        """Wait until there is room for another request. Raises NetworkError if the connection is lost meanwhile, and
        RequestTimedOutError."""
        await self._pending.room(timeout_ms)
        if self.closed.done():
            raise NetworkError(f"the connection to {self._where} was lost")

    async def close(self) -> None:
        """Close; requests in flight fail with NetworkError. What was sent leaves before, while the peer takes some of it in
        each `close_ms`, up to `MOST_CLOSE_WAITS` times."""
        self._is_closing = True
        self._outbox.close_when_sent()
        unsent_bytes = self._outbox.memory_bytes
        try:
            for _ in range(MOST_CLOSE_WAITS):
                await asyncio.wait([self.closed], timeout=self._close_s)
                if self.closed.done():
                    break
                before, unsent_bytes = unsent_bytes, self._outbox.memory_bytes
                if unsent_bytes >= before:
                    break
        finally:
            self.abort()
        await asyncio.wait([self.closed])

    def abort(self) -> None:
        if not self.closed.done():
            self._transport.abort()

    # --- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream_transport(transport)
        self._outbox = Outbox(self._transport, _nothing)
        self._outbox.watch_transport()
        _OPEN.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        reader.received(nbytes)
        self._silence.has_heard = True
        try:
            while (frame := reader.next_frame()) is not None:
                if self._is_greeted:
                    self._take_response(frame)
                else:
                    self._take_hello(frame)
        except BarnabasError as error:
            self.fail(NetworkError(f"{self._where} does not speak Barnabas's protocol: {error.message}"))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._outbox.pause_writing()

    def resume_writing(self) -> None:
        self._outbox.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._outbox.close()
        if not self._is_greeted and (exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError)):
            reason = _why_no_greeting(self._transport)
        else:
            reason = "" if exc is None else f": {explain_handshake(exc)}"
        self._fail_pending(NetworkError(f"the connection to {self._where} was lost{reason}"))
        if not self.closed.done():
            self.closed.set_result(None)

    # --- the handshake -----------------------------------------------------------------------------------------------

    async def _greet(self, client_id: str) -> None:
        hello = ClientHello(versions=(VERSION,), client_id=client_id, client_software=SOFTWARE)
        self._transport.write(PREAMBLE + write_hello(hello))
        await self._greeting

    def _take_hello(self, frame: memoryview) -> None:
        hello = read_hello(ServerHello, frame)
        if hello.min_version <= VERSION <= hello.max_version:
            self.hello = hello
            self._is_greeted = True
            if not self._greeting.done():  # else `open` was cancelled, and closes the connection
                self._greeting.set_result(None)
            return
        spoken = f"{hello.min_version} to {hello.max_version}"
        self.fail(
            UnsupportedVersionError(
                f"{self._where} speaks versions {spoken} of the protocol, this side speaks {VERSION}"
            )
        )

    # --- requests ----------------------------------------------------------------------------------------------------

    def _write(self, request: Request) -> int:
        if self.closed.done() or self._is_closing or self._transport.is_closing():
            raise NetworkError(f"the connection to {self._where} is closed")
        correlation_id = self._last_correlation_id + 1
        self._put(self._codec.encode_request(correlation_id, request))
        self._last_correlation_id = correlation_id
        return correlation_id

    def _put(self, chunks: Iterable[Chunk]) -> None:
        """The first request of a pass of the loop is sent at once, the following ones together at the end of the pass."""
        self._outbox.put(chunks)
        if not self._is_corked:
            self._is_corked = True
            self._loop.call_soon(self._uncork)
            self._flush()

    def _uncork(self) -> None:
        self._is_corked = False
        if self._outbox.queued_bytes:
            self._flush()

    def _flush(self) -> None:
        try:
            self._outbox.flush()
        except OSError as error:
            self.fail(NetworkError(f"cannot send to {self._where}: {error}"))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _take_response(self, frame: memoryview) -> None:
        response = self._codec.decode_response(frame)
        waiting = self._pending.take(response.correlation_id)
        if waiting is None:
            if not 0 < response.correlation_id <= self._last_correlation_id:
                raise InvalidRequestError(f"an answer to request {response.correlation_id}, which was never sent")
            return  # The response is too late, or not expected.
        future, request_type, _ = waiting
        if future.done():
            return
        try:
            future.set_result(self._codec.response_body(request_type, response))
        except BarnabasError as error:
            future.set_exception(error)

    def fail(self, error: BarnabasError) -> None:
        self._fail_pending(error)
        self._transport.abort()

    def _fail_pending(self, error: BarnabasError) -> None:
        if not self._greeting.done():
            self._greeting.set_exception(error)
            self._greeting.exception()  # Looked at: an `open` that was cancelled before `_greet` does not wait for it.
        self._silence.close()
        if self._login is not None:
            self._login.close()
        self._pending.fail(error)

    # --- signs of life -----------------------------------------------------------------------------------------------

    def _has_requests_in_flight(self) -> bool:
        """Before the login is over, the broker answers no probe; the time limit of the connection counts."""
        return self._is_ready and bool(self._pending.by_id)

    def _ask_for_life(self) -> None:
        """Send a probe. No caller waits for its response: any received byte is enough."""
        try:
            self._write(_SIGN_OF_LIFE)
        except NetworkError:
            pass  # The transport is closing, and will report it.

    def _is_dead(self, silent_ms: int) -> None:
        self.fail(NetworkError(f"{self._where} gave no sign of life for {silent_ms} ms"))


def _nothing() -> None:
    pass


class RpcPool:
    """One connection per address, opened at the first use and again after a loss, with backoff and jitter."""

    def __init__(
        self,
        network: Network,
        *,
        client_id: str,
        random: Random,
        connect_timeout_ms: int = 10_000,
        limits: ClientLimits | None = None,
    ) -> None:
        self._network = network
        self._client_id = client_id
        self._random = random
        self._connect_timeout_ms = connect_timeout_ms
        self._limits = limits or ClientLimits()
        self._open: dict[tuple[str, int], RpcConnection] = {}
        self._opening: dict[tuple[str, int], asyncio.Task[RpcConnection]] = {}
        self._failures: dict[
            tuple[str, int], tuple[int, float]
        ] = {}  # Consecutive failures, and the time of the next attempt.
        self._is_closed = False

    def peek(self, host: str, port: int) -> RpcConnection | None:
        """Return the open connection to this address, if there is one. For the hot path."""
        connection = self._open.get((host, port))
        return connection if connection is not None and connection.is_open else None

    async def get(self, host: str, port: int) -> RpcConnection:
        """Return the connection to this address; if necessary, open it, after the backoff for earlier failures.

        All callers share one attempt. Raises NetworkError or UnsupportedVersionError if it fails.
        """
        address = (host, port)
        connection = self.peek(host, port)
        if connection is not None:
            return connection
        if self._is_closed:
            raise NetworkError("the connection pool is closed")
        task = self._opening.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._opening[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        await asyncio.wait(
            [task]
        )  # Not the task itself: a caller that is cancelled must not cancel the attempt of the others.
        if task.cancelled():
            raise NetworkError("the connection pool was closed")
        return task.result()

    async def close(self) -> None:
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        try:
            await asyncio.gather(*opening, return_exceptions=True)
        finally:
            connections = list(self._open.values())
            self._open.clear()
            try:
                await asyncio.gather(*(connection.close() for connection in connections))
            finally:
                for connection in connections:  # A close that is cancelled before its first step has closed nothing.
                    connection.abort()

    async def _connect(self, address: tuple[str, int]) -> RpcConnection:
        _, not_before = self._failures.get(address, (0, 0.0))
        await asyncio.sleep(max(0.0, not_before - asyncio.get_running_loop().time()))
        return await RpcConnection.open(
            self._network,
            *address,
            client_id=self._client_id,
            connect_timeout_ms=self._connect_timeout_ms,
            limits=self._limits,
        )

    def _opened(self, address: tuple[str, int], task: asyncio.Task[RpcConnection]) -> None:
        self._opening.pop(address, None)
        if task.cancelled():
            return
        if task.exception() is None:
            self._failures.pop(address, None)
            self._open[address] = task.result()
            task.result().closed.add_done_callback(lambda _: self._lost(address, task.result()))
        else:
            self._back_off(address)

    def _lost(self, address: tuple[str, int], connection: RpcConnection) -> None:
        """Back off after a loss, too: otherwise, a server that accepts connections and drops them would be flooded."""
        if self._open.get(address) is connection:
            del self._open[address]
            self._back_off(address)

    def _back_off(self, address: tuple[str, int]) -> None:
        failures = self._failures.get(address, (0, 0.0))[0] + 1
        longest = self._limits.reconnect_backoff_max_ms
        delay_ms: float = min(self._limits.reconnect_backoff_ms * 2 ** min(failures - 1, 16), longest)
        # Kafka's jitter: the clients of a dead broker must not reconnect at the same time.
        delay_ms *= self._random.uniform(0.8, 1.2)
        self._failures[address] = (failures, asyncio.get_running_loop().time() + delay_ms / 1000)


def _why_no_greeting(transport: asyncio.Transport) -> str:
    """The other side closes without a word where TLS does not fit: asyncio sends no alert. It resets the connection if our hello
    has reached it by then."""
    if transport.get_extra_info("sslcontext") is None:
        return " before it answered; if its listener demands TLS, set security_protocol"
    return " before it answered; it may not accept this side's certificate, or demand one (ssl_certfile)"
