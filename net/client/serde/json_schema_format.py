"""`JsonSchema`: JSON that a schema of a registry describes. Checked by jsonschema."""

import json
from typing import Any

import msgspec

from ..arrow.extra import require
from ..connection.errors import InvalidConfigError
from .framing import HEAD_SIZE, framed, schema_id_of
from .json_format import Json
from .models import json_schema_of
from .registered import Subject, subject_of
from .registry import Schema, SchemaRegistry
from .serdes import Part


class JsonSchema:
    """JSON in the wire format of Confluent's serializers.

        Producer(..., value_serializer=JsonSchema(registry, Order))
        Consumer(..., value_deserializer=JsonSchema(registry, Order))

    The schema is that of the class `model` (as in Json), or `schema`: a dict or its JSON text. What is written is checked against
    it. What is read is checked against it too, if it is given; the schema that it was written with is not asked for. Needs the
    extra: pip install 'barnabas[schemas]'.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        model: Any = None,
        *,
        schema: str | dict[str, Any] | None = None,
        subject: str | Subject = "topic",
    ) -> None:
        """`registry`: where the schemas are. `model`: the class of the objects. `schema`: as a text or a parsed JSON; None:
        that of the class. `subject`: as for Avro. Raises InvalidConfigError, MissingExtraError."""
        jsonschema = require("jsonschema", extra="schemas", feature="JsonSchema")
        self._registry = registry
        self._subject = subject_of(subject)
        self._json = Json(model)
        self._own: Schema | None = None
        self._name = ""
        self._check: Any = None
        if schema is None and model is not None:
            schema = json_schema_of(model)
        if schema is not None:
            try:
                tree = json.loads(schema) if isinstance(schema, str) else schema
                kind = jsonschema.validators.validator_for(tree, default=jsonschema.Draft7Validator)
                kind.check_schema(tree)
            except (ValueError, jsonschema.SchemaError) as error:
                reason = error.message if isinstance(error, jsonschema.SchemaError) else error
                raise InvalidConfigError(f"the JSON schema cannot be used: {reason}") from error
            self._own = Schema(text=schema if isinstance(schema, str) else json.dumps(schema), kind="JSON")
            self._name = str(tree.get("title", "")) if isinstance(tree, dict) else ""
            self._check = kind(tree)

    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        """The bytes of `data` as JSON, with the id of its schema before it. `topic`: of the record; `part`: its key or its
        value."""
        schema_id = self.registered_id(topic, part)
        encoded = self._json.serialize(data, topic, part)
        self._validate(encoded)
        return framed(schema_id, encoded)

    def registered_id(self, topic: str, part: Part) -> int:
        """The id of the own schema, for the key or value (`part`) of records of this `topic`. Raises SchemaNotLoaded,
        InvalidConfigError without a schema."""
        if self._own is None:
            raise InvalidConfigError("JsonSchema needs a class or a schema to write: JsonSchema(registry, Order)")
        return self._registry.schema_id(self._subject(topic, part, self._name), self._own)

    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        """What the bytes `data` say. `topic`: of the record; `part`: its key or its value."""
        schema_id_of(data)
        encoded = data[HEAD_SIZE:]
        if self._check is not None:
            self._validate(encoded)
        return self._json.deserialize(encoded, topic, part)

    def _validate(self, encoded: bytes) -> None:
        """Raises ValueError."""
        error = next(self._check.iter_errors(msgspec.json.decode(encoded)), None)
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message}")
