"""The requests of a connection that are in flight, and their replies on the way to the client.

Replies are encoded when they are ready and leave in the order in which they became ready, or, where the protocol says so, in the
order of the requests; those of one wake-up leave in one write. What the client does not read counts in the memory budget.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.principal import Principal

from ..base.figures.request_measures import FETCH, FOLLOWER_FETCH
from ..base.limits import TIGHT_BUFFERED_BYTES
from ..wire.outbox import Outbox
from ..wire.protocol.codec import Chunk, Codec, DecodedRequest, size_of
from ..wire.protocol.kafka.apis import KafkaResponse
from ..wire.protocol.responses import ErrorResponse, Response
from .logins.login import Login
from .quotas.usage import Usage

if TYPE_CHECKING:
    from .connection import ServerConnection
    from .server import Server

logger = logging.getLogger("barnabas.network")


class Call:
    """One request in flight: the context that its handler sees, and its reply."""

    __slots__ = (
        "_connection",
        "_decoded",
        "_disconnected",
        "_is_done",
        "_replies",
        "_times_s",
        "_waits_since_s",
        "chunks",
        "held_bytes",
        "usage",
    )

    def __init__(self, connection: "ServerConnection", decoded: DecodedRequest) -> None:
        self._connection = connection
        self._replies = replies = connection.replies
        self._decoded = decoded
        self._is_done = False
        self._disconnected: Callable[[], object] | None = None
        self.chunks: list[Chunk] | None = None  # Only with ordered replies: ready, but an older reply is not.
        self.held_bytes = 0  # Of these chunks.
        self.usage: Usage | None = None  # Without quotas: not measured.
        self._times_s = replies.times_s
        self._waits_since_s = 0.0
        replies.in_flight += 1
        if replies.ordered is not None:
            replies.ordered.append(self)

    @property
    def client_host(self) -> str:
        return self._connection.client_host

    @property
    def client_id(self) -> str:
        return self._connection.client_id

    @property
    def listener_name(self) -> str:
        return self._connection.listener_name

    @property
    def principal(self) -> Principal:
        return self._connection.principal

    @property
    def certified_node(self) -> int | None:
        return self._connection.certified_node

    @property
    def login(self) -> Login | None:
        return self._connection.login

    def logged_in(self, principal: Principal) -> None:
        self._connection.logged_in(principal)

    def drain(self) -> None:
        self._connection.drain()

    @property
    def is_connected(self) -> bool:
        return self._connection.is_connected

    @property
    def connection(self) -> object:
        return self._connection

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        if not self._replies.is_open:
            callback()
        elif not self._is_done:
            # Handlers of records call this last, when their own work is done: from now on the request waits for others.
            self._waits_since_s = self._replies.now_s()
            self._disconnected = callback
            self._replies.watch(self)

    def disconnected(self) -> None:
        # It is of a task that has this call: a cycle when it is cancelled.
        callback, self._disconnected = self._disconnected, None
        if callback is not None:
            callback()

    def no_reply(self) -> None:
        if not self._is_done:
            self._finish([])

    def hang_up(self) -> None:
        if not self._is_done:
            self._finish([])
            self._connection.drain()

    def reply(self, response: Response | KafkaResponse[object]) -> None:
        if self._is_done:
            logger.error("second reply to one request api=%d", self._decoded.api)
            return
        if type(response) is ErrorResponse:
            self._replies.count_error(self._decoded.api, response.error)
        chunks = self._replies.encode(self._decoded, response)
        if self.usage is not None:
            chunks = self._charged(self.usage, response, chunks)
        self._finish(chunks)

    def _charged(self, usage: Usage, response: Response | KafkaResponse[object], chunks: list[Chunk]) -> list[Chunk]:
        """If the client must wait, the answer says so, and the server does not read the connection for as long."""
        usage.answered(sum(map(size_of, chunks)), self._connection.now_ms())
        if not usage.throttle_ms:
            return chunks
        self._connection.intake.mute(usage.throttle_ms)
        return self._replies.encode(self._decoded, response, ceil(usage.throttle_ms))

    def _finish(self, chunks: list[Chunk]) -> None:
        self._is_done = True
        if self._disconnected is not None:
            self._disconnected = None
            self._replies.unwatch(self)
        replies = self._replies
        api = self._decoded.api
        if api == FETCH and getattr(self._decoded.payload, "replica_id", -1) >= 0:
            api = FOLLOWER_FETCH
        if replies.is_corked and not self._waits_since_s:
            replies.at_once[api] = replies.at_once.get(api, 0) + 1
        else:
            replies.answered(api, self._times_s, self._waits_since_s, replies.now_s())
        replies.finished(self, chunks)


class Replies:
    """Of one connection. After each write, and when the client has read more, it calls `on_progress`; if the socket refuses a
    write, `on_broken`."""

    __slots__ = (
        "_codec",
        "_flush_is_due",
        "_held_bytes",
        "_limits",
        "_on_broken",
        "_on_progress",
        "_server",
        "_watching",
        "answer_bytes",
        "answered",
        "at_once",
        "in_flight",
        "is_corked",
        "is_open",
        "now_s",
        "ordered",
        "outbox",
        "times_s",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        server: "Server",
        *,
        on_progress: Callable[[], None],
        on_broken: Callable[[OSError], None],
    ) -> None:
        self.is_open = True
        self.in_flight = 0
        self.ordered: deque[Call] | None = None  # With ordered replies: all calls in flight, oldest first.
        self.is_corked = False  # Replies are collected for one write at the end of the wake-up.
        self.answer_bytes = 0  # Part of the budget: responses that the client has not read.
        self.outbox = Outbox(transport, self._drained)
        self._server = server
        self.now_s = server.now_s
        self.answered = server.measures.answered
        self.times_s = (
            0.0,
            0.0,
        )  # Of the requests of this wake-up: their arrival, and when the server began with them.
        self.at_once: dict[int, int] = {}  # By API: the requests of this wake-up that are answered in it.
        self._limits = server.limits
        self._codec: Codec = server.codec
        self._on_progress = on_progress
        self._on_broken = on_broken
        self._held_bytes = 0  # Of all calls whose reply waits for an older reply.
        self._watching: dict[Call, None] | None = (
            None  # In order, unlike a set; created by the first call that watches.
        )
        self._flush_is_due = False

    def speak(self, codec: Codec) -> None:
        """The client's protocol is known."""
        self._codec = codec
        self.ordered = deque() if codec.ordered_replies else None

    @property
    def is_over_limit(self) -> bool:
        """The client has too many requests in flight, or does not read its responses."""
        limits, outbox = self._limits, self.outbox
        waiting = self.in_flight + outbox.queued_chunks if outbox.queued_bytes else self.in_flight
        return (
            waiting >= limits.max_requests_in_flight
            or outbox.queued_bytes + self._held_bytes >= limits.max_buffered_bytes
            or (self.answer_bytes >= TIGHT_BUFFERED_BYTES and self._server.memory.is_tight)
        )

    @property
    def are_all_sent(self) -> bool:
        return not self.in_flight and self.outbox.is_empty

    def take_sent_bytes(self) -> int:
        """The bytes sent since the last call."""
        sent_bytes, self.outbox.sent_bytes = self.outbox.sent_bytes, 0
        self._server.metrics.bytes_out += sent_bytes
        return sent_bytes

    def close(self) -> list[Call]:
        """Drop all replies: the connection is closed. Return the calls that want to know."""
        self.is_open = False
        self.take_sent_bytes()
        self.outbox.close()
        self._account()
        # Reference cycles would keep the connection until a collection.
        self._on_progress = _nothing
        self._on_broken = _ignored
        if self.ordered is not None:
            self.ordered.clear()
        watching, self._watching = self._watching, None
        return list(watching or ())

    # --- called by calls ---------------------------------------------------------------------------------------------

    def watch(self, call: Call) -> None:
        if self._watching is None:
            self._watching = {}
        self._watching[call] = None

    def unwatch(self, call: Call) -> None:
        if self._watching is not None:
            self._watching.pop(call, None)

    def count_error(self, api: int, code: int) -> None:
        self._server.measures.failed(api, code)

    def encode(
        self, decoded: DecodedRequest, response: Response | KafkaResponse[object], throttle_ms: int = 0
    ) -> list[Chunk]:
        try:
            return self._codec.encode_response(decoded, response, throttle_ms)
        except Exception:
            # An internal error, but not of the caller of `reply`, which may be serving other clients.
            logger.exception("response cannot be encoded api=%d", decoded.api)
            failed = ErrorResponse(error=int(ErrorCode.UNKNOWN_SERVER_ERROR), message="the response cannot be encoded")
            return self._codec.encode_response(decoded, failed)

    def finished(self, call: Call, chunks: list[Chunk]) -> None:
        self.in_flight -= 1
        if not self.is_open:
            return
        ordered = self.ordered
        if ordered is None:
            self.outbox.put(chunks)
        elif ordered[0] is not call:
            call.chunks = chunks
            call.held_bytes = sum(map(size_of, chunks))
            self._held_bytes += call.held_bytes
        else:
            self.outbox.put(chunks)
            ordered.popleft()
            while ordered and (ready := ordered[0].chunks) is not None:
                self._held_bytes -= ordered.popleft().held_bytes
                self.outbox.put(ready)
        if not (self.is_corked or self._flush_is_due):
            self._flush_is_due = True
            self._server.turn.at_end(self._flush_later)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _flush_later(self) -> None:
        self._flush_is_due = False
        self.flush()

    def flush(self) -> None:
        """Send what is ready, at the end of a wake-up."""
        if self.is_open:
            if self.outbox.queued_bytes:
                self.send()
            if self.answer_bytes or not self.outbox.is_empty:
                self._account()
            self._on_progress()

    def send(self) -> None:
        try:
            self.outbox.flush()
        except OSError as error:
            self._on_broken(error)

    def _account(self) -> None:
        """Count responses that the client has not read, if it does not read as fast as it sends requests."""
        grown_bytes = (self.outbox.memory_bytes + self._held_bytes if self.is_open else 0) - self.answer_bytes
        self.answer_bytes += grown_bytes
        if grown_bytes > 0:
            self._server.memory.hold(grown_bytes)
        elif grown_bytes < 0:
            self._server.memory.give_back(-grown_bytes)

    def _drained(self) -> None:
        """Some data was sent after the socket had been full."""
        if self.answer_bytes:
            self._account()
        self._on_progress()


def _nothing() -> None:
    pass


def _ignored(error: OSError) -> None:
    pass
