"""Shapes of answers for `/openapi.json`, in the fewest words: one function for each type, and Confluent's envelopes.

A shape stands beside the handler that answers with it. tests/integration/test_http_schemas.py compares all of them with the
answers of a real cluster: a field that is missing in one of both, or has another type, fails there.
"""

from typing import Final

from .call import Field


class _Maker:
    """Makes fields of one type. Fields of answers are there always, unless they are `optional`; `null`: or null."""

    def __init__(self, type_: str) -> None:
        self._type = type_

    def __call__(self, name: str, description: str, *, null: bool = False, optional: bool = False) -> Field:
        return Field(name=name, type=self._type, description=description, nullable=null, required=not optional)


text: Final = _Maker("string")
whole: Final = _Maker("integer")
number: Final = _Maker("number")
flag: Final = _Maker("boolean")
mapping: Final = _Maker("object")
_LINK: Final = (text("related", "The address."),)


def texts(name: str, description: str, *, optional: bool = False) -> Field:
    """A list of strings."""
    return Field(name=name, type="array", description=description, items="string", required=not optional)


def wholes(name: str, description: str, *, optional: bool = False) -> Field:
    """A list of integers."""
    return Field(name=name, type="array", description=description, items="integer", required=not optional)


def rows(name: str, description: str, *fields: Field, optional: bool = False) -> Field:
    """A list of objects."""
    return Field(name=name, type="array", description=description, fields=fields, required=not optional)


def part(name: str, description: str, *fields: Field, null: bool = False, optional: bool = False) -> Field:
    """An object."""
    return Field(name=name, type="object", description=description, fields=fields, nullable=null, required=not optional)


def link(name: str, description: str, *, null: bool = False) -> Field:
    """As `Call.related` makes it."""
    return part(name, description, *_LINK, null=null)


def item(kind: str, *fields: Field) -> tuple[Field, ...]:
    """As `Call.item` makes it."""
    return (
        Field(name="kind", type="string", description="What this is.", required=True, only=kind),
        part(
            "metadata",
            "Names of this object.",
            text("self", "Its address."),
            text("resource_name", "Its name as a CRN."),
        ),
        text("cluster_id", "The cluster."),
        *fields,
    )


def listed(kind: str, fields: tuple[Field, ...], *more: Field) -> tuple[Field, ...]:
    """As `Call.listed` makes it, of items with these fields."""
    return (
        Field(name="kind", type="string", description="What this is.", required=True, only=kind),
        part(
            "metadata",
            "Addresses of this list.",
            text("self", "Its address."),
            text("next", "The address of the next page.", null=True),
        ),
        rows("data", "The items.", *fields),
        *more,
    )
