"""Messages of pgoutput as bytes, as the server writes them: for tests of what reads them."""

import struct
from collections.abc import Sequence


def string(text: str) -> bytes:
    return text.encode() + b"\0"


def row(values: Sequence[object]) -> bytes:
    parts = [struct.pack("!h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is ...:
            parts.append(b"u")
        else:
            data = str(value).encode()
            parts.append(b"t" + struct.pack("!i", len(data)) + data)
    return b"".join(parts)


def begin(commit_lsn: int, xid: int = 7, commit_us: int = 0) -> bytes:
    return b"B" + struct.pack("!QqI", commit_lsn, commit_us, xid)


def commit(commit_lsn: int, end_lsn: int, commit_us: int = 0) -> bytes:
    return b"C" + struct.pack("!BQQq", 0, commit_lsn, end_lsn, commit_us)


def relation(oid: int, schema: str, name: str, columns: Sequence[tuple[str, int, bool]], identity: str = "d") -> bytes:
    """Columns: name, oid of the type, whether of the replica identity."""
    head = b"R" + struct.pack("!I", oid) + string(schema) + string(name) + identity.encode()
    items = [
        struct.pack("!B", is_key) + string(column) + struct.pack("!Ii", type_oid, -1)
        for column, type_oid, is_key in columns
    ]
    return head + struct.pack("!h", len(columns)) + b"".join(items)


def insert(oid: int, *values: object) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + row(values)


def update(oid: int, new: Sequence[object], old: Sequence[object] | None = None, kind: str = "K") -> bytes:
    before = b"" if old is None else kind.encode() + row(old)
    return b"U" + struct.pack("!I", oid) + before + b"N" + row(new)


def delete(oid: int, old: Sequence[object], kind: str = "K") -> bytes:
    return b"D" + struct.pack("!I", oid) + kind.encode() + row(old)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack("!iB", len(oids), 0) + b"".join(struct.pack("!I", oid) for oid in oids)


def type_name(oid: int, schema: str, name: str) -> bytes:
    return b"Y" + struct.pack("!I", oid) + string(schema) + string(name)
