"""One client of a server: detects the protocol, reads requests, sends replies, and enforces the client's limits.

The complete frames of one wake-up, up to this connection's share (`fair_reads`), are decoded and dispatched in order of
arrival; the replies that are ready by then leave in one write. If a client has too many requests in flight, or does not read its
responses, the server stops reading from it until that changes.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidRequestError

from ..base.limits import (
    MAX_HELLO_BYTES,
    MIN_PACE_BYTES,
    MIN_PROGRESS_BYTES,
    SHORT_FRAME_MS,
    SHORT_STALL_MS,
    TIGHT_BUFFERED_BYTES,
)
from ..protocol.codec import Chunk, Codec, DecodedRequest, size_of
from ..protocol.kafka.apis import KafkaResponse
from ..protocol.msgpack import PREAMBLE, VERSION, ClientHello, read_hello, write_hello
from ..protocol.responses import ErrorResponse, Response
from ..wire.outbox import Outbox
from .admission import PROBATION_MS, Place
from .dispatcher import error_response
from .fair_reads import LARGE_FRAME_BYTES, PASS_US
from .receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from .server import Server

logger = logging.getLogger("barnabas.network")

_KAFKA_HEAD = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_KAFKA_MAX_API_KEY = 127  # Kafka has about ninety keys and versions below twenty: enough to distinguish it from noise.
_KAFKA_MAX_VERSION = 31
_KAFKA_API_VERSIONS = 18
_KAFKA_VERSION_REFUSED = struct.Struct(">iihi")  # size, correlation id, error, and no versions: ApiVersions v0


class _Phase(Enum):
    SNIFFING = auto()
    HELLO = auto()
    SERVING = auto()
    CLOSING = auto()  # No more requests; replies in flight still leave.
    CLOSED = auto()


class _Call:
    """One request in flight: the context that its handler sees, and its reply."""

    __slots__ = ("_connection", "_decoded", "_disconnected", "_is_done", "chunks", "held_bytes")

    def __init__(self, connection: "ServerConnection", decoded: DecodedRequest) -> None:
        self._connection = connection
        self._decoded = decoded
        self._is_done = False
        self._disconnected: Callable[[], object] | None = None
        self.chunks: list[Chunk] | None = None  # Only with ordered replies: ready, but an older reply is not.
        self.held_bytes = 0  # Of these chunks.

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
    def is_connected(self) -> bool:
        return self._connection.is_connected

    @property
    def connection(self) -> object:
        return self._connection

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        if not self._connection.is_connected:
            callback()
        elif not self._is_done:
            self._disconnected = callback
            self._connection.watch(self)

    def disconnected(self) -> None:
        if self._disconnected is not None:
            self._disconnected()

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
        self._finish(self._connection.encode(self._decoded, response))

    def _finish(self, chunks: list[Chunk]) -> None:
        self._is_done = True
        if self._disconnected is not None:
            self._disconnected = None
            self._connection.unwatch(self)
        self._connection.finished(self, chunks)


class ServerConnection(asyncio.BufferedProtocol):
    def __init__(self, server: "Server") -> None:
        self.client_host = ""
        self.client_id = ""
        self.listener_name = server.listener_name
        self._server = server
        self._limits = server.limits
        self._codec: Codec = server.codec
        self._memory = server.memory
        self._reader = ReceiveBuffer(min(MAX_HELLO_BYTES, server.limits.max_frame_bytes), server.shared)
        self._phase = _Phase.SNIFFING
        self._in_flight = 0
        self._ordered: deque[_Call] | None = None  # With ordered replies: all calls in flight, oldest first.
        self._held_bytes = 0  # Of all calls whose reply waits for an older reply.
        self._watching: dict[_Call, None] = {}  # in order, unlike a set
        self._is_corked = False  # Replies are collected for one write at the end of the wake-up.
        self._flush_is_due = False
        self._read_is_due = False
        self._taken = 0  # Frames in this turn.
        self._is_paused = False
        self.waits_for_memory = False
        self._answer_bytes = 0  # Part of the budget: responses that the client has not read.
        self._progress_bytes = 0  # Received or sent since the last sweep.
        self.stalled_ms = 0  # Time for which the client has held memory without progress.
        self._frame_age_ms = 0  # Of the request that is incomplete.
        self._was_active = True
        self.is_on_probation = False  # Has a reserved place, and has not sent its client id yet.
        self.quiet_ms = 0  # Time without a request in flight, or without reading its responses.
        self._age_ms = 0

    @property
    def is_connected(self) -> bool:
        return self._phase is not _Phase.CLOSED

    # --- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        self._outbox = Outbox(transport, self._drained)
        sock = transport.get_extra_info("socket")
        place = self._server.admit(self, -1 if sock is None else sock.fileno())
        self.is_on_probation = place is Place.RESERVED
        if place is Place.REFUSED:
            self._phase = _Phase.CLOSED
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._was_active = True
        self._progress_bytes += nbytes
        self._server.metrics.bytes_in += nbytes
        self._reader.received(nbytes)
        self._read(self._server.turn.reads.frames(in_line=False))

    def eof_received(self) -> bool:
        return False  # The client no longer reads replies, so the transport may close at once.

    def pause_writing(self) -> None:
        self._outbox.pause_writing()

    def resume_writing(self) -> None:
        self._outbox.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.CLOSED
        self._server.metrics.bytes_out += self._outbox.sent_bytes
        self._outbox.sent_bytes = 0
        self._outbox.close()
        self._memory.forget(self)
        self._reader.release()
        self._account_answers()
        self._server.forget(self)
        watching, self._watching = self._watching, {}
        for call in watching:
            call.disconnected()

    # --- called by the server ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more requests, and close the connection when those in flight have been answered."""
        if self._phase is not _Phase.CLOSED:
            self._phase = _Phase.CLOSING
            self._set_reading(False)
            self._close_if_done()

    def abort(self) -> None:
        if self._phase is not _Phase.CLOSED:
            self._phase = _Phase.CLOSED
            self._transport.abort()

    def has_expired(self, elapsed_ms: int) -> bool:
        """Called at each sweep. A client with a request in flight is not idle, unless it does not read its responses."""
        self._age_ms += elapsed_ms
        sent_bytes, self._outbox.sent_bytes = self._outbox.sent_bytes, 0
        self._look_for_stall(elapsed_ms, sent_bytes)
        self._server.metrics.bytes_out += sent_bytes
        if self._was_active or sent_bytes:
            self._was_active = False
            self.quiet_ms = 0
            return self._is_late()
        self._reader.shrink()
        if self._in_flight and self._outbox.is_empty:
            return False
        self.quiet_ms += elapsed_ms
        return self.quiet_ms >= self._limits.idle_timeout_ms or self._is_late()

    def _look_for_stall(self, elapsed_ms: int, sent_bytes: int) -> None:
        progress_bytes, self._progress_bytes = self._progress_bytes + sent_bytes, 0
        waits_for_us = self.waits_for_memory or self._read_is_due
        if not self.held_bytes or waits_for_us or progress_bytes >= MIN_PROGRESS_BYTES:
            self.stalled_ms = 0
        else:
            self.stalled_ms += elapsed_ms
        if self.has_unfinished_request and not (waits_for_us or self._is_over_limit()):
            self._frame_age_ms += elapsed_ms  # Otherwise, the server has paused reading.

    @property
    def held_bytes(self) -> int:
        """The part of the budget that this client holds: an incomplete request, and responses that it does not read."""
        unfinished = self._reader.own_bytes if self._reader.pending_bytes and not self._is_over_limit() else 0
        return unfinished + self._answer_bytes

    @property
    def has_unfinished_request(self) -> bool:
        return bool(self._reader.own_bytes and self._reader.pending_bytes)

    @property
    def is_slow(self) -> bool:
        """The client takes longer to send its request than others should wait for the memory."""
        due_bytes = (self._frame_age_ms - SHORT_STALL_MS) * MIN_PACE_BYTES // 1000
        return self._frame_age_ms >= SHORT_FRAME_MS or self._reader.pending_bytes < due_bytes

    def _is_late(self) -> bool:
        """A handshake must end in time, even if single bytes of it keep arriving."""
        if self.is_on_probation and self._age_ms > PROBATION_MS:
            return True
        in_handshake = self._phase in (_Phase.SNIFFING, _Phase.HELLO)
        return in_handshake and self._age_ms >= self._limits.handshake_timeout_ms

    # --- called by calls ---------------------------------------------------------------------------------------------

    def watch(self, call: _Call) -> None:
        self._watching[call] = None

    def unwatch(self, call: _Call) -> None:
        self._watching.pop(call, None)

    def encode(self, decoded: DecodedRequest, response: Response | KafkaResponse[object]) -> list[Chunk]:
        if type(response) is ErrorResponse:
            self._server.metrics.errors += 1
        try:
            return self._codec.encode_response(decoded, response)
        except Exception:
            # An internal error, but not of the caller of `reply`, which may be serving other clients.
            logger.exception("response cannot be encoded api=%d", decoded.api)
            failed = ErrorResponse(error=int(ErrorCode.UNKNOWN_SERVER_ERROR), message="the response cannot be encoded")
            return self._codec.encode_response(decoded, failed)

    def finished(self, call: _Call, chunks: list[Chunk]) -> None:
        self._in_flight -= 1
        if self._phase is _Phase.CLOSED:
            return
        ordered = self._ordered
        if ordered is None:
            self._outbox.put(chunks)
        elif ordered[0] is not call:
            call.chunks = chunks
            call.held_bytes = sum(map(size_of, chunks))
            self._held_bytes += call.held_bytes
        else:
            self._outbox.put(chunks)
            ordered.popleft()
            while ordered and (ready := ordered[0].chunks) is not None:
                self._held_bytes -= ordered.popleft().held_bytes
                self._outbox.put(ready)
        if not (self._is_corked or self._flush_is_due):
            self._flush_is_due = True
            self._server.turn.at_end(self._flush_later)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, most_frames: int) -> None:
        """Handle the received frames, send the replies that are ready, then run the work that these requests have deferred."""
        turn, began_s = self._server.turn, self._loop.time()
        self._taken = 0
        turn.begin()
        try:
            self._handle_received(most_frames, began_s)
        finally:
            turn.end()
            turn.reads.used(self._taken, (self._loop.time() - began_s) * 1_000_000)

    def _handle_received(self, most_frames: int, began_s: float) -> None:
        may_read_on = False
        self._is_corked = True
        try:
            may_read_on = self._take_frames(most_frames, began_s)
        except BarnabasError as error:
            self._refuse(error.message)
        except Exception:  # An internal error closes this connection, and does not stop the broker.
            logger.exception("connection failed with an internal error peer=%s", self.client_host)
            self.abort()
        finally:
            self._is_corked = False
        if self._phase is not _Phase.CLOSED:
            self._set_reading(self._has_room_to_receive() and may_read_on)
        self._flush()

    def _has_room_to_receive(self) -> bool:
        self.waits_for_memory = not self._reader.settle()
        if self.waits_for_memory:
            self._memory.wait(self, self._reader.wanted_bytes, self._memory_granted)
        return not self.waits_for_memory

    def _memory_granted(self) -> None:
        self._reader.granted(self._reader.wanted_bytes)
        self.waits_for_memory = False
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._read_is_due:
            self._read_is_due = True
            self._server.turn.reads.wait(self._read_later)

    def _take_frames(self, most_frames: int, began_s: float) -> bool:
        """Return whether to continue reading: not if frames may wait in the buffer, because the client is over its limits or has
        used its share."""
        if self._phase is _Phase.SNIFFING:
            self._sniff()
        for _ in range(most_frames if self._phase is _Phase.SERVING else max(1, most_frames)):
            if self._phase is not _Phase.SERVING and self._phase is not _Phase.HELLO:
                return self._phase is _Phase.SNIFFING
            if self._is_over_limit():
                self._send()
                if self._is_over_limit():
                    return False
            frame = self._reader.next_frame()
            if frame is None:
                return True
            if self._frame_age_ms and 2 * len(frame) >= self._reader.own_bytes:
                self._frame_age_ms = 0  # The request that holds the memory is complete; the next one is new.
            if self._phase is _Phase.SERVING:
                self._serve(frame)
            else:
                self._greet(frame)
            self._taken += 1
            if len(frame) >= LARGE_FRAME_BYTES and (self._loop.time() - began_s) * 1_000_000 >= PASS_US:
                break
        return not self._reader.pending_bytes  # Otherwise, in a later turn (`_drained`), behind the requests of others.

    def _serve(self, frame: memoryview) -> None:
        decoded = self._codec.decode_request(frame)
        call = _Call(self, decoded)
        self._frame_age_ms = 0
        self._in_flight += 1
        if self._ordered is not None:
            self._ordered.append(call)
            self.client_id = decoded.client_id
            if self.is_on_probation and not self._is_identified():
                return
        payload = decoded.payload
        if isinstance(payload, BarnabasError):
            call.reply(error_response(payload))
            return
        requests = self._server.metrics.requests
        requests[decoded.api] = requests.get(decoded.api, 0) + 1
        self._server.dispatcher.dispatch(payload, call, call.reply)

    def _is_over_limit(self) -> bool:
        return (
            self._in_flight + self._outbox.queued_chunks >= self._limits.max_requests_in_flight
            or self._outbox.queued_bytes + self._held_bytes >= self._limits.max_buffered_bytes
            or (self._answer_bytes >= TIGHT_BUFFERED_BYTES and self._memory.is_tight)
        )

    def _set_reading(self, on: bool) -> None:
        if on is not self._is_paused or self._transport.is_closing():
            return
        self._is_paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _read_later(self) -> None:
        self._read_is_due = False
        if self._phase in (_Phase.SNIFFING, _Phase.HELLO, _Phase.SERVING) and not self.waits_for_memory:
            self._read(self._server.turn.reads.frames(in_line=True))

    # --- sending -----------------------------------------------------------------------------------------------------

    def _flush_later(self) -> None:
        self._flush_is_due = False
        self._flush()

    def _flush(self) -> None:
        if self._phase is not _Phase.CLOSED:
            self._send()
            if self._answer_bytes or not self._outbox.is_empty:
                self._account_answers()
            self._drained()

    def _send(self) -> None:
        try:
            self._outbox.flush()
        except OSError as error:
            logger.warning("cannot send to a client peer=%s error=%s", self.client_host, error)
            self.abort()

    def _account_answers(self) -> None:
        """Count responses that the client has not read, if it does not read as fast as it sends requests."""
        is_gone = self._phase is _Phase.CLOSED
        grown_bytes = (0 if is_gone else self._outbox.memory_bytes + self._held_bytes) - self._answer_bytes
        self._answer_bytes += grown_bytes
        if grown_bytes > 0:
            self._memory.hold(grown_bytes)
        elif grown_bytes < 0:
            self._memory.give_back(-grown_bytes)

    def _drained(self) -> None:
        """Some data was sent: there may be room for requests again, or the connection may close."""
        if self._answer_bytes:
            self._account_answers()
        may_read = self._phase is _Phase.SERVING and not (self.waits_for_memory or self._read_is_due)
        if self._is_paused and may_read and not self._is_over_limit():
            # First the frames that wait in the buffer; in another turn, because many of them would nest too deep.
            self._wait_for_turn()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._phase is _Phase.CLOSING and not self._in_flight and self._outbox.is_empty:
            self._transport.close()

    # --- the handshake -----------------------------------------------------------------------------------------------

    def _sniff(self) -> None:
        received = self._reader.peek()
        if not PREAMBLE.startswith(bytes(received[:4])):
            self._sniff_kafka(received)
        elif len(received) >= len(PREAMBLE):
            self._reader.skip(len(PREAMBLE))
            self._phase = _Phase.HELLO

    def _sniff_kafka(self, received: memoryview) -> None:
        """Kafka has no preamble: it is recognized by a size within the limits, and by a plausible api key and version."""
        if len(received) < _KAFKA_HEAD.size:
            if len(received) < 4 or 8 <= int.from_bytes(received[:4], "big") <= self._limits.max_frame_bytes:
                return  # Too few bytes to decide; the handshake timeout closes connections that send no more.
            raise InvalidRequestError("neither Barnabas's protocol nor Kafka's")
        size, api, version, correlation_id = _KAFKA_HEAD.unpack_from(received)
        # Any version of ApiVersions is accepted: a newer client uses it to ask for the supported versions (KIP-511).
        plausible = api == _KAFKA_API_VERSIONS or (
            0 <= api <= _KAFKA_MAX_API_KEY and 0 <= version <= _KAFKA_MAX_VERSION
        )
        if not (8 <= size <= self._limits.max_frame_bytes and plausible):
            raise InvalidRequestError("neither Barnabas's protocol nor Kafka's")
        codec = self._server.kafka_codec
        if codec is not None:
            self._start_serving(codec)
            return
        self._server.metrics.strangers += 1
        self._server.log_once(
            f"kafka {self.client_host}", "Kafka's protocol is not served on this port peer=%s", self.client_host
        )
        if api == _KAFKA_API_VERSIONS:
            refused = _KAFKA_VERSION_REFUSED.pack(10, correlation_id, ErrorCode.UNSUPPORTED_VERSION, 0)
            self._outbox.put([refused])
        self._phase = _Phase.CLOSING

    def _greet(self, frame: memoryview) -> None:
        theirs = read_hello(ClientHello, frame)
        self.client_id = theirs.client_id
        if self.is_on_probation and not self._is_identified():
            return
        hello = self._server.hello()
        self._outbox.put([write_hello(hello)])
        if any(hello.min_version <= version <= hello.max_version for version in theirs.versions):
            self._start_serving(self._server.codec)
        else:
            self._server.log_once(
                self.client_host, "no common protocol version peer=%s broker=%d", self.client_host, VERSION
            )
            self._phase = _Phase.CLOSING

    def _is_identified(self) -> bool:
        self.is_on_probation = False
        is_welcome = self._server.identified(self)
        if not is_welcome:
            self.abort()
        return is_welcome

    def _start_serving(self, codec: Codec) -> None:
        self._codec = codec
        self._ordered = deque() if codec.ordered_replies else None
        self._reader.max_frame_bytes = self._limits.max_frame_bytes
        self._phase = _Phase.SERVING

    def _refuse(self, reason: str) -> None:
        """The stream is not valid (any more): close without a reply, because the client would not understand it."""
        if self._phase is _Phase.SNIFFING:
            self._server.metrics.strangers += 1
        self._server.log_once(self.client_host, "connection refused peer=%s reason=%s", self.client_host, reason)
        self.abort()
