"""Random Kafka messages, made from the schemas: any value that a version of a message can carry."""

import random
from typing import Any

from barnabas.net.wire.protocol.kafka.compiler import encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.schema import Field, Struct, messages

_SIZES = (0, 1, 3, 126, 127, 300)  # round the length that needs a second byte


class RandomMessages:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def message(self, name: str, version: int) -> Any:
        return self._struct(messages()[name].body, version, types_of(name))

    def encoded(self, name: str, version: int) -> bytes:
        chunks: list[Any] = []
        encoder(name, version)(self.message(name, version), chunks)
        return b"".join(chunks)

    def _struct(self, body: Struct, version: int, types: dict[str, type]) -> Any:
        return types[body.name](*(self._field(item, version, types) for item in body.fields))

    def _field(self, item: Field, version: int, types: dict[str, type]) -> Any:
        if version not in item.versions:
            return types[item.struct.name]() if item.default is ... and item.struct else item.default
        if version in item.nullable and self._random.random() < 0.3:
            return None
        if item.is_array:
            return [self._single(item, version, types) for _ in range(self._random.choice((0, 1, 2, 3)))]
        return self._single(item, version, types)

    def _single(self, item: Field, version: int, types: dict[str, type]) -> Any:
        draw = self._random
        match item.type:
            case _ if item.struct is not None:
                return self._struct(item.struct, version, types)
            case "bool":
                return draw.random() < 0.5
            case "float64":
                return draw.random()
            case "uuid":
                return draw.randbytes(16)
            case "string":
                return "".join(draw.choice("abcé") for _ in range(draw.choice(_SIZES)))
            case "bytes" | "records":
                return draw.randbytes(draw.choice(_SIZES))
        bits = int(item.type.lstrip("uint"))
        return draw.getrandbits(bits) - (0 if item.type.startswith("u") else 1 << (bits - 1))


def plain(value: Any) -> Any:
    """A message as lists and dicts, whatever containers it was made of."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(value, "__slots__"):
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    return value
