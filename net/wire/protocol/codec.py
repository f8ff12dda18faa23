"""The codec as a port: between frames and the values that handlers know. Versions of a protocol end here. Pure.

`msgpack` is our own protocol's; Kafka's plugs in beside it. A server holds no word about either.
"""

from typing import Protocol

from msgspec import Struct

from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import BarnabasError

from .kafka.apis import KafkaRequest, KafkaResponse
from .requests import Request
from .responses import FileRegion, Response

Chunk = Buffer | FileRegion  # What a response is sent as: bytes, or a range of a file that is never read into Python.


class DecodedRequest(Struct, frozen=True):
    """A frame whose header could be read. If its body could not be read, `payload` is the error for the client."""

    correlation_id: int
    api: int
    version: int
    payload: Request | KafkaRequest[object] | BarnabasError
    client_id: str = ""  # if the protocol has it in each request


class Codec(Protocol):
    """One per server and protocol, shared by its connections: a codec keeps nothing between two calls."""

    @property
    def ordered_replies(self) -> bool:
        """Whether replies must leave in the order of their requests (Kafka) or may overtake each other (ours)."""

    def decode_request(self, frame: memoryview) -> DecodedRequest:
        """Raises BarnabasError when not even the header can be read: the connection is then beyond repair.

        Record batches in the result are views into `frame`.
        """

    def encode_response(
        self, request: DecodedRequest, response: Response | KafkaResponse[object], throttle_ms: int = 0
    ) -> list[Chunk]:
        """Return one whole frame as chunks to be sent one behind the other. `throttle_ms` is told where the protocol has a place
        for it: how long the client must wait because of its quota."""


_BUFFERS = frozenset({bytes, bytearray, memoryview})


def size_of(chunk: Chunk) -> int:
    """Return the bytes that `chunk` puts on the wire."""
    return len(chunk) if type(chunk) in _BUFFERS else chunk.size_bytes  # type: ignore[arg-type, union-attr]
