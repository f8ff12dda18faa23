"""Protobuf messages without generated classes: the schema registry gives their compiled descriptors (`?format=serialized`)."""

from base64 import b64decode
from importlib import import_module
from typing import Any, Final

from barnabas.net.client.serde.framing import FIRST_MESSAGE, HEAD_SIZE, message_path, read_message_path, schema_id_of
from barnabas.net.client.serde.registered import MAX_DEPENDENCIES
from barnabas.net.client.serde.registry import Reference, Schema, SchemaRegistry

MAX_CLASSES: Final = 200  # kept; beyond them all are made again
_BUILT_IN: Final = "google/protobuf/"  # files that every registry knows and no schema refers to


class ProtobufMessages:
    """Of one registry. For threads: a class that two of them make at once is made twice."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._classes: dict[tuple[int, tuple[int, ...]], Any] = {}

    def decode(self, data: bytes) -> Any:
        """As Protobuf's JSON mapping, with the names of the file: a 64-bit integer is a string. Raises SchemaNotLoaded, and
        whatever protobuf says of bytes that are no such message."""
        from google.protobuf.json_format import MessageToDict

        schema_id = schema_id_of(data)
        path, begin = read_message_path(data, HEAD_SIZE)
        message = self._class(schema_id, path)()
        message.ParseFromString(data[begin:])
        return MessageToDict(message, preserving_proto_field_name=True)

    def encode(self, schema_id: int, tree: Any) -> bytes:
        """The first message of the file, as most serializers write it, without the id of the schema. Raises SchemaNotLoaded,
        ValueError."""
        from google.protobuf.json_format import ParseDict, ParseError

        message = self._class(schema_id, FIRST_MESSAGE)()
        if not isinstance(tree, dict):
            raise ValueError(f"it must be an object with the fields of {message.DESCRIPTOR.name}")
        try:
            ParseDict(tree, message)
        except ParseError as error:
            raise ValueError(str(error)) from None
        return message_path(FIRST_MESSAGE) + bytes(message.SerializeToString(deterministic=True))

    def _class(self, schema_id: int, path: tuple[int, ...]) -> Any:
        from google.protobuf import message_factory

        found = self._classes.get((schema_id, path))
        if found is None:
            file = self._file(schema_id)
            found = message_factory.GetMessageClass(_message_at(file, path))
            if len(self._classes) >= MAX_CLASSES:
                self._classes.clear()
            self._classes[schema_id, path] = found
        return found

    def _file(self, schema_id: int) -> Any:
        """A pool of its own: two schemas may have messages of the same name."""
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        name = f"schema {schema_id}"
        self._add(pool, name, self._registry.serialized(schema_id), {})
        return pool.FindFileByName(name)

    def _add(self, pool: Any, name: str, schema: Schema, added: dict[str, None]) -> None:
        """The files that it imports come first, each once."""
        if len(added) > MAX_DEPENDENCIES:
            raise ValueError(f"its schema imports more than {MAX_DEPENDENCIES} files")
        added[name] = None
        file = _descriptor(schema)
        references = {item.name: item for item in schema.references}
        for imported in file.dependency:
            if imported not in added:
                self._add_imported(pool, imported, references.get(imported), added)
        file.name = name
        pool.Add(file)

    def _add_imported(self, pool: Any, name: str, reference: Reference | None, added: dict[str, None]) -> None:
        if reference is not None:
            self._add(pool, name, self._registry.serialized(reference), added)
        elif name.startswith(_BUILT_IN):
            added[name] = None
            module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
            for one in module.DESCRIPTOR.dependencies:
                if one.name not in added:
                    self._add_imported(pool, one.name, None, added)
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        else:
            raise ValueError(f"its schema imports {name}, and the registry does not say where it is")


def _descriptor(schema: Schema) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(b64decode(schema.text, validate=True))
    except (ValueError, DecodeError) as error:
        raise ValueError("the registry gives the source of its schema only, and no descriptor") from error


def _message_at(file: Any, path: tuple[int, ...]) -> Any:
    siblings, found = list(file.message_types_by_name.values()), None
    for index in path:
        if not 0 <= index < len(siblings):
            raise ValueError(f"its schema has no message at the position {path}")
        found = siblings[index]
        siblings = list(found.nested_types)
    return found
