"""`Avro`: objects as Avro, with a schema registry. By fastavro."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from ..arrow.extra import require
from ..connection.errors import InvalidConfigError
from .framing import HEAD_SIZE, framed, schema_id_of
from .models import tree_of, tree_reader
from .registered import MAX_PARSED, Subject, subject_of, with_references
from .registry import Schema, SchemaRegistry
from .serdes import Part


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
        """Raises InvalidConfigError, MissingExtraError."""
        self._avro = require("fastavro", extra="schemas", feature="Avro")
        self._registry = registry
        self._subject = subject_of(subject)
        self._read = tree_reader(model)
        self._writers: dict[int, Any] = {}  # parsed schemas, by id
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
        if self._own is None:
            raise InvalidConfigError("Avro needs a schema to write: Avro(registry, schema)")
        schema_id = self._registry.schema_id(self._subject(topic, part, self._name), self._own)
        out = BytesIO()
        self._avro.schemaless_writer(out, self._parsed, tree_of(data), strict_allow_default=True)
        return framed(schema_id, out.getvalue())

    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        writer = self._writer(schema_id_of(data))
        source = BytesIO(data)
        source.seek(HEAD_SIZE)
        tree = self._avro.schemaless_reader(source, writer, self._parsed)
        left = len(data) - source.tell()
        if left:
            raise ValueError(f"{left} bytes are left behind the data")
        return self._read(tree)

    def _writer(self, schema_id: int) -> Any:
        found = self._writers.get(schema_id)
        if found is None:
            schema = self._registry.schema(schema_id)
            if schema.kind != "AVRO":
                raise ValueError(f"it was written with schema {schema_id}, which is {schema.kind}, not AVRO")
            if len(self._writers) >= MAX_PARSED:
                self._writers.clear()
            found = self._writers[schema_id] = self._parse(schema)
        return found

    def _parse(self, schema: Schema) -> Any:
        """Raises SchemaNotLoaded for references, ValueError."""
        named: dict[str, Any] = {}
        needed = [item for _, item in with_references(self._registry, schema)]
        try:
            for item in needed:
                self._avro.parse_schema(_tree(item.text), named_schemas=named)
            return self._avro.parse_schema(_tree(schema.text), named_schemas=named)
        except (ValueError, self._avro.schema.SchemaParseException, self._avro.schema.UnknownType) as error:
            raise ValueError(f"the registry has an Avro schema that cannot be used: {error}") from error


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # the name of a type
