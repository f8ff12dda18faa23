"""Write net/wire/protocol/kafka/bodies.pyi, the types of Kafka's messages, from messages.json:
`.venv/bin/python scripts/kafka_stubs.py`.

A type covers all versions: a field that is null in one of them may be None. An array is a `Sequence`, because a decoder gives
tuples and lists. Only responses send ranges of files (`Chunk`).
"""

from collections.abc import Iterator
from pathlib import Path

from barnabas.net.wire.protocol.kafka.schema import NO_VERSIONS, Field, Message, Struct, messages

TARGET = Path(__file__).resolve().parents[1] / "net/wire/protocol/kafka/bodies.pyi"
_HEAD = '''"""Written by scripts/kafka_stubs.py from messages.json: do not edit."""

from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.log.format.record_batch import Buffer
from barnabas.net.wire.protocol.codec import Chunk'''
_TYPES = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "uuid": "bytes"}
_DATACLASS = "@dataclass(slots=True, kw_only=True)"


def stub() -> str:
    """The text of the stub, as the formatter leaves it."""
    lines = (line for message in messages().values() for line in _message(message))
    return "\n".join([_HEAD, *lines, ""])


def _message(message: Message) -> Iterator[str]:
    yield from ("", _DATACLASS, f"class {message.name}:")
    for struct in _nested(message.body, {}).values():
        yield from (f"    {_DATACLASS}", f"    class {struct.name}:")
        yield from (f"        {line}" for line in _fields(struct, message.name))
        yield ""
    yield from (f"    {line}" for line in _fields(message.body, message.name))


def _nested(body: Struct, found: dict[str, Struct]) -> dict[str, Struct]:
    for item in body.fields:
        if item.struct is not None and item.struct.name not in found:
            found[item.struct.name] = item.struct
            _nested(item.struct, found)
    return found


def _fields(struct: Struct, message: str) -> Iterator[str]:
    if not struct.fields:
        yield "pass"
    for item in struct.fields:
        yield f"{item.name}: {_type(item, message)} = ..."


def _type(item: Field, message: str) -> str:
    if item.struct is not None:
        found = f"{message}.{item.struct.name}"
    elif item.type == "records":
        found = "Buffer" if message.endswith("Request") else "Chunk"
    else:
        found = _TYPES.get(item.type, "int")
    if item.is_array:
        found = f"Sequence[{found}]"
    return found if item.nullable == NO_VERSIONS else f"{found} | None"


if __name__ == "__main__":
    TARGET.write_text(stub(), encoding="utf-8")
    print(f"{TARGET}: {stub().count('class ')} classes")
