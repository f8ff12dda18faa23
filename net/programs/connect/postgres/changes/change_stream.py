"""`ChangeStream`: the messages of the replication slot become records, and positions between transactions.

It drops what is in the topics already: transactions before the position, and changes that the snapshot of their key's range has
seen. A table that was not read yet, or was replaced by another one of its name, has to be read first: `TableNotReadError` says
so, and the connector starts over from its committed position. If the catalog has no such table any more, it cannot be read:
changes of transactions that the catalog has seen are then left out.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from .alterations import alterations, columns_of
from .coverage import goes_on
from .envelope import EnvelopeNames, Origin, Outgoing, TableEncoder, filled
from .faults import KeyMissingError, SchemaConflictError, UnreadableMessageError
from .lsn import NO_LSN, lsn_text
from .pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Identity,
    Insert,
    Message,
    Relation,
    Row,
    Truncate,
    TypeName,
    Update,
)
from .position import Part, Position, TableProgress
from .values import Types

_NOTHING: Final[list[Outgoing]] = []
HALF: Final = 1 << 31  # of the numbers of transactions that the log has
ALL_CHANGES: Final = 1 << 63  # more than a transaction has


class TableNotReadError(Exception):
    """A table of the stream needs a snapshot first. `is_again`: although it was read before."""

    def __init__(self, table: str, *, is_again: bool = False) -> None:
        super().__init__(f"table {table} has to be read{' again' if is_again else ''} before its changes")
        self.table = table
        self.is_again = is_again


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTransactions:
    """A snapshot of the server (pg_snapshot): which transactions it sees. The log's order would not do: a commit is in the log
    before it is seen, and long before if a standby has to confirm it."""

    start: int  # all before it have ended
    end: int  # all from it on are not seen
    running: frozenset[int] = frozenset()  # not seen, between start and end

    @classmethod
    def of(cls, text: str) -> "SeenTransactions":
        start, end, running = text.split(":")
        return cls(start=int(start), end=int(end), running=frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        """`xid` has the lower 32 bits of the number, and is no further away from the snapshot than half of them."""
        distance = (xid - self.end + HALF) % (2 * HALF) - HALF
        number = self.end + distance
        return number < self.start or (number < self.end and number not in self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The tables that can be read: the catalog has them after the transactions that are seen."""

    tables: Collection[str]
    seen: SeenTransactions
    columns: Mapping[str, Collection[str]] = field(default_factory=dict)  # of these tables


class _Table:
    """A relation as the stream announced it last."""

    def __init__(
        self, relation: Relation, progress: TableProgress, encoder: TableEncoder | None, *, has_gone: bool
    ) -> None:
        """`encoder` None: the key differs from the progress's, which matters only for changes that count. `has_gone`: it was
        read, and is not in the catalog any more."""
        self.has_gone = has_gone
        self.relation = relation
        self.progress = progress
        self.coverage = progress.coverage
        self.encoder = encoder
        lsns = [found.lsn for found in self.coverage.ranges]
        self.oldest_lsn = min(lsns, default=NO_LSN)
        self.newest_lsn = max(lsns, default=NO_LSN)  # oldest_lsn <= newest_lsn; changes at or after it all count


class ChangeStream:
    """One stretch of the stream, from a committed position on."""

    def __init__(
        self,
        position: Position,
        types: Types,
        names: EnvelopeNames,
        *,
        catalog: Catalog,
        is_captured: Callable[[str], bool],
        required: Collection[str] = (),
    ) -> None:
        """`is_captured`: whether the connector's file asks for this table. `required`: columns that its tables must have."""
        self.position = position
        self.left_out: set[str] = set()  # tables of which changes were left out, because they cannot be read any more
        self.altered: list[
            str
        ] = []  # what ALTER TABLE did, perhaps to rows that the stream says nothing of; the caller tells it
        self._catalog = catalog
        self._types = types
        self._names = names
        self._is_captured = is_captured
        self._required = required
        self._tables: dict[int, _Table | None] = {}  # None: not captured, or gone
        self._gone: dict[int, str] = {}  # names of tables that were not read, and are not in the catalog
        self._origin: Origin | None = None  # of the open transaction
        self._known_changes = 0  # of the open transaction, which are in the topics already
        self._order = 0  # of the last change in the open transaction

    @property
    def is_between_transactions(self) -> bool:
        return self._origin is None

    @property
    def position_within(self) -> Position:
        """The position behind the last change, also within a transaction that is too large to be written at once."""
        if self._origin is None or self._order <= self._known_changes:
            return self.position
        return replace(self.position, part=Part(commit_lsn=self._origin.commit_lsn, changes=self._order))

    def unknown_types(self, relation: Relation) -> list[int]:
        """Types of the relation that have to be looked up before it is received."""
        return [column.type_oid for column in relation.columns if not self._types.knows(column.type_oid)]

    def received(self, message: Message, *, lsn: int, now_ms: int) -> list[Outgoing]:
        """The records to send, in this order. Raises TableNotReadError, SchemaConflictError, KeyMissingError,
        UnreadableMessageError."""
        if self._origin is None and not isinstance(message, Begin):
            raise UnreadableMessageError(f"{type(message).__name__} outside of a transaction")
        try:
            return self._decided(message, lsn, now_ms)
        except (ValueError, IndexError) as error:  # of a converter: no text of its type
            raise UnreadableMessageError(f"a value of a change at {lsn_text(lsn)} cannot be read ({error})") from error

    def _decided(self, message: Message, lsn: int, now_ms: int) -> list[Outgoing]:
        match message:
            case Insert():
                return self._inserted(message, lsn, now_ms)
            case Update():
                return self._updated(message, lsn, now_ms)
            case Delete():
                return self._deleted(message, lsn, now_ms)
            case Begin():
                self._begin(message)
            case Commit():
                self._commit(message)
            case Relation():
                self._announced(message)
            case TypeName():
                self._types.announce(message.oid, message.name)
            case Truncate():
                return self._truncated(message, lsn, now_ms)
        return _NOTHING

    def idle_until(self, lsn: int) -> None:
        """The server has sent everything before this LSN, and none of it is open."""
        assert self._origin is None
        if lsn > self.position.lsn:
            self.position = self.position.at(lsn)

    # --- transactions -------------------------------------------------------------------------------------------------

    def _begin(self, message: Begin) -> None:
        if self._origin is not None:
            raise UnreadableMessageError("a transaction begins within another one")
        self._origin = Origin(transaction=message, generation=self.position.generation)
        self._order, self._known_changes, part = 0, 0, self.position.part
        if message.commit_lsn < self.position.lsn:
            self._known_changes = ALL_CHANGES
        elif part is not None and part.commit_lsn == message.commit_lsn:
            self._known_changes = part.changes

    def _commit(self, message: Commit) -> None:
        assert self._origin is not None
        if self._origin.commit_lsn != message.commit_lsn:
            raise UnreadableMessageError(
                f"a transaction has two commit positions, {lsn_text(message.commit_lsn)} is one"
            )
        self._origin = None
        if message.end_lsn > self.position.lsn:
            self.position = self.position.at(message.end_lsn)

    # --- tables -------------------------------------------------------------------------------------------------------

    def _announced(self, relation: Relation) -> None:
        self._gone.pop(relation.oid, None)
        if not self._is_captured(relation.table):
            self._tables[relation.oid] = None
            return
        self._require_columns(relation)
        progress = self.position.tables.get(relation.table)
        if progress is None:
            self._needs_reading(relation.table, is_again=False)
            self._tables[relation.oid], self._gone[relation.oid] = None, relation.table
            return
        progress = self._compare_columns(relation, progress)
        key = key_of(relation, progress)
        columns = {column.name for column in relation.columns}
        encoder = None
        if (
            key == progress.key
            and columns.issuperset(key)
            and goes_on(progress.key_types, self._key_types(relation, key))
        ):
            encoder = TableEncoder(relation, key, self._types, self._names)
        has_gone = relation.table not in self._catalog.tables
        self._tables[relation.oid] = _Table(relation, progress, encoder, has_gone=has_gone)

    def _key_types(self, relation: Relation, key: Collection[str]) -> list[str]:
        columns = columns_of(relation)
        return [self._types.own_name(columns[name][0]) for name in key]

    def _require_columns(self, relation: Relation) -> None:
        """A column that the catalog has after this transaction was added later: rows without it are right. Any other one was
        dropped or renamed, and its values would be read as nulls. Raises SchemaConflictError."""
        assert self._origin is not None
        missing = [name for name in self._required if name not in columns_of(relation)]
        known = self._catalog.columns.get(relation.table, ())
        if not missing or (
            self._catalog.seen.sees(self._origin.transaction.xid) and all(name in known for name in missing)
        ):
            return
        columns = ", ".join(column.name for column in relation.columns)
        raise SchemaConflictError(
            f"table {relation.table} has no column {missing[0]!r} since a transaction that committed at"
            f" {lsn_text(self._origin.commit_lsn)} (its columns are {columns}): it was dropped or renamed, and its values would"
            " be nulls. Name the columns that the table has now, and run `barnabas connect reset FILE`: all tables are read again"
        )

    def _compare_columns(self, relation: Relation, progress: TableProgress) -> TableProgress:
        """With what was read or announced before, also by an earlier process. What the snapshot or that one has seen does not
        count."""
        assert self._origin is not None
        newest_lsn = max((found.lsn for found in progress.ranges), default=NO_LSN)
        is_known = self._order < self._known_changes or self._origin.commit_lsn < newest_lsn
        if is_known or progress.oid != relation.oid:
            return progress
        columns = columns_of(relation)
        if progress.columns == columns:
            return progress
        if progress.columns is not None:
            self.altered += alterations(progress.columns, relation)
        progress = replace(progress, columns=columns)
        self.position = self.position.with_table(relation.table, progress)
        return progress

    def _counting(self, oid: int, *rows: Row | None) -> _Table | None:
        """The table, if this change of it may count. Raises what makes it unusable."""
        self._order += 1
        assert self._origin is not None
        if oid not in self._tables:
            raise UnreadableMessageError(f"a change of a table that was not announced, with oid {oid}")
        table = self._tables[oid]
        if oid in self._gone:
            self._needs_reading(self._gone[oid], is_again=False)
        if table is None or self._order <= self._known_changes or self._origin.commit_lsn < table.oldest_lsn:
            return None
        if table.has_gone and not self._catalog.seen.sees(self._origin.transaction.xid):
            raise TableNotReadError(table.relation.table, is_again=True)  # it has come back
        if table.relation.oid != table.progress.oid:
            self._needs_reading(table.relation.table, is_again=True)
            return None
        if table.encoder is None:
            raise self._key_conflict(table, self._origin)
        if any(row is not None and len(row) != len(table.relation.columns) for row in rows):
            raise UnreadableMessageError(
                f"a row of {table.relation.table} has another number of columns than its table"
            )
        return table

    def _key_conflict(self, table: _Table, origin: Origin) -> SchemaConflictError:
        name, known, found = table.relation.table, table.progress, key_of(table.relation, table.progress)
        was, now = ", ".join(known.key), ", ".join(found)
        if known.key == found:
            was += f") of types ({', '.join(known.key_types)}"
            now += f") of types ({', '.join(self._key_types(table.relation, found))}"
        return SchemaConflictError(
            f"the key of table {name} was changed from ({was}) to ({now}) before the transaction at"
            f" {lsn_text(origin.commit_lsn)}: records with old and new keys in one topic do not belong together. Run"
            f" `barnabas connect reset FILE --table {name}`: the topic gets a truncation, and the table is read again"
        )

    def _needs_reading(self, table: str, *, is_again: bool) -> None:
        """Raises TableNotReadError, unless the table has gone since this change: then the change is left out."""
        assert self._origin is not None
        if table in self._catalog.tables or not self._catalog.seen.sees(self._origin.transaction.xid):
            raise TableNotReadError(table, is_again=is_again)
        self.left_out.add(table)

    def _counts(self, table: _Table, row: Row) -> bool:
        """Whether the snapshot has not seen this change of the row."""
        assert self._origin is not None and table.encoder is not None
        if self._origin.commit_lsn >= table.newest_lsn:
            return True
        return self._origin.commit_lsn >= table.coverage.lsn_of(table.encoder.key(row))

    # --- changes ------------------------------------------------------------------------------------------------------

    def _inserted(self, message: Insert, lsn: int, now_ms: int) -> list[Outgoing]:
        table = self._counting(message.relation, message.new)
        if table is None or not self._counts(table, message.new):
            return _NOTHING
        assert table.encoder is not None and self._origin is not None
        return table.encoder.inserted(message.new, self._origin, lsn=lsn, order=self._order, now_ms=now_ms)

    def _updated(self, message: Update, lsn: int, now_ms: int) -> list[Outgoing]:
        table = self._counting(message.relation, message.old, message.new)
        if table is None:
            return _NOTHING
        assert table.encoder is not None and self._origin is not None
        encoder, old, new = table.encoder, message.old, message.new
        if old is not None and message.is_old_full:
            new = filled(old, new)
        counts = self._counts(table, new)
        if old is not None and encoder.key(old) != encoder.key(new) and self._counts(table, old) != counts:
            # One side of the move is in a range that was read later. What is left of it is an insert or a delete.
            if counts and UNCHANGED in new:
                self._needs_reading(table.relation.table, is_again=True)  # the insert would lack values
                return _NOTHING
            if counts:
                return encoder.inserted(new, self._origin, lsn=lsn, order=self._order, now_ms=now_ms)
            return encoder.deleted(
                old, self._origin, is_old_full=message.is_old_full, lsn=lsn, order=self._order, now_ms=now_ms
            )
        if not counts:
            return _NOTHING
        return encoder.updated(
            old, new, self._origin, is_old_full=message.is_old_full, lsn=lsn, order=self._order, now_ms=now_ms
        )

    def _deleted(self, message: Delete, lsn: int, now_ms: int) -> list[Outgoing]:
        table = self._counting(message.relation, message.old)
        if table is None or not self._counts(table, message.old):
            return _NOTHING
        assert table.encoder is not None and self._origin is not None
        return table.encoder.deleted(
            message.old, self._origin, is_old_full=message.is_old_full, lsn=lsn, order=self._order, now_ms=now_ms
        )

    def _truncated(self, message: Truncate, lsn: int, now_ms: int) -> list[Outgoing]:
        records: list[Outgoing] = []
        for oid in message.relations:
            table = self._counting(oid)
            if table is None:
                continue
            assert table.encoder is not None and self._origin is not None
            if self._origin.commit_lsn < table.newest_lsn:
                # The truncation must remove what was read before it, and not what was read later.
                self._needs_reading(table.relation.table, is_again=True)
                continue
            records += table.encoder.truncated(self._origin, lsn=lsn, order=self._order, now_ms=now_ms)
        return records


def key_of(relation: Relation, progress: TableProgress) -> tuple[str, ...]:
    """The names of the key's columns. With REPLICA IDENTITY FULL, only the catalog knows them. Raises KeyMissingError."""
    if relation.identity is Identity.FULL:
        return progress.key
    found = tuple(column.name for column in relation.columns if column.is_identity)
    if not found:
        raise KeyMissingError(
            f"table {relation.table} has no key any more, so its rows cannot be distinguished: add a primary key (ALTER TABLE"
            f" {relation.table} ADD PRIMARY KEY (...)), then run `barnabas connect reset FILE --table {relation.table}`"
        )
    return tuple(sorted(found, key=progress.key.index)) if set(found) == set(progress.key) else found
