"""Connections that can be cut and delayed: a protocol and a transport between those of asyncio and those of the broker.

A cut is one of a cable: nothing is refused and nothing is reset. What was sent waits, as with TCP, and arrives when the cut ends;
who gives up earlier closes its own end only. The broker that dials holds back both directions of a connection, because it
knows whom it dialed; a delay applies to what arrives, at either end.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from barnabas.kraft.raft.net.network import Listener as QuorumListener
from barnabas.kraft.raft.net.network import RaftNetwork

from ...wire.network import Listener, Network, ProtocolFactory, stream_transport
from ...wire.tcp import TcpListener

Address = tuple[str, int]
_SCRATCH_BYTES: Final = 64 * 1024  # read at once while a link has faults


class BrokerLinks:
    """All connections of one broker. They may live on several loops: the quorum of a broker process has one of its own, and the
    broker asks other quorums on the main one. Any thread may call these methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_loops: dict[asyncio.AbstractEventLoop, LinkRules] = {}  # two at most
        self._cut: frozenset[Address] = frozenset()
        self._delay_s = 0.0
        self._is_dead = False

    def here(self) -> "LinkRules":
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._of_loops:
                self._of_loops[loop] = LinkRules(cut=self._cut, delay_s=self._delay_s, is_dead=self._is_dead)
            return self._of_loops[loop]

    def change(self, *, cut: frozenset[Address], delay_s: float) -> None:
        """Also of open connections, each loop in its next pass, the running one at once."""
        with self._lock:
            self._cut, self._delay_s = cut, delay_s
            self._everywhere(lambda rules: rules.change(cut=cut, delay_s=delay_s))

    def die(self) -> None:
        """Close all connections, as the kernel does when a process ends."""
        with self._lock:
            self._is_dead = True
            self._everywhere(LinkRules.die)

    def _everywhere(self, work: "Callable[[LinkRules], None]") -> None:
        for loop, rules in self._of_loops.items():
            if loop is asyncio._get_running_loop():
                work(rules)
            else:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(work, rules)


class LinkRules:
    """What holds now for the connections of one broker that live on one loop. Its methods run on that loop: the bytes that a cut
    has held back leave before those that are written when it has ended."""

    def __init__(self, *, cut: frozenset[Address] = frozenset(), delay_s: float = 0.0, is_dead: bool = False) -> None:
        self.cut = cut
        self.delay_s = delay_s
        self.is_dead = is_dead  # the process has been killed: nothing gets out any more
        self.links: dict[Link, None] = {}
        self.listeners: list[Callable[[], object]] = []  # what closes each
        self._changed = asyncio.Event()

    def change(self, *, cut: frozenset[Address], delay_s: float) -> None:
        self.cut, self.delay_s = cut, delay_s
        self._changed.set()
        self._changed = asyncio.Event()
        for link in list(self.links):
            link.update()

    async def reachable(self, peer: Address) -> None:
        """A packet to a host behind a cut gets no answer: who dials waits, or gives up."""
        while peer in self.cut:
            await self._changed.wait()
        if self.is_dead:
            raise ConnectionRefusedError("this broker was killed by its test")

    def die(self) -> None:
        self.is_dead = True
        listeners, self.listeners = self.listeners, []
        for close in listeners:
            with suppress(ValueError, OSError):  # the broker has closed it itself
                close()
        for link in list(self.links):
            link.sever()


class Link(asyncio.BufferedProtocol):
    """One connection. `peer` is the address that was dialed, None for an accepted connection."""

    def __init__(self, inner: asyncio.BaseProtocol, rules: LinkRules, peer: Address | None) -> None:
        self.inner: Any = inner  # asyncio.BufferedProtocol or asyncio.Protocol
        self.is_closed_inside = False
        self._rules = rules
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._is_buffered = isinstance(inner, asyncio.BufferedProtocol)
        self._scratch = bytearray(0 if self._is_buffered else _SCRATCH_BYTES)
        self._reads_directly = False
        self._late: deque[tuple[float, bytes | BaseException | None]] = deque()  # when it is due; no bytes: the end
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: list[bytes] = []  # while the link is cut; the inner protocol pauses
        self._wants_pause = False
        self._was_held = False

    # --- from the loop ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = stream_transport(transport)
        if self._rules.is_dead:
            self.transport.abort()
            return
        self._rules.links[self] = None
        self.inner.connection_made(LinkTransport(self))
        self.update()

    @property
    def is_held(self) -> bool:
        return self._peer in self._rules.cut

    @property
    def _is_straight(self) -> bool:
        return not (self._late or self._rules.delay_s or self.is_held)

    def get_buffer(self, sizehint: int) -> Any:
        self._reads_directly = self._is_buffered and self._is_straight and not self.is_closed_inside
        if self._reads_directly:
            return self.inner.get_buffer(sizehint)
        if not self._scratch:
            self._scratch = bytearray(_SCRATCH_BYTES)
        return memoryview(
            self._scratch
        )  # A transport with TLS fills slices of it, which of a bytearray would be copies.

    def buffer_updated(self, nbytes: int) -> None:
        if self._reads_directly:
            self.inner.buffer_updated(nbytes)
        elif not self.is_closed_inside:
            self._arrived(bytes(memoryview(self._scratch)[:nbytes]))

    def eof_received(self) -> bool:
        return False  # no peer of a broker closes one direction only

    def pause_writing(self) -> None:
        if not self.is_closed_inside:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if not (self.is_closed_inside or self._unsent):
            self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_closed_inside:
            self._rules.links.pop(self, None)
        else:
            self._arrived(exc)

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def _arrived(self, item: bytes | BaseException | None) -> None:
        if self._is_straight:
            self._give(item)
        else:
            self._late.append((self._loop.time() + self._rules.delay_s, item))
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._late and not self.is_held:
            self._timer = self._loop.call_at(self._late[0][0], self._give_late)

    def _give_late(self) -> None:
        self._timer = None
        while self._late and not (self.is_held or self._wants_pause):
            due, item = self._late[0]
            if due > self._loop.time() and self._rules.delay_s:
                break
            self._late.popleft()
            self._give(item)
        if not self._wants_pause:
            self._schedule()

    def _give(self, item: bytes | BaseException | None) -> None:
        if self.is_closed_inside:
            return
        if not isinstance(item, bytes):
            self._end(item)
        elif not self._is_buffered:
            self.inner.data_received(item)
        else:
            self._fill(memoryview(item))

    def _fill(self, data: memoryview) -> None:
        while data and not self.is_closed_inside:
            if self._wants_pause:
                self._late.appendleft((self._loop.time(), bytes(data)))
                return
            buffer = memoryview(self.inner.get_buffer(len(data)))
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            self.inner.buffer_updated(taken)

    def _end(self, error: BaseException | None) -> None:
        if not self.is_closed_inside:
            self.is_closed_inside = True
            if self.transport.is_closing():
                self._rules.links.pop(self, None)
            self._late.clear()
            self.inner.connection_lost(error)

    # --- faults -------------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """The rules have changed."""
        if self.is_held and not self._was_held:
            self._was_held = True
            self.transport.pause_reading()
        elif self._was_held and not self.is_held:
            self._was_held = False
            self._release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._late and not self.is_held:
            self._timer = self._loop.call_soon(self._give_late)  # type: ignore[assignment]  # it can be cancelled as well

    def _release(self) -> None:
        if self.is_closed_inside:
            self.transport.close()  # now the other side hears of it
            return
        unsent, self._unsent = self._unsent, []
        if unsent:
            self.transport.writelines(unsent)
            if not self.transport.get_write_buffer_size():
                self.inner.resume_writing()
        if not self._wants_pause:
            self.transport.resume_reading()

    def sever(self) -> None:
        """The process has ended: its code hears no more, and the peer is told by the kernel."""
        self.is_closed_inside = True
        self._late.clear()
        self._unsent.clear()
        self.transport.abort()

    # --- from the inner protocol --------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.is_closed_inside:
            return
        if not self.is_held:
            self.transport.write(data)
            return
        was_empty = not self._unsent
        self._unsent.append(bytes(data))  # who writes may use the buffer again
        if was_empty:
            self.inner.pause_writing()

    @property
    def unsent_bytes(self) -> int:
        return sum(map(len, self._unsent)) + self.transport.get_write_buffer_size()

    def close(self, *, is_abort: bool) -> None:
        if self.is_closed_inside:
            return
        if self.is_held:
            self._unsent.clear()
            self._loop.call_soon(self._end, None)
        elif is_abort:
            self.transport.abort()
            self._loop.call_soon(self._end, None)  # also if data is still to come
        else:
            self.transport.close()

    def set_reading(self, is_reading: bool) -> None:
        self._wants_pause = not is_reading
        if self.is_held or self.transport.is_closing():
            return
        if is_reading:
            self.transport.resume_reading()
            self._schedule()
        else:
            self.transport.pause_reading()


class LinkTransport(asyncio.Transport):
    """The transport that the broker has. It hides the socket: what bypasses the transport would bypass the fault."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if name == "socket" else self._link.transport.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        self._link.write(data)

    def writelines(self, list_of_data: Any) -> None:
        self._link.write(b"".join(list_of_data))

    def close(self) -> None:
        self._link.close(is_abort=False)

    def abort(self) -> None:
        self._link.close(is_abort=True)

    def is_closing(self) -> bool:
        return self._link.is_closed_inside or self._link.transport.is_closing()

    def pause_reading(self) -> None:
        self._link.set_reading(False)

    def resume_reading(self) -> None:
        self._link.set_reading(True)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._link.transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._link.unsent_bytes


class FaultyNetwork:
    """A broker's `Network` whose connections keep to the rules."""

    def __init__(self, inner: Network, links: BrokerLinks) -> None:
        self._inner = inner
        self._links = links

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        rules = self._links.here()
        listener = await self._inner.listen(lambda: Link(factory(), rules, None), host, port)
        assert isinstance(listener, TcpListener)
        rules.listeners.append(listener.stop)
        return listener

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        rules, peer = self._links.here(), (host, port)
        await rules.reachable(peer)
        link = await self._inner.connect(lambda: Link(factory(), rules, peer), host, port)
        assert isinstance(link, Link)
        inner: asyncio.BaseProtocol = link.inner
        return inner


class FaultyQuorumNetwork:
    """The same for the connections of the quorum; the options of the port are passed on."""

    def __init__(self, links: BrokerLinks, inner: RaftNetwork) -> None:
        self._inner = inner
        self._links = links

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> None:
        rules, peer = self._links.here(), (host, port)
        await rules.reachable(peer)
        await self._inner.connect(lambda: Link(protocol_factory(), rules, peer), host, port, **options)

    async def listen(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> QuorumListener:
        rules = self._links.here()
        listener = await self._inner.listen(lambda: Link(protocol_factory(), rules, None), host, port, **options)
        rules.listeners.append(listener.close)
        return listener
