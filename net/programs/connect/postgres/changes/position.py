"""How far a source connector has come: the record that it writes in the same transaction as the changes before it.

`lsn` is a position between two transactions of the source: everything that was committed before it is in the topics, as far as
the tables were read by then (`coverage`). A source transaction that is too large for one of ours is written in parts; then `part`
says how far. The server sends such a transaction again from its start, with the same changes in the same order.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from .alterations import NO_MODIFIER, ColumnTypes
from .coverage import Coverage, KeyOrder, Range
from .faults import PositionFormatError
from .lsn import NO_LSN, lsn_of, lsn_text

FORMAT_VERSION: Final = 1
PARTS_VERSION: Final = 2  # of positions with a part: a program that does not know them must not go on from there


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """What is known of one table of the source."""

    oid: int  # another oid under the same name is another table
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    ranges: tuple[Range, ...] = ()
    columns: ColumnTypes | None = None  # as it was read, or announced last; None: of a position of an earlier version
    is_again: bool = False  # the topic has records of an earlier reading: a truncation comes before the first new one

    @property
    def coverage(self) -> Coverage:
        return Coverage(KeyOrder(type_names=self.key_types), self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The first changes of the transaction that commits at this LSN: they are in the topics, the others are not."""

    commit_lsn: int
    changes: int  # also counts those that are not captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    system_id: str  # of the database cluster that the LSNs belong to
    database: str
    slot: str
    lsn: int = NO_LSN
    generation: int = 1  # grows with each truncation before a new reading: LSNs of different generations do not compare
    tables: Mapping[str, TableProgress] = field(default_factory=dict)
    part: Part | None = None  # part.commit_lsn >= lsn
    timeline: int = 0  # of the server's log; 0: not known, of a position that an earlier version wrote

    @property
    def last_known_lsn(self) -> int:
        """Nothing from behind this LSN is in the topics. The commit of a part begins at its LSN, so it ends behind it."""
        ranges = (found.lsn for table in self.tables.values() for found in table.ranges)
        return max(self.lsn, self.part.commit_lsn + 1 if self.part is not None else NO_LSN, *ranges)

    def at(self, lsn: int) -> Self:
        assert lsn >= self.lsn, "a position never goes back"
        part = self.part if self.part is not None and self.part.commit_lsn >= lsn else None
        return replace(self, lsn=lsn, part=part)

    def with_table(self, name: str, progress: TableProgress) -> Self:
        return replace(self, tables={**self.tables, name: progress})

    def with_range(self, name: str, found: Range) -> Self:
        """A range of the table was read."""
        table = self.tables[name]
        ranges = table.coverage.add(found).ranges
        return self.with_table(name, replace(table, ranges=ranges, is_again=False))

    def reset(self, names: frozenset[str] | None) -> Self:
        """These tables (None: all, with a new slot) are to be read again."""
        chosen = self.tables.keys() if names is None else names
        again = {
            name: replace(table, ranges=(), is_again=True) if name in chosen else table
            for name, table in self.tables.items()
        }
        if names is not None:
            return replace(self, tables=again)
        return replace(self, tables=again, lsn=NO_LSN, part=None)


def encode(position: Position) -> bytes:
    tables = {
        name: {
            "oid": table.oid,
            "key": table.key,
            "key_types": table.key_types,
            "again": table.is_again,
            "read": [[found.lower, found.upper, lsn_text(found.lsn)] for found in table.ranges],
        }
        | _columns_document(table.columns)
        for name, table in position.tables.items()
    }
    document: dict[str, object] = {
        "version": FORMAT_VERSION,
        "system_id": position.system_id,
        "database": position.database,
        "slot": position.slot,
        "generation": position.generation,
        "lsn": lsn_text(position.lsn),
        "tables": tables,
        "timeline": position.timeline,
    }
    if position.part is not None:
        document |= {"part": [lsn_text(position.part.commit_lsn), position.part.changes], "version": PARTS_VERSION}
    return json.dumps(document, ensure_ascii=False).encode()


def decode(data: bytes) -> Position:
    """Raises PositionFormatError."""
    try:
        document = json.loads(data)
        if document["version"] not in (FORMAT_VERSION, PARTS_VERSION):
            raise ValueError(
                f"format version {document['version']}, and this version of Barnabas reads {PARTS_VERSION}"
            )
        return Position(
            system_id=document["system_id"],
            database=document["database"],
            slot=document["slot"],
            lsn=lsn_of(document["lsn"]),
            generation=document["generation"],
            tables={name: _table(found) for name, found in document["tables"].items()},
            part=_part(document.get("part")),
            timeline=document.get("timeline", 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PositionFormatError(
            f"the committed position of the connector cannot be read ({error!r}): run the version of Barnabas that wrote it, or"
            " give the connector another name, slot and prefix, which reads all tables into new topics"
        ) from error


def _table(found: Mapping[str, Any]) -> TableProgress:
    return TableProgress(
        oid=found["oid"],
        key=tuple(found["key"]),
        key_types=tuple(found["key_types"]),
        is_again=found["again"],
        columns=_columns(found.get("columns")),
        ranges=tuple(
            Range(lower=_key(lower), upper=_key(upper), lsn=lsn_of(lsn)) for lower, upper, lsn in found["read"]
        ),
    )


def _columns_document(columns: ColumnTypes | None) -> dict[str, object]:
    """Short, as each commit has it: oids, and the modifier where there is one."""
    if columns is None:
        return {}
    found = {name: oid if modifier == NO_MODIFIER else [oid, modifier] for name, (oid, modifier) in columns.items()}
    return {"columns": found}


def _columns(found: Mapping[str, Any] | None) -> ColumnTypes | None:
    if found is None:
        return None
    return {
        name: (kind, NO_MODIFIER) if isinstance(kind, int) else (int(kind[0]), int(kind[1]))
        for name, kind in found.items()
    }


def _part(found: tuple[str, int] | None) -> Part | None:
    return None if found is None else Part(commit_lsn=lsn_of(found[0]), changes=int(found[1]))


def _key(found: list[str] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(found)
