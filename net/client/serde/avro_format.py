"""`Avro`: objects as Avro, with a schema registry. By fastavro."""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from ..arrow.extra import require
from ..connection.errors import InvalidConfigError
from .framing import HEAD_SIZE, framed, schema_id_of
from .models import tree_of, tree_reader
from .registered import MAX_PARSED, Subject, subject_of, with_references
from .registry import Schema, SchemaRegistry
from .serdes import Part

# Of a value whose schema contains itself, for the compiled reader: it has no limit for types within one another, and takes more
# than a kilobyte of the stack for each. The reader in Python stops at the interpreter's limit.
MAX_COMPILED_BYTES: Final = 1_000
MAX_FREE: Final = 10_000  # values (of null, in records) that a record without bytes may have
# Such values in all records of a schema: so many may come with each byte of the data. Real schemas have hardly any.
MAX_FREE_A_BYTE: Final = 100


class Avro:
    """Avro in the wire format of Confluent's serializers.

        Producer(..., value_serializer=Avro(registry, schema))
        Consumer(..., value_deserializer=Avro(registry))

    `schema`: a dict, its JSON text, or the path of an .avsc file; needed for writing. Reading uses the schema that the data was
    written with, and resolves it to `schema` if that is given: fields are renamed by aliases and filled with defaults. Reading
    returns dicts, or instances of `model` (as in Json). `subject`: "topic" (orders-value), "record", "topic-record", or a
    function of (topic, part, name of the record). Needs the extra: pip install 'barnabas[schemas]'.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | dict[str, Any] | list[Any] | Path | None = None,
        *,
        model: Any = None,
        subject: str | Subject = "topic",
    ) -> None:
        """`registry`: where the schemas are. `schema`: what to write and read with, as a text, a parsed JSON or a file; None:
        records are read as they were written. `model`: the class of the objects. `subject`: "topic", "record", "topic-record",
        or a function of topic, part and record name. Raises InvalidConfigError, MissingExtraError."""
        self._avro = require("fastavro", extra="schemas", feature="Avro")
        self._registry = registry
        self._subject = subject_of(subject)
        self._read = tree_reader(model)
        self._writers: dict[int, AvroReader] = {}  # by the id of the schema
        self._own: Schema | None = None
        self._parsed: Any = None
        self._name = ""
        if schema is not None:
            self._set_own(schema)

    def _set_own(self, given: str | dict[str, Any] | list[Any] | Path) -> None:
        text = given.read_text(encoding="utf-8") if isinstance(given, Path) else given
        try:
            # A name such as "string" is a schema, too, and not JSON.
            tree = json.loads(text) if isinstance(text, str) and text.lstrip()[:1] in ("{", "[", '"') else text
            self._parsed = self._avro.parse_schema(tree)
        except Exception as error:
            raise InvalidConfigError(f"the Avro schema cannot be used: {error}") from error
        self._own = Schema(text=text if isinstance(text, str) and text != tree else json.dumps(tree))
        named = self._parsed if isinstance(self._parsed, dict) else {}
        self._name = str(named.get("name", named.get("type", "")))

    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        """The bytes of `data` as Avro, with the id of its schema before it. `topic`: of the record; `part`: its key or its
        value."""
        schema_id = self.registered_id(topic, part)
        if is_plain_bytes(self._parsed) and isinstance(data, bytes | bytearray | memoryview):
            return framed(schema_id, bytes(data))
        out = BytesIO()
        self._avro.schemaless_writer(out, self._parsed, tree_of(data), strict_allow_default=True)
        return framed(schema_id, out.getvalue())

    def registered_id(self, topic: str, part: Part) -> int:
        """The id of the own schema, for the key or value (`part`) of records of this `topic`. Raises SchemaNotLoaded,
        InvalidConfigError without a schema."""
        if self._own is None:
            raise InvalidConfigError("Avro needs a schema to write: Avro(registry, schema)")
        return self._registry.schema_id(self._subject(topic, part, self._name), self._own)

    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        """What the bytes `data` say. `topic`: of the record; `part`: its key or its value."""
        return self._read(self._writer(schema_id_of(data)).read_framed(data, self._parsed))

    def _writer(self, schema_id: int) -> "AvroReader":
        found = self._writers.get(schema_id)
        if found is None:
            schema = self._registry.schema(schema_id)
            if schema.kind != "AVRO":
                raise ValueError(f"it was written with schema {schema_id}, which is {schema.kind}, not AVRO")
            if len(self._writers) >= MAX_PARSED:
                self._writers.clear()
            found = self._writers[schema_id] = self._parse(schema)
        return found

    def _parse(self, schema: Schema) -> "AvroReader":
        """Raises SchemaNotLoaded for references, ValueError."""
        try:
            return AvroReader(*parsed_with_references(self._registry, schema))
        except (ValueError, self._avro.schema.SchemaParseException, self._avro.schema.UnknownType) as error:
            raise ValueError(f"the registry has an Avro schema that cannot be used: {error}") from error


def parsed_with_references(registry: SchemaRegistry, schema: Schema) -> tuple[Any, dict[str, Any]]:
    """The schema as fastavro takes it, and the types that names in it stand for. Raises SchemaNotLoaded for references,
    MissingExtraError, and what fastavro raises of schemas."""
    avro = require("fastavro", extra="schemas", feature="Avro")
    named: dict[str, Any] = {}
    for _, item in list(with_references(registry, schema)):
        avro.parse_schema(_tree(item.text), named_schemas=named)
    return avro.parse_schema(_tree(schema.text), named_schemas=named), named


def is_plain_bytes(parsed: Any) -> bool:
    """Whether values of this schema are bytes as a whole: Confluent's serializers write them without their length."""
    if isinstance(parsed, dict) and parsed.get("logicalType") != "decimal":
        parsed = parsed["type"]
    return bool(parsed == "bytes")


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # the name of a type


class AvroReader:
    """Reads what was written with one schema, whatever bytes a stranger sends: in bounded time, memory and stack."""

    def __init__(self, parsed: Any, named: Mapping[str, Any]) -> None:
        """`parsed`: by fastavro; `named`: the schemas that names stand for. Raises ValueError, MissingExtraError."""
        found = _Types(named)
        found.visit(parsed, frozenset())
        self._parsed = parsed
        self._compiled = require("fastavro", extra="schemas", feature="Avro").schemaless_reader
        self._in_python = (
            require("fastavro._read_py", extra="schemas", feature="Avro").schemaless_reader
            if found.is_recursive
            else self._compiled
        )

    def read_framed(self, data: bytes, reader_schema: Any = None) -> Any:
        """As `read`, of Confluent's wire format."""
        if not is_plain_bytes(self._parsed):
            return self.read(data, HEAD_SIZE, reader_schema)
        with_length = BytesIO()
        require("fastavro", extra="schemas", feature="Avro").schemaless_writer(with_length, "bytes", data[HEAD_SIZE:])
        return self.read(with_length.getvalue(), 0, reader_schema)

    def read(self, data: bytes, begin: int, reader_schema: Any = None) -> Any:
        """All of `data` from `begin`. Raises ValueError, and what else fastavro raises for bytes that do not fit."""
        source = BytesIO(data)
        source.seek(begin)
        read = self._in_python if len(data) > MAX_COMPILED_BYTES else self._compiled
        tree = read(source, self._parsed, reader_schema)
        left = len(data) - source.tell()
        if left:
            raise ValueError(f"{left} bytes are left behind the data")
        return tree


class _Types:
    """Walks the types of a schema: `is_recursive`, and refuses what a few bytes could make endless."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.is_recursive = False
        self._named = named
        self._open: set[str] = set()  # records that the walk is in
        self._done: set[str] = set()
        self._counted: dict[str, int] = {}  # by the name of a record, what `_free` has found
        self._all_free = 0  # values without bytes, of all records so far

    def visit(self, schema: Any, always: frozenset[str]) -> None:
        """`always`: the records around it whose every value has one of this type. Raises ValueError."""
        if isinstance(schema, list):
            for one in schema:
                self.visit(one, frozenset())
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            self.visit(kind, always)
        elif kind in ("record", "error"):
            self._visit_record(schema, always)
        elif kind == "array":
            if self._free(schema["items"], frozenset()):
                raise ValueError(
                    "an array's items take no bytes, so that a few bytes could stand for any number of them"
                )
            self.visit(schema["items"], frozenset())
        elif kind == "map":
            self.visit(schema["values"], frozenset())
        elif kind in self._named:
            self.visit(self._named[kind], always)

    def _visit_record(self, schema: Any, always: frozenset[str]) -> None:
        name = schema["name"]
        if name in always:
            raise ValueError(f"each {name} contains another one, without end")
        if name in self._open:
            self.is_recursive = True
        if name in self._open | self._done:
            return
        if self._free_record(schema, frozenset()) > MAX_FREE:
            raise ValueError(f"{name} takes no bytes and has more than {MAX_FREE} values")
        self._all_free += sum(self._free(field["type"], frozenset((name,))) for field in schema["fields"])
        if self._all_free > MAX_FREE_A_BYTE:
            raise ValueError(
                f"its records have more than {MAX_FREE_A_BYTE} values that take no bytes, all of which could come with each byte"
            )
        self._open.add(name)
        for field in schema["fields"]:
            self.visit(field["type"], always | {name})
        self._open.remove(name)
        self._done.add(name)

    def _free(self, schema: Any, around: frozenset[str]) -> int:
        """How many values are read of a type that takes no bytes; 0 if it takes some."""
        if isinstance(schema, list):
            return 0  # The number of the type takes a byte.
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self._free(kind, around)
        if kind in ("record", "error"):
            return self._free_record(schema, around)
        if kind == "fixed":
            return int(schema["size"] == 0)
        return int(kind == "null") or (self._free(self._named[kind], around) if kind in self._named else 0)

    def _free_record(self, schema: Any, around: frozenset[str]) -> int:
        name = schema["name"]
        if name in around:
            return 1  # without end, which `visit` refuses
        if name not in self._counted:
            each = [self._free(field["type"], around | {name}) for field in schema["fields"]]
            self._counted[name] = 1 + sum(each) if all(each) else 0
        return self._counted[name]
