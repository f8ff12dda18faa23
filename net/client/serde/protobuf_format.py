"""`Protobuf`: messages of generated classes, with a schema registry. By Google's protobuf."""

from base64 import b64encode
from typing import Any

from ..arrow.extra import require
from ..connection.errors import InvalidConfigError
from .framing import HEAD_SIZE, framed, message_path, read_message_path, schema_id_of
from .registered import MAX_DEPENDENCIES, Subject, subject_of
from .registry import Reference, Schema, SchemaRegistry
from .serdes import Part

_BUILT_IN = "google/protobuf/"  # files that every registry knows


class Protobuf:
    """Protobuf in the wire format of Confluent's serializers.

        Producer(..., value_serializer=Protobuf(registry, orders_pb2.Order))
        Consumer(..., value_deserializer=Protobuf(registry, orders_pb2.Order))

    `message`: a class that protoc has generated. The file of the class is registered, and the files that it imports under their
    own names. Reading needs no schema of the registry: the class reads what older and newer versions of it wrote. Needs the
    extra: pip install 'barnabas[schemas]'.
    """

    def __init__(self, registry: SchemaRegistry, message: Any, *, subject: str | Subject = "topic") -> None:
        """`registry`: where the schemas are. `message`: a class that protoc has generated. `subject`: as for Avro. Raises
        InvalidConfigError, MissingExtraError."""
        require("google.protobuf", extra="schemas", feature="Protobuf")
        if not isinstance(message, type) or not hasattr(message, "DESCRIPTOR"):
            raise InvalidConfigError(f"{message!r} is not a class that protoc has generated, such as orders_pb2.Order")
        self._registry = registry
        self._message: type[Any] = message
        self._subject = subject_of(subject)
        self._descriptor: Any = message.DESCRIPTOR
        self._path = message_path(_indexes(self._descriptor))
        self._own: Schema | None = None  # known when the files that it imports are registered

    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        """The bytes of `data` as Protobuf, with the id of its schema before it. `topic`: of the record; `part`: its key or its
        value."""
        if not isinstance(data, self._message):
            raise TypeError(f"it must be a {self._message.__name__}, not {type(data).__name__}")
        schema_id = self.registered_id(topic, part)
        encoded: bytes = data.SerializeToString()
        return framed(schema_id, self._path + encoded)

    def registered_id(self, topic: str, part: Part) -> int:
        """The id of the own schema, for the key or value (`part`) of records of this `topic`. Raises SchemaNotLoaded."""
        self._own = self._own or self._schema(self._descriptor.file, [])
        return self._registry.schema_id(self._subject(topic, part, self._descriptor.full_name), self._own)

    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        """What the bytes `data` say. `topic`: of the record; `part`: its key or its value."""
        schema_id_of(data)
        _, begin = read_message_path(data, HEAD_SIZE)
        found = self._message()
        found.ParseFromString(data[begin:])
        return found

    def _schema(self, file: Any, seen: list[str]) -> Schema:
        """The schema of a file, with references to those that it imports. Raises SchemaNotLoaded."""
        if len(seen) > MAX_DEPENDENCIES:
            raise ValueError(f"{file.name} imports more than {MAX_DEPENDENCIES} files")
        seen.append(file.name)
        references = []
        for imported in file.dependencies:
            if imported.name.startswith(_BUILT_IN):
                continue
            schema = self._schema(imported, seen)
            version = self._registry.version(imported.name, schema)
            references.append(Reference(name=imported.name, subject=imported.name, version=version))
        text = b64encode(file.serialized_pb).decode()
        return Schema(text=text, kind="PROTOBUF", references=tuple(references))


def _indexes(descriptor: Any) -> tuple[int, ...]:
    """Where a message is in its file, from the outside in."""
    outer = descriptor.containing_type
    siblings = descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
    index = next(number for number, item in enumerate(siblings) if item.full_name == descriptor.full_name)
    return (index,) if outer is None else (*_indexes(outer), index)
