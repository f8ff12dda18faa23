"""One type per concept: no two value classes of different files have almost the same fields.

Counted are the fields that a class declares itself: a class that extends another one shares its definition. Twins that must
stay, because both their forms are stored or on a wire, or because they mean different things, are listed with the reason.
"""

import ast
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final

from tidy.source_tree import production_files

LEAST_FIELDS: Final = 3  # two fields in common are no sign of anything
SHARED: Final = 0.6  # of the field names that either has

ALLOWED: Final = {
    (
        "FolderTrouble",
        "TroubledFolder",
    ): "the directory's id is in the record and not in the answer, between other fields",
    (
        "PartitionImage",
        "PartitionRecord",
    ): "a record is stored for ever; the image counts besides, and has other defaults",
    ("BrokerImage", "RegisterBrokerRecord"): "a record is stored for ever; the image holds what later records say too",
    ("RegisterBroker", "RegisterBrokerRecord"): "the request says more, for checks, between the fields that are stored",
    ("SlotAppend", "StagedDecisionRecord"): "a whole batch on the wire, and a numbered part of one in the log",
    ("AlterVoters", "NodeAddress"): "another field stands between its node and the address, which only an addition has",
    (
        "ListedOffset",
        "OffsetAndTimestamp",
    ): "a replica's own answer, and a public value of the SDK, which loads no replica",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueClass:
    file: str
    name: str
    fields: frozenset[str]


@cache
def value_classes() -> tuple[ValueClass, ...]:
    return tuple(
        ValueClass(file=file.name, name=node.name, fields=fields)
        for file in production_files()
        for node in file.tree.body
        if isinstance(node, ast.ClassDef) and is_value_class(node) and len(fields := fields_of(node)) >= LEAST_FIELDS
    )


def is_value_class(node: ast.ClassDef) -> bool:
    """A dataclass or a struct of msgspec."""
    return any("dataclass" in ast.unparse(item) for item in node.decorator_list) or any(
        keyword.arg == "frozen" for keyword in node.keywords
    )


def fields_of(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    )


def twins(classes: tuple[ValueClass, ...]) -> dict[tuple[str, str], str]:
    """By the names of the two, in the order of the alphabet: where they are."""
    found = {}
    for one, other in combinations(classes, 2):
        shared = len(one.fields & other.fields) / len(one.fields | other.fields)
        if one.file != other.file and shared >= SHARED:
            first, second = sorted((one, other), key=lambda item: item.name)
            found[first.name, second.name] = f"{first.file}:{first.name} and {second.file}:{second.name}"
    return found


def test_a_concept_has_one_type() -> None:
    more = [where for names, where in twins(value_classes()).items() if names not in ALLOWED]
    assert not more, (
        "define it once, in the room that decides on it or in log/vocabulary, and extend it where more is said"
    )


def test_the_twins_that_may_stay_are_twins() -> None:
    assert ALLOWED.keys() <= twins(value_classes()).keys(), "take these out of the list of exceptions"


def test_twins_are_found() -> None:
    address = next(item for item in value_classes() if item.name == "NodeAddress")
    more = ValueClass(file="net/b.py", name="Broker", fields=address.fields | {"rack"})
    less = ValueClass(file="net/c.py", name="Place", fields=frozenset({"host", "port", "listener", "name"}))
    beside = ValueClass(file=address.file, name="Neighbour", fields=address.fields)
    assert twins((address, less, beside)) == {}
    assert list(twins((address, more))) == [("Broker", "NodeAddress")]
