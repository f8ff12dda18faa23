"""The links between voters: dialing, the hello and who may pass it, dead peers, limits, and the directory for
observers.

Every pair of voters shares one connection, dialed by the one with the higher id. The one that dials knows whom it talks to by
the configured address. The other one has only a claim, so it asks back: it connects to the configured address of the voter
that the hello names, and only where that one confirms the token of the hello the connection becomes a link. Whoever cannot
answer at a voter's address cannot speak for it, nor push its link aside. (A certificate proves the same, where there is TLS.)
Nothing here knows what a message means. Foreign bytes (HTTP, TLS, pickles, announced gigabytes) end the connection unread,
with one bounded line in the log.
"""

import asyncio
import logging
import random
import secrets
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..protocol.messages import AppendEntries, InstallSnapshot, Message, Ping
from .connection import PeerConnection
from .directory import DirectoryUnavailableError, ask_confirmation
from .message_codec import encode_message
from .network import Listener, RaftNetwork
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

# A peer that takes nothing gets no more entries beyond this; it is sent what it misses when it is back.
MAX_BACKLOG_BYTES = 8 * 1024 * 1024
# What is still sent then (votes, acknowledgements) is small; twice the limit means that it will never be read.
HARD_BACKLOG_BYTES = 2 * MAX_BACKLOG_BYTES
# Connections before their hello: voters need a handful, a port scan gets no more memory than this. A process that may open few
# files allows fewer.
MAX_STRANGERS = 64
# Of one voter at a time, also for strangers that have hung up: one that is off lets each wait for two seconds, and who names
# it must not use up descriptors, nor hold up those who name another one.
MAX_CONFIRMING = 16
HELLO_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 1.0  # a host that is off does not answer at all; the kernel would wait for two minutes
PING_INTERVAL_S = 1.0
DEAD_AFTER_S = 3.0  # three pings; the end of a process is seen at once by its reset, this is for hosts and cables
EAGER_DIAL_S = (0.02, 0.05)  # right after the start or the loss of a link: forming a cluster must not wait for us
EAGER_FOR_S = 5.0
REFUSED_WITHIN_S = 0.2  # a link that ends sooner: the other side does not know us, and will not at once
PATIENT_DIAL_S = (0.2, 0.4)  # later: a peer that is down for long is still found within half a second
MAX_REMEMBERED_REFUSALS = 256  # addresses; the log must not be a way to use up memory or disk
REFUSAL_REPEAT_S = 60.0
_PING = encode_message(Ping())


class TransportHandler(Protocol):
    """The core, as the transport sees it."""

    def peer_connected(self, peer_id: int, hello: Hello) -> None: ...

    def peer_disconnected(self, peer_id: int) -> None: ...

    def message_received(self, peer_id: int, message: Message) -> None: ...

    def hello(self) -> Hello: ...

    def directory(self, endpoints: dict[int, bytes]) -> Directory: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualTls:
    """Contexts that demand a certificate of the other side. Only a voter's has the DNS name `node-<id>`."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def tls_name(node_id: int) -> str:
    return f"node-{node_id}"


class RaftTransport:
    """`links` has one greeted connection per connected voter."""

    def __init__(
        self,
        *,
        node_id: int,
        listen: tuple[str, int],
        contacts: dict[int, tuple[str, int]],
        network: RaftNetwork,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        handler: TransportHandler,
        tls: MutualTls | None = None,
        max_strangers: int = MAX_STRANGERS,
    ) -> None:
        self._node_id = node_id
        self._max_strangers = max_strangers
        self.listens_at = listen
        self._contacts = contacts  # where a peer may be found, too
        self._peers: dict[int, tuple[str, int]] = {}
        self._network = network
        self._loop = loop
        self._rng = rng
        self._handler = handler
        self._tls = tls
        self._links: dict[int, PeerConnection] = {}
        self._connections: dict[PeerConnection, None] = {}  # in order of arrival, unlike a set: traces repeat
        self._endpoints: dict[int, bytes] = {}
        self._dialing: dict[int, asyncio.Task[None]] = {}
        self._confirming: dict[asyncio.Task[None], int] = {}  # and the voter that is asked
        self._turned_away: set[int] = set()  # peers that did not know us when we were linked last
        self._pinging: asyncio.Task[None] | None = None
        self._encoded: dict[tuple[int, int, int, int], bytes] = {}
        self._listener: Listener | None = None
        self._closed = False
        self._refusals = RefusalLog(loop.time)

    async def start(self, sock: socket.socket | None = None) -> None:
        host, port = self.listens_at
        tls = self._tls.server if self._tls else None
        self._listener = await self._network.listen(self._accept, host, port, sock=sock, tls=tls)
        for peer_id in sorted(self._peers):
            self._dial_if_ours(peer_id)
        self._pinging = self._loop.create_task(self._ping())

    def set_peers(self, peers: dict[int, tuple[str, int]]) -> None:
        """Keep links to these, at these addresses, and to nobody else."""
        gone = self._peers.keys() - peers.keys()
        self._peers = dict(peers)
        for peer_id in sorted(gone):
            task = self._dialing.pop(peer_id, None)
            if task is not None:
                task.cancel()
            link = self._links.get(peer_id)
            if link is not None:
                self._loop.call_soon(link.close_after_sending)  # not within the core's step that asked for it
        if self._pinging is not None:
            for peer_id in sorted(peers):
                self._dial_if_ours(peer_id)

    def _dial_if_ours(self, peer_id: int) -> None:
        if peer_id < self._node_id and peer_id not in self._dialing:
            self._dialing[peer_id] = self._loop.create_task(self._dial(peer_id))

    def endpoint_of(self, peer_id: int) -> bytes:
        """What the voter told of its broker when it connected last; empty: it has not been seen."""
        return self._endpoints.get(peer_id, b"")

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
        return [*self._dialing.values(), *self._confirming, *pinging]

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

    def backlog_bytes(self, peer_id: int) -> int:
        link = self._links.get(peer_id)
        return link.backlog_bytes if link is not None else 0

    def _encode(self, message: Message) -> bytes:
        """The same entries go to every follower: they are encoded once per pass of the loop."""
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
        is_refused = self._closed or (connection.dialed_id is None and not self._has_room_for_a_stranger())
        self._connections[connection] = None
        if is_refused:
            connection.abort()
            return
        self._loop.call_later(HELLO_TIMEOUT_S, self._expect_hello, connection)
        if connection.dialed_id is not None:
            connection.token = secrets.randbits(62) | 1 << 62  # never NO_TOKEN, and always of one length
            connection.put(encode_hello(replace(self._handler.hello(), token=connection.token)))

    def _has_room_for_a_stranger(self) -> bool:
        """Who has been silent for longest makes room: a voter says its hello at once, so a crowd cannot keep it out. Those that
        have said theirs are being confirmed, and stay; connections that we dialed are no strangers."""
        strangers = [other for other in self._connections if other.peer_id is None and other.dialed_id is None]
        if len(strangers) < self._max_strangers:
            return True
        silent = next((other for other in strangers if not other.is_greeted and not other.is_closing), None)
        if silent is None:
            return False
        self.refuse(silent, f"it has not said its hello, and {self._max_strangers} others wait: it makes room")
        silent.abort()
        return True

    def _max_confirming(self) -> int:
        """Of one voter. Those of all voters together leave half of the places to hellos that come."""
        return max(1, min(MAX_CONFIRMING, self._max_strangers // (2 * max(1, len(self._peers)))))

    def first_frame(self, connection: PeerConnection, body: bytes) -> None:
        hello = decode_hello(body)
        own = self._handler.hello()
        if hello.voter_id is None:
            self._note_another_cluster(connection, hello, own)
            connection.put(self._answer(hello))
            connection.close_after_sending()
            return
        try:
            self._check_identity(connection, hello.voter_id)
            self._check_cluster(hello, own)
        except WireError:
            if connection.dialed_id is None:
                connection.put(encode_hello(own))
            raise
        if connection.dialed_id is None and self._tls is None:
            if sum(voter_id == hello.voter_id for voter_id in self._confirming.values()) >= self._max_confirming():
                raise WireError(
                    f"voter {hello.voter_id} is asked about {self._max_confirming()} others in its name already"
                )
            task = self._loop.create_task(self._confirm(connection, hello))
            self._confirming[task] = hello.voter_id
            task.add_done_callback(lambda done: self._confirming.pop(done, None))
        else:
            self._welcome(connection, hello)

    def _note_another_cluster(self, connection: PeerConnection, hello: Hello, own: Hello) -> None:
        if hello.cluster_id and own.cluster_id and hello.cluster_id != own.cluster_id:
            self.refuse(
                connection,
                f"a broker with data of cluster {hello.cluster_id} looks for its quorum at this node, which is in cluster "
                f"{own.cluster_id}: this node's data folder was emptied or replaced, or that broker's configuration is wrong",
            )

    def _answer(self, hello: Hello) -> bytes:
        if hello.token == NO_TOKEN:
            return encode_directory(self._handler.directory(dict(self._endpoints)))
        return encode_confirmation(any(other.token == hello.token for other in self._connections))

    async def _confirm(self, connection: PeerConnection, hello: Hello) -> None:
        """Ask the voter that the hello names, at its own address, whether it has dialed us so."""
        assert hello.voter_id is not None
        reasons = []
        for host, port in self._addresses_of(hello.voter_id) if hello.token != NO_TOKEN else ():
            try:
                if await ask_confirmation(self._network, host, port, hello.token):
                    if not connection.is_closing and hello.voter_id in self._peers:
                        self._welcome(connection, hello)
                    return
                reasons.append(f"{host}:{port} has not dialed this node")
            except DirectoryUnavailableError as error:
                reasons.append(error.message)
        told = "; ".join(reasons) or "it names no token"
        self.refuse(connection, f"voter {hello.voter_id} did not confirm at its own address that it dials: {told}")
        connection.abort()

    def _welcome(self, connection: PeerConnection, hello: Hello) -> None:
        if connection.dialed_id is None:
            connection.put(encode_hello(self._handler.hello()))
        self._link(connection, hello)

    def _addresses_of(self, peer_id: int) -> list[tuple[str, int]]:
        configured = self._peers.get(peer_id)
        found = self._contacts.get(peer_id)
        return list(dict.fromkeys(address for address in (configured, found) if address is not None))

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
            refused = self._loop.time() - connection.opened_at < REFUSED_WITHIN_S
            (self._turned_away.add if refused else self._turned_away.discard)(peer_id)
            self._handler.peer_disconnected(peer_id)

    def _accept(self) -> PeerConnection:
        return PeerConnection(self, self._loop, dialed_id=None)

    def _link(self, connection: PeerConnection, hello: Hello) -> None:
        peer_id = hello.voter_id
        assert peer_id is not None
        previous = self._links.pop(peer_id, None)
        if previous is not None:  # it has restarted, and we have not seen the end of its former self yet
            previous.peer_id = None
            previous.abort()
            self._handler.peer_disconnected(peer_id)
        connection.peer_id = peer_id
        self._links[peer_id] = connection
        self._endpoints[peer_id] = hello.endpoint
        self._handler.peer_connected(peer_id, hello)

    def _check_identity(self, connection: PeerConnection, voter_id: int) -> None:
        if voter_id not in self._peers:
            raise WireError(f"it calls itself voter {voter_id}, the other voters are {sorted(self._peers)}")
        if connection.dialed_id is None and voter_id < self._node_id:
            raise WireError(f"it calls itself voter {voter_id}, which never dials a voter with a higher id")
        if connection.dialed_id not in (None, voter_id):
            raise WireError(f"voter {voter_id} answers at the address of voter {connection.dialed_id}")
        if self._tls is None:
            return
        certificate = connection.extra("peercert") or {}
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if tls_name(voter_id) not in names:
            raise WireError(f"it calls itself voter {voter_id}, its certificate is for {names}")

    def _check_cluster(self, hello: Hello, own: Hello) -> None:
        if hello.cluster_id and own.cluster_id and hello.cluster_id != own.cluster_id:
            raise WireError(
                f"voter {hello.voter_id} belongs to cluster {hello.cluster_id}, this node {self._node_id} to cluster"
                f" {own.cluster_id}: check controller.quorum.voters, or that the right data folder is mounted"
            )
        if hello.voters_hash and own.voters_hash and hello.voters_hash != own.voters_hash:
            raise WireError(
                f"voter {hello.voter_id} knows other voters than {sorted({*self._peers, self._node_id})}:"
                " controller.quorum.voters must have the same node ids everywhere"
            )

    def _expect_hello(self, connection: PeerConnection) -> None:
        if not connection.greeted and not connection.is_closing:
            self.refuse(connection, f"no hello within {HELLO_TIMEOUT_S:g} s")
            connection.abort()

    # Tasks

    async def _dial(self, peer_id: int) -> None:
        eager_until = self._loop.time() + EAGER_FOR_S
        while not self._closed:
            link = self._links.get(peer_id)
            if link is not None and self._loop.time() - link.opened_at > REFUSED_WITHIN_S:
                eager_until = self._loop.time() + EAGER_FOR_S
            elif link is None:
                for host, port in self._addresses_of(peer_id):
                    if peer_id not in self._links:
                        await self._dial_once(peer_id, host, port)
            eager = self._loop.time() < eager_until and peer_id not in self._turned_away
            await asyncio.sleep(self._rng.uniform(*(EAGER_DIAL_S if eager else PATIENT_DIAL_S)))

    async def _dial_once(self, peer_id: int, host: str, port: int) -> None:
        if any(connection.dialed_id == peer_id for connection in self._connections):
            return  # a connection is there, its hello is not yet
        tls = self._tls.client if self._tls else None
        name = tls_name(peer_id) if tls else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._network.connect(
                    lambda: PeerConnection(self, self._loop, dialed_id=peer_id),
                    host,
                    port,
                    tls=tls,
                    server_hostname=name,
                )
        except ssl.SSLError as error:
            self._refusals.refused((host, port), f"voter {peer_id}: {error}")
        except (OSError, TimeoutError) as error:
            _log.debug("dial failed peer=%d address=%s:%d error=%r", peer_id, host, port, error)

    async def _ping(self) -> None:
        while not self._closed:
            await asyncio.sleep(PING_INTERVAL_S)
            oldest = self._loop.time() - DEAD_AFTER_S
            for peer_id, link in list(self._links.items()):
                if link.last_heard < oldest:
                    _log.warning("peer is dead peer=%d silent_s=%g", peer_id, DEAD_AFTER_S)
                    link.abort()
                else:
                    link.put(_PING)


class RefusalLog:
    """Says once per address and minute that somebody was refused, for a bounded number of addresses."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said_at: OrderedDict[str, float] = OrderedDict()

    def refused(self, address: object, reason: str) -> None:
        host = str(address[0]) if isinstance(address, tuple) and address else str(address)
        key = f"{host} {reason}" if reason.startswith("voter ") else host
        now = self._clock()
        if now - self._said_at.get(key, -REFUSAL_REPEAT_S) < REFUSAL_REPEAT_S:
            return
        self._said_at[key] = now
        self._said_at.move_to_end(key)
        while len(self._said_at) > MAX_REMEMBERED_REFUSALS:
            self._said_at.popitem(last=False)
        _log.warning("connection refused from=%s reason=%s", host, reason)
