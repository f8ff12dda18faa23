"""A simulated TCP: every node has a `Network` of its own, all delays come from one seeded generator.

What is promised is what TCP promises. Bytes arrive in order and once, or the connection breaks. So a lost packet shows
as a stall, a cut link as a stall that ends in a reset when the sender's user timeout runs out, a killed process as a
reset, a machine that is gone as silence. A reader that does not read fills the window, then the writer's buffer.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ...wire.network import Listener, ProtocolFactory
from ...wire.tcp import USER_TIMEOUT_MS
from .process import NOBODY, OWNER, call_in

SYN_PAUSES_S: Final = (1, 2, 4, 8, 16, 32, 64)  # between Linux's attempts to reach a host that does not answer

WINDOW_BYTES = 256 * 1024  # On the way or unread, per direction, before the writer has to keep its bytes.
SEGMENT_BYTES = 64 * 1024  # Delivered at once at most; larger writes arrive in parts, as they do in life.
RETRANSMIT_S = 0.2  # What one lost packet costs.
_FIRST_FREE_PORT = 20_000


@dataclass(slots=True)
class LinkConditions:
    """One direction of one pair of nodes. Change its fields at any time."""

    latency_s: float = 0.0002
    jitter_s: float = 0.0003
    loss: float = 0.0  # Chance that a segment is lost and sent again.
    bytes_per_s: float = 1e9
    is_cut: bool = False


class SimulatedNetwork:
    """The world. `node(name)` is what one node's code is given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.listeners: dict[tuple[str, int], _SimulatedListener] = {}
        self._links: dict[tuple[str, str], LinkConditions] = {}
        self._transports: list[SimulatedTransport] = []
        self._down: set[str] = set()
        self._next_port = _FIRST_FREE_PORT

    def node(self, name: str) -> "NodeNetwork":
        return NodeNetwork(self, name)

    def link(self, source: str, target: str) -> LinkConditions:
        return self._links.setdefault((source, target), LinkConditions())

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets from source to target. The other direction goes on, except for want of acks."""
        self.link(source, target).is_cut = True

    def heal(self) -> None:
        """All links work again; what is stalled goes on its way."""
        for link in self._links.values():
            link.is_cut = False
        for transport in list(self._transports):
            transport.link_is_back()

    def kill(self, name: str) -> None:
        """The process dies: its own code hears nothing more, its peers are reset, its ports refuse."""
        self.listeners = {address: it for address, it in self.listeners.items() if it.node != name}
        for transport in [it for it in self._transports if it.node == name]:
            transport.die()

    def links(self) -> Iterable[LinkConditions]:
        return self._links.values()

    def mend(self, directions: Iterable[tuple[str, str]]) -> None:
        """These work again; what is stalled goes on its way."""
        for source, target in directions:
            self.link(source, target).is_cut = False
        for transport in list(self._transports):
            transport.link_is_back()

    def power_off(self, name: str) -> None:
        """The machine is down: as `kill`, but peers receive no reset, and connecting to it hangs."""
        self._down.add(name)
        self.listeners = {address: it for address, it in self.listeners.items() if it.node != name}
        for transport in [it for it in self._transports if it.node == name]:
            transport.die(silently=True)

    def power_on(self, name: str) -> None:
        self._down.discard(name)
        for transport in list(self._transports):
            transport.link_is_back()

    def reset_connections(self, one: str, other: str) -> None:
        """Break every connection between two nodes, on both sides."""
        for transport in list(self._transports):
            if (transport.node, transport.peer_node) in ((one, other), (other, one)):
                transport.lose(ConnectionResetError("connection reset by the simulation"))

    def reset_after_arrival(self, sender: str, receiver: str) -> None:
        """Break what the sender has opened to the receiver: at once for the sender, who hears no answer any more; for the
        receiver when all that was sent has arrived."""
        for transport in list(self._transports):
            if (transport.node, transport.peer_node) == (sender, receiver):
                transport.abort()

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def delay(self, link: LinkConditions, size_bytes: int = 0) -> float:
        delay = link.latency_s + self.random.random() * link.jitter_s + size_bytes / link.bytes_per_s
        while link.loss and self.random.random() < link.loss:
            delay += RETRANSMIT_S
        return delay

    def carries(self, source: str, target: str) -> bool:
        return not (target in self._down or self.link(source, target).is_cut)

    def establish(self, client: str, listener: "_SimulatedListener", factory: ProtocolFactory) -> asyncio.BaseProtocol:
        ours = SimulatedTransport(self, client, listener.node, ("sim-" + client, self.free_port()), listener.address)
        theirs = SimulatedTransport(self, listener.node, client, listener.address, ours.local_address)
        ours.peer, theirs.peer = theirs, ours
        self._transports += [ours, theirs]
        theirs.start(listener.factory, listener.context)
        protocol = ours.start(factory, contextvars.copy_context())
        assert protocol is not None, "who connects is running"
        return protocol

    def forget(self, transport: "SimulatedTransport") -> None:
        if transport in self._transports:
            self._transports.remove(transport)


class NodeNetwork:
    """Implements net.wire.network.Network for one node."""

    def __init__(self, world: SimulatedNetwork, name: str) -> None:
        self._world = world
        self._name = name

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        address = (host, port or self._world.free_port())
        if address in self._world.listeners:
            raise OSError(98, f"address already in use: {address}")
        listener = _SimulatedListener(self._world, self._name, factory, address)
        self._world.listeners[address] = listener
        return listener

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        world = self._world
        listener = world.listeners.get((host, port))
        target = listener.node if listener is not None else host
        await asyncio.sleep(world.delay(world.link(self._name, target)) + world.delay(world.link(target, self._name)))
        for pause_s in SYN_PAUSES_S:
            if world.carries(self._name, target) and world.carries(target, self._name):
                break
            await asyncio.sleep(pause_s)
        else:
            raise TimeoutError(110, f"connecting to {host}:{port} timed out")
        listener = world.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, f"connection refused: {host}:{port}")
        return world.establish(self._name, listener, factory)


class _SimulatedListener:
    def __init__(self, world: SimulatedNetwork, node: str, factory: ProtocolFactory, address: tuple[str, int]) -> None:
        self._world = world
        self.node = node
        self.factory = factory
        self.address = address
        self.context = contextvars.copy_context()  # of the process that listens: its code runs in it

    async def close(self) -> None:
        self.close_now()
        await asyncio.sleep(0)

    def close_now(self) -> None:
        if self._world.listeners.get(self.address) is self:
            del self._world.listeners[self.address]


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. `_outgoing` is the writer's buffer, `_wire` the way, `_arrived` the reader's buffer."""

    peer: "SimulatedTransport"

    def __init__(
        self,
        world: SimulatedNetwork,
        node: str,
        peer_node: str,
        local_address: tuple[str, int],
        peer_address: tuple[str, int],
    ) -> None:
        super().__init__({"peername": peer_address, "sockname": local_address})
        self.node = node
        self.peer_node = peer_node
        self.local_address = local_address
        self._world = world
        self._protocol: Any = None
        self._context = NOBODY
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._wire: deque[bytes | None] = deque()  # On the way to the peer, oldest first. None: the end of the stream.
        self._wire_due = 0  # How many of them have been on their way for long enough.
        self._in_flight = 0  # Bytes sent and not yet known to be taken by the peer's protocol.
        self._acks_held = 0  # Bytes that the peer took, but whose ack cannot get here.
        self._last_arrival = 0.0  # The next segment must not overtake the last.
        self._stalled_at: float | None = None  # Since when nothing that was sent has been acknowledged.
        self._arrived: deque[bytes | None] = deque()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writer_is_paused = False
        self._reader_is_paused = False
        self._is_closing = False
        self._end_is_sent = False
        self._is_lost = False

    def start(
        self, factory: ProtocolFactory, context: contextvars.Context, *, late: bool = False
    ) -> asyncio.BaseProtocol | None:
        """The protocol is made, and lives, in its own process. One that is stopped takes the connection later."""
        self._context = context
        if self._is_lost:
            return None
        if self._stopped_until() is not None and not late:
            self._later(lambda: self.start(factory, context, late=True))
            return None
        self._protocol = call_in(context, factory)
        if self._protocol is None:
            return None  # its process died while it was stopped
        call_in(context, self._protocol.connection_made, self)
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def _stopped_until(self) -> float | None:
        """When the process at this end goes on; None: it runs."""
        owner = self._context.get(OWNER)
        return owner.stalled_until if owner is not None and owner.stalled_until > self._world.loop.time() else None

    def _later(self, work: Callable[[], object]) -> None:
        """When the process goes on, or (it has just done so, and takes up its connections) right after this moment."""
        until = self._stopped_until() or self._world.loop.time() + 1e-6
        self._world.loop.call_at(until, work, context=NOBODY)

    # --- asyncio.Transport -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        view = memoryview(bytes(data))
        for start in range(0, len(view), SEGMENT_BYTES):
            self._outgoing.append(bytes(view[start : start + SEGMENT_BYTES]))
        self._outgoing_bytes += len(view)
        self.pump()
        if self._outgoing_bytes > self._high and not self._writer_is_paused:
            self._writer_is_paused = True
            call_in(self._context, self._protocol.pause_writing)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.pump()

    def abort(self) -> None:
        if self._is_lost:
            return
        self._is_closing = True
        self._reset_peer()
        self.lose(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._reader_is_paused = True

    def resume_reading(self) -> None:
        self._reader_is_paused = False
        self._world.loop.call_soon(self._deliver, context=NOBODY)

    def is_reading(self) -> bool:
        return not self._reader_is_paused and not self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # --- sending -----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Put on the wire what the window takes. A cut link takes nothing: the user timeout begins to run."""
        if self._is_lost:
            return
        if not self._world.carries(self.node, self.peer_node):
            if self._outgoing or self._in_flight or self._is_closing:
                self._stall()
            return
        while self._outgoing and self._in_flight < WINDOW_BYTES:
            segment = self._outgoing.popleft()
            self._outgoing_bytes -= len(segment)
            self._in_flight += len(segment)
            self._send(segment)
        if self._is_closing and not self._outgoing and not self._end_is_sent:
            self._end_is_sent = True
            self._send(None)
            self._world.loop.call_soon(self.lose, None, context=NOBODY)
        if self._writer_is_paused and self._outgoing_bytes <= self._low:
            self._writer_is_paused = False
            self._world.loop.call_soon(self._resume_writer, context=NOBODY)

    def _resume_writer(self) -> None:
        if self._is_lost or self._writer_is_paused:
            return
        if self._stopped_until() is not None:
            self._later(self._resume_writer)
            return
        call_in(self._context, self._protocol.resume_writing)

    def _send(self, segment: bytes | None) -> None:
        link = self._world.link(self.node, self.peer_node)
        delay = self._world.delay(link, len(segment) if segment else 0)
        self._last_arrival = max(self._last_arrival, self._world.loop.time() + delay)
        self._wire.append(segment)
        self._world.loop.call_at(self._last_arrival, self._is_due, context=NOBODY)

    def _is_due(self) -> None:
        self._wire_due += 1
        self._deliver_due()

    def _deliver_due(self) -> None:
        """What was on the way when the link was cut is sent again once the link works, in the old order."""
        while self._wire_due and self._world.carries(self.node, self.peer_node):
            self._wire_due -= 1
            self.peer.arrive(self._wire.popleft())
        if self._wire_due:
            self._stall()

    def link_is_back(self) -> None:
        if self._world.carries(self.node, self.peer_node) and self._world.carries(self.peer_node, self.node):
            self._stalled_at = None
        self._deliver_due()
        if self._acks_held and self._world.carries(self.peer_node, self.node):
            held, self._acks_held = self._acks_held, 0
            self.acknowledged(held)
        self.pump()

    def _stall(self) -> None:
        if self._stalled_at is None:
            self._stalled_at = self._world.loop.time()
            timeout_s = USER_TIMEOUT_MS / 1000
            self._world.loop.call_later(timeout_s, self._user_timeout, self._stalled_at, context=NOBODY)

    def _user_timeout(self, since: float) -> None:
        if self._stalled_at == since and not self._is_lost:
            self._reset_peer()
            self.lose(TimeoutError(110, "the peer did not acknowledge in time"))

    def _reset_peer(self) -> None:
        link = self._world.link(self.node, self.peer_node)
        if self._world.carries(self.node, self.peer_node):
            at = max(self._last_arrival, self._world.loop.time() + self._world.delay(link))
            error = ConnectionResetError(104, "connection reset by peer")
            self._world.loop.call_at(at, self.peer.lose, error, context=NOBODY)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def arrive(self, segment: bytes | None) -> None:
        if self._is_lost:
            self._reset_peer()  # The connection is closed: the kernel answers with a reset.
            return
        self._arrived.append(segment)
        self._deliver()

    def _deliver(self) -> None:
        if self._arrived and not self._is_lost and (self._protocol is None or self._stopped_until() is not None):
            self._later(self._deliver)
            return
        while self._arrived and not self._reader_is_paused and not self._is_lost:
            segment = self._arrived.popleft()
            if segment is None:
                if not call_in(self._context, self._protocol.eof_received):
                    self.close()
                return
            left = call_in(self._context, self._feed, segment) or b""
            if left:
                self._arrived.appendleft(left)
            self.peer.acknowledged(len(segment) - len(left))

    def _feed(self, segment: bytes) -> bytes:
        """Returns what the reader has not taken, because it paused."""
        rest = memoryview(segment)
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            while rest and not (self._is_lost or self._reader_is_paused):
                buffer = memoryview(self._protocol.get_buffer(len(rest)))
                taken = min(len(buffer), len(rest))
                buffer[:taken] = rest[:taken]
                self._protocol.buffer_updated(taken)
                rest = rest[taken:]
            return b"" if self._is_lost else bytes(rest)
        self._protocol.data_received(segment)
        return b""

    def acknowledged(self, size_bytes: int) -> None:
        """The peer took this much. The ack takes no time, but it needs the way back."""
        if not self._world.carries(self.peer_node, self.node):
            self._acks_held += size_bytes
            self._stall()
            return
        self._in_flight -= size_bytes
        self.pump()

    # --- the end -----------------------------------------------------------------------------------------------------

    def lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._forget()
        self._world.loop.call_soon(self._tell_lost, error, context=NOBODY)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._stopped_until() is not None:
            self._later(lambda: self._tell_lost(error))
        elif self._protocol is not None:
            call_in(self._context, self._protocol.connection_lost, error)

    def die(self, *, silently: bool = False) -> None:
        """This end's process is gone: nothing reaches its protocol any more."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._forget()
        if not silently:
            self._reset_peer()

    def _forget(self) -> None:
        self._outgoing.clear()
        self._arrived.clear()
        self._outgoing_bytes = 0
        self._world.forget(self)
