"""Our own protocol: msgpack envelopes, record batches raw behind them, never copied into or out of msgpack. Pure.

    frame     u32 size of all that follows
              u32 size of the envelope
              envelope, msgpack: [correlation_id, api, version, body] asks, [correlation_id, api, body] answers
              record batches, raw, in the order in which the body names their sizes
    preamble  b"BNB1", then each side's hello: u32 size, msgpack [fields of ClientHello] / [fields of ServerHello]

Bodies are messages (log.vocabulary.message); only where those hold record batches, the body has the batches' size in bytes
instead. So a version may append fields with defaults, and older peers ignore them. An answer with api -1 is an ErrorResponse.
"""

import struct
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError
from barnabas.log.vocabulary.message import Message, check_items, decode, encode
from barnabas.net.base.limits import MAX_DATA_ITEMS, MAX_ENVELOPE_BYTES

from .apis import KEY_OF, REQUEST_OF, RESPONSE_OF, api_name, max_items
from .codec import Chunk, DecodedRequest, size_of
from .framing import SIZE
from .kafka.apis import KafkaResponse
from .requests import ProducePartition, ProduceRequest, Request
from .responses import ErrorResponse, FetchPartitionResponse, FetchResponse, Response

PREAMBLE = b"BNB1"
VERSION = 1
ERROR_API = -1

_HEAD = struct.Struct(">II")
_ENVELOPE_SIZE = struct.Struct(">I")
T = TypeVar("T")
H = TypeVar("H", bound="RequestEnvelope | ResponseEnvelope")


class ClientHello(Message, frozen=True, kw_only=True):
    versions: tuple[int, ...]
    client_id: str
    client_software: str = ""


class ServerHello(Message, frozen=True, kw_only=True):
    min_version: int = VERSION
    max_version: int = VERSION
    features: dict[str, int] = msgspec.field(default_factory=dict)
    cluster_id: str = ""  # Empty while the cluster is being formed.
    node_id: int = -1


class RequestEnvelope(Message, frozen=True, kw_only=True):
    correlation_id: int
    api: int
    version: int
    body: msgspec.Raw


class ResponseEnvelope(Message, frozen=True, kw_only=True):
    correlation_id: int
    api: int
    body: msgspec.Raw


@dataclass(slots=True)
class DecodedResponse:
    """An answer whose envelope was read; `MsgpackCodec.response_body` makes the value of it."""

    correlation_id: int
    api: int
    body: msgspec.Raw
    raw: memoryview


def read_hello(cls: type[T], frame: Buffer) -> T:
    return decode(cls, memoryview(frame))


def write_hello(hello: ClientHello | ServerHello) -> bytes:
    """Return the framed hello; a client sends the preamble in front of it."""
    body = encode(hello)
    return SIZE.pack(len(body)) + body


class MsgpackCodec:
    """Both sides of the protocol. Keeps nothing between two calls."""

    ordered_replies: ClassVar[bool] = False

    # --- server ------------------------------------------------------------------------------------------------------

    def decode_request(self, frame: memoryview) -> DecodedRequest:
        envelope, raw = _split(RequestEnvelope, frame)
        try:
            payload: Request | BarnabasError = _decode_request_body(envelope, raw, len(frame) - len(raw))
        except BarnabasError as error:
            payload = error
        return DecodedRequest(envelope.correlation_id, envelope.api, envelope.version, payload)

    def encode_response(
        self, request: DecodedRequest, response: Response | KafkaResponse[object], throttle_ms: int = 0
    ) -> list[Chunk]:
        api = ERROR_API if type(response) is ErrorResponse else request.api
        body, raw = _without_records(response) if type(response) is FetchResponse else (response, [])
        return _frame((request.correlation_id, api, body), raw)

    # --- client ------------------------------------------------------------------------------------------------------

    def encode_request(self, correlation_id: int, request: Request) -> list[Chunk]:
        """Raises InvalidRequestError for values that msgpack cannot carry."""
        body, raw = _without_records(request) if type(request) is ProduceRequest else (request, [])
        return _frame((correlation_id, int(KEY_OF[type(request)]), VERSION, body), raw)

    def decode_response(self, frame: memoryview) -> DecodedResponse:
        envelope, raw = _split(ResponseEnvelope, frame)
        return DecodedResponse(envelope.correlation_id, envelope.api, envelope.body, raw)

    def response_body(self, request_type: type[Request], response: DecodedResponse) -> Response:
        """Return the answer to a request of this class. Record bytes are copied: they stay valid for the receiver."""
        if response.api == ERROR_API:
            return decode(ErrorResponse, response.body)
        if response.api != KEY_OF[request_type]:
            raise InvalidRequestError(f"{request_type.__name__} received a response of type {api_name(response.api)}")
        value: Response = decode(RESPONSE_OF[request_type], response.body)
        if type(value) is FetchResponse:
            _put_records(value.partitions, response.raw, copied=True)
        return value


def _frame(envelope: tuple[Any, ...], raw: list[Chunk]) -> list[Chunk]:
    try:
        packed = encode(envelope)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidRequestError(f"a message holds what msgpack cannot carry: {error}") from error
    raw_bytes = 0
    for chunk in raw:
        raw_bytes += size_of(chunk)
    return [_HEAD.pack(_ENVELOPE_SIZE.size + len(packed) + raw_bytes, len(packed)) + packed, *raw]


def _split(cls: type[H], frame: memoryview) -> tuple[H, memoryview]:
    """Return the envelope, its body not decoded yet, and the raw bytes behind it."""
    if len(frame) < _ENVELOPE_SIZE.size:
        raise InvalidRequestError(f"a frame of {len(frame)} bytes holds no envelope")
    size_bytes = _ENVELOPE_SIZE.unpack_from(frame)[0]
    end = _ENVELOPE_SIZE.size + size_bytes
    if end > len(frame):
        raise InvalidRequestError(f"an envelope claims {end} bytes of a frame of {len(frame)}")
    if size_bytes > MAX_ENVELOPE_BYTES:
        raise InvalidRequestError(f"an envelope has {size_bytes} bytes; the limit is {MAX_ENVELOPE_BYTES}")
    return decode(cls, frame[_ENVELOPE_SIZE.size : end]), frame[end:]


def _decode_request_body(envelope: RequestEnvelope, raw: memoryview, size_bytes: int) -> Request:
    api = envelope.api
    cls = REQUEST_OF.get(api)
    if cls is None:
        raise UnsupportedVersionError(f"this broker has no API {api}")
    if envelope.version != VERSION:
        raise UnsupportedVersionError(
            f"{api_name(api)} version {envelope.version} is not supported; use version {VERSION}"
        )
    if (
        size_bytes > MAX_DATA_ITEMS
    ):  # An item has a byte at least: smaller envelopes, nearly all of them, need not be looked at.
        check_items(cls, envelope.body, max_items(api))
    request: Request = decode(cls, envelope.body)
    if type(request) is ProduceRequest:
        _put_records(request.partitions, raw)
    return request


# --- record batches --------------------------------------------------------------------------------------------------


def _without_records(value: Any) -> tuple[Any, list[Chunk]]:
    """Return a ProduceRequest or a FetchResponse as its envelope has it, with sizes for records, and the records."""
    partitions = []
    raw: list[Chunk] = []
    for item in value.partitions:
        size_bytes = size_of(item.records) if item.records else 0
        partitions.append(replace(item, records=size_bytes))
        if size_bytes:
            raw.append(item.records)
    return replace(value, partitions=partitions), raw


def _put_records(
    partitions: tuple[ProducePartition | FetchPartitionResponse, ...], raw: memoryview, *, copied: bool = False
) -> None:
    """Replace the size of each partition's records by the records. All raw bytes must be claimed, none twice."""
    position = 0
    for item in partitions:
        size_bytes: Any = item.records
        if type(size_bytes) is not int:
            raise InvalidRequestError("a partition does not say how many bytes of records it has")
        end = position + size_bytes
        if end > len(raw):
            raise InvalidRequestError(f"records claim {end} bytes of a frame that has {len(raw)}")
        # The value is frozen, but was made a moment ago and is known here alone.
        force_setattr(item, "records", bytes(raw[position:end]) if copied else raw[position:end])
        position = end
    if position != len(raw):
        raise InvalidRequestError(f"a frame has {len(raw) - position} bytes of records that no partition claims")
