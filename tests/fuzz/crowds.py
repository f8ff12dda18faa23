"""Requests whose lists are as long as a limit permits, made from the types of both protocols, so that a new API is among them.

A `Crowd` fills one list of one request; the lists around it share the items between them. All other lists have one item. The
names and ids in it exist, or do not, or are all equal, or are empty: what a broker does for each item, some crowd makes it do.
"""

import struct
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final

import msgspec

from barnabas.net.wire.protocol.apis import REQUEST_OF
from barnabas.net.wire.protocol.kafka.apis import SERVED, is_flexible
from barnabas.net.wire.protocol.kafka.compiler import encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.schema import Struct, messages
from barnabas.net.wire.protocol.msgpack import VERSION

_KAFKA_HEAD: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")


class Filling(StrEnum):
    STRANGE = "strange"  # all different, none exists
    EXISTING = "existing"  # many topics, each again and again
    ONE = "one"  # the partitions of one topic, each once, then again
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What exists at the broker that gets the crowds: one topic with many partitions, and many topics with one."""

    topic: str = "crowd"
    topic_id: str = "0" * 32
    partition_count: int = 1
    topics: tuple[str, ...] = ()
    topic_ids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A field, or an item of a list, of either protocol. `kind`: struct, list, map, or the type of a single value."""

    name: str
    kind: str
    inner: tuple["Shape", ...] = ()
    type_name: str = ""  # of Kafka's struct
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """`lengths` has those of the lists on the way to the crowd, the outermost first."""

    api: str
    path: tuple[str, ...]
    lengths: tuple[int, ...]
    filling: Filling
    frame: bytes

    @property
    def items(self) -> int:
        """Of all lists on the way."""
        total, count = 0, 1
        for length in self.lengths:
            count *= length
            total += count
        return total

    def __str__(self) -> str:
        return f"{self.api} {'.'.join(self.path)} {'x'.join(map(str, self.lengths))} {self.filling}"


# --- shapes -----------------------------------------------------------------------------------------------------------


def own_shape(name: str, hint: Any) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return own_shape(name, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return own_shape(name, next(one for one in arguments if one is not type(None)))
    if origin is tuple:
        return Shape(name=name, kind="list", inner=(own_shape(name, arguments[0]),))
    if origin is dict:
        return Shape(name=name, kind="map", inner=(own_shape(name, arguments[1]),))
    if issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint, include_extras=True)
        fields = tuple(own_shape(field.name, hints[field.name]) for field in msgspec.structs.fields(hint))
        return Shape(name=name, kind="struct", inner=fields)
    if issubclass(hint, Enum):
        numbers = tuple(int(one) if issubclass(hint, IntEnum) else one.value for one in hint)
        return Shape(name=name, kind="choice", choices=numbers)
    return Shape(name=name, kind=hint.__name__)


def kafka_shape(body: Struct, version: int, name: str = "") -> Shape:
    fields = []
    for item in body.fields:
        if version not in item.versions:
            continue
        single = (
            kafka_shape(item.struct, version, item.name)
            if item.struct is not None
            else Shape(
                name=item.name, kind={"string": "str", "records": "bytes", "float64": "float"}.get(item.type, item.type)
            )
        )
        fields.append(Shape(name=item.name, kind="list", inner=(single,)) if item.is_array else single)
    return Shape(name=name, kind="struct", inner=tuple(fields), type_name=body.name)


def crowded_paths(shape: Shape, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every list and map: names of fields, and "[]" where a list holds lists."""
    if shape.kind == "struct":
        for field in shape.inner:
            yield from crowded_paths(field, (*path, field.name))
    elif shape.kind in ("list", "map"):
        yield path
        item = shape.inner[0]
        yield from crowded_paths(item, path if item.kind == "struct" else (*path, "[]"))


def depth(shape: Shape, path: tuple[str, ...]) -> int:
    """The number of lists on the way."""
    return sum(step in ("list", "map") for step in _steps(shape, path))


def _steps(shape: Shape, path: tuple[str, ...]) -> Iterator[str]:
    yield shape.kind
    if not path:
        return
    if shape.kind == "struct":
        yield from _steps(next(field for field in shape.inner if field.name == path[0]), path[1:])
    else:
        item = shape.inner[0]
        yield from _steps(item, path if item.kind == "struct" else path[1:])


# --- values -----------------------------------------------------------------------------------------------------------

_TOPICS: Final = ("topic", "name", "topic_name", "resource", "resource_name", "topics", "topic_names", "subscribed_topics",
                  "subscribed_topic_names")  # fmt: skip
_GROUPS: Final = ("groups", "group_ids", "groups_names", "group_id")
_NUMBERS: Final = {
    "acks": -1,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "leader_epoch": -1,
    "committed_leader_epoch": -1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "timeout_ms": 1_000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "resource_type": 2,
    "total_count": 100_000,
    "count": 100_000,
    "num_partitions": -1,
    "partition_count": -1,
    "replication_factor": -1,
    "timestamp": -1,
    "timestamp_ms": -1,
    "mechanism": 1,
    "iterations": 4_096,
    "pattern_type": 3,
    "resource_pattern_type": 3,
    "pattern_type_filter": 3,
    "operation": 3,
    "permission_type": 3,
    "max_records": 500,
    "batch_size": 500,
    "key_type": 0,
    "sequence": -1,
    "coordinator_epoch": -1,
    "started_ms": -1,
}  # fmt: skip
_CONSTANTS: Final = {"bytes": b"", "bool": False, "float": 1.0}
_TEXTS: Final = {
    "protocol_type": "consumer",
    "principal": "User:crowd",
    "host": "*",
    "entity_type": "user",
    "key": "producer_byte_rate",
    "mechanism": "PLAIN",
    "group_id": "crowd-group",
    "member_id": "",
    "rack": "",
    "rack_id": "",
    "assignor": "uniform",
    "server_assignor": "uniform",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Makes the values of one crowd. `number` counts the items of the innermost list that has been entered."""

    world: World
    filling: Filling
    lengths: tuple[int, ...]
    kafka_types: dict[str, type] | None = None

    def make(self, shape: Shape, path: tuple[str, ...] | None, number: int = 0, level: int = 0) -> Any:
        """`path` None: this is not on the way to the crowd."""
        if shape.kind == "struct":
            return self._struct(shape, path, number, level)
        if shape.kind in ("list", "map"):
            return self._list(shape, path, number, level)
        return self._single(shape, number)

    def _struct(self, shape: Shape, path: tuple[str, ...] | None, number: int, level: int) -> Any:
        values = {}
        for field in shape.inner:
            is_way = path is not None and path[:1] == (field.name,)
            values[field.name] = self.make(field, path[1:] if is_way and path is not None else None, number, level)
        if self.kafka_types is not None:
            return self.kafka_types[shape.type_name](**values)
        return list(values.values())

    def _list(self, shape: Shape, path: tuple[str, ...] | None, number: int, level: int) -> Any:
        item = shape.inner[0]
        if path is None or level == len(self.lengths):
            values = [self.make(item, None, number, level)]
        else:
            inner = path if item.kind == "struct" else path[1:]
            count = self.lengths[level]
            if self.filling is Filling.EMPTY:
                values = [self.make(item, inner, 0, level + 1)] * count
            else:
                values = [self.make(item, inner, one, level + 1) for one in range(count)]
        if shape.kind == "map":
            return {f"key-{one}": value for one, value in enumerate(values)}
        return values

    def _single(self, shape: Shape, number: int) -> Any:
        name, kind, filling = shape.name, shape.kind, self.filling
        is_topic_id = name in ("topic_id", "topic_ids")
        match kind:
            case "str" if is_topic_id:
                return self._topic_id(number)
            case "uuid":
                return bytes.fromhex(self._topic_id(number)) if is_topic_id else bytes(16)
            case "str":
                return self._text(name, number)
            case "choice":
                return next((one for one in shape.choices if str(one) not in ("1", "")), shape.choices[-1])
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if name in ("partition", "partition_index", "partition_indexes", "partitions", "index"):
            return {Filling.ONE: number % self.world.partition_count, Filling.STRANGE: number}.get(filling, 0)
        if name in ("broker_ids", "replicas", "assignment"):
            return number if filling is Filling.STRANGE else 0
        return _NUMBERS.get(name, 0)

    def _topic_id(self, number: int) -> str:
        match self.filling:
            case Filling.STRANGE:
                return f"{number + 1:032x}"
            case Filling.EXISTING:
                return self.world.topic_ids[number % len(self.world.topic_ids)]
            case Filling.ONE:
                return self.world.topic_id
        return "" if self.kafka_types is None else "0" * 32

    def _text(self, name: str, number: int) -> str:
        if self.filling is Filling.EMPTY:
            return ""
        if name in _TOPICS:
            match self.filling:
                case Filling.EXISTING:
                    return self.world.topics[number % len(self.world.topics)]
                case Filling.ONE:
                    return self.world.topic
        if name in _GROUPS and self.filling is Filling.EXISTING and self.world.groups:
            return self.world.groups[number % len(self.world.groups)]
        if name in _TEXTS and not (name in _GROUPS and self.filling is Filling.STRANGE and number):
            return _TEXTS[name]
        return f"{name[:9]}-{number}" if self.filling is Filling.STRANGE else name


# --- frames -----------------------------------------------------------------------------------------------------------


def own_frame(api: int, body: Any) -> bytes:
    envelope = msgspec.msgpack.encode((7, api, VERSION, body))
    return _SIZES.pack(_SIZE.size + len(envelope), len(envelope)) + envelope


def own_values(cls: type, path: tuple[str, ...], lengths: tuple[int, ...], filling: Filling, world: World) -> Any:
    """The body as msgpack has it."""
    return _Maker(world=world, filling=filling, lengths=lengths).make(own_shape("", cls), path)


def own_crowd(api: int, path: tuple[str, ...], lengths: tuple[int, ...], filling: Filling, world: World) -> Crowd:
    request = REQUEST_OF[api]
    frame = own_frame(api, own_values(request, path, lengths, filling, world))
    return Crowd(api=request.__name__, path=path, lengths=lengths, filling=filling, frame=frame)


def kafka_crowd(
    key: int, version: int, path: tuple[str, ...], lengths: tuple[int, ...], filling: Filling, world: World
) -> Crowd:
    name = f"{SERVED[key].name}Request"
    shape = kafka_shape(messages()[name].body, version)
    made = _Maker(world=world, filling=filling, lengths=lengths, kafka_types=types_of(name)).make(shape, path)
    head = _KAFKA_HEAD.pack(key, version, 7, 5) + b"crowd" + (b"\0" if is_flexible(name, version) else b"")
    chunks: list[Any] = [head]
    encoder(name, version)(made, chunks)
    body = b"".join(map(bytes, chunks))
    return Crowd(
        api=f"Kafka {SERVED[key].name} v{version}", path=path, lengths=lengths, filling=filling,
        frame=_SIZE.pack(len(body)) + body,
    )  # fmt: skip


def shared(depth: int, items: int) -> list[tuple[int, ...]]:
    """Ways to share about so many items, never more, between nested lists."""
    if depth == 1:
        return [(items,)]
    one = (1,) * (depth - 1)
    return [(*one, items - depth + 1), (items // depth, *one), _evenly(depth, items)]


def _evenly(depth: int, items: int) -> tuple[int, ...]:
    side = int(items ** (1 / depth))
    while sum(side**level for level in range(1, depth + 1)) > items:
        side -= 1
    return (side,) * depth
