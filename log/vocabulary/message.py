"""`Message`: a frozen value that travels or is stored as the msgpack list of its fields, in order of declaration.

A reader of an older message finds the missing trailing fields at their defaults; a reader of a newer one ignores the trailing
fields that it does not know. So a version of a message may only append fields, and must give them defaults. msgspec checks the
type of every field while it decodes, and allocates nothing for what a length merely claims.
"""

from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

from .errors import InvalidRequestError

T = TypeVar("T")
MAX_ARRAY_LENGTH = 262_144  # Items of one array or map: a quarter of a million partitions in one message.
Items = Annotated[tuple[T, ...], Meta(max_length=MAX_ARRAY_LENGTH)]
Texts = Annotated[dict[str, str], Meta(max_length=MAX_ARRAY_LENGTH)]


class Message(Struct, frozen=True, kw_only=True, array_like=True):
    """Base of all messages. Each subclass is `frozen` and `kw_only` too (`kw_only` is not inherited)."""


encode = Encoder().encode


def decode(cls: type[T], encoded: bytes | memoryview | msgspec.Raw) -> T:
    """Raises InvalidRequestError for any other structure: the bytes may come from untrusted clients."""
    try:
        hint: Any = cls
        value: T = _decoder(hint).decode(encoded)
    except (ValueError, RecursionError) as error:  # msgspec's own errors and that of invalid UTF-8 are ValueErrors
        raise InvalidRequestError(f"{getattr(cls, '__name__', cls)} cannot be decoded: {error}") from error
    return value


@cache
def _decoder(cls: Any) -> Decoder[Any]:
    return Decoder(cls)
