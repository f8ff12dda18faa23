"""Classes of applications: dataclasses, TypedDicts, attrs, msgspec.Struct, and pydantic models. Pure.

All but the last are done by msgspec. pydantic is recognized by its methods and never imported here.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec


def is_pydantic(model: object) -> bool:
    return hasattr(model, "model_validate_json") and hasattr(model, "model_dump")


def plain_of(data: object) -> Any:
    """What JSON has, for values that msgspec does not know. Raises NotImplementedError."""
    if is_pydantic(data) and not isinstance(data, type):
        return data.model_dump(mode="json")  # type: ignore[attr-defined]
    raise NotImplementedError(f"objects of type {type(data).__name__} cannot be written as JSON")


def json_reader(model: Any) -> Callable[[bytes], Any]:
    """A function that reads JSON into the model and checks types; `Any`: into dicts, lists, strings and numbers."""
    if is_pydantic(model):
        validate: Callable[[bytes], Any] = model.model_validate_json
        return validate
    return msgspec.json.Decoder(model).decode


def tree_reader(model: Any) -> Callable[[Any], Any]:
    """As `json_reader`, from dicts and lists."""
    if model is None:
        return lambda tree: tree
    if is_pydantic(model):
        validate: Callable[[Any], Any] = model.model_validate
        return validate
    return lambda tree: msgspec.convert(tree, model, from_attributes=False)


# Avro has types of its own for these.
_KEPT: Final = (bytes, datetime, date, time, timedelta, Decimal, UUID)


def tree_of(data: Any) -> Any:
    """Dicts and lists of an instance of a model; times, decimals, UUIDs and bytes stay what they are."""
    if isinstance(data, dict | list | str | bytes | int | float | bool):
        return data
    if is_pydantic(data) and not isinstance(data, type):
        return data.model_dump()
    return msgspec.to_builtins(data, builtin_types=_KEPT, enc_hook=plain_of)


def json_schema_of(model: Any) -> dict[str, Any]:
    """The JSON Schema of a model."""
    if is_pydantic(model):
        schema: dict[str, Any] = model.model_json_schema()
        return schema
    (root,), definitions = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    if len(definitions) == 0:
        return root
    name = str(root.get("$ref", "")).rpartition("/")[2]
    if name in definitions and _is_used_once(name, definitions):
        root = {**definitions.pop(name)}
    return {**root, "$defs": definitions} if definitions else root


def _is_used_once(name: str, definitions: dict[str, Any]) -> bool:
    return f"#/$defs/{name}" not in msgspec.json.encode(definitions).decode()
