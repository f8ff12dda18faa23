"""Compiles one message of one version into a decoder and an encoder: plain Python functions, one per struct, in which runs of
fields of fixed size are one call of `struct`. Lazily: only the versions that clients use are compiled. Pure.

Decoded `records` are views into the frame; encoded ones are chunks of their own, never copied. Lengths are checked against
what has arrived before anything is allocated, so a forged count costs nothing; and the items of all arrays of a message are
counted, as an item of one byte becomes an object of a hundred.
"""

import struct
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from barnabas.net.base.limits import MAX_DATA_ITEMS, MAX_MESSAGE_ITEMS, MAX_WIDE_ITEMS
from barnabas.net.wire.protocol.codec import Chunk, size_of

from .message_classes import default_of, types_of
from .primitives import ONE_BYTE, Decode, read_tags, read_uvarint, tags, uvarint
from .schema import FIXED_FORMATS, NO_VERSIONS, Field, Struct, messages

Encode = Callable[[Any, list[Any]], None]
MAX_STRING_BYTES = 32_767  # as Kafka reads; older versions could not even answer with a longer one
_UUID_FORMAT = "16s"
JOINED_BELOW_BYTES = 4096  # Shorter bytes of records are copied: a buffer of their own would cost more.


class Parts(list[Any]):
    """What an encoder appends to, where records shall not be joined: they and what lies before them go to `chunks`.

    `chunks` is set by the creator: a constructor in Python would cost as much as encoding a small answer.
    """

    __slots__ = ("chunks",)
    chunks: list[Chunk]

    def finished(self) -> list[Chunk]:
        """All of it, in order: few chunks, of which only records are large."""
        if self:
            self.chunks.append(b"".join(self))
            self.clear()
        return self.chunks


def put_records(parts: list[Any], records: Chunk, size_bytes: int) -> None:
    """Into `Parts`, or behind the others in a plain list. There are some: the partitions without are many, and cost no call."""
    if type(parts) is Parts and (size_bytes >= JOINED_BELOW_BYTES or type(records) is not bytes):
        parts.finished().append(records)
    else:
        parts.append(records)


@cache
def decoder(message: str, version: int) -> Decode:
    """Return `decode(buffer, position) -> (object, position behind it)`.

    The decoder raises ValueError, IndexError or struct.error for bytes that are no such message.
    """
    found: Decode = _Compiler(message, version).decoder(messages()[message].body)
    return found


@cache
def encoder(message: str, version: int) -> Encode:
    """Return `encode(object, chunks)`, which appends to `chunks`."""
    found: Encode = _Compiler(message, version).encoder(messages()[message].body)
    return found


_WIDE = frozenset(
    {
        "MetadataRequest",
        "CreateTopicsRequest",
        "CreatePartitionsRequest",
        "AlterPartitionReassignmentsRequest",
        "DescribeConfigsRequest",
    }
)


def max_items(message: str) -> int:
    """How many items all arrays of one message may have."""
    if message in _WIDE:
        return MAX_WIDE_ITEMS
    return MAX_DATA_ITEMS if message.endswith("Request") else MAX_MESSAGE_ITEMS


class _Compiler:
    """Writes the functions of one message and version; `_names` is what they see as globals."""

    def __init__(self, message: str, version: int) -> None:
        self._version = version
        self._schema = messages()[message]
        self._types = types_of(message)
        self._max_items = max_items(message)
        self._names: dict[str, Any] = {
            "uvarint": uvarint, "read_uvarint": read_uvarint, "read_tags": read_tags, "tags": tags, "size_of": size_of,
            "unpack_from": struct.unpack_from, "pack": struct.pack, "join": b"".join, "size_error": _size_error,
            "put_records": put_records, "one_byte": ONE_BYTE, "items_left": [0],
            "items_error": partial(_items_error, self._max_items),
        }  # fmt: skip
        self._made: set[str] = set()

    def decoder(self, body: Struct) -> Any:
        self._decode_struct(body)
        return self._names[f"decode_{body.name}"]

    def encoder(self, body: Struct) -> Any:
        self._encode_struct(body)
        return self._names[f"encode_{body.name}"]

    # --- small things -------------------------------------------------------------------------------------------------

    def _is_flexible(self, item: Field | None = None) -> bool:
        versions = self._schema.flexible if item is None or item.flexible is None else item.flexible
        return self._version in versions

    def _is_tagged(self, item: Field) -> bool:
        return item.tag is not None and self._version in item.tagged

    def _present(self, body: Struct) -> list[Field]:
        """The fields that stand in the struct itself, in order."""
        return [item for item in body.fields if self._version in item.versions and not self._is_tagged(item)]

    def _tagged(self, body: Struct) -> list[Field]:
        found = [item for item in body.fields if self._version in item.versions and self._is_tagged(item)]
        return sorted(found, key=lambda item: item.tag or 0)

    def _define(self, name: str, lines: list[str]) -> None:
        exec(compile("\n".join(lines), f"<kafka {self._schema.name} v{self._version}>", "exec"), self._names)
        assert name in self._names

    def _constant(self, value: Any) -> str:
        name = f"constant_{len(self._names)}"
        self._names[name] = value
        return name

    def _default(self, item: Field) -> Any:
        if item.default is ... and item.struct is not None:
            return default_of(self._types[item.struct.name])
        return item.default

    def _fixed(self, item: Field) -> str | None:
        """The format of a field of fixed size."""
        if item.is_array:
            return None
        return _UUID_FORMAT if item.type == "uuid" else FIXED_FORMATS.get(item.type)

    # --- decoding -----------------------------------------------------------------------------------------------------

    def _decode_struct(self, body: Struct) -> str:
        name = f"decode_{body.name}"
        if name in self._made:
            return name
        self._made.add(name)
        lines = [f"def {name}(b, p):"]
        if body is self._schema.body:
            lines.append(f" items_left[0] = {self._max_items}")
        run: list[Field] = []
        for item in self._present(body):
            if self._fixed(item):
                run.append(item)
                continue
            lines += self._decode_run(run)
            run = []
            lines += self._decode_field(item)
        lines += self._decode_run(run)
        tagged = self._tagged(body)
        if self._is_flexible():
            known = {item.tag: self._decode_tagged(body, item) for item in tagged}
            lines += [" tag_count = b[p]", " p += 1", " found = None", " if tag_count:"]
            lines.append(f"  found, p = read_tags(b, p - 1, {self._constant(known)})")
        values = ", ".join(self._value_of(item, tagged) for item in body.fields)
        lines.append(f" return {self._constant(self._types[body.name])}({values}), p")
        self._define(name, lines)
        return name

    def _value_of(self, item: Field, tagged: list[Field]) -> str:
        """What the constructor gets for a field, whether this version has it or not."""
        default = self._constant(self._default(item))
        if item in tagged:
            return f"(found.get({item.tag}, {default}) if found else {default})"
        return f"v_{item.name}" if self._version in item.versions else default

    def _decode_run(self, run: list[Field]) -> list[str]:
        if not run:
            return []
        layout = struct.Struct(">" + "".join(self._fixed(item) or "" for item in run))
        names = "".join(f"v_{item.name}, " for item in run)
        return [f" {names}= {self._constant(layout.unpack_from)}(b, p)", f" p += {layout.size}"]

    def _decode_tagged(self, body: Struct, item: Field) -> Any:
        name = f"decode_{body.name}_tag_{item.tag}"
        lines = [f"def {name}(b, p):"]
        lines += self._decode_run([item]) if self._fixed(item) else self._decode_field(item)
        self._define(name, [*lines, f" return v_{item.name}, p"])
        return self._names[name]

    def _decode_field(self, item: Field) -> list[str]:
        target = f"v_{item.name}"
        if item.is_array:
            return self._decode_array(item, target)
        if item.struct is not None:
            return self._decode_nested(item, target)
        size_format = "h" if item.type == "string" else "i"
        lines = self._read_count(item, size_format)
        read = {"string": "str(b[p:p + n], 'utf-8')", "bytes": "bytes(b[p:p + n])", "records": "b[p:p + n]"}[item.type]
        nothing = {"string": "''", "bytes": "b''", "records": "b[p:p]"}[item.type]  # often enough: racks, instance ids
        most = f"len(b) - p or n > {MAX_STRING_BYTES}" if item.type == "string" else "len(b) - p"
        lines += [" if n > 0:", f"  if n > {most}: size_error(n)", f"  {target} = {read}", "  p += n"]
        lines += [" elif n == 0:", f"  {target} = {nothing}", " else:", self._null_or_raise(item, target)]
        return lines

    def _read_count(self, item: Field, size_format: str) -> list[str]:
        """`n`: a length or a count, -1 for null."""
        if self._is_flexible(item):
            return [" n = b[p] - 1", " p += 1", " if n > 126:", "  n, p = read_uvarint(b, p - 1)", "  n -= 1"]
        layout = struct.Struct(f">{size_format}")
        return [f" n, = {self._constant(layout.unpack_from)}(b, p)", f" p += {layout.size}"]

    def _null_or_raise(self, item: Field, target: str) -> str:
        if self._version in item.nullable:
            return f"  {target} = None"
        return f"  raise ValueError('{item.name} is null')"

    def _decode_nested(self, item: Field, target: str) -> list[str]:
        assert item.struct is not None
        decode = self._decode_struct(item.struct)
        if self._version not in item.nullable:
            return [f" {target}, p = {decode}(b, p)"]
        lines = [" marker = b[p]", " p += 1", " if marker > 127:", f"  {target} = None"]
        return [*lines, " else:", f"  {target}, p = {decode}(b, p)"]

    def _decode_array(self, item: Field, target: str) -> list[str]:
        lines = [*self._read_count(item, "i"), " if n < 0:", self._null_or_raise(item, target)]
        lines += [" elif n == 0:", f"  {target} = []", " else:"]
        lines += ["  if n > len(b) - p: size_error(n)", "  items_left[0] -= n", "  if items_left[0] < 0: items_error()"]
        fixed = FIXED_FORMATS.get(item.type)
        if fixed:
            size = struct.calcsize(f">{fixed}")
            return [*lines, f"  {target} = unpack_from(f'>{{n}}{fixed}', b, p)", f"  p += n * {size}"]
        lines += [f"  {target} = []", "  for _ in range(n):"]
        if item.struct is not None:
            return [*lines, f"   x, p = {self._decode_struct(item.struct)}(b, p)", f"   {target}.append(x)"]
        return [*lines, f"   x, p = {self._decode_item(item)}(b, p)", f"   {target}.append(x)"]

    def _decode_item(self, item: Field) -> str:
        """A function for one item of an array of strings, bytes or uuids."""
        name = f"decode_item_{item.type}_{self._is_flexible(item)}"
        if name not in self._made:
            self._made.add(name)
            single = _single(item)
            body = self._decode_run([single]) if self._fixed(single) else self._decode_field(single)
            self._define(name, [f"def {name}(b, p):", *body, " return v_item, p"])
        return name

    # --- encoding -----------------------------------------------------------------------------------------------------

    def _encode_struct(self, body: Struct) -> str:
        name = f"encode_{body.name}"
        if name in self._made:
            return name
        self._made.add(name)
        lines = [f"def {name}(o, w):"]
        run: list[Field] = []
        for item in self._present(body):
            if self._fixed(item):
                run.append(item)
                continue
            lines += self._encode_run(run)
            run = []
            lines += self._encode_field(item, f"o.{item.name}")
        ends_with_no_tags = bool(run) and self._is_flexible() and not self._tagged(body)
        lines += self._encode_run(run, padding="x" if ends_with_no_tags else "")  # a zero, which says that none follow
        if self._is_flexible() and not ends_with_no_tags:
            lines += self._encode_tags(body)
        if len(lines) == 1:
            lines.append(" pass")
        self._define(name, lines)
        return name

    def _encode_run(self, run: list[Field], padding: str = "") -> list[str]:
        if not run:
            return []
        layout = struct.Struct(">" + "".join(self._fixed(item) or "" for item in run) + padding)
        values = ", ".join(f"o.{item.name}" for item in run)
        return [f" w.append({self._constant(layout.pack)}({values}))"]

    def _encode_tags(self, body: Struct) -> list[str]:
        tagged = self._tagged(body)
        if not tagged:
            return [" w.append(b'\\0')"]
        tests: list[str] = []
        fields: list[str] = []
        for item in tagged:
            default = self._constant(self._default(item))
            name = f"encode_{body.name}_tag_{item.tag}"
            encode = self._encode_run([item]) if self._fixed(item) else self._encode_field(item, f"o.{item.name}")
            self._define(name, [f"def {name}(o, w):", *encode])
            # Mostly it is the very object that the class has as its default: comparing structs by value costs more.
            unequal = f"o.{item.name} is not {default} and o.{item.name} != {default}"
            differs = f"o.{item.name}" if item.is_array and item.default == () else unequal
            tests.append(differs)
            fields += [
                f"  if {differs}:",
                "   body = []",
                f"   {name}(o, body)",
                f"   t.append(({item.tag}, join(body)))",
            ]
        any_differs = " or ".join(f"({test})" for test in tests)
        return [f" if {any_differs}:", "  t = []", *fields, "  w.append(tags(t))", " else:", "  w.append(b'\\0')"]

    def _encode_field(self, item: Field, value: str) -> list[str]:
        lines = [f" x = {value}", " if x is None:", *self._encode_null(item), " else:"]
        if item.is_array:
            return lines + self._encode_array(item)
        if item.struct is not None:
            if self._version not in item.nullable:
                return [f" {self._encode_struct(item.struct)}({value}, w)"]
            return [*lines, "  w.append(b'\\1')", f"  {self._encode_struct(item.struct)}(x, w)"]
        if item.type == "string":
            return [*lines, "  x = x.encode()", *self._encode_count(item, "h", "len(x)", "x")]
        if item.type == "bytes":
            return [*lines, *self._encode_count(item, "i", "len(x)", "x")]
        size = "  size = len(x) if type(x) is bytes else size_of(x)"
        return [*lines, size, *self._encode_count(item, "i", "size", None), "  if size: put_records(w, x, size)"]

    def _encode_null(self, item: Field) -> list[str]:
        if self._version not in item.nullable:
            return [f"  raise ValueError('{item.name} must not be null')"]
        if item.struct is not None and not item.is_array:
            return ["  w.append(b'\\xff')"]
        if self._is_flexible(item):
            return ["  w.append(b'\\0')"]
        return [
            "  w.append(b'\\xff\\xff')"
            if item.type == "string" and not item.is_array
            else "  w.append(b'\\xff\\xff\\xff\\xff')"
        ]

    def _encode_count(self, item: Field, size_format: str, count: str, tail: str | None) -> list[str]:
        behind = f" + {tail}" if tail else ""
        if not self._is_flexible(item):
            layout = self._constant(struct.Struct(f">{size_format}").pack)
            return [f"  w.append({layout}({count}){behind})"]
        return [f"  n = {count} + 1", f"  w.append((one_byte[n] if n < 128 else uvarint(n)){behind})"]

    def _encode_array(self, item: Field) -> list[str]:
        fixed = FIXED_FORMATS.get(item.type)
        if fixed:
            return self._encode_count(item, "i", "len(x)", f"pack(f'>{{len(x)}}{fixed}', *x)")
        lines = self._encode_count(item, "i", "len(x)", None)
        if item.struct is not None:
            return [*lines, "  for y in x:", f"   {self._encode_struct(item.struct)}(y, w)"]
        return [*lines, "  for y in x:", f"   {self._encode_item(item)}(y, w)"]

    def _encode_item(self, item: Field) -> str:
        name = f"encode_item_{item.type}_{self._is_flexible(item)}"
        if name not in self._made:
            self._made.add(name)
            single = _single(item)
            if self._fixed(single):
                body = [f" w.append({self._constant(struct.Struct('>16s').pack)}(o))"]
            else:
                body = self._encode_field(single, "o")
            self._define(name, [f"def {name}(o, w):", *body])
        return name


def _single(item: Field) -> Field:
    """One item of an array, as a field named "item" that is never null."""
    return Field(
        name="item", type=item.type, is_array=False, versions=item.versions, nullable=NO_VERSIONS, tag=None,
        tagged=NO_VERSIONS, flexible=item.flexible, default=None, struct=None,
    )  # fmt: skip


def _size_error(size: int) -> None:
    raise ValueError(f"a length of {size} reaches behind the message")


def _items_error(limit: int) -> None:
    raise ValueError(f"its arrays have more than {limit} items")
