"""Format strings of `topic consume` and `topic produce`, with the letters of kcat: `%k %v\\n`. Pure.

A format string is parsed once, into pieces that are written or read for each record.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from ...base.near_words import did_you_mean
from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.connection.records import ConsumerRecord, Headers

FIELDS: Final = (
    "%t topic, %p partition, %o offset, %k key, %v or %s value, %h headers, %T timestamp in ms, "
    "%K and %S size of key and value (-1: null), %% a percent sign"
)
INPUT_FIELDS: Final = "%k key, %v or %s value, %h headers, %T timestamp in ms, %p partition"
ENCODINGS: Final = ("hex", "base64", "json")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PIECE: Final = re.compile(
    r"%(?P<field>.)(?:\{(?P<encoding>[^}]*)\})?|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)", re.S
)
# All of a line's fields are text without the separators that follow them; the last one takes the rest.
_READS: Final = {"k": b".*?", "v": b".*?", "s": b".*?", "h": b".*?", "T": b"[0-9]+", "p": b"[0-9]+"}


class Piece(NamedTuple):
    """A field with its encoding, or literal bytes (`field` is empty)."""

    field: str
    encoding: str
    literal: bytes


def is_template(text: str) -> bool:
    return "%" in text or "\\" in text


def check_format(text: str) -> None:
    """Refuse the value of -f before connecting. Raises CommandError."""
    if text in ("text", "json"):
        return
    if not is_template(text):
        near = did_you_mean(text, ("text", "json"))
        raise CommandError(
            f"-f {text}: there is no such format{near}; give text, json or a format string as '%k %v\\n'",
            ExitCode.USAGE,
        )


def pieces_of(text: str, fields: str, explained: str) -> list[Piece]:
    """Raises CommandError: a field or an escape that does not exist."""
    found: list[Piece] = []
    literal = bytearray()
    at = 0
    for match in _PIECE.finditer(text):
        literal += text[at : match.start()].encode()
        at = match.end()
        if match["hex"]:
            literal.append(int(match["hex"], 16))
        elif match["escape"]:
            if match["escape"] not in _ESCAPES:
                _refuse(text, f"\\{match['escape']} is no escape", r"\n, \t, \r, \0, \xNN and \\")
            literal += _ESCAPES[match["escape"]].encode()
        elif match["field"] == "%":
            literal += b"%" + (f"{{{match['encoding']}}}".encode() if match["encoding"] is not None else b"")
        else:
            if match["field"] not in fields:
                _refuse(text, f"%{match['field']} is no field", explained)
            if literal:
                found.append(Piece("", "", bytes(literal)))
                literal.clear()
            found.append(Piece(match["field"], _encoding(text, match["field"], match["encoding"]), b""))
    literal += text[at:].encode()
    if text[at:].endswith(("%", "\\")):
        _refuse(text, f"a single {text[-1]} at the end has no meaning", f"{text[-1]}{text[-1]}")
    return [*found, Piece("", "", bytes(literal))] if literal else found


def _encoding(text: str, field: str, encoding: str | None) -> str:
    if encoding is None:
        return ""
    known = ("iso", "s") if field == "T" else ENCODINGS if field in "kvs" else ()
    if encoding not in known:
        _refuse(
            text, f"%{field}{{{encoding}}} is unknown", ", ".join(f"%{field}{{{one}}}" for one in known) or f"%{field}"
        )
    return encoding


def _refuse(text: str, what: str, cure: str) -> None:
    raise CommandError(f"-f {text}: {what}; use {cure}", ExitCode.USAGE)


# --- writing


def writer_of(text: str) -> Callable[["ConsumerRecord"], bytes]:
    """The function that writes a record. Nothing is added: end the format string with \\n. Raises CommandError."""
    parts = [_writer(piece) for piece in pieces_of(text, "tpokvshTKS", FIELDS)]
    return lambda record: b"".join([part(record) for part in parts])


def _writer(piece: Piece) -> Callable[["ConsumerRecord"], bytes]:
    encode = _ENCODE[piece.encoding] if piece.field and piece.field in "kvs" else None
    if encode is not None:
        return (lambda record: encode(record.key)) if piece.field == "k" else lambda record: encode(record.value)
    if piece.field == "T":
        return _TIMES[piece.encoding]
    return _WRITE[piece.field] if piece.field else lambda record: piece.literal


def _bytes(data: bytes | None) -> bytes:
    return b"" if data is None else bytes(data)


def _size(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _headers(record: "ConsumerRecord") -> bytes:
    return b",".join(
        name.encode() if value is None else name.encode() + b"=" + bytes(value) for name, value in record.headers
    )


def _iso(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # producers may write any number
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_ENCODE: Final[dict[str, Callable[[bytes | None], bytes]]] = {
    "": _bytes,
    "hex": lambda data: _bytes(data).hex().encode(),
    "base64": lambda data: base64.b64encode(_bytes(data)),
    "json": lambda data: (
        b"null" if data is None else json.dumps(bytes(data).decode(errors="replace"), ensure_ascii=False).encode()
    ),
}
_TIMES: Final[dict[str, Callable[["ConsumerRecord"], bytes]]] = {
    "": lambda record: b"%d" % record.timestamp_ms,
    "s": lambda record: b"%d" % (record.timestamp_ms // 1000),
    "iso": lambda record: _iso(record.timestamp_ms).encode(),
}
_WRITE: Final[dict[str, Callable[["ConsumerRecord"], bytes]]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "h": _headers,
    "K": lambda record: _size(record.key),
    "S": lambda record: _size(record.value),
}


# --- reading


class ReadFields(NamedTuple):
    """The fields that a line has; None: the line does not say."""

    value: bytes | None = None
    key: bytes | None = None
    headers: "Headers | None" = None
    timestamp_ms: int | None = None
    partition: int | None = None


class LineReader:
    """Reads lines by a format string. Each field may be there once; a newline at its end is not part of the line."""

    def __init__(self, text: str) -> None:
        """Raises CommandError."""
        self._text = text
        pieces = pieces_of(text, "".join(_READS), INPUT_FIELDS)
        if pieces and not pieces[-1].field:
            last = pieces[-1].literal.removesuffix(b"\n")
            pieces = [*pieces[:-1], Piece("", "", last)] if last else pieces[:-1]
        self._fields = [piece for piece in pieces if piece.field]
        names = [piece.field.replace("s", "v") for piece in self._fields]
        if len(set(names)) < len(names):
            _refuse(text, "a field is there twice", "each field once")
        if "v" not in names:
            _refuse(text, "there is no value", "%v")
        for first, second in pairwise(pieces):
            if first.field and second.field:
                _refuse(text, f"nothing separates %{first.field} from %{second.field}", "a separator, for example \\t")
        if any(piece.encoding == "json" or (piece.field == "T" and piece.encoding) for piece in self._fields):
            _refuse(text, "json, iso and s are for output only", "%k{hex}, %k{base64}, %T, or -f json")
        if any(b"\n" in piece.literal for piece in pieces):
            _refuse(text, "a record is one line", "\\n at the end only, or -f json")
        parts = [b"(" + _READS[piece.field] + b")" if piece.field else re.escape(piece.literal) for piece in pieces]
        self._line = re.compile(b"".join(parts), re.DOTALL)

    def read(self, line: bytes, number: int) -> ReadFields:
        """Raises CommandError, which names the line."""
        match = self._line.fullmatch(line)
        if match is None:
            raise CommandError(
                f"line {number} does not have the format {self._text}: {line[:80].decode(errors='replace')}"
            )
        found: dict[str, bytes] = {}
        for piece, data in zip(self._fields, match.groups(), strict=True):
            try:
                found[piece.field.replace("s", "v")] = _DECODE[piece.encoding](data)
            except (binascii.Error, ValueError) as error:
                raise CommandError(f"line {number}: %{piece.field} is not {piece.encoding}: {error}") from error
        return ReadFields(
            value=found["v"],
            key=found.get("k"),
            headers=_header_pairs(found["h"], number) if "h" in found else None,
            timestamp_ms=int(found["T"]) if "T" in found else None,
            partition=int(found["p"]) if "p" in found else None,
        )


_DECODE: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": lambda data: data,
    "hex": lambda data: bytes.fromhex(data.decode()),
    "base64": lambda data: base64.b64decode(data, validate=True),
}


def _header_pairs(data: bytes, number: int) -> list[tuple[str, bytes | None]]:
    pairs: list[tuple[str, bytes | None]] = []
    for item in data.split(b",") if data else ():
        name, equals, value = item.partition(b"=")
        try:
            pairs.append((name.decode(), value if equals else None))
        except UnicodeDecodeError as error:
            raise CommandError(f"line {number}: the name of a header is no UTF-8: {error}") from error
    return pairs
