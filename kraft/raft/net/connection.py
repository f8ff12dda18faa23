"""One connection of the quorum's transport: bytes to frames, the hello first, then messages. It decides nothing.

`transport` decides which peer a connection belongs to, and whether it stays open.
"""

import asyncio
from typing import Any, Protocol

from ...quorum.formation import VoterState
from ..protocol.messages import Message
from .message_codec import read_message
from .wire import MAX_FRAME_BYTES, MAX_HELLO_BYTES, NO_TOKEN, WireError, split_frames, unpack


class ConnectionOwner(Protocol):
    """The transport, as a connection sees it."""

    def opened(self, connection: "PeerConnection") -> None: ...

    def first_frame(self, connection: "PeerConnection", body: bytes) -> None:
        """The peer's hello. Raises WireError to refuse it."""

    def message(self, connection: "PeerConnection", message: Message) -> None: ...

    def refuse(self, connection: "PeerConnection", reason: str) -> None: ...

    def closed(self, connection: "PeerConnection") -> None: ...


class PeerConnection(asyncio.Protocol):
    """`peer_id` is None until the peer's identity is confirmed."""

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop, *, dialed_id: int | None) -> None:
        self._owner = owner
        self._loop = loop
        self.dialed_id = dialed_id
        self.peer_id: int | None = None
        self.token = NO_TOKEN  # of a connection that we dialed
        self.told = VoterState.VOTER  # what our hello says of this node
        self.opened_at = self.last_heard = loop.time()
        self._greeted = False
        self._received = bytearray()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._flush_is_due = False  # in the next pass of the loop
        self._transport: asyncio.Transport | None = None

    @property
    def is_greeted(self) -> bool:
        """The peer's hello is here."""
        return self._greeted

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, as create_connection makes them
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self._loop.time()
        self._received += data
        try:
            for body in split_frames(self._received, MAX_FRAME_BYTES if self._greeted else MAX_HELLO_BYTES):
                self._frame(body)
                if self.is_closing:
                    return
        except WireError as error:
            self._owner.refuse(self, str(error))
            if self.peer_id is None:
                self.close_after_sending()  # our hello lets the other side find out by itself what is wrong
            else:
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.closed(self)

    def _frame(self, body: bytes) -> None:
        if not self._greeted:
            self._greeted = True
            self._owner.first_frame(self, body)
        else:
            self._owner.message(self, read_message(unpack(body)))

    # For the transport

    @property
    def greeted(self) -> bool:
        return self._greeted

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def backlog_bytes(self) -> int:
        return self._unsent_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def extra(self, name: str) -> Any:
        return self._transport.get_extra_info(name) if self._transport is not None else None

    def put(self, framed: bytes) -> None:
        """Send together with all other messages of this iteration of the event loop: one system call for all."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush_if_due)
        self._unsent.append(framed)
        self._unsent_bytes += len(framed)

    def _flush_if_due(self) -> None:
        self._flush_is_due = False
        if self._unsent:
            self.flush()

    def flush(self) -> None:
        if self._unsent and not self.is_closing:
            assert self._transport is not None
            self._transport.write(b"".join(self._unsent))
        self._unsent = []
        self._unsent_bytes = 0

    def close_after_sending(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
