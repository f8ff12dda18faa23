"""A client that speaks Kafka's protocol to handlers: whole frames in any version, through the codec and the dispatcher."""

import asyncio
import struct
from typing import Any

from unit.net.shell_world import Client

from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.wire.protocol.kafka.apis import SERVED, is_flexible
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of

CORRELATION_ID = 77
SIZE_BYTES = 4


def versions_of(key: int) -> range:
    """All that are taken."""
    served = SERVED[key]
    return range(max(served.versions.first, served.taken_from), served.versions.last + 1)


def made(message: str, name: str | None = None, /, **fields: Any) -> Any:
    """A message, or (`name`) one of its structs."""
    return types_of(message)[name or message](**fields)


class KafkaClient:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._codec = KafkaCodec()

    async def ask(self, key: int, version: int, body: Any) -> Any:
        """Return the answer, read with the schema of exactly that version to its last byte."""
        name = SERVED[key].name
        asked = self._codec.decode_request(memoryview(frame(key, version, body)))
        client = Client()
        if isinstance(asked.payload, Exception):
            raise asked.payload
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._dispatcher.dispatch(asked.payload, client, replied.set_result)
        chunks = self._codec.encode_response(asked, await replied)
        raw = b"".join(bytes(chunk) if isinstance(chunk, bytes | memoryview) else chunk.read() for chunk in chunks)
        assert struct.unpack_from(">ii", raw) == (len(raw) - SIZE_BYTES, CORRELATION_ID)
        position = 2 * SIZE_BYTES + (1 if is_flexible(f"{name}Response", version) else 0)
        answer, end = decoder(f"{name}Response", version)(memoryview(raw), position)
        assert end == len(raw)
        return answer


def frame(key: int, version: int, body: Any) -> bytearray:
    name = f"{SERVED[key].name}Request"
    chunks: list[Any] = [struct.pack(">hhih", key, version, CORRELATION_ID, -1)]
    if is_flexible(name, version):
        chunks.append(b"\0")
    encoder(name, version)(body, chunks)
    return bytearray(b"".join(chunks))
