"""What ALTER TABLE has changed of a table's columns, as far as the rows that are in the topics may differ since. Pure.

The server announces a table that it has rewritten (`ALTER COLUMN ... TYPE ... USING`, `ADD COLUMN ... DEFAULT`), and sends no row
of it. So topics have the old values until a row changes.
"""

from collections.abc import Mapping
from typing import Final

from .pgoutput import Relation

ColumnTypes = Mapping[
    str, tuple[int, int]
]  # by the column's name: the oid and the modifier (length, precision) of its type
NO_MODIFIER: Final = -1
_LENGTHS: Final = (1043, 1562)  # varchar, varbit: values of the old length fit into a larger one
_NUMERIC: Final = 1700
_SCALE_BITS: Final = (1 << 11) - 1  # of numeric's modifier, which is larger by 4


def columns_of(relation: Relation) -> dict[str, tuple[int, int]]:
    return {column.name: (column.type_oid, column.modifier) for column in relation.columns}


def alterations(known: ColumnTypes, after: Relation) -> list[str]:
    """Sentences for an operator."""
    now = columns_of(after)
    retyped = [name for name, found in now.items() if name in known and _differs(known[name], found)]
    added, dropped = [name for name in now if name not in known], [name for name in known if name not in now]
    told = []
    if retyped:
        told.append(
            f"table {after.table}: ALTER TABLE changed the type of {', '.join(retyped)}. Its other rows bring no change"
        )
    if added and dropped:
        told.append(
            f"table {after.table}: ALTER TABLE added {', '.join(added)} and removed {', '.join(dropped)}, or renamed them. Its"
            " other rows bring no change, and have the old names"
        )
    elif added:
        told.append(
            f"table {after.table}: ALTER TABLE added {', '.join(added)}. A default is in its other rows, without a change"
        )
    return told


def _differs(was: tuple[int, int], now: tuple[int, int]) -> bool:
    """Whether values of the first type may be written in another way as the second one."""
    if was == now:
        return False
    (oid, before), (oid_now, after) = was, now
    if oid != oid_now:
        return True
    if after == NO_MODIFIER:
        return False
    if oid in _LENGTHS:
        return before == NO_MODIFIER or after < before
    if oid == _NUMERIC and before != NO_MODIFIER:
        return _scale(before) != _scale(after)
    return True


def _scale(modifier: int) -> int:
    return (modifier - 4) & _SCALE_BITS
