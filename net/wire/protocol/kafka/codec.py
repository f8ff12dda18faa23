"""Kafka's codec: from frames to requests and back, by API and version. Answers leave in the order of their requests.

What shares its handler with our protocol (produce, fetch, offsets, commits, metadata) is translated here; the rest goes to its
handler as Kafka made it (`KafkaRequest`).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError

from ..codec import Chunk, DecodedRequest, size_of
from ..responses import ErrorResponse, ProduceResponse, Response
from . import data_apis, group_apis, metadata_api, producer_ids_api
from .apis import API_VERSIONS_KEY, SERVED, KafkaApi, KafkaRequest, KafkaResponse, Served, is_flexible
from .compiler import Encode, Parts, decoder, encoder
from .message_classes import class_of
from .primitives import Decode, read_tags
from .single_produce import VERSIONS as SINGLE_VERSIONS
from .single_produce import decode_single, encode_single
from .versions_api import versions_response

_HEAD = struct.Struct(">hhi")  # api key, api version, correlation id
_REPLY_HEAD = struct.Struct(">ii")  # size, correlation id
# Encoded answers are those of Metadata, which begin with the throttle time.
_THROTTLE = struct.Struct(">i")
_METADATA_TELLS_THROTTLE_SINCE = 3
_SHORT = struct.Struct(">h")
_PRODUCE = 0
BAD_INPUT = (ValueError, IndexError, struct.error)  # what a decoder raises for bytes that are no message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Translation:
    """`failed` makes our answer to a request that failed as a whole, from the request, the error and its message. It is None
    where Kafka's message has an error code of its own."""

    request: Callable[[Any, int], Any]
    response: Callable[[Any, int], Any]
    failed: Callable[[Any, int, str], Any] | None = None


_TRANSLATED: dict[int, _Translation] = {
    0: _Translation(
        request=data_apis.produce_request, response=data_apis.produce_response, failed=data_apis.produce_failed
    ),
    1: _Translation(
        request=data_apis.fetch_request,
        response=data_apis.fetch_response,
        failed=data_apis.fetch_failed,
    ),
    2: _Translation(
        request=data_apis.list_offsets_request,
        response=data_apis.list_offsets_response,
        failed=data_apis.list_offsets_failed,
    ),
    3: _Translation(
        request=metadata_api.metadata_request,
        response=metadata_api.metadata_response,
        failed=metadata_api.metadata_failed,
    ),
    8: _Translation(
        request=group_apis.offset_commit_request,
        response=group_apis.offset_commit_response,
        failed=group_apis.offset_commit_failed,
    ),
    12: _Translation(request=group_apis.heartbeat_request, response=group_apis.heartbeat_response),
    22: _Translation(
        request=producer_ids_api.init_producer_id_request,
        response=producer_ids_api.init_producer_id_response,
        failed=producer_ids_api.init_producer_id_failed,
    ),
    23: _Translation(
        request=data_apis.epochs_request, response=data_apis.epochs_response, failed=data_apis.epochs_failed
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What one version of one API needs, looked up once."""

    served: Served
    decode: Decode
    encode: Encode
    has_header_tags: bool
    answers_with_header_tags: bool
    translation: _Translation | None
    may_be_single: bool  # Produce: see `single_produce`


_WAYS: dict[tuple[int, int], _Way] = {}  # of the versions that clients use: at most those that are served


def _way(key: int, version: int) -> _Way | None:
    """None for ApiVersions of an unknown version. Raises InvalidRequestError for all else that is not served."""
    served = SERVED.get(key)
    if served is None:
        raise InvalidRequestError(f"Kafka's API {key} is not served here")
    if version not in served.versions or version < served.taken_from:
        if key == API_VERSIONS_KEY:
            return None
        raise InvalidRequestError(f"version {version} of {served.name} is not served here")
    asked, answered = f"{served.name}Request", f"{served.name}Response"
    way = _WAYS[key, version] = _Way(
        served=served,
        decode=decoder(asked, version),
        encode=encoder(answered, version),
        has_header_tags=is_flexible(asked, version),
        # Not that of ApiVersions: clients must be able to read it before they know any version.
        answers_with_header_tags=is_flexible(answered, version) and key != API_VERSIONS_KEY,
        translation=_TRANSLATED.get(key),
        may_be_single=key == _PRODUCE and version in SINGLE_VERSIONS,
    )
    return way


def _client_id(frame: memoryview, *, is_flexible: bool) -> tuple[str, int]:
    """The rest of RequestHeader v1 (v2 where flexible), and the position behind it. The id has a length of two bytes in
    both. Raises one of BAD_INPUT."""
    (size,) = _SHORT.unpack_from(frame, _HEAD.size)
    position = _HEAD.size + _SHORT.size
    client_id = ""
    if size > 0:
        if position + size > len(frame):
            raise ValueError(f"a client id of {size} bytes reaches behind the message")
        client_id = str(frame[position : position + size], "utf-8")
        position += size
    elif size < -1:
        raise ValueError(f"a client id of {size} bytes")
    if is_flexible:
        position = position + 1 if frame[position] == 0 else read_tags(frame, position, {})[1]
    return client_id, position


class KafkaCodec:
    """The port `net.wire.protocol.codec.Codec` for Kafka's clients."""

    @property
    def ordered_replies(self) -> bool:
        return True

    def decode_request(self, frame: memoryview) -> DecodedRequest:
        """Raises InvalidRequestError where Kafka closes the connection: an unknown API, a version that is not served, a
        message that cannot be read. ApiVersions alone answers a version that it does not know (KIP-35)."""
        try:
            key, version, correlation_id = _HEAD.unpack_from(frame)
        except struct.error as error:
            raise InvalidRequestError("a request without a header") from error
        way = _WAYS.get((key, version)) or _way(key, version)
        if way is None:
            refused = UnsupportedVersionError(f"version {version} of ApiVersions is not known")
            return DecodedRequest(correlation_id=correlation_id, api=key, version=0, payload=refused)
        if way.may_be_single and (single := decode_single(frame, correlation_id, version)) is not None:
            return single
        try:
            client_id, position = _client_id(frame, is_flexible=way.has_header_tags)
            body, _ = way.decode(frame, position)
        except BAD_INPUT as error:
            raise InvalidRequestError(f"{way.served.name} v{version} cannot be read: {error}") from error
        return DecodedRequest(correlation_id, key, version, _payload(way, key, version, body), client_id)

    def encode_response(
        self, request: DecodedRequest, response: Response | KafkaResponse[object], throttle_ms: int = 0
    ) -> list[Chunk]:
        """Return one whole frame: small parts joined, records as they are."""
        way = _WAYS.get((request.api, request.version)) or _way(request.api, request.version)
        assert way is not None, "only what was decoded is answered"
        if way.may_be_single and isinstance(response, ProduceResponse):
            single = encode_single(request.correlation_id, response, throttle_ms)
            if single is not None:
                return [single]
        parts = Parts()
        parts.chunks = []
        if way.answers_with_header_tags:
            parts.append(b"\0")
        body = _body(way, request, response)
        if throttle_ms and hasattr(body, "throttle_time_ms"):
            body.throttle_time_ms = throttle_ms
        if isinstance(body, bytes):
            if throttle_ms and request.version >= _METADATA_TELLS_THROTTLE_SINCE:
                body = _THROTTLE.pack(throttle_ms) + body[_THROTTLE.size :]
            parts.append(body)
        else:
            way.encode(body, parts)
        chunks = parts.finished()
        head = _REPLY_HEAD.pack(sum(map(size_of, chunks)) + 4, request.correlation_id)
        if chunks and type(chunks[0]) is bytes:  # small: no answer begins with records
            chunks[0] = head + chunks[0]
        else:
            chunks.insert(0, head)
        return chunks


def _payload(way: _Way, key: int, version: int, body: Any) -> Any:
    if way.translation is None:
        return KafkaRequest(api_key=KafkaApi.of(key), version=version, body=body)
    try:
        return way.translation.request(body, version)
    except BarnabasError as error:
        return error


def _body(way: _Way, request: DecodedRequest, response: Response | KafkaResponse[object]) -> Any:
    if isinstance(response, KafkaResponse):
        return response.body
    translation = way.translation
    if not isinstance(response, ErrorResponse):
        assert translation is not None, "only a translated request is answered by a value of Barnabas"
        return translation.response(response, request.version)
    if translation is None or translation.failed is None or isinstance(request.payload, BarnabasError | KafkaRequest):
        return _plain_error(way.served, response)
    failed = translation.failed(request.payload, response.error, response.message)
    return translation.response(failed, request.version)


def _plain_error(served: Served, response: ErrorResponse) -> Any:
    """Of a message that has a place for it."""
    if served is SERVED[API_VERSIONS_KEY]:
        return versions_response(response.error)
    made = class_of(f"{served.name}Response")()
    if hasattr(made, "error_code"):
        made.error_code = response.error
    if hasattr(made, "error_message"):
        made.error_message = response.message
    return made
