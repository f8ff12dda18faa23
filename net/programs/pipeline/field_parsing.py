"""`read_fields`: the names and types of columns that a pipeline's file declares. Pure."""

import re
from typing import Final

from barnabas.net.base.near_words import did_you_mean

from .document_table import DocumentTable
from .spec import DATABASE_COLUMNS, FILE_COLUMNS, RECORD_COLUMNS, ValueField

TYPES: Final = (
    "string",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "integer",
    "bigint",
    "long",
    "float",
    "double",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
    "array",
    "map",
    "struct",
)


def read_fields(table: DocumentTable) -> tuple[ValueField, ...]:
    found: list[ValueField] = []
    for name, type_name in table.text_by_name("fields").items():
        if name.lower() in {field.name.lower() for field in found}:
            table.refuse(f"fields.{name}", "is there twice: Spark does not tell upper case from lower case")
        if name.lower() in (*RECORD_COLUMNS, *FILE_COLUMNS, *DATABASE_COLUMNS):
            table.refuse(f"fields.{name}", "is the name of a column that each row has anyway: use another name")
        base = re.split(r"[(<]", type_name.strip().lower(), maxsplit=1)[0].strip()
        if base not in TYPES:
            table.refuse(
                f"fields.{name}",
                f"is {type_name!r}, which is no type{did_you_mean(base, TYPES)}: use {', '.join(TYPES)}",
            )
        elif not _is_balanced(type_name):
            table.refuse(f"fields.{name}", f'is {type_name!r}: its brackets do not match, write "array<string>"')
        found.append(ValueField(name=name, type_name=type_name))
    return tuple(found)


def _is_balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if depth < 0:
            return False
    return depth == 0
