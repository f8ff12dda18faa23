"""The links between voters: messages, dead peers, limits for connections without a hello, and the directory for observers.

`dialing` makes the connections, `admission` checks them. This module does not interpret messages. Bytes of other protocols (HTTP,
TLS, pickles, announced gigabytes) end the connection unread, with one bounded line in the log.
"""

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from barnabas.log.vocabulary.access.certificates import expired_at
from barnabas.log.vocabulary.quorum import Stranger

from ...quorum.config import MIN_DEAD_LINK_S
from ...quorum.formation import VoterState
from ..protocol.messages import AppendEntries, InstallSnapshot, Message, Ping
from .admission import Admission, Verdicts
from .connection import PeerConnection
from .dialing import Dialer
from .message_codec import encode_message
from .mutual_tls import MutualTls
from .network import Listener, RaftNetwork
from .peer_addresses import Address, PeerAddresses
from .refusals import RefusalLog
from .wire import (
    NO_TOKEN,
    Directory,
    Hello,
    WireError,
    decode_hello,
    encode_confirmation,
    encode_directory,
    encode_hello,
)

_log = logging.getLogger("barnabas.quorum")

# If a peer does not read, no entries are queued beyond this limit; they are sent again when it reads.
MAX_BACKLOG_BYTES = 8 * 1024 * 1024
# Only small messages (votes, acknowledgements) are queued then; at twice the limit, the peer will never read them.
HARD_BACKLOG_BYTES = 2 * MAX_BACKLOG_BYTES
# Connections without a hello: voters need a few, and a port scan gets no more memory than these. A process with a low limit of
# open files allows fewer.
MAX_STRANGERS = 64
HELLO_TIMEOUT_S = 5.0
PING_INTERVAL_S = 1.0
_PING = encode_message(Ping())


class TransportHandler(Protocol):
    """The core, as the transport sees it."""

    def peer_connected(self, peer_id: int, hello: Hello, told: VoterState) -> None:
        """`told`: what our own hello said, which may be a while ago."""

    def peer_disconnected(self, peer_id: int) -> None: ...

    def message_received(self, peer_id: int, message: Message) -> None: ...

    def hello(self) -> Hello: ...

    def directory(self, endpoints: dict[int, bytes]) -> Directory: ...


class RaftTransport:
    """`links` has one greeted connection per connected voter."""

    def __init__(
        self,
        *,
        node_id: int,
        listen: Address,
        contacts: dict[int, Address],
        network: RaftNetwork,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        handler: TransportHandler,
        tls: MutualTls | None = None,
        max_strangers: int = MAX_STRANGERS,
        wall_s: Callable[[], float] = time.time,
        dead_after_s: float = MIN_DEAD_LINK_S,
    ) -> None:
        """`dead_after_s`: a link without a message for so long is closed."""
        self._max_strangers = max_strangers
        self._wall_s = wall_s
        self._dead_after_s = dead_after_s
        self.listens_at = listen
        self._addresses = PeerAddresses(contacts)
        self._network = network
        self._loop = loop
        self._handler = handler
        self._tls = tls
        self._links: dict[int, PeerConnection] = {}
        self._connections: dict[PeerConnection, None] = {}  # in order of arrival, unlike a set: traces repeat
        self._endpoints: dict[int, bytes] = {}
        self._pinging: asyncio.Task[None] | None = None
        self._encoded: dict[tuple[int, int, int, int], bytes] = {}
        self._listener: Listener | None = None
        self._closed = False
        self._refusals = RefusalLog(loop.time)
        self._dialer = Dialer(
            node_id=node_id,
            addresses=self._addresses,
            network=network,
            loop=loop,
            rng=rng,
            tls=tls.for_dialing if tls else lambda: None,
            refusals=self._refusals,
            links=self._links,
            connections=self._connections.keys(),
            make=self._connection,
        )
        self._admission = Admission(
            node_id=node_id,
            addresses=self._addresses,
            network=network,
            loop=loop,
            demands_certificates=tls is not None and not tls.also_plain,
            max_strangers=max_strangers,
            verdicts=Verdicts(welcome=self._welcome, refuse=self.refuse),
        )

    async def start(self, sock: socket.socket | None = None) -> None:
        host, port = self.listens_at
        tls = self._tls.server if self._tls else None
        also_plain = self._tls is not None and self._tls.also_plain
        self._listener = await self._network.listen(
            self._connection, host, port, sock=sock, tls=tls, also_plain=also_plain
        )
        self._dialer.begin()
        self._pinging = self._loop.create_task(self._ping())

    def set_peers(self, peers: dict[int, Address]) -> None:
        """Keep links to these peers, at these addresses, and to no others."""
        for peer_id in self._addresses.replace(peers):
            self._dialer.stop(peer_id)
            link = self._links.get(peer_id)
            if link is not None:
                self._loop.call_soon(link.close_after_sending)  # not within the step of the core that removed it
        if self._pinging is not None and not self._closed:
            self._dialer.begin()

    def endpoint_of(self, peer_id: int) -> bytes:
        """The broker address that the voter sent in its last hello; empty: no connection yet."""
        return self._endpoints.get(peer_id, b"")

    def strangers(self) -> tuple[Stranger, ...]:
        return self._refusals.strangers()

    async def close(self) -> None:
        self.halt()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def halt(self) -> None:
        """Close everything without waiting (also after a fatal error)."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks():
            task.cancel()
        for connection in list(self._connections):
            connection.abort()

    def _tasks(self) -> list[asyncio.Task[None]]:
        pinging = [] if self._pinging is None else [self._pinging]
        return [*self._dialer.tasks, *self._admission.tasks, *pinging]

    # Sending

    def send(self, peer_id: int, message: Message) -> bool:
        link = self._links.get(peer_id)
        if link is None or link.is_closing:
            return False
        backlog_bytes = link.backlog_bytes
        if backlog_bytes > MAX_BACKLOG_BYTES and isinstance(message, AppendEntries | InstallSnapshot):
            return False
        if backlog_bytes > HARD_BACKLOG_BYTES:
            link.abort()
            return False
        link.put(self._encode(message))
        return True

    def flush(self) -> None:
        for link in self._links.values():
            link.flush()

    def backlog_bytes(self, peer_id: int) -> int:
        link = self._links.get(peer_id)
        return link.backlog_bytes if link is not None else 0

    def _encode(self, message: Message) -> bytes:
        """The same entries go to every follower: they are encoded once per iteration of the event loop."""
        if type(message) is not AppendEntries or not message.entries:
            return encode_message(message)
        key = (message.term, message.commit_index, message.prev_index, message.entries[-1][1])
        encoded = self._encoded.get(key)
        if encoded is None:
            if not self._encoded:
                self._loop.call_soon(self._encoded.clear)
            encoded = self._encoded[key] = encode_message(message)
        return encoded

    # Connections coming and going (ConnectionOwner)

    def opened(self, connection: PeerConnection) -> None:
        self._connections[connection] = None
        if self._closed or not self._may_stay(connection):
            connection.abort()
            return
        self._loop.call_later(HELLO_TIMEOUT_S, self._expect_hello, connection)
        if connection.dialed_id is not None:
            connection.token = secrets.randbits(62) | 1 << 62  # never NO_TOKEN, and always of one length
            own = self._handler.hello()
            connection.told = own.state
            connection.put(encode_hello(replace(own, token=connection.token)))

    def _may_stay(self, connection: PeerConnection) -> bool:
        ends = expired_at(connection.extra("peercert"), self._wall_s())
        if ends is not None:
            self.refuse(connection, f"its certificate has expired: it was valid until {ends}")
            return False
        return connection.dialed_id is not None or self._has_room_for_a_stranger()

    def _has_room_for_a_stranger(self) -> bool:
        """The oldest connection without a hello is closed. A voter sends its hello at once, so many connections cannot lock it
        out. Connections that wait for their confirmation after a hello stay; connections that this node dialed do not count."""
        strangers = [other for other in self._connections if other.peer_id is None and other.dialed_id is None]
        if len(strangers) < self._max_strangers:
            return True
        silent = next((other for other in strangers if not other.is_greeted and not other.is_closing), None)
        if silent is None:
            return False
        self.refuse(silent, f"no hello yet, and {self._max_strangers} other connections wait: the oldest is closed")
        silent.abort()
        return True

    def first_frame(self, connection: PeerConnection, body: bytes) -> None:
        hello = decode_hello(body)
        own = self._handler.hello()
        if hello.voter_id is None:
            self._note_another_cluster(connection, hello, own)
            connection.put(self._answer(hello))
            connection.close_after_sending()
            return
        try:
            self._admission.check(connection, hello, own)
        except WireError:
            if connection.dialed_id is None:
                connection.put(encode_hello(own))
            raise
        self._admission.admit(connection, hello)

    def _note_another_cluster(self, connection: PeerConnection, hello: Hello, own: Hello) -> None:
        if hello.cluster_id and own.cluster_id and hello.cluster_id != own.cluster_id:
            self._refusals.other_cluster(connection.extra("peername"), hello.cluster_id, own.cluster_id)

    def _answer(self, hello: Hello) -> bytes:
        if hello.token == NO_TOKEN:
            return encode_directory(self._handler.directory(dict(self._endpoints)))
        return encode_confirmation(any(other.token == hello.token for other in self._connections))

    def _welcome(self, connection: PeerConnection, hello: Hello) -> None:
        if connection.dialed_id is None:
            own = self._handler.hello()
            connection.told = own.state
            connection.put(encode_hello(own))
        self._link(connection, hello)

    def message(self, connection: PeerConnection, message: Message) -> None:
        if type(message) is not Ping and connection.peer_id is not None:
            self._handler.message_received(connection.peer_id, message)

    def refuse(self, connection: PeerConnection, reason: str) -> None:
        self._refusals.refused(connection.extra("peername"), reason)

    def closed(self, connection: PeerConnection) -> None:
        self._connections.pop(connection, None)
        peer_id = connection.peer_id
        if peer_id is not None and self._links.get(peer_id) is connection:
            del self._links[peer_id]
            self._dialer.link_ended(peer_id, self._loop.time() - connection.opened_at)
            self._handler.peer_disconnected(peer_id)

    def _connection(self, dialed_id: int | None = None) -> PeerConnection:
        return PeerConnection(self, self._loop, dialed_id=dialed_id)

    def _link(self, connection: PeerConnection, hello: Hello) -> None:
        peer_id = hello.voter_id
        assert peer_id is not None
        previous = self._links.pop(peer_id, None)
        if previous is not None:  # the peer has restarted, and the end of its former connection was not seen yet
            previous.peer_id = None
            previous.abort()
            self._handler.peer_disconnected(peer_id)
        connection.peer_id = peer_id
        self._links[peer_id] = connection
        self._endpoints[peer_id] = hello.endpoint
        self._handler.peer_connected(peer_id, hello, connection.told)

    def _expect_hello(self, connection: PeerConnection) -> None:
        if not connection.greeted and not connection.is_closing:
            self.refuse(connection, f"no hello within {HELLO_TIMEOUT_S:g} s")
            connection.abort()

    # Tasks

    async def _ping(self) -> None:
        while not self._closed:
            await asyncio.sleep(PING_INTERVAL_S)
            oldest = self._loop.time() - self._dead_after_s
            for peer_id, link in list(self._links.items()):
                if link.last_heard < oldest:
                    _log.warning("peer is dead peer=%d silent_s=%g", peer_id, self._dead_after_s)
                    link.abort()
                else:
                    link.put(_PING)
