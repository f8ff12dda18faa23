"""A fake network for the quorum: delays, in order per direction; links are cut, slow in one way, reset."""

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any

from barnabas.kraft.raft.net.network import Listener, ProtocolFactory

AFTER_S = 1e-6  # between two deliveries of one direction: timers of the same moment may fire in any order


class FakeTransport(asyncio.Transport):
    """One end of a connection. The other end hears what is written, later and in order."""

    def __init__(self, net: "FakeNet", own: int, peer: int, protocol: Any) -> None:
        super().__init__()
        self.net, self.own, self.peer, self.protocol = net, own, peer, protocol
        self.other: FakeTransport | None = None
        self.closed = False
        self.arrives_at = 0.0
        self.in_flight_bytes = 0

    def write(self, data: Any) -> None:
        if not self.closed:
            self.in_flight_bytes += len(data)
            self.net.carry(self, bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.in_flight_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (f"node-{self.peer}", 0) if name == "peername" else default

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.net.carry(self, b"")
        self.drop()

    def abort(self) -> None:
        other = self.other
        self.drop()
        if other is not None and not self.net.is_cut(self.own, self.peer):
            self.net.loop.call_later(self.net.delay_s(self.own, self.peer), other.drop)

    def drop(self) -> None:
        """This end learns that the connection is over."""
        if not self.closed:
            self.closed = True
            self.net.open.pop(self, None)
            self.net.hand(self.own, self.protocol.connection_lost, None)


class FakeNet:
    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.listeners: dict[int, ProtocolFactory] = {}
        self.open: dict[FakeTransport, None] = {}  # ordered, unlike a set
        self._cut: set[tuple[int, int]] = set()
        self.slow_s: dict[tuple[int, int], float] = {}
        self.carried = 0

    def hand(self, _node_id: int, callback: Callable[..., None], *arguments: object) -> None:
        """Call code of this node soon."""
        self.loop.call_soon(callback, *arguments)

    def of(self, node_id: int) -> "NodeNetwork":
        return NodeNetwork(self, node_id)

    def is_cut(self, a: int, b: int) -> bool:
        return (min(a, b), max(a, b)) in self._cut

    def cut(self, a: int, b: int, *, silent: bool) -> None:
        """Silent: neither end hears of it (a pulled cable). Else both ends are reset."""
        self._cut.add((min(a, b), max(a, b)))
        if not silent:
            self.reset(a, b)

    def heal(self, a: int, b: int) -> None:
        """A connection that was cut for so long is gone: what was sent meanwhile is lost, so it cannot go on."""
        if (min(a, b), max(a, b)) in self._cut:
            self._cut.discard((min(a, b), max(a, b)))
            self.reset(a, b)

    def reset(self, a: int, b: int) -> None:
        for transport in list(self.open):
            if {transport.own, transport.peer} == {a, b}:
                transport.drop()

    def kill(self, node_id: int) -> None:
        """The process is gone; its kernel resets what it had open."""
        self.listeners.pop(node_id, None)
        for transport in list(self.open):
            if transport.own == node_id:
                transport.closed = True
                self.open.pop(transport, None)
            elif transport.peer == node_id and not self.is_cut(transport.own, node_id):
                self.loop.call_later(self.delay_s(node_id, transport.own), transport.drop)

    def delay_s(self, sender: int, receiver: int) -> float:
        slow = self.slow_s.get((sender, receiver), 0.0)
        return self.rng.uniform(0.0002, 0.003) + (self.rng.uniform(0, slow) if slow else 0.0)

    def carry(self, source: FakeTransport, data: bytes) -> None:
        target = source.other
        assert target is not None
        at = max(self.loop.time() + self.delay_s(source.own, source.peer), source.arrives_at + AFTER_S)
        source.arrives_at = at
        self.loop.call_at(at, self._deliver, source, target, data)

    def _deliver(self, source: FakeTransport, target: FakeTransport, data: bytes) -> None:
        source.in_flight_bytes -= len(data)
        if target.closed or self.is_cut(source.own, source.peer):
            return
        if not data:
            target.drop()
            return
        self.carried += len(data)
        target.protocol.data_received(data)

    async def connect(self, own: int, peer: int, factory: ProtocolFactory) -> None:
        await asyncio.sleep(self.delay_s(own, peer))
        if peer not in self.listeners or self.is_cut(own, peer):
            raise ConnectionRefusedError(f"{peer} is not there")
        near = FakeTransport(self, own, peer, factory())
        far = FakeTransport(self, peer, own, self.listeners[peer]())
        near.other, far.other = far, near
        self.open |= {near: None, far: None}
        self.meet(far)
        self.meet(near)

    def meet(self, transport: FakeTransport) -> None:
        transport.protocol.connection_made(transport)


class NodeNetwork:
    """The network as one node has it; the port number is the node's id."""

    def __init__(self, net: FakeNet, node_id: int) -> None:
        self._net = net
        self._node_id = node_id

    async def connect(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        await self._net.connect(self._node_id, port, protocol_factory)

    async def listen(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        sock: socket.socket | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        also_plain: bool = False,
    ) -> Listener:
        self._net.listeners[self._node_id] = protocol_factory
        return _FakeListener(self._net, self._node_id)


class _FakeListener:
    def __init__(self, net: FakeNet, node_id: int) -> None:
        self._net, self._node_id = net, node_id

    def close(self) -> None:
        self._net.listeners.pop(self._node_id, None)
