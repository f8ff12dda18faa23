"""The messages of PostgreSQL's logical decoding plugin `pgoutput`, protocol version 1: bytes in, values out.

Format: "Logical Replication Message Formats" in the manual of PostgreSQL. Values are text, as the server's output functions write
them: this format is the same in all versions, and a type that Barnabas does not know is still readable.
"""

import enum
import struct
from dataclasses import dataclass
from struct import Struct
from typing import Final

from .faults import UnreadableMessageError

POSTGRES_EPOCH_MS: Final = 946_684_800_000  # 2000-01-01, in ms since 1970
_UINT16: Final = Struct("!H")  # a count: the server sends no negative one
_UINT32: Final = Struct("!I")
_BEGIN: Final = Struct("!QqI")
_COMMIT: Final = Struct("!BQQq")
_COLUMN: Final = Struct("!Ii")
_OLD: Final = (b"K", b"O")  # before an old row: its key alone, or all of it


class Unchanged(enum.Enum):
    """A large value (TOAST) that an UPDATE has not touched: the server does not send it."""

    VALUE = enum.auto()


UNCHANGED: Final = Unchanged.VALUE
Value = str | Unchanged | None
Row = tuple[Value, ...]


class Identity(enum.Enum):
    """REPLICA IDENTITY: what the server sends of the old row of an UPDATE or DELETE."""

    DEFAULT = "d"  # the primary key
    NOTHING = "n"
    FULL = "f"  # all columns
    INDEX = "i"  # the columns of an index


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    commit_lsn: int  # of the commit record, with which the transaction will end
    commit_ms: int
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    commit_lsn: int
    end_lsn: int  # the position behind the commit record: exclusive
    commit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type_oid: int
    is_identity: bool  # of the replica identity; with FULL, all columns are
    modifier: int = -1  # length, precision and the like of the type; -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table as it was when the following rows were written. The server sends it before the first row, and after changes."""

    oid: int
    schema: str
    name: str
    identity: Identity
    columns: tuple[Column, ...]

    @property
    def table(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeName:
    """A type that is not built in, before a relation with it. Of a domain, the server names the type that it is based on."""

    oid: int
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    relation: int
    old: Row | None  # all columns, or the key alone with None elsewhere; None: the key has not changed
    is_old_full: bool
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    relation: int
    old: Row
    is_old_full: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


Message = Begin | Commit | Relation | TypeName | Insert | Update | Delete | Truncate


def decode(data: bytes) -> Message | None:
    """None for messages that carry no change: origins. Raises UnreadableMessageError."""
    reader = _READERS.get(data[:1])
    if reader is None:
        raise UnreadableMessageError(f"pgoutput sent a message of the unknown kind {data[:1]!r}")
    try:
        return reader(data)
    except (IndexError, ValueError, struct.error) as error:
        raise UnreadableMessageError(f"a message of pgoutput of kind {data[:1]!r} cannot be read: {error}") from error


def _begin(data: bytes) -> Message:
    commit_lsn, commit_us, xid = _BEGIN.unpack_from(data, 1)
    return Begin(commit_lsn=commit_lsn, commit_ms=_ms(commit_us), xid=xid)


def _commit(data: bytes) -> Message:
    _, commit_lsn, end_lsn, commit_us = _COMMIT.unpack_from(data, 1)
    return Commit(commit_lsn=commit_lsn, end_lsn=end_lsn, commit_ms=_ms(commit_us))


def _relation(data: bytes) -> Message:
    (oid,) = _UINT32.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity = Identity(chr(data[at]))
    (count,) = _UINT16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_identity = bool(data[at] & 1)
        column, at = _string(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(name=column, type_oid=type_oid, is_identity=is_identity, modifier=modifier))
    return Relation(oid=oid, schema=schema or "pg_catalog", name=name, identity=identity, columns=tuple(columns))


def _type(data: bytes) -> Message:
    _, at = _string(data, 5)
    name, _ = _string(data, at)
    return TypeName(oid=_UINT32.unpack_from(data, 1)[0], name=name)


def _insert(data: bytes) -> Message:
    new, _ = _row(data, 6)
    return Insert(_UINT32.unpack_from(data, 1)[0], new)


def _update(data: bytes) -> Message:
    kind, old, at = data[5:6], None, 5
    if kind in _OLD:
        old, at = _row(data, 6)
    if data[at : at + 1] != b"N":
        raise UnreadableMessageError(f"a new row begins with {data[at : at + 1]!r}")
    new, _ = _row(data, at + 1)
    return Update(_UINT32.unpack_from(data, 1)[0], old, kind == b"O", new)


def _delete(data: bytes) -> Message:
    if data[5:6] not in _OLD:
        raise UnreadableMessageError(f"an old row begins with {data[5:6]!r}")
    old, _ = _row(data, 6)
    return Delete(_UINT32.unpack_from(data, 1)[0], old, data[5:6] == b"O")


def _truncate(data: bytes) -> Message:
    (count,) = _UINT32.unpack_from(data, 1)
    return Truncate(tuple(_UINT32.unpack_from(data, 6 + 4 * number)[0] for number in range(count)))


def _nothing(_: bytes) -> None:
    return None


def _row(data: bytes, at: int) -> tuple[Row, int]:
    """A tuple that starts at this position, and the position behind it. Sizes are what the message says: a slice takes no more
    memory than the message has, and a size that leads out of it is an error."""
    (count,) = _UINT16.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # "t": text
            (size,) = _UINT32.unpack_from(data, at)
            at += 4
            values.append(str(data[at : at + size], "utf-8"))
            at += size
        elif kind == 0x6E:  # "n"
            values.append(None)
        elif kind == 0x75:  # "u"
            values.append(UNCHANGED)
        else:
            raise UnreadableMessageError(f"a value has the unknown kind {chr(kind)!r}")
    if at > len(data):
        raise UnreadableMessageError(f"a value ends {at - len(data)} bytes behind the message")
    return tuple(values), at


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return str(data[at:end], "utf-8"), end + 1


def _ms(postgres_us: int) -> int:
    return POSTGRES_EPOCH_MS + postgres_us // 1000


_READERS: Final = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"Y": _type,
    b"O": _nothing,
}
