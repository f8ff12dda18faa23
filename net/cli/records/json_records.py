"""Records as JSON lines: what `topic consume -f json` and `topic export` write, `topic produce -f json` and `topic import` read.

JSON has no bytes. Keys, values and header values that are not UTF-8 are base64 in fields whose names end with `_base64`, so a
record comes back as it was.
"""

import base64
import json
from typing import TYPE_CHECKING, Final

import msgspec

from ..frame.exit_codes import CommandError

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.connection.records import ConsumerRecord, Headers


class Header(msgspec.Struct):
    """A header of a record; its value is in one of two fields."""

    key: str
    value: str | None = None
    value_base64: str | None = None


class Line(msgspec.Struct):
    """A record as one JSON object; other fields of a line are ignored."""

    value: str | msgspec.UnsetType | None = msgspec.UNSET
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    timestamp: int | None = None
    partition: int | None = None
    headers: list[Header] | None = None
    topic: str | None = None

    def value_bytes(self, number: int) -> bytes | None:
        return bytes_of(None if self.value is msgspec.UNSET else self.value, self.value_base64, number)

    def key_bytes(self, number: int) -> bytes | None:
        return bytes_of(self.key, self.key_base64, number)

    def header_pairs(self, number: int) -> "Headers":
        return [(item.key, bytes_of(item.value, item.value_base64, number)) for item in self.headers or ()]


_DECODE_LINE: Final = msgspec.json.Decoder(Line).decode


def line_of(text: bytes, number: int) -> Line:
    """Raises CommandError, which names the line: it is not a JSON object with a value."""
    try:
        line = _DECODE_LINE(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"line {number} is no record: {error}") from error
    if line.value is msgspec.UNSET and line.value_base64 is None:
        raise CommandError(
            f"line {number} has no field 'value': give lines as `topic export` and `topic consume -f json` write them, or send "
            "whole lines with `topic produce`"
        )
    return line


def bytes_of(text: str | None, encoded: str | None, number: int) -> bytes | None:
    """Raises CommandError: the base64 of line `number` is damaged."""
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise CommandError(f"line {number} has base64 that cannot be decoded: {error}") from error


def as_json(record: "ConsumerRecord") -> bytes:
    """The record as a line."""
    row: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        row |= text_or_base64(name, data)
    if record.headers:
        row["headers"] = [{"key": key, **text_or_base64("value", value)} for key, value in record.headers]
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """One field: the text, or the base64 under another name, so that the two are never confused."""
    try:
        return {name: None if data is None else bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
