"""Protobuf values: the columns of a message, values as those columns take them, and rows as messages. By Google's protobuf.

Types: unsigned numbers become the next larger type (uint64: decimal(20,0)), enums strings, `Timestamp` becomes a timestamp,
wrappers such as `Int64Value` their value. A field that was not sent is null if its presence is tracked (messages, `optional`,
members of a `oneof`), and otherwise the default of its type, as for every reader of Protobuf.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import types as T

from barnabas.net.client.arrow.extra import require
from barnabas.net.client.serde.framing import HEAD_SIZE, read_message_path, schema_id_of

from .faults import PipelineFault

Convert = Callable[[Any], Any]

MAX_DEPTH: Final = 64  # of messages within messages
MAX_FIELDS: Final = 10_000  # of a message, with those of each place of a message within it
MAX_SHOWN: Final = 20  # values of an enum in an error
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_UNSIGNED: Final = T.DecimalType(20, 0)


def _same(found: Any) -> Any:
    return found


def _plain(field: Any) -> tuple[T.DataType, Convert]:
    kinds: Mapping[int, tuple[T.DataType, Convert]] = {
        field.CPPTYPE_BOOL: (T.BooleanType(), _same),
        field.CPPTYPE_INT32: (T.IntegerType(), _same),
        field.CPPTYPE_UINT32: (T.LongType(), _same),
        field.CPPTYPE_INT64: (T.LongType(), _same),
        field.CPPTYPE_UINT64: (_UNSIGNED, Decimal),
        field.CPPTYPE_FLOAT: (T.FloatType(), _same),
        field.CPPTYPE_DOUBLE: (T.DoubleType(), _same),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return (T.BinaryType() if field.type == field.TYPE_BYTES else T.StringType()), _same
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return T.StringType(), lambda number: names.get(number, str(number))  # of a newer version of the enum
    return kinds[field.cpp_type]


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)  # since protobuf 6.30; `label` has gone in 7
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


class Columns:
    """The columns of a message type: `type` for Spark, `convert` from a message to what Arrow takes."""

    def __init__(self, descriptor: Any) -> None:
        """Raises PipelineFault."""
        self._fields = 0
        found, self.convert = self._message(descriptor, ())
        if not isinstance(found, T.StructType):
            raise PipelineFault(
                f"the Protobuf message {descriptor.full_name} is one value: it has no fields for columns"
            )
        self.type = found

    def _message(self, descriptor: Any, path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
        name = descriptor.full_name
        if name == _TIMESTAMP:
            return T.TimestampType(), lambda found: found.ToMicroseconds()
        if name in _WRAPPERS:
            kind, convert = _plain(descriptor.fields_by_name["value"])
            return kind, lambda found: convert(found.value)
        if name in path:
            raise PipelineFault(f"the Protobuf message {name} contains itself, which columns cannot")
        if len(path) >= MAX_DEPTH:
            raise PipelineFault(f"the Protobuf message has more than {MAX_DEPTH} messages within one another")
        self._fields += len(descriptor.fields)
        if self._fields > MAX_FIELDS:
            raise PipelineFault(
                f"the Protobuf message has more than {MAX_FIELDS} fields, with those of the messages in it"
            )
        fields = [(field.name, *self._field(field, (*path, name))) for field in descriptor.fields]
        made = T.StructType([T.StructField(found, kind) for found, kind, _ in fields])
        return made, lambda message: {found: read(message) for found, _, read in fields}

    def _field(self, field: Any, path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
        """The type, and what takes the field out of its message."""
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, key_of = _plain(field.message_type.fields_by_name["key"])
            item, item_of = self._value(field.message_type.fields_by_name["value"], path)
            return T.MapType(key, item), lambda message: [
                (key_of(one), item_of(found)) for one, found in getattr(message, name).items()
            ]
        kind, convert = self._value(field, path)
        if _is_repeated(field):
            return T.ArrayType(kind), lambda message: [convert(one) for one in getattr(message, name)]
        if field.has_presence:
            return kind, lambda message: convert(getattr(message, name)) if message.HasField(name) else None
        return kind, lambda message: convert(getattr(message, name))

    def _value(self, field: Any, path: tuple[str, ...]) -> tuple[T.DataType, Convert]:
        return _plain(field) if field.message_type is None else self._message(field.message_type, path)


class ProtobufValues:
    """Values of one message type. `is_framed`: in the wire format of Confluent's serializers, with the id of a schema in front,
    which a reader of Protobuf does not need. Made by the driver, and again by each worker."""

    def __init__(self, descriptor_set: bytes, message: str, *, is_framed: bool = False) -> None:
        """`descriptor_set`: what `protoc --include_imports --descriptor_set_out` has written. Raises PipelineFault."""
        pools, factory, descriptors = (
            require(f"google.protobuf.{name}", extra="schemas", feature="a pipeline of Protobuf values")
            for name in ("descriptor_pool", "message_factory", "descriptor_pb2")
        )
        pool = pools.DescriptorPool()
        try:
            files = descriptors.FileDescriptorSet.FromString(descriptor_set).file
            for file in files:
                pool.AddSerializedFile(file.SerializeToString())
            found = pool.FindMessageTypeByName(message)
        except KeyError:
            names = ", ".join(_names(files)) or "no message"
            raise PipelineFault(f"the descriptor set has no message {message!r}: it has {names}") from None
        except Exception as error:
            raise PipelineFault(
                f"the descriptor set cannot be used: {error}; write it with protoc --include_imports --descriptor_set_out"
            ) from error
        self.message: Any = factory.GetMessageClass(found)
        self._is_framed = is_framed
        self._columns = Columns(found)
        self.type = self._columns.type

    def read(self, data: bytes) -> dict[str, Any]:
        """Raises an exception of Protobuf, or ValueError, where the value does not fit."""
        begin = 0
        if self._is_framed:
            schema_id_of(data)
            _, begin = read_message_path(data, HEAD_SIZE)
        row: dict[str, Any] = self._columns.convert(self.message.FromString(data[begin:]))
        return row


class ProtobufRows:
    """Rows as messages of one type. Made by the driver, and again by each worker."""

    def __init__(self, descriptor_set: bytes, message: str) -> None:
        """As of `ProtobufValues`."""
        values = ProtobufValues(descriptor_set, message)
        self.message: type[Any] = values.message
        self.type = values.type

    def made(self, row: Mapping[str, Any]) -> Any:
        """A column that is null is a field that is not set. Raises ValueError, TypeError for a value that does not fit."""
        found = self.message()
        _fill(found, row)
        return found


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        target = field.message_type
        if target is not None and target.GetOptions().map_entry:
            _fill_map(getattr(message, name), target.fields_by_name["value"], value)
        elif _is_repeated(field):
            items = getattr(message, name)
            for item in value:
                if item is None:
                    raise ValueError(f"the list {name} has a null, which Protobuf does not have")
                if target is None:
                    items.append(_scalar(field, item))
                else:
                    _fill_message(items.add(), item)
        elif target is None:
            setattr(message, name, _scalar(field, value))
        else:
            getattr(message, name).SetInParent()
            _fill_message(getattr(message, name), value)


def _fill_map(entries: Any, field: Any, pairs: Any) -> None:
    for key, value in pairs:
        if value is None:
            raise ValueError(f"the map has no value for {key!r}: Protobuf has no null")
        if field.message_type is None:
            entries[key] = _scalar(field, value)
        else:
            _fill_message(entries[key], value)


def _fill_message(message: Any, value: Any) -> None:
    name = message.DESCRIPTOR.full_name
    if name == _TIMESTAMP:
        message.FromDatetime(value)
    elif name in _WRAPPERS:
        message.value = _scalar(message.DESCRIPTOR.fields_by_name["value"], value)
    else:
        _fill(message, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_ENUM and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"{value!r} is no value of {field.enum_type.full_name}, which has {_values(field)}")
        return known.number
    return int(value) if isinstance(value, Decimal) else value


def _values(field: Any) -> str:
    return ", ".join(item.name for item in field.enum_type.values[:MAX_SHOWN])


def _names(files: Any) -> list[str]:
    return [f"{file.package}.{one.name}".lstrip(".") for file in files for one in file.message_type]
