"""Requests of Kafka's protocol as bytes, for clients that send them encoded before."""

import struct

from barnabas.net.wire.protocol.codec import Chunk
from barnabas.net.wire.protocol.kafka.apis import SERVED
from barnabas.net.wire.protocol.kafka.compiler import encoder

_SIZE = struct.Struct(">I")
_HEAD = struct.Struct(">hhih")
_FIRST_FLEXIBLE = {0: 9, 1: 12, 3: 9}  # version, by API key
_CORRELATION_ID = 7


def frame(key: int, version: int, body: object) -> bytes:
    """With its size in front."""
    name = f"{SERVED[key].name}Request"
    client_id = b"benchmark"
    chunks: list[Chunk] = [_HEAD.pack(key, version, _CORRELATION_ID, len(client_id)) + client_id]
    if version >= _FIRST_FLEXIBLE[key]:
        chunks.append(b"\0")
    encoder(name, version)(body, chunks)
    joined = b"".join(map(bytes, chunks))  # type: ignore[arg-type]
    return _SIZE.pack(len(joined)) + joined
