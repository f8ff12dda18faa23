"""What ALTER TABLE is told of: what may have changed rows that the topics have."""

import pytest

from barnabas.net.programs.connect.postgres.changes.alterations import alterations
from barnabas.net.programs.connect.postgres.changes.pgoutput import Column, Identity, Relation

VARCHAR, NUMERIC, TIMESTAMP, TEXT = 1043, 1700, 1114, 25


def table(**columns: tuple[int, int]) -> Relation:
    found = tuple(
        Column(name=name, type_oid=oid, is_identity=False, modifier=modifier)
        for name, (oid, modifier) in columns.items()
    )
    return Relation(oid=1, schema="public", name="t", identity=Identity.DEFAULT, columns=found)


def numeric(precision: int, scale: int) -> tuple[int, int]:
    return NUMERIC, (precision << 16 | scale & 2047) + 4


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        ((VARCHAR, 14), (VARCHAR, 24), False),
        ((VARCHAR, 14), (VARCHAR, -1), False),
        ((VARCHAR, 24), (VARCHAR, 14), True),  # USING left(v, 10)
        ((VARCHAR, -1), (VARCHAR, 14), True),
        ((VARCHAR, 14), (TEXT, -1), True),
        (numeric(10, 2), numeric(12, 2), False),
        (numeric(10, 2), numeric(10, 0), True),
        (numeric(10, -2), numeric(10, 2), True),
        ((NUMERIC, -1), numeric(10, 2), True),
        (numeric(10, 2), (NUMERIC, -1), False),
        ((TIMESTAMP, 6), (TIMESTAMP, 0), True),
    ],
)
def test_types_whose_values_may_differ(before: tuple[int, int], after: tuple[int, int], is_told: bool) -> None:
    assert len(alterations({"v": before}, table(v=after))) == is_told


def test_columns_that_came_or_got_another_name() -> None:
    assert alterations({"a": (TEXT, -1)}, table(a=(TEXT, -1), b=(TEXT, -1))) == [
        "table public.t: ALTER TABLE added b. A default is in its other rows, without a change"
    ]
    assert alterations({"a": (TEXT, -1)}, table(b=(TEXT, -1))) == [
        "table public.t: ALTER TABLE added b and removed a, or renamed them. Its other rows bring no change, and have the old"
        " names"
    ]
    assert alterations({"a": (TEXT, -1), "b": (TEXT, -1)}, table(b=(TEXT, -1))) == []
