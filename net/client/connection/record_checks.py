"""Validate a record before it joins a batch, because an invalid record would block the whole batch. Pure."""

from operator import index

from barnabas.log.format.record_batch import NO_TIMESTAMP

from .errors import InvalidRequestError
from .records import Headers

MAX_TIMESTAMP_MS = 2**63 - 1


def as_bytes(data: bytes | None, what: str) -> bytes | None:
    if data is None or data.__class__ is bytes:
        return data
    if isinstance(data, bytearray | memoryview | bytes):
        return bytes(data)
    cure = f"{what}.encode()" if isinstance(data, str) else f"bytes, for instance json.dumps({what}).encode()"
    raise TypeError(f"the {what} of a record must be bytes, not {type(data).__name__}: pass {cure}")


def checked_headers(headers: Headers | None) -> Headers:
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    checked = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be str, not {type(name).__name__}")
        name.encode()  # Raises UnicodeEncodeError here rather than when the whole batch is encoded.
        checked.append((name, as_bytes(value, f"header {name!r}")))
    return tuple(checked)


def checked_stamp(timestamp_ms: int) -> int:
    """A timestamp that cannot be encoded must not join a batch, because it would block the whole batch. -1: the record has none,
    as some copied records."""
    try:
        stamp_ms = index(timestamp_ms)
    except TypeError:
        raise TypeError(
            f"timestamp_ms must be an integer, not {type(timestamp_ms).__name__}: pass int(timestamp_ms)"
        ) from None
    if not NO_TIMESTAMP <= stamp_ms <= MAX_TIMESTAMP_MS:
        raise InvalidRequestError(
            f"timestamp_ms is {stamp_ms}; it must be -1 (none) or milliseconds since 1970 that fit into 64 bits"
        )
    return stamp_ms
