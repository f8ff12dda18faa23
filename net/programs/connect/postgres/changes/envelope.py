"""Changes as records, in Debezium's envelope: {"before", "after", "source", "op", "ts_ms", "transaction"}, as JSON.

The key is a JSON object of the key's columns. `op` is c (insert), u (update), d (delete), t (truncate) or r (read by the
snapshot). A delete is followed by a tombstone, so that compaction removes the key. An update that changes the key is a delete of
the old key and an insert of the new one. A truncate goes to every partition of the topic.

Beyond Debezium, `source` has `commit_lsn` and `generation`, which order changes of different partitions, and
`unchanged`, the columns whose values the server did not send (large values that an UPDATE has not touched). These columns have
Debezium's placeholder as their value. `new_key` in a delete is the key that the row has from then on, if the insert lacks values.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Final

from .coverage import KeyText
from .faults import UnreadableMessageError
from .pgoutput import UNCHANGED, Begin, Relation, Row
from .values import Types

PLACEHOLDER: Final = "__debezium_unavailable_value"
_PLACEHOLDER_JSON: Final = f'"{PLACEHOLDER}"'
TRUNCATE_KEY: Final = b'{"__op":"t"}'  # compacted topics refuse records without a key
ALL_PARTITIONS: Final = -1
_NO_TOPIC_LETTER: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send. `partition` None: by the key."""

    topic: str
    key: bytes
    value: bytes | None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The transaction of a change, and its place in it; of a row of the snapshot, the snapshot's LSN and the place 0."""

    transaction: Begin
    generation: int
    is_snapshot: bool = False

    @property
    def commit_lsn(self) -> int:
        return self.transaction.commit_lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeNames:
    prefix: str
    database: str
    has_tombstones: bool = True

    def topic(self, relation: Relation) -> str:
        """Characters that names of topics do not have become underscores, as in Debezium."""
        return _NO_TOPIC_LETTER.sub("_", f"{self.prefix}.{relation.schema}.{relation.name}")


class TableEncoder:
    """Turns rows of one table, as it is at the moment, into records."""

    def __init__(self, relation: Relation, key: Sequence[str], types: Types, names: EnvelopeNames) -> None:
        """`key`: names of columns of the relation."""
        self.topic = names.topic(relation)
        self._has_tombstones = names.has_tombstones
        self._columns = [
            (f"{quoted(column.name)}:", types.converter(column.type_oid), column.name) for column in relation.columns
        ]
        by_name = {column.name: number for number, column in enumerate(relation.columns)}
        self._key = [by_name[name] for name in key]
        self._source = (
            f'"version":"1","connector":"postgresql","name":{quoted(names.prefix)},"db":{quoted(names.database)},'
            f'"schema":{quoted(relation.schema)},"table":{quoted(relation.name)}'
        )

    def key(self, row: Row) -> KeyText:
        found = tuple(row[number] for number in self._key)
        if not all(isinstance(value, str) for value in found):
            raise UnreadableMessageError("the server sent a key without some of its values")
        return found  # type: ignore[return-value]  # checked

    def inserted(self, row: Row, origin: Origin, *, lsn: int, order: int, now_ms: int) -> list[Outgoing]:
        op = "r" if origin.is_snapshot else "c"
        return [self._record(row, "null", self._row(row), op, origin, lsn, order, now_ms, self._missing(row))]

    def updated(
        self, old: Row | None, new: Row, origin: Origin, *, is_old_full: bool, lsn: int, order: int, now_ms: int
    ) -> list[Outgoing]:
        """`new` is filled (`filled`) if the old row is full."""
        before = self._row(old) if is_old_full and old is not None else "null"
        if old is not None and self.key(old) != self.key(new):
            missing = self._missing(new)
            moved = f',"new_key":{self._key_json(new)}' if missing else ""
            gone = self._deleted(old, origin, is_old_full, lsn, order, now_ms, moved)
            return [*gone, self._record(new, "null", self._row(new), "c", origin, lsn, order, now_ms, missing)]
        return [self._record(new, before, self._row(new), "u", origin, lsn, order, now_ms, self._missing(new))]

    def deleted(
        self, old: Row, origin: Origin, *, is_old_full: bool, lsn: int, order: int, now_ms: int
    ) -> list[Outgoing]:
        return self._deleted(old, origin, is_old_full, lsn, order, now_ms, "")

    def truncated(self, origin: Origin, *, lsn: int, order: int, now_ms: int) -> list[Outgoing]:
        value = self._envelope("null", "null", "t", origin, lsn, order, now_ms, "")
        return [Outgoing(self.topic, TRUNCATE_KEY, value, ALL_PARTITIONS)]

    # --- parts --------------------------------------------------------------------------------------------------------

    def _deleted(
        self, old: Row, origin: Origin, is_old_full: bool, lsn: int, order: int, now_ms: int, more: str
    ) -> list[Outgoing]:
        before = self._row(old) if is_old_full else self._key_json(old)
        key = self._key_json(old).encode()
        value = self._envelope(before, "null", "d", origin, lsn, order, now_ms, more)
        deletion = Outgoing(self.topic, key, value)
        return [deletion, Outgoing(self.topic, key, None)] if self._has_tombstones else [deletion]

    def _record(
        self, row: Row, before: str, after: str, op: str, origin: Origin, lsn: int, order: int, now_ms: int, more: str
    ) -> Outgoing:
        value = self._envelope(before, after, op, origin, lsn, order, now_ms, more)
        return Outgoing(self.topic, self._key_json(row).encode(), value)

    def _envelope(
        self, before: str, after: str, op: str, origin: Origin, lsn: int, order: int, now_ms: int, more: str
    ) -> bytes:
        commit_lsn, xid = origin.transaction.commit_lsn, origin.transaction.xid
        snapshot = "true" if origin.is_snapshot else "false"
        return (
            f'{{"before":{before},"after":{after},"source":{{{self._source},"ts_ms":{origin.transaction.commit_ms},"snapshot":"{snapshot}",'
            f'"txId":{xid or "null"},"lsn":{lsn},"commit_lsn":{commit_lsn},'
            f'"generation":{origin.generation}{more}}},'
            f'"op":"{op}","ts_ms":{now_ms},"transaction":{{"id":"{xid}:{commit_lsn}","total_order":{order}}}}}'
        ).encode()

    def _row(self, row: Row) -> str:
        parts = [
            f"{name}null" if value is None else f"{name}{_PLACEHOLDER_JSON if value is UNCHANGED else to_json(value)}"
            for (name, to_json, _), value in zip(self._columns, row, strict=True)
        ]
        return f"{{{','.join(parts)}}}"

    def _key_json(self, row: Row) -> str:
        parts = []
        for number in self._key:
            name, to_json, _ = self._columns[number]
            value = row[number]
            if not isinstance(value, str):
                raise UnreadableMessageError(f"the server sent a key without a value of {name.rstrip(':')}")
            parts.append(f"{name}{to_json(value)}")
        return f"{{{','.join(parts)}}}"

    def _missing(self, row: Row) -> str:
        if UNCHANGED not in row:
            return ""
        names = [quoted(name) for (_, _, name), value in zip(self._columns, row, strict=True) if value is UNCHANGED]
        return f',"unchanged":[{",".join(names)}]'


def reading_origin(lsn: int, now_ms: int, generation: int, *, is_snapshot: bool = True) -> Origin:
    """Of what the connector itself adds: rows of a snapshot at this LSN, and truncations before them."""
    begin = Begin(commit_lsn=lsn, commit_ms=now_ms, xid=0)
    return Origin(transaction=begin, generation=generation, is_snapshot=is_snapshot)


def filled(old: Row, new: Row) -> Row:
    """The new row, with the values of the full old one where the server has not sent them."""
    return tuple(was if now is UNCHANGED else now for was, now in zip(old, new, strict=True))
