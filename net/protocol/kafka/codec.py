"""Kafka's codec: from frames to requests and back, by API and version. Answers leave in the order of their requests.

What shares its handler with our protocol (produce, fetch, offsets, metadata) is translated here; the rest goes to its handler
as Kafka made it (`KafkaRequest`).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from barnabas.log.errors import BarnabasError, InvalidRequestError, UnsupportedVersionError

from ..codec import Chunk, DecodedRequest, size_of
from ..responses import ErrorResponse, Response
from . import data_apis, metadata_api, producer_ids_api
from .apis import API_VERSIONS_KEY, SERVED, KafkaApi, KafkaRequest, KafkaResponse, Served, is_flexible
from .compiler import decoder, encoder, types_of
from .versions_api import versions_response

_HEAD = struct.Struct(">hhi")  # api key, api version, correlation id
_REPLY_HEAD = struct.Struct(">ii")  # size, correlation id
BAD_INPUT = (ValueError, IndexError, struct.error)  # what a decoder raises for bytes that are no message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Translation:
    """`failed` makes our answer to a request that failed as a whole, from the request, the error and its message."""

    request: Callable[[Any, int], Any]
    response: Callable[[Any, int], Any]
    failed: Callable[[Any, int, str], Any]


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
    22: _Translation(
        request=producer_ids_api.init_producer_id_request,
        response=producer_ids_api.init_producer_id_response,
        failed=producer_ids_api.init_producer_id_failed,
    ),
    23: _Translation(
        request=data_apis.epochs_request, response=data_apis.epochs_response, failed=data_apis.epochs_failed
    ),
}


class KafkaCodec:
    """The port `net.protocol.codec.Codec` for Kafka's clients."""

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
        served = SERVED.get(key)
        if served is None:
            raise InvalidRequestError(f"Kafka's API {key} is not served here")
        if version not in served.versions or version < served.taken_from:
            if key != API_VERSIONS_KEY:
                raise InvalidRequestError(f"version {version} of {served.name} is not served here")
            refused = UnsupportedVersionError(f"version {version} of ApiVersions is not known")
            return DecodedRequest(correlation_id=correlation_id, api=key, version=0, payload=refused)
        name = f"{served.name}Request"
        header_version = 2 if is_flexible(name, version) else 1
        try:
            header, position = decoder("RequestHeader", header_version)(frame, 0)
            body, _ = decoder(name, version)(frame, position)
        except BAD_INPUT as error:
            raise InvalidRequestError(f"{served.name} v{version} cannot be read: {error}") from error
        return DecodedRequest(
            correlation_id=correlation_id,
            api=key,
            version=version,
            payload=_payload(key, version, body),
            client_id=header.client_id or "",
        )

    def encode_response(self, request: DecodedRequest, response: Response | KafkaResponse) -> list[Chunk]:
        """Return one whole frame: small parts joined, records as they are."""
        served = SERVED[request.api]
        chunks: list[Chunk] = []
        flexible = is_flexible(f"{served.name}Response", request.version)
        if flexible and request.api != API_VERSIONS_KEY:  # its answer must be readable by who knows no version yet
            chunks.append(b"\0")
        body = _body(served, request, response)
        if isinstance(body, bytes):
            chunks.append(body)
        else:
            encoder(f"{served.name}Response", request.version)(body, chunks)
        size_bytes = sum(map(size_of, chunks)) + 4
        return _joined([_REPLY_HEAD.pack(size_bytes, request.correlation_id), *chunks])


def _payload(key: int, version: int, body: Any) -> Any:
    translation = _TRANSLATED.get(key)
    if translation is None:
        return KafkaRequest(api_key=KafkaApi.of(key), version=version, body=body)
    try:
        return translation.request(body, version)
    except BarnabasError as error:
        return error


def _body(served: Served, request: DecodedRequest, response: Response | KafkaResponse) -> Any:
    if isinstance(response, KafkaResponse):
        return response.body
    translation = _TRANSLATED.get(request.api)
    if not isinstance(response, ErrorResponse):
        assert translation is not None, "only what was translated is answered by a value of ours"
        return translation.response(response, request.version)
    if translation is None or isinstance(request.payload, BarnabasError | KafkaRequest):
        return _plain_error(served, response.error)
    failed = translation.failed(request.payload, response.error, response.message)
    return translation.response(failed, request.version)


def _plain_error(served: Served, error: int) -> Any:
    """Of a message that has a place for it."""
    if served is SERVED[API_VERSIONS_KEY]:
        return versions_response(error)
    made = types_of(f"{served.name}Response")[f"{served.name}Response"]()
    if hasattr(made, "error_code"):
        made.error_code = error
    return made


def _joined(chunks: list[Chunk]) -> list[Chunk]:
    """Neighbouring bytes as one, so that the transport has few buffers; views and file regions stay what they are."""
    joined: list[Chunk] = []
    run: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            run.append(chunk)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        if size_of(chunk):
            joined.append(chunk)
    if run:
        joined.append(b"".join(run))
    return joined
