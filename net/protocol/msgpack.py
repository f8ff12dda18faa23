"""Our own protocol: msgpack envelopes, record batches raw behind them, never copied into or out of msgpack. Pure.

    frame     u32 size of all that follows
              u32 size of the envelope
              envelope, msgpack: [correlation_id, api, version, body] asks, [correlation_id, api, body] answers
              record batches, raw, in the order in which the body names their sizes
    preamble  b"BNB1", then each side's hello: u32 size, msgpack [fields of ClientHello] / [fields of ServerHello]

Bodies are what log.value_codec makes of the request and response classes; only where those hold record batches, the
body has the batches' size in bytes instead. So a version may append fields with defaults, and older peers ignore them.
An answer with api -1 is an ErrorResponse. Four messages are hot and have code of their own below; it reads and writes
the very same bytes, and hands over to the generic code whatever is not exactly as it expects.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import msgpack

from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError
from barnabas.log.vocabulary.value_codec import from_plain, to_plain

from ..base.limits import MAX_ARRAY_LENGTH, MAX_ENVELOPE_BYTES
from .api_keys import ApiKey
from .codec import REQUEST_OF, Chunk, DecodedRequest, api_name, size_of
from .framing import SIZE
from .kafka.apis import KafkaResponse
from .requests import FetchPartition, FetchRequest, ProducePartition, ProduceRequest, Request
from .responses import (
    RESPONSE_OF,
    ErrorResponse,
    FetchPartitionResponse,
    FetchResponse,
    ProducePartitionResponse,
    ProduceResponse,
    Response,
)

PREAMBLE = b"BNB1"
VERSION = 1
ERROR_API = -1
MAX_DEPTH = 32  # Of lists in an envelope; honest ones have eight.
SUSPICIOUS_LIST_MARKS = 64  # More bytes that may begin a long list than this, and the nesting is checked first.
MAX_CHECKED_ITEMS = 500_000  # The check is a loop in Python: a stranger must not be able to buy seconds of it.
_UNCHECKED_BYTES = 4096  # Too short for lists in lists to claim any memory to speak of.
_PACKER_BUFFER_BYTES = 4096  # Grows by itself; the default of 256 KiB per codec is too much for a client's connection.

_HEAD = struct.Struct(">II")
_ENVELOPE_SIZE = struct.Struct(">I")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    versions: tuple[int, ...]
    client_id: str
    client_software: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHello:
    min_version: int = VERSION
    max_version: int = VERSION
    features: dict[str, int] = field(default_factory=dict)
    cluster_id: str = ""  # Empty while the cluster is being formed.
    node_id: int = -1


@dataclass(slots=True)
class DecodedResponse:
    """An answer whose envelope was read; `MsgpackCodec.response_body` makes the value of it."""

    correlation_id: int
    api: int
    body: Any
    raw: memoryview


def unpack(envelope: Buffer) -> Any:
    """Return the plain value of one msgpack document. Raises InvalidRequestError otherwise, in bounded memory."""
    try:
        if len(envelope) > _UNCHECKED_BYTES:
            _check_size(bytes(envelope))
        return msgpack.unpackb(
            envelope,
            raw=False,
            strict_map_key=True,
            max_array_len=MAX_ARRAY_LENGTH,
            max_map_len=MAX_ARRAY_LENGTH,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidRequestError(
            f"an envelope is not the msgpack that we speak: {error or type(error).__name__}"
        ) from error


def _check_size(envelope: bytes) -> None:
    """A list claims memory for its items when it begins: bound lists in lists before msgpack allocates for them."""
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise InvalidRequestError(f"an envelope has {len(envelope)} bytes; at most {MAX_ENVELOPE_BYTES} are taken")
    if envelope.count(b"\xdc") + envelope.count(b"\xdd") + envelope.count(b"\xde") + envelope.count(b"\xdf") > (
        SUSPICIOUS_LIST_MARKS
    ):
        _check_nesting(envelope)


def _check_nesting(envelope: bytes) -> None:
    """Walk the document without building it and refuse more than MAX_DEPTH lists within each other."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(envelope))
    unpacker.feed(envelope)
    open_lists = [1]  # Items still to come, per open list; the document is the one item of the outermost.
    checked_items = 0
    while open_lists:
        if open_lists[-1] == 0:
            open_lists.pop()
            continue
        checked_items += 1
        if checked_items > MAX_CHECKED_ITEMS:
            raise InvalidRequestError(f"an envelope has more than {MAX_CHECKED_ITEMS} items in long lists")
        open_lists[-1] -= 1
        if len(open_lists) > MAX_DEPTH:
            raise InvalidRequestError(f"an envelope nests more than {MAX_DEPTH} lists")
        position = unpacker.tell()
        mark = envelope[position] if position < len(envelope) else 0xC1
        if 0x90 <= mark <= 0x9F or mark in (0xDC, 0xDD):
            open_lists.append(unpacker.read_array_header())
        elif 0x80 <= mark <= 0x8F or mark in (0xDE, 0xDF):
            open_lists.append(2 * unpacker.read_map_header())
        else:
            unpacker.skip()


def read_hello(cls: type[T], frame: Buffer) -> T:
    return from_plain(cls, unpack(frame))


def write_hello(hello: ClientHello | ServerHello) -> bytes:
    """Return the framed hello; a client sends the preamble in front of it."""
    body: bytes = msgpack.packb(to_plain(hello))
    return SIZE.pack(len(body)) + body


class MsgpackCodec:
    """Both sides of the protocol. Keeps nothing between two calls but a packer's scratch memory; one thread only."""

    ordered_replies: ClassVar[bool] = False

    def __init__(self) -> None:
        self._pack: Callable[[object], bytes] = msgpack.Packer(buf_size=_PACKER_BUFFER_BYTES).pack

    # --- server ------------------------------------------------------------------------------------------------------

    def decode_request(self, frame: memoryview) -> DecodedRequest:
        envelope, raw = _split(frame)
        if type(envelope) is not list or len(envelope) < 4:
            raise InvalidRequestError("a request is [correlation id, api, version, body]")
        correlation_id, api, version, body = envelope[:4]
        if not (type(correlation_id) is int and type(api) is int and type(version) is int):
            raise InvalidRequestError("correlation id, api and version of a request are integers")
        try:
            return DecodedRequest(correlation_id, api, version, _decode_request_body(api, version, body, raw))
        except BarnabasError as error:
            return DecodedRequest(correlation_id, api, version, error)

    def encode_response(self, request: DecodedRequest, response: Response | KafkaResponse[object]) -> list[Chunk]:
        cls = type(response)
        api = ERROR_API if cls is ErrorResponse else request.api
        encode = _ENCODERS.get(cls)
        body, raw = encode(response) if encode is not None else (to_plain(response), [])
        return self._frame((request.correlation_id, api, body), raw)

    # --- client ------------------------------------------------------------------------------------------------------

    def encode_request(self, correlation_id: int, request: Request) -> list[Chunk]:
        """Raises InvalidRequestError for values that msgpack cannot carry."""
        encode = _ENCODERS.get(type(request))
        body, raw = encode(request) if encode is not None else (to_plain(request), [])
        return self._frame((correlation_id, int(request.api_key), VERSION, body), raw)

    def decode_response(self, frame: memoryview) -> DecodedResponse:
        envelope, raw = _split(frame)
        if type(envelope) is not list or len(envelope) < 3:
            raise InvalidRequestError("an answer is [correlation id, api, body]")
        correlation_id, api, body = envelope[:3]
        if type(correlation_id) is not int or type(api) is not int:
            raise InvalidRequestError("correlation id and api of an answer are integers")
        return DecodedResponse(correlation_id, api, body, raw)

    def response_body(self, request_type: type[Request], response: DecodedResponse) -> Response:
        """Return the answer to a request of this class. Record bytes are copied: they stay valid for the receiver."""
        if response.api == ERROR_API:
            return from_plain(ErrorResponse, response.body)
        if response.api != int(request_type.api_key):
            raise InvalidRequestError(f"{request_type.__name__} was answered as {api_name(response.api)}")
        cls = RESPONSE_OF[request_type]
        decode = _DECODERS.get(cls)
        value: Response = from_plain(cls, response.body) if decode is None else decode(response.body, response.raw)
        return value

    def _frame(self, envelope: tuple[Any, ...], raw: list[Chunk]) -> list[Chunk]:
        try:
            packed = self._pack(envelope)
        except (ValueError, OverflowError, TypeError) as error:
            raise InvalidRequestError(f"a message holds what msgpack cannot carry: {error}") from error
        raw_bytes = 0
        for chunk in raw:
            raw_bytes += size_of(chunk)
        return [_HEAD.pack(_ENVELOPE_SIZE.size + len(packed) + raw_bytes, len(packed)) + packed, *raw]


def _split(frame: memoryview) -> tuple[Any, memoryview]:
    """Return the envelope as a plain value, and the raw bytes behind it."""
    if len(frame) < _ENVELOPE_SIZE.size:
        raise InvalidRequestError(f"a frame of {len(frame)} bytes holds no envelope")
    end = _ENVELOPE_SIZE.size + _ENVELOPE_SIZE.unpack_from(frame)[0]
    if end > len(frame):
        raise InvalidRequestError(f"an envelope claims {end} bytes of a frame of {len(frame)}")
    return unpack(frame[_ENVELOPE_SIZE.size : end]), frame[end:]


def _decode_request_body(api: int, version: int, body: Any, raw: memoryview) -> Request:
    cls = REQUEST_OF.get(api)
    if cls is None:
        raise UnsupportedVersionError(f"this broker has no API {api}")
    if version != VERSION:
        raise UnsupportedVersionError(f"{api_name(api)} version {version} is not spoken here; use version {VERSION}")
    decode = _DECODERS.get(cls)
    request: Request = from_plain(cls, body) if decode is None else decode(body, raw)
    return request


# --- the hot four ----------------------------------------------------------------------------------------------------


class _Flat:
    """Reads and writes a class whose fields are all plain: in C where the types fit exactly, else by value_codec."""

    def __init__(self, cls: type, *types: type) -> None:
        self.cls = cls
        self.names = tuple(item.name for item in fields(cls))
        self.types = types
        self.write: Callable[[object], tuple[Any, ...]] = attrgetter(*self.names)
        assert len(types) == len(self.names), cls
        taken = ", ".join(self.names)
        given = ", ".join(f"{name}={name}" for name in self.names)
        self._make: Callable[..., Any] = eval(f"lambda {taken}: cls({given})", {"cls": cls})

    def read(self, plain: Any) -> Any:
        if type(plain) is list and tuple(map(type, plain)) == self.types:
            return self._make(*plain)
        return from_plain(self.cls, plain)


_FETCH_PARTITION = _Flat(FetchPartition, str, int, int, int, int, int, int, str)
_PRODUCED = _Flat(ProducePartitionResponse, str, int, int, str, int, int, int, int, int)
_FETCHED = _Flat(FetchPartitionResponse, str, int, int, str, int, int, int, int, int, int, int, int, bytes)
_RECORDS_OF_PRODUCE = 2  # Positions of `records` in the lists of ProducePartition and FetchPartitionResponse.
_RECORDS_OF_FETCHED = 12
assert _FETCHED.names[_RECORDS_OF_FETCHED] == "records"


def _encode_produce(request: ProduceRequest) -> tuple[Any, list[Chunk]]:
    partitions = [(item.topic, item.partition, len(item.records)) for item in request.partitions]
    body = (request.acks, request.timeout_ms, partitions, request.transactional_id)
    return body, [item.records for item in request.partitions]


def _decode_produce(body: Any, raw: memoryview) -> ProduceRequest:
    _put_records(_list_at(body, 2), _RECORDS_OF_PRODUCE, raw)
    if len(body) != 4:
        return from_plain(ProduceRequest, body)
    acks, timeout_ms, partitions, transactional_id = body
    if type(acks) is int and type(timeout_ms) is int and (transactional_id is None or type(transactional_id) is str):
        return ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            partitions=tuple([_produce_partition(plain) for plain in partitions]),
            transactional_id=transactional_id,
        )
    return from_plain(ProduceRequest, body)


def _produce_partition(plain: list[Any]) -> ProducePartition:
    if len(plain) == 3 and type(plain[0]) is str and type(plain[1]) is int:
        return ProducePartition(topic=plain[0], partition=plain[1], records=plain[2])
    return from_plain(ProducePartition, plain)


def _encode_fetch(request: FetchRequest) -> tuple[Any, list[Chunk]]:
    partitions = [_FETCH_PARTITION.write(item) for item in request.partitions]
    return (
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        partitions,
        request.replica_id,
        request.broker_epoch,
        request.isolation_level,
        request.rack,
    ), []


_FETCH_TYPES = (int, int, int, list, int, int, int, str)


def _decode_fetch(body: Any, raw: memoryview) -> FetchRequest:
    if type(body) is not list or tuple(map(type, body)) != _FETCH_TYPES:
        return from_plain(FetchRequest, body)
    max_wait_ms, min_bytes, max_bytes, partitions, replica_id, broker_epoch, isolation_level, rack = body
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        partitions=tuple([_FETCH_PARTITION.read(plain) for plain in partitions]),
        replica_id=replica_id,
        broker_epoch=broker_epoch,
        isolation_level=isolation_level,
        rack=rack,
    )


def _encode_produced(response: ProduceResponse) -> tuple[Any, list[Chunk]]:
    return ([_PRODUCED.write(item) for item in response.partitions],), []


def _decode_produced(body: Any, raw: memoryview) -> ProduceResponse:
    return ProduceResponse(partitions=tuple([_PRODUCED.read(plain) for plain in _list_at(body, 0)]))


def _encode_fetched(response: FetchResponse) -> tuple[Any, list[Chunk]]:
    partitions: list[Any] = []
    raw: list[Chunk] = []
    for item in response.partitions:
        plain = _FETCHED.write(item)
        size_bytes = size_of(item.records)
        partitions.append((*plain[:_RECORDS_OF_FETCHED], size_bytes, *plain[_RECORDS_OF_FETCHED + 1 :]))
        if size_bytes:
            raw.append(item.records)
    return (partitions,), raw


def _decode_fetched(body: Any, raw: memoryview) -> FetchResponse:
    partitions = _list_at(body, 0)
    _put_records(partitions, _RECORDS_OF_FETCHED, raw, copied=True)
    return FetchResponse(partitions=tuple([_FETCHED.read(plain) for plain in partitions]))


def _list_at(body: Any, index: int) -> list[Any]:
    if type(body) is not list or len(body) <= index or type(body[index]) is not list:
        raise InvalidRequestError("the body does not have the fields of its API")
    found: list[Any] = body[index]
    return found


def _put_records(partitions: list[Any], index: int, raw: memoryview, *, copied: bool = False) -> None:
    """Replace the size of each partition's records by the records. All raw bytes must be claimed, none twice."""
    position = 0
    for plain in partitions:
        if type(plain) is not list or len(plain) <= index or type(plain[index]) is not int or plain[index] < 0:
            raise InvalidRequestError("a partition does not say how many bytes of records it has")
        end = position + plain[index]
        if end > len(raw):
            raise InvalidRequestError(f"records claim {end} bytes of a frame that has {len(raw)}")
        plain[index] = bytes(raw[position:end]) if copied else raw[position:end]
        position = end
    if position != len(raw):
        raise InvalidRequestError(f"a frame has {len(raw) - position} bytes of records that no partition claims")


_ENCODERS: dict[type, Callable[[Any], tuple[Any, list[Chunk]]]] = {
    ProduceRequest: _encode_produce,
    FetchRequest: _encode_fetch,
    ProduceResponse: _encode_produced,
    FetchResponse: _encode_fetched,
}
_DECODERS: dict[type, Callable[[Any, memoryview], Any]] = {
    ProduceRequest: _decode_produce,
    FetchRequest: _decode_fetch,
    ProduceResponse: _decode_produced,
    FetchResponse: _decode_fetched,
}
assert ApiKey.PRODUCE in REQUEST_OF
