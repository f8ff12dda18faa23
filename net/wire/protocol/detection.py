"""Which protocol a client speaks, from the first bytes that it sends. Pure."""

import struct
from enum import Enum, auto

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRequestError

from .msgpack import PREAMBLE

_KAFKA_HEAD = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_KAFKA_MAX_API_KEY = 127  # Kafka has about ninety keys and versions below twenty: enough to distinguish it from noise.
_KAFKA_MAX_VERSION = 31
_KAFKA_API_VERSIONS = 18
_KAFKA_VERSION_REFUSED = struct.Struct(">iihi")  # size, correlation id, error, and no versions: ApiVersions v0


class Spoken(Enum):
    UNDECIDED = auto()  # Too few bytes to decide.
    BARNABAS = auto()
    KAFKA = auto()


def detect(received: memoryview, *, max_frame_bytes: int) -> Spoken:
    """Raises InvalidRequestError if it is neither protocol.

    Kafka has no preamble: it is recognized by a size within the limits, and by a plausible api key and version.
    """
    if PREAMBLE.startswith(bytes(received[:4])):
        return Spoken.BARNABAS if len(received) >= len(PREAMBLE) else Spoken.UNDECIDED
    if len(received) < _KAFKA_HEAD.size:
        if len(received) < 4 or 8 <= int.from_bytes(received[:4], "big") <= max_frame_bytes:
            return Spoken.UNDECIDED
        raise InvalidRequestError("neither Barnabas's protocol nor Kafka's")
    size, api, version, _ = _KAFKA_HEAD.unpack_from(received)
    # Any version of ApiVersions is accepted: a newer client uses it to ask for the supported versions (KIP-511).
    plausible = api == _KAFKA_API_VERSIONS or (0 <= api <= _KAFKA_MAX_API_KEY and 0 <= version <= _KAFKA_MAX_VERSION)
    if not (8 <= size <= max_frame_bytes and plausible):
        raise InvalidRequestError("neither Barnabas's protocol nor Kafka's")
    return Spoken.KAFKA


def refusal_of_kafka(received: memoryview) -> bytes:
    """The reply of a port that does not serve Kafka's protocol, to the first request of a client that `detect` has recognized.

    Only ApiVersions has a reply that every client understands; empty for other requests.
    """
    _, api, _, correlation_id = _KAFKA_HEAD.unpack_from(received)
    if api != _KAFKA_API_VERSIONS:
        return b""
    return _KAFKA_VERSION_REFUSED.pack(10, correlation_id, ErrorCode.UNSUPPORTED_VERSION, 0)
