"""One client of a server: detects the protocol, reads requests, sends replies, and enforces the client's limits.

The complete frames of one wake-up, up to this connection's share (`fair_reads`), are decoded and dispatched in order of
arrival; the replies that are ready by then leave in one write. If a client has too many requests in flight, or does not read its
responses, the server stops reading from it until that changes.
"""

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    IllegalSaslStateError,
    InvalidConfigError,
    SaslAuthenticationError,
)
from barnabas.log.vocabulary.principal import ANONYMOUS, Principal

from ..base.fair_reads import LARGE_FRAME_BYTES, PASS_US
from ..base.limits import MAX_HELLO_BYTES, MAX_LOGIN_FRAME_BYTES
from ..wire.network import stream_transport
from ..wire.peer import peer_of
from ..wire.protocol.api_keys import ApiKey
from ..wire.protocol.codec import Codec, DecodedRequest
from ..wire.protocol.detection import Spoken, detect, refusal_of_kafka
from ..wire.protocol.msgpack import PREAMBLE, VERSION, ClientHello, read_hello, write_hello
from .admission import PROBATION_MS, Place
from .dispatcher import error_response
from .intake import Intake
from .logins.login import Login, LoginState
from .pace import Pace
from .quotas.usage import usage_of
from .receive_buffer import ReceiveBuffer
from .replies import Call, Replies

if TYPE_CHECKING:
    from .server import Server

logger = logging.getLogger("barnabas.network")

# Served before a login: SaslHandshake, ApiVersions and SaslAuthenticate of Kafka, and the login of our own protocol.
LOGIN_APIS = frozenset({17, 18, 36, int(ApiKey.AUTHENTICATE)})
_LOG_IN = "this listener serves only clients that log in: set security_protocol and sasl_mechanism ({})"


class _Phase(Enum):
    SNIFFING = auto()
    HELLO = auto()
    SERVING = auto()
    CLOSING = auto()  # No more requests; replies in flight still leave.
    CLOSED = auto()


class ServerConnection(asyncio.BufferedProtocol):
    """Reads and dispatches requests. `intake` receives them, `replies` answers them, `pace` measures the client."""

    __slots__ = (
        "_codec",
        "_limits",
        "_loop",
        "_phase",
        "_server",
        "_shown_node",
        "_taken",
        "_transport",
        "_waiting_since_s",
        "certified_node",
        "client_host",
        "client_id",
        "intake",
        "is_on_probation",
        "listener_name",
        "login",
        "pace",
        "principal",
        "replies",
    )

    def __init__(self, server: "Server") -> None:
        self.client_host = ""
        self.client_id = ""
        self.listener_name = server.listener_name
        self.principal = ANONYMOUS  # until a certificate or a login says who the client is
        self.certified_node: int | None = None
        self._shown_node: int | None = None  # of a broker that has to log in, too
        self.login = Login(server.mechanisms) if server.mechanisms else None  # None: the listener has no SASL
        self.pace = Pace()
        self.is_on_probation = False  # Has a reserved place, and has not sent its client id yet.
        self._server = server
        self._limits = server.limits
        self._codec: Codec = server.codec
        self._phase = _Phase.SNIFFING
        self._taken = 0  # Frames in this turn.
        self._waiting_since_s = 0.0  # Frames wait in the buffer for a later turn; 0.0: none does.

    @property
    def is_connected(self) -> bool:
        return self._phase is not _Phase.CLOSED

    # --- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = stream_transport(transport)
        self._loop = asyncio.get_running_loop()
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        reader = ReceiveBuffer(min(MAX_HELLO_BYTES, _max_frame_bytes(self)), server.shared)
        self.intake = Intake(self._transport, reader, server.memory, server.turn.reads, self._turn_has_come)
        self.replies = Replies(self._transport, server, on_progress=self._progressed, on_broken=self._broken)
        self.replies.outbox.watch_transport()
        sock = transport.get_extra_info("socket")
        place = server.admit(self, -1 if sock is None else sock.fileno())
        self.is_on_probation = place is Place.RESERVED
        if place is Place.REFUSED:
            self.abort()
            return
        try:
            who = peer_of(transport, server.principal_rules)
        except (InvalidConfigError, SaslAuthenticationError) as error:
            self._refuse(error.message)
        else:
            self.principal = who.principal
            self._shown_node = who.node_id if server.brokers_are_certified else None
            self.certified_node = None if self.login is not None else self._shown_node

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.intake.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        server, pace = self._server, self.pace
        pace.was_active = True
        pace.progress_bytes += nbytes
        server.metrics.bytes_in += nbytes
        self.intake.reader.received(nbytes)
        self._read(server.turn.reads.frames(in_line=False))

    def eof_received(self) -> bool:
        return False  # The client no longer reads replies, so the transport may close at once.

    def pause_writing(self) -> None:
        self.replies.outbox.pause_writing()

    def resume_writing(self) -> None:
        self.replies.outbox.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.CLOSED
        self.intake.close()
        interested = self.replies.close()
        self._server.forget(self)
        for call in interested:
            call.disconnected()

    # --- called by the server ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more requests, and close the connection when those in flight have been answered."""
        if self._phase is not _Phase.CLOSED:
            self._phase = _Phase.CLOSING
            self.intake.set_reading(False)
            self._close_if_done()

    def abort(self) -> None:
        if self._phase is not _Phase.CLOSED:
            self._phase = _Phase.CLOSED
            self.replies.is_open = False
            self._transport.abort()

    def has_expired(self, elapsed_ms: int) -> bool:
        """Called at each sweep. A client with a request in flight is not idle, unless it does not read its responses."""
        pace, replies, intake = self.pace, self.replies, self.intake
        waits = intake.waits_for_server
        was_active = pace.passed(
            elapsed_ms,
            replies.take_sent_bytes(),
            is_holding=self.held_bytes > 0 and not waits,
            is_sending=intake.has_unfinished_request and not (waits or replies.is_over_limit),
        )
        if was_active:
            return self._is_late()
        intake.reader.shrink()
        replies.outbox.shrink()
        if replies.in_flight and replies.outbox.is_empty:
            return False
        pace.quiet_ms += elapsed_ms
        return pace.quiet_ms >= self._limits.idle_timeout_ms or self._is_late()

    @property
    def held_bytes(self) -> int:
        """The part of the budget that this client holds: an incomplete request, and responses that it does not read."""
        reader, replies = self.intake.reader, self.replies
        unfinished = reader.own_bytes if reader.pending_bytes and not replies.is_over_limit else 0
        return unfinished + replies.answer_bytes

    @property
    def is_slow(self) -> bool:
        """The client takes longer to send its request than others should wait for the memory."""
        return self.pace.is_slow(self.intake.reader.pending_bytes)

    def _is_late(self) -> bool:
        """A handshake must end in time, even if single bytes of it keep arriving."""
        if self.is_on_probation and self.pace.age_ms > PROBATION_MS:
            return True
        is_unknown = self.login is not None and self.login.principal is None
        in_handshake = is_unknown or self._phase in (_Phase.SNIFFING, _Phase.HELLO)
        return in_handshake and self.pace.age_ms >= self._limits.handshake_timeout_ms

    def logged_in(self, principal: Principal) -> None:
        """SASL says who the client is, whatever its certificate says. A broker shows which one it is, and logs in as a user of
        brokers."""
        self.principal = principal
        self.certified_node = self._shown_node if principal in self._server.broker_users else None
        self.intake.reader.max_frame_bytes = _max_frame_bytes(self)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, most_frames: int) -> None:
        """Handle the received frames, send the replies that are ready, then run the work that these requests have deferred."""
        turn, began_s = self._server.turn, self._loop.time()
        self._taken = 0
        turn.is_open = True
        try:
            self._handle_received(most_frames, began_s)
        finally:
            turn.end()
            ended_s = self._loop.time()
            replies = self.replies
            if replies.at_once:
                self._server.measures.answered_at_once(replies.at_once, replies.times_s, ended_s)
            turn.reads.used(self._taken, (ended_s - began_s) * 1_000_000)

    def _handle_received(self, most_frames: int, began_s: float) -> None:
        may_read_on = False
        replies = self.replies
        replies.is_corked = True
        replies.times_s = (self._waiting_since_s or began_s, began_s)
        try:
            may_read_on = self._take_frames(most_frames, began_s)
        except BarnabasError as error:
            self._refuse(error.message)
        except Exception:  # An internal error closes this connection, and does not stop the broker.
            logger.exception("connection failed with an internal error peer=%s", self.client_host)
            self.abort()
        finally:
            replies.is_corked = False
        # What waits because the client does not read its answers does not wait for this broker.
        is_left = not (may_read_on or replies.is_over_limit)
        self._waiting_since_s = (self._waiting_since_s or began_s) if is_left else 0.0
        if self._phase is not _Phase.CLOSED:
            self.intake.settle(may_read_on=may_read_on)
        replies.flush()

    def _take_frames(self, most_frames: int, began_s: float) -> bool:
        """Return whether to continue reading: not if frames may wait in the buffer, because the client is over its limits or has
        used its share."""
        reader, replies, pace = self.intake.reader, self.replies, self.pace
        if self._phase is _Phase.SNIFFING:
            self._sniff()
        for _ in range(most_frames if self._phase is _Phase.SERVING else max(1, most_frames)):
            if self._phase is not _Phase.SERVING and self._phase is not _Phase.HELLO:
                return self._phase is _Phase.SNIFFING
            if replies.is_over_limit:
                replies.send()
                if replies.is_over_limit:
                    return False
            frame = reader.next_frame()
            if frame is None:
                return True
            if pace.frame_age_ms and 2 * len(frame) >= reader.own_bytes:
                pace.frame_age_ms = 0  # The request that holds the memory is complete; the next one is new.
            if self._phase is _Phase.SERVING:
                self._serve(frame)
            else:
                self._greet(frame)
            self._taken += 1
            is_large = len(frame) >= LARGE_FRAME_BYTES
            if self.intake.is_muted or (is_large and (self._loop.time() - began_s) * 1_000_000 >= PASS_US):
                break
        return not reader.pending_bytes  # Otherwise, in a later turn (`_progressed`), behind the requests of others.

    def _serve(self, frame: memoryview) -> None:
        decoded = self._codec.decode_request(frame)
        call = Call(self, decoded)
        self.pace.frame_age_ms = 0
        if self.replies.ordered is not None:
            self.client_id = decoded.client_id
            if self.is_on_probation and not self._is_identified():
                return
        if self.login is not None and decoded.api not in LOGIN_APIS and not self.login.may_serve(self._loop.time()):
            _refuse_without_login(self, self.login, call)
            return
        payload = decoded.payload
        if isinstance(payload, BarnabasError):
            call.reply(error_response(payload))
            return
        requests = self._server.metrics.requests
        requests[decoded.api] = requests.get(decoded.api, 0) + 1
        if self._server.quotas.is_active and (self.login is None or self.login.principal is not None):
            _serve_within_quotas(self, decoded, call, len(frame))
        else:
            self._server.dispatcher.dispatch(payload, call, call.reply)

    def now_ms(self) -> float:
        """The clock of quotas."""
        return self._loop.time() * 1000

    def _turn_has_come(self) -> None:
        if self._phase in (_Phase.SNIFFING, _Phase.HELLO, _Phase.SERVING):
            self._read(self._server.turn.reads.frames(in_line=True))

    # --- replies -----------------------------------------------------------------------------------------------------

    def _progressed(self) -> None:
        """Some data was sent: there may be room for requests again, or the connection may close."""
        intake = self.intake
        if self._phase is _Phase.SERVING:
            is_held_back = intake.is_paused and not intake.waits_for_server
            if is_held_back and not self.replies.is_over_limit:
                # First the frames that wait in the buffer; in another turn, because many of them would nest too deep.
                intake.wait_for_turn()
        elif self._phase is _Phase.CLOSING:
            self._close_if_done()

    def _broken(self, error: OSError) -> None:
        logger.warning("cannot send to a client peer=%s error=%s", self.client_host, error)
        self.abort()

    def _close_if_done(self) -> None:
        if self.replies.are_all_sent:
            self._transport.close()

    # --- the handshake -----------------------------------------------------------------------------------------------

    def _sniff(self) -> None:
        reader = self.intake.reader
        received = reader.peek()
        spoken = detect(received, max_frame_bytes=_max_frame_bytes(self))
        if spoken is Spoken.BARNABAS:
            reader.skip(len(PREAMBLE))
            self._phase = _Phase.HELLO
        elif spoken is Spoken.KAFKA and self._server.kafka_codec is not None:
            self._start_serving(self._server.kafka_codec)
        elif spoken is Spoken.KAFKA:
            self._server.metrics.strangers += 1
            self._server.log_once(
                f"kafka {self.client_host}", "Kafka's protocol is not served on this port peer=%s", self.client_host
            )
            refusal = refusal_of_kafka(received)
            if refusal:
                self.replies.outbox.put([refusal])
            self._phase = _Phase.CLOSING

    def _greet(self, frame: memoryview) -> None:
        theirs = read_hello(ClientHello, frame)
        self.client_id = theirs.client_id
        if self.is_on_probation and not self._is_identified():
            return
        if theirs.client_software:
            name, _, version = theirs.client_software.partition(" ")
            self._server.measures.greeted(name, version)
        hello = self._server.greeting()
        self.replies.outbox.put([write_hello(hello)])
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
        self.replies.speak(codec)
        self.intake.reader.max_frame_bytes = _max_frame_bytes(self)
        self._phase = _Phase.SERVING

    def _refuse(self, reason: str) -> None:
        """The stream is not valid (any more): close without a reply, because the client would not understand it."""
        if self._phase is _Phase.SNIFFING:
            self._server.metrics.strangers += 1
        self._server.log_once(self.client_host, "connection refused peer=%s reason=%s", self.client_host, reason)
        self.abort()


def _max_frame_bytes(connection: ServerConnection) -> int:
    login, limit_bytes = connection.login, connection._limits.max_frame_bytes
    return min(MAX_LOGIN_FRAME_BYTES, limit_bytes) if login is not None and login.principal is None else limit_bytes


def _refuse_without_login(connection: ServerConnection, login: Login, call: Call) -> None:
    """As Kafka does, close the connection; a client of Barnabas learns why."""
    is_new = login.principal is None and login.state is not LoginState.FAILED
    if is_new and connection.replies.ordered is None:
        call.reply(error_response(IllegalSaslStateError(_LOG_IN.format(" or ".join(login.mechanisms)))))
        call.drain()
    else:
        call.hang_up()
    if is_new:
        host = connection.client_host
        connection._server.log_once(f"login {host}", "event=request_without_login client=%s", host)


def _serve_within_quotas(connection: ServerConnection, decoded: DecodedRequest, call: Call, size_bytes: int) -> None:
    server, payload = connection._server, cast(Any, decoded.payload)
    usage = call.usage = usage_of(
        connection, decoded, server.quotas, connection.now_ms(), serves_brokers=server.serves_brokers
    )
    if usage is None:
        server.dispatcher.dispatch(payload, call, call.reply)
        return
    if not usage.arrived(size_bytes):
        call.hang_up()
        return
    server.dispatcher.dispatch(usage.limited(payload), call, call.reply)
    usage.handed_over(connection.now_ms())
    if usage.throttle_ms:
        connection.intake.mute(usage.throttle_ms)
