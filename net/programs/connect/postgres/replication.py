"""`ReplicationStream`: a replication slot by PostgreSQL's streaming replication protocol.

psycopg has no API for this protocol, but hands out the calls of libpq that it needs (`psycopg.pq`): the connection is psycopg's,
and the copy in both directions is spoken here. The other way, `pg_logical_slot_peek_binary_changes` in a loop, decodes the log
again from the slot's position with every call, and polls; the protocol sends each change once, when it is committed.
"""

import asyncio
import time
from dataclasses import dataclass
from struct import Struct
from typing import Final

import psycopg
from psycopg import pq, sql

from .changes.faults import UnreadableMessageError
from .changes.lsn import lsn_of, lsn_text
from .changes.pgoutput import POSTGRES_EPOCH_MS
from .server import Connection, close, connect

_DATA: Final = Struct("!cQQq")  # w: start, end, time
_KEEPALIVE: Final = Struct("!cQqB")  # k: end, time, whether to answer at once
_HEADS: Final = {b"w": _DATA, b"k": _KEEPALIVE}
_STATUS: Final = Struct("!cQQQqB")  # r: written, flushed, applied, time, whether to answer
MESSAGES_AT_ONCE: Final = 1_000  # before the event loop gets a turn, whatever the server sends
STATUS_INTERVAL_S: Final = 10.0  # below wal_sender_timeout, 60 s by default
OPTIONS: Final = "proto_version '1', publication_names "


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemIdentity:
    system_id: str
    database: str
    timeline: int  # grows when a standby is promoted, or a backup is restored to a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSnapshot:
    """Sees every transaction that was committed before `lsn`, and no other. It lasts as long as its connection."""

    name: str
    lsn: int


@dataclass(frozen=True, slots=True)
class Received:
    """`data` None: a keepalive, which says that everything before `lsn` was sent."""

    lsn: int
    data: bytes | None


class ReplicationConnection:
    """A connection in replication mode, before the copy begins."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, dsn: str) -> "ReplicationConnection":
        return cls(await connect(dsn, is_replication=True))

    async def identify(self) -> SystemIdentity:
        row = await (await self._connection.execute("IDENTIFY_SYSTEM")).fetchone()
        assert row is not None
        return SystemIdentity(system_id=str(row[0]), timeline=int(str(row[1])), database=str(row[3]))

    async def timeline_ends(self, timeline: int) -> dict[int, int]:
        """Where the timelines end from which this one comes; the first one has none, and no file of them."""
        statement = sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline))
        try:
            row = await (await self._connection.execute(statement)).fetchone()
        except psycopg.errors.UndefinedFile:
            return {}
        assert row is not None
        text = row[1].decode() if isinstance(row[1], bytes) else str(row[1])
        lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
        return {int(words[0]): lsn_of(words[1]) for words in lines}

    async def create_slot(self, name: str) -> int:
        """Returns the position from which the slot has all changes."""
        row = await self._create(name, sql.SQL("LOGICAL pgoutput (SNAPSHOT 'nothing')"))
        return lsn_of(str(row[1]))

    async def export_snapshot(self, name: str) -> ExportedSnapshot:
        """By a temporary slot, which ends with the connection. It waits for the end of all transactions that write now."""
        row = await self._create(name, sql.SQL("TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"))
        return ExportedSnapshot(name=str(row[2]), lsn=lsn_of(str(row[1])))

    async def _create(self, name: str, kind: sql.SQL) -> tuple[object, ...]:
        statement = sql.SQL("CREATE_REPLICATION_SLOT {} {}").format(sql.Identifier(name), kind)
        row = await (await self._connection.execute(statement)).fetchone()
        assert row is not None
        return row

    async def start(self, slot: str, publication: str, lsn: int, *, confirmed_lsn: int) -> "ReplicationStream":
        """The changes that were committed at or after `lsn`. The connection belongs to the stream from now on.

        `confirmed_lsn`: what the server may discard already; not after `lsn`.
        """
        assert confirmed_lsn <= lsn
        stream = ReplicationStream(self._connection, confirmed_lsn)
        await stream.start(slot, publication, lsn)
        return stream

    async def close(self) -> None:
        await close(self._connection)


class ReplicationStream:
    def __init__(self, connection: Connection, confirmed_lsn: int) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._confirmed_lsn = confirmed_lsn  # all before it is delivered; never goes back
        self._status_due_s = 0.0
        self._sending = asyncio.Lock()  # one task at a time may wait for the socket

    async def start(self, slot: str, publication: str, lsn: int) -> None:
        statement = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({}{})").format(
            sql.Identifier(slot),
            sql.SQL(lsn_text(lsn)),
            sql.SQL(OPTIONS),
            sql.Literal(_quoted_name(publication)),
        )
        self._pgconn.send_query(statement.as_string(self._connection).encode())
        await self._flushed()
        while self._pgconn.is_busy():
            await self._readable(None)
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._error(result)

    async def receive(self, timeout_s: float) -> list[Received]:
        """What the server has sent, at most MESSAGES_AT_ONCE; empty after the timeout. Raises psycopg.Error."""
        found: list[Received] = []
        self._pgconn.consume_input()  # what has arrived meanwhile, also if there is no time to wait
        while len(found) < MESSAGES_AT_ONCE:
            size, data = self._pgconn.get_copy_data(1)
            if size > 0:
                received = self._received(bytes(data))
                if received is not None:
                    found.append(received)
            elif size < 0:
                raise self._error(self._pgconn.get_result())
            elif found or not await self._readable(timeout_s):
                break
        return found

    def _received(self, message: bytes) -> Received | None:
        kind = message[:1]
        if kind in _HEADS and len(message) < _HEADS[kind].size:
            raise UnreadableMessageError(f"a message of the kind {kind!r} of {len(message)} bytes")
        if kind == b"w":
            _, start, _, _ = _DATA.unpack_from(message)
            return Received(start, message[_DATA.size :])
        if kind == b"k":
            _, end, _, wants_answer = _KEEPALIVE.unpack_from(message)
            if wants_answer:
                self._status_due_s = 0.0
            return Received(end, None)
        return None

    def confirm(self, lsn: int) -> None:
        """Everything before it is delivered for good: the server may discard it. `send_status` tells the server."""
        assert lsn >= self._confirmed_lsn
        if lsn > self._confirmed_lsn:
            self._confirmed_lsn = lsn
            self._status_due_s = 0.0

    async def send_status(self) -> None:
        """If it is due: the server ends a connection whose client is silent."""
        now_s = time.monotonic()
        if now_s < self._status_due_s:
            return
        self._status_due_s = now_s + STATUS_INTERVAL_S
        async with self._sending:
            await self._send_status()

    async def _send_status(self) -> None:
        lsn, now_us = self._confirmed_lsn, int((time.time() * 1000 - POSTGRES_EPOCH_MS) * 1000)
        self._pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, now_us, 0))
        await self._flushed()

    async def close(self) -> None:
        await close(self._connection)

    # --- the socket ---------------------------------------------------------------------------------------------------

    async def _readable(self, timeout_s: float | None) -> bool:
        """Wait for bytes and hand them to libpq; False at the timeout."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        descriptor = self._pgconn.socket
        loop.add_reader(descriptor, _set, ready)
        try:
            async with asyncio.timeout(timeout_s):
                await ready
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(descriptor)
        self._pgconn.consume_input()
        return True

    async def _flushed(self) -> None:
        loop = asyncio.get_running_loop()
        descriptor = self._pgconn.socket
        while self._pgconn.flush():
            ready = loop.create_future()
            loop.add_writer(descriptor, _set, ready)
            try:
                await ready
            finally:
                loop.remove_writer(descriptor)

    def _error(self, result: pq.abc.PGresult | None) -> psycopg.Error:
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return psycopg.errors.error_from_result(result)
        return psycopg.OperationalError("the server has ended the replication connection")


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _quoted_name(name: str) -> str:
    """As an identifier in a list of names."""
    return '"{}"'.format(name.replace('"', '""'))
