"""JSON values with a JSON Schema: the columns of the schema, and values as those columns take them. By jsonschema.

Types: `integer` becomes bigint, `number` double, an object with properties a struct, one with `additionalProperties` alone a map.
What may have several types, or any, becomes text: the JSON of the value. Null is allowed everywhere, for a column may be null.

A value is checked against the schema that it was written with, which a newer program may have registered since the start; its
fields are then those of the pipeline's schema. No schema makes this read an address: `$ref` is looked up in the schema, and in
those that the registry names as its references.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urljoin

import msgspec
from pyspark.sql import types as T

from barnabas.net.client.arrow.extra import require
from barnabas.net.client.serde.framing import HEAD_SIZE, schema_id_of
from barnabas.net.client.serde.registered import MAX_PARSED, with_references
from barnabas.net.client.serde.registry import RegistryAccess, SchemaRegistry
from barnabas.net.client.serde.registry import Schema as RegisteredSchema

from .avro_values import loaded
from .faults import PipelineFault

Convert = Callable[[Any], Any]
Found = tuple[T.DataType, Convert]

MAX_DEPTH: Final = 64  # of schemas within schemas
MAX_FIELDS: Final = 10_000  # of a schema, with those of each place that refers to a part of it
_SHOWN_CHARS: Final = 60  # of a wrong value in its reason
_KINDS: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}
_FEATURE: Final = "a pipeline of values with a JSON schema"


class Columns:
    """The columns of a schema: `type` for Spark, `convert` from what JSON has to what Arrow takes."""

    def __init__(self, schema: Any, resolver: Any) -> None:
        """Raises PipelineFault."""
        self._fields = 0
        self._unresolvable = require("referencing.exceptions", extra="schemas", feature=_FEATURE).Unresolvable
        found, self.convert = self._of(schema, resolver, "", ())
        if not isinstance(found, T.StructType):
            raise PipelineFault(
                "the JSON schema describes no object with properties: only the fields of one can become columns"
            )
        self.type = found

    def _of(self, schema: Any, resolver: Any, path: str, around: tuple[Any, ...]) -> Found:
        """`around`: the schemas that this one is within."""
        if len(around) > MAX_DEPTH:
            raise PipelineFault(f"the JSON schema has more than {MAX_DEPTH} schemas within one another")
        if any(schema is one for one in around):
            raise PipelineFault(
                f"the JSON schema of {path or 'the value'} contains itself, which columns cannot: use another reader schema"
            )
        if not isinstance(schema, dict):
            return _text()
        inner = (*around, schema)
        if "$ref" in schema:
            found = self._lookup(schema["$ref"], resolver)
            return self._of(found.contents, found.resolver, path, inner)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema and not schema.get("properties"):
                return self._one_of(schema[name], resolver, path, inner)
        return self._of_kinds(_kinds_of(schema), schema, resolver, path, inner)

    def _of_kinds(self, kinds: list[str], schema: Any, resolver: Any, path: str, inner: tuple[Any, ...]) -> Found:
        match kinds:
            case ["object"]:
                return self._object(schema, resolver, path, inner)
            case ["array"]:
                item, convert = self._of(schema.get("items"), resolver, f"{path}[]", inner)
                return T.ArrayType(item), _checked(list, "array", path, lambda given: [convert(one) for one in given])
            case [kind]:
                return _scalar(kind, path)
            case ["integer", "number"]:
                return _scalar("number", path)
        return _text()

    def _lookup(self, reference: str, resolver: Any) -> Any:
        try:
            return resolver.lookup(reference)
        except self._unresolvable:
            raise PipelineFault(
                f"the JSON schema refers to {reference}, which is not in it: put that under its definitions"
            ) from None

    def _one_of(self, options: list[Any], resolver: Any, path: str, inner: tuple[Any, ...]) -> Found:
        others = [one for one in options if not (isinstance(one, dict) and _kinds_of(one) == [] and "type" in one)]
        if len(others) == 1:
            return self._of(others[0], resolver, path, inner)
        found = [self._of(one, resolver, path, inner) for one in others]
        if found and all(isinstance(kind, T.LongType | T.DoubleType) for kind, _ in found):
            return _scalar("number", path)
        return _text()

    def _object(self, schema: Any, resolver: Any, path: str, inner: tuple[Any, ...]) -> Found:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if not properties:
            if not isinstance(others, dict) or not others:
                return _text()
            item, convert = self._of(others, resolver, f"{path}.*", inner)
            pairs: Convert = lambda given: [(key, convert(one)) for key, one in given.items()]  # noqa: E731 - beside `row`
            return T.MapType(T.StringType(), item), _checked(dict, "object", path, pairs)
        self._fields += len(properties)
        if self._fields > MAX_FIELDS:
            raise PipelineFault(f"the JSON schema has more than {MAX_FIELDS} fields: use a smaller reader schema")
        fields: list[T.StructField] = []
        converts: dict[str, Convert] = {}
        for name, one in properties.items():
            kind, converts[name] = self._of(one, resolver, f"{path}.{name}".lstrip("."), inner)
            fields.append(T.StructField(name, kind))

        def row(given: Mapping[str, Any]) -> dict[str, Any]:
            return {name: convert(given.get(name)) for name, convert in converts.items()}

        return T.StructType(fields), _checked(dict, "object", path, row)


def _kinds_of(schema: Mapping[str, Any]) -> list[str]:
    """The types that a value may have besides null; without a word on that, those that its other words are about."""
    given = schema.get("type")
    if given is None:
        if "enum" in schema or "const" in schema:
            found = [_KINDS.get(type(one), "object") for one in schema.get("enum", [schema.get("const")])]
        else:
            found = ["object"] * ("properties" in schema) + ["array"] * ("items" in schema)
    else:
        found = [given] if isinstance(given, str) else list(given)
    return sorted({kind for kind in found if kind != "null"})


def _scalar(kind: str, path: str) -> Found:
    match kind:
        case "boolean":
            return T.BooleanType(), _checked(bool, kind, path, bool)
        case "integer":
            return T.LongType(), lambda given: None if given is None else _whole(given, path)
        case "number":
            return T.DoubleType(), _checked((int, float), kind, path, float)
        case "string":
            return T.StringType(), _checked(str, kind, path, str)
    return _text()


def _whole(given: Any, path: str) -> int:
    """JSON Schema calls 5.0 an integer, too. Raises ValueError."""
    if isinstance(given, bool) or not isinstance(given, int | float) or given != int(given):
        raise _wrong(given, "integer", path)
    return int(given)


def _text() -> Found:
    return (
        T.StringType(),
        lambda given: None if given is None else json.dumps(given, ensure_ascii=False, separators=(",", ":")),
    )


def _checked(kinds: type | tuple[type, ...], name: str, path: str, convert: Convert) -> Convert:
    """For a value that was written with another schema. The result raises ValueError."""

    def checked(given: Any) -> Any:
        if given is None:
            return None
        if not isinstance(given, kinds) or (isinstance(given, bool) and kinds is not bool):
            raise _wrong(given, name, path)
        return convert(given)

    return checked


def _wrong(given: Any, kind: str, path: str) -> ValueError:
    return ValueError(f"{path or 'the value'} is {json.dumps(given)[:_SHOWN_CHARS]}, which is no {kind}")


# --- values ---------------------------------------------------------------------------------------------------------------


class JsonSchemaValues:
    """Values of one schema. `registry`: values begin with the id of the schema that they were written with, which is looked up
    there; without one, they are plain JSON. Made by the driver, and again by each worker."""

    def __init__(self, schema: str, registry: RegistryAccess | None = None) -> None:
        """`schema`: its text. Raises PipelineFault, MissingExtraError."""
        require("jsonschema", extra="schemas", feature=_FEATURE)
        try:
            self._own, resolver, tree = _validator(schema, {})
        except Exception as error:  # whatever jsonschema raises for a tree that is no schema
            raise PipelineFault(f"the JSON schema cannot be used: {_first_line(error)}") from error
        self._columns = Columns(tree, resolver)
        self.type = self._columns.type
        self._registry = registry.registry(auto_register=False) if registry is not None else None
        self._writers: dict[int, Any] = {}

    def read(self, data: bytes) -> dict[str, Any]:
        """Raises SchemaRegistryUnavailableError, and any other exception where the value does not fit."""
        check, encoded = self._own, data
        if self._registry is not None:
            registry, schema_id = self._registry, schema_id_of(data)
            check, encoded = loaded(lambda: self._writer(registry, schema_id)), data[HEAD_SIZE:]
        tree = msgspec.json.decode(encoded)
        wrong = next(check.iter_errors(tree), None)
        if wrong is not None:
            raise ValueError(f"{wrong.json_path}: {wrong.message}")
        if not isinstance(tree, dict):
            raise _wrong(tree, "object", "")
        row: dict[str, Any] = self._columns.convert(tree)
        return row

    def _writer(self, registry: SchemaRegistry, schema_id: int) -> Any:
        """What checks values of a schema. Raises SchemaNotLoaded, ValueError."""
        found = self._writers.get(schema_id)
        if found is None:
            schema = registry.schema(schema_id)
            if schema.kind != "JSON":
                raise ValueError(f"it was written with schema {schema_id}, which is {schema.kind}, not JSON")
            needed = {reference.name: item for reference, item in with_references(registry, schema)}
            try:
                found, _, _ = _validator(schema.text, needed)
            except Exception as error:
                raise ValueError(f"the registry has a JSON schema that cannot be used: {_first_line(error)}") from error
            if len(self._writers) >= MAX_PARSED:
                self._writers.clear()
            self._writers[schema_id] = found
        return found


def _validator(text: str, needed: Mapping[str, RegisteredSchema]) -> tuple[Any, Any, Any]:
    """What checks values, what looks up references, and the schema. `needed`: by the names by which it refers to them. Raises
    what json and jsonschema raise for a text that is no schema."""
    validators = require("jsonschema.validators", extra="schemas", feature=_FEATURE)
    referencing = require("referencing", extra="schemas", feature=_FEATURE)
    dialects = require("referencing.jsonschema", extra="schemas", feature=_FEATURE)
    specifications = require("jsonschema_specifications", extra="schemas", feature=_FEATURE).REGISTRY

    def resource(tree: Any) -> Any:
        return referencing.Resource.from_contents(tree, default_specification=dialects.DRAFT7)

    tree = json.loads(text)
    kind = validators.validator_for(tree, default=validators.Draft7Validator)
    kind.check_schema(tree)
    own = resource(tree)
    resources = [("", own)]
    for name, schema in needed.items():
        found = resource(json.loads(schema.text))
        resources += [(name, found), (urljoin(own.id() or "", name), found)]
    registry = specifications.with_resources(resources)
    return kind(tree, registry=registry), registry.resolver_with_root(own), tree


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
