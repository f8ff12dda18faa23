"""Kafka's message schemas as values. Source: the JSON files of Apache Kafka's `clients/src/main/resources/common/message`, kept
compact in `messages.json` (their descriptions left out; NOTICE names their licence). Pure.

A schema lists fields; each says in which versions it exists, may be null, and whether it is tagged (KIP-482).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

NEWEST = 32_767
FIXED_FORMATS: Mapping[str, str] = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d",
}  # fmt: skip
_OTHER_TYPES = frozenset({"string", "bytes", "records", "uuid"})


@dataclass(frozen=True, slots=True)
class Versions:
    """From `first` to `last`, both included; empty where the last is before the first."""

    first: int
    last: int

    @staticmethod
    def parse(text: str | None) -> "Versions":
        """Kafka's notation: "3", "2-5", "4+", "none"."""
        if text is None or text in ("", "none"):
            return NO_VERSIONS
        first, dash, last = text.partition("-")
        if first.endswith("+"):
            return Versions(int(first[:-1]), NEWEST)
        return Versions(int(first), int(last) if dash else int(first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NO_VERSIONS = Versions(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """`type` is that of an item where `is_array`. `default` is None exactly where null is the default."""

    name: str  # in Python's spelling
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    flexible: Versions | None  # None: as the message
    default: Any
    struct: "Struct | None"  # where the type is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    name: str
    api_key: int  # -1: a header
    versions: Versions  # of which Kafka keeps the schema
    flexible: Versions
    body: Struct


@cache
def messages() -> Mapping[str, Message]:
    """All of them by name, such as "FetchRequest". Read once, when the first Kafka client comes."""
    text = resources.files(__package__).joinpath("messages.json").read_text()
    return {raw["name"]: _message(raw) for raw in json.loads(text)}


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _message(raw: Mapping[str, Any]) -> Message:
    commons = {struct["name"]: struct["fields"] for struct in raw.get("commonStructs", ())}
    return Message(
        name=raw["name"],
        api_key=raw.get("apiKey", -1),
        versions=Versions.parse(raw["validVersions"]),
        flexible=Versions.parse(raw["flexibleVersions"]),
        body=_struct(raw["name"], raw["fields"], commons),
    )


def _struct(name: str, fields: list[Mapping[str, Any]], commons: Mapping[str, Any]) -> Struct:
    return Struct(name=name, fields=tuple(_field(raw, commons) for raw in fields))


def _field(raw: Mapping[str, Any], commons: Mapping[str, Any]) -> Field:
    declared: str = raw["type"]
    item = declared.removeprefix("[]")
    struct = None
    if item not in FIXED_FORMATS and item not in _OTHER_TYPES:
        struct = _struct(item, raw.get("fields") or commons[item], commons)
    return Field(
        name=snake_case(raw["name"]),
        type=item,
        is_array=item != declared,
        versions=Versions.parse(raw["versions"]),
        nullable=Versions.parse(raw.get("nullableVersions")),
        tag=raw.get("tag"),
        tagged=Versions.parse(raw.get("taggedVersions")),
        flexible=Versions.parse(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
        default=_default(raw, item, is_array=item != declared),
        struct=struct,
    )


def _default(raw: Mapping[str, Any], item: str, *, is_array: bool) -> Any:
    """Of a struct it is found where its class is made."""
    text = raw.get("default")
    if text == "null":
        return None
    if is_array:
        return ()
    if item == "bool":
        return str(text).lower() == "true"
    if item == "float64":
        return float(text or 0)
    if item in FIXED_FORMATS:
        return int(str(text or 0), 0)
    return {"string": text or "", "bytes": b"", "records": b"", "uuid": bytes(16)}.get(item, ...)
