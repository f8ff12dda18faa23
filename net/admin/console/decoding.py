"""Keys and values that were written with a schema registry, decoded for people: Avro, JSON Schema and Protobuf in Confluent's
wire format.

The broker asks the registry of `admin.schema.registry.url` and no other address: a caller cannot choose one.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.connection.errors import SchemaNotFoundError
from barnabas.net.client.serde.avro_format import Avro
from barnabas.net.client.serde.framing import HEAD_SIZE, MAGIC, framed, schema_id_of
from barnabas.net.client.serde.registry import Schema, SchemaRegistry
from barnabas.net.client.serde.serdes import Part, SchemaNotLoaded

from ..frame.call import Json
from ..frame.errors import bad_request
from . import typed_keys
from .protobuf_messages import ProtobufMessages

REGISTRY_S: Final = 5.0  # for the registry to give all schemas of an answer
MAX_SCHEMAS: Final = 50  # that an answer may need which are not known yet, referenced ones too
DECODED_AT_ONCE: Final = 2  # answers, in threads; others wait for their turn
MAX_DECODED_BYTES: Final = 4 * 1024 * 1024  # of an answer, as JSON
Load = Callable[[], Awaitable[None]]


class Decoding:
    """The schemas of one registry. Made with the first question for it: most brokers have none."""

    def __init__(self, url: str) -> None:
        """`url`: empty: there is no registry."""
        self._url = url
        self._registry: SchemaRegistry | None = None
        self._avro: Avro | None = None
        self._protobuf: ProtobufMessages | None = None
        self._turns = asyncio.Semaphore(DECODED_AT_ONCE)

    async def fill(self, topic: str, rows: Sequence[Json]) -> None:
        """Give keys and values of an answer `decoded` and `schema_id`, or `undecoded` with the reason. Raises ApiError."""
        self._open()
        cells = list(_cells(rows))
        sizes: list[int] = []
        reason = f"an answer may need {MAX_SCHEMAS} new schemas"
        try:
            async with asyncio.timeout(REGISTRY_S):
                for _ in range(MAX_SCHEMAS):
                    async with self._turns:
                        load = await asyncio.to_thread(self._pass, topic, cells, sizes)
                    if load is None:
                        return
                    await load()
        except TimeoutError:
            reason = f"the schema registry does not answer within {REGISTRY_S:.0f} s"
        except BarnabasError as error:
            reason = str(error)
        for _, cell, _ in cells:
            if "decoded" not in cell:
                cell.setdefault("undecoded", reason)

    async def encode_key(self, topic: str, text: str) -> tuple[int, bytes]:
        """The id of the newest schema of the topic's keys, and the key that this JSON stands for. Raises ApiError."""
        registry, _ = self._open()
        subject = f"{topic}-{Part.KEY}"
        try:
            tree = typed_keys.parsed(text)
            async with asyncio.timeout(REGISTRY_S):
                schema_id, schema = await registry.latest_with_id(subject)
                for _ in range(MAX_SCHEMAS):
                    try:
                        async with self._turns:
                            data = await asyncio.to_thread(self._key, schema_id, schema, tree)
                    except SchemaNotLoaded as missing:
                        await missing.load()
                    else:
                        return schema_id, framed(schema_id, data)
            reason = f"its schema needs more than {MAX_SCHEMAS} others"
        except TimeoutError:
            raise bad_request(f"the schema registry does not answer within {REGISTRY_S:.0f} s") from None
        except SchemaNotFoundError:
            raise bad_request(
                f"the schema registry has no subject {subject}: look for keys without a schema by key or key_base64"
            ) from None
        except BarnabasError as error:
            raise bad_request(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever a library says of a schema that a stranger has written
            reason = str(error) or type(error).__name__
        raise bad_request(f"key_json cannot be written with the schema of {subject}: {reason}"[:500])

    def _key(self, schema_id: int, schema: Schema, tree: Any) -> bytes:
        """For a thread. Raises SchemaNotLoaded, ValueError, and whatever the libraries say."""
        registry, protobuf = self._open()
        if schema.kind == "AVRO":
            return typed_keys.avro_key(registry, schema, tree)
        if schema.kind == "PROTOBUF":
            return protobuf.encode(schema_id, tree)
        raise ValueError(
            f"it is {schema.kind}, where one key has several forms; look for the key of a message, or give key_base64"
        )

    def _open(self) -> tuple[SchemaRegistry, ProtobufMessages]:
        """Raises ApiError, MissingExtraError."""
        if not self._url:
            raise bad_request("there is no schema registry: set admin.schema.registry.url in server.properties")
        if self._registry is None or self._protobuf is None:
            self._registry = SchemaRegistry(self._url)
            self._avro = Avro(self._registry)
            self._protobuf = ProtobufMessages(self._registry)
        return self._registry, self._protobuf

    def _pass(self, topic: str, cells: Sequence[tuple[Part, Json, bytes]], sizes: list[int]) -> Load | None:
        """For a thread: decode what can be decoded. Returns how to load the first schema that is missing. `sizes`: as JSON."""
        for part, cell, data in cells:
            if "undecoded" in cell or "decoded" in cell:
                continue
            if sum(sizes) > MAX_DECODED_BYTES:
                cell["undecoded"] = (
                    f"an answer has at most {MAX_DECODED_BYTES} bytes of decoded data: read fewer records"
                )
                continue
            try:
                sizes.append(self._decode(topic, part, cell, data))
            except SchemaNotLoaded as missing:
                return missing.load
            except Exception as error:  # noqa: BLE001 - whatever a library says of bytes that a stranger has written
                cell["undecoded"] = f"{type(error).__name__}: {error}"[:500]
        return None

    def _decode(self, topic: str, part: Part, cell: Json, data: bytes) -> int:
        assert self._registry is not None and self._avro is not None and self._protobuf is not None
        schema_id = schema_id_of(data)
        kind = self._registry.schema(schema_id).kind
        if kind == "AVRO":
            found = self._avro.deserialize(data, topic, part)
        elif kind == "JSON":
            found = json.loads(data[HEAD_SIZE:])
        elif kind == "PROTOBUF":
            found = self._protobuf.decode(data)
        else:
            raise ValueError(f"its schema {schema_id} is {kind}; Avro, JSON Schema and Protobuf are decoded here")
        text = _as_json(found)
        cell |= {"decoded": json.loads(text), "schema_id": schema_id}
        return len(text)


def _cells(rows: Sequence[Json]) -> Iterator[tuple[Part, Json, bytes]]:
    """Those that look as a serializer with a registry writes, and are whole."""
    for row in rows:
        for part in Part:
            cell = row[str(part)]
            if cell is None or "cut" in cell:
                continue
            data = cell["text"].encode() if "text" in cell else base64.b64decode(cell["base64"])
            if len(data) >= HEAD_SIZE and data[0] == MAGIC:
                yield part, cell, data


def _as_json(found: Any) -> str:
    """Piece by piece: one byte may stand for a symbol or a field whose name has megabytes. Raises ValueError."""
    pieces: list[str] = []
    left = MAX_DECODED_BYTES
    for piece in json.JSONEncoder(default=_shown, allow_nan=False).iterencode(found):
        left -= len(piece)
        if left < 0:
            raise ValueError(f"it is larger than {MAX_DECODED_BYTES} bytes as JSON")
        pieces.append(piece)
    return "".join(pieces)


def _shown(value: Any) -> Any:
    """Logical types of Avro that JSON has not."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
