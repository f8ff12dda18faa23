"""`Message`: a frozen value that travels or is stored as the msgpack list of its fields, in order of declaration.

A reader of an older message finds the missing trailing fields at their defaults; a reader of a newer one ignores the trailing
fields that it does not know. So a version of a message may only append fields, and must give them defaults. msgspec checks the
type of every field while it decodes, and allocates nothing for what a length merely claims.

The length of each list is limited by its type. The number of items of all lists of a message is limited by `check_items`, before
anything of them is made: a list of short lists can have sixteen million items in an envelope of 16 MiB.
"""

import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct
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


# --- the items of all lists --------------------------------------------------------------------------------------------

# What msgpack puts in front of a list or a map: the length in four bits of the first byte, or behind it.
_SHORT_LISTS = range(0x80, 0xA0)
_LENGTH_BYTES = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}
_NO_LIST = Raw(b"\xc0")


def check_items(cls: type, encoded: bytes | memoryview | Raw, max_items: int) -> None:
    """Raises InvalidRequestError if all lists and maps of this message have more items together.

    Lengths are read, items are skipped: 16 MiB take some 20 ms, and no list of lists is entered that is too long itself. A value
    of another type than the class says counts as nothing: `decode` refuses it.
    """
    lists = _lists_of(cls)
    if not isinstance(lists, _Fields):
        return  # there are none
    try:
        left = lists.left_after(_decoder(lists.skeleton).decode(encoded), max_items)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{cls.__name__} cannot be decoded: {error}") from error
    if left < 0:
        raise InvalidRequestError(f"the lists of one {cls.__name__} have more than {max_items} items: send several")


class _Fields:
    """The lists of a message. Its skeleton is a message with the same fields, of which only other messages are decoded."""

    def __init__(self, cls: Any) -> None:
        hints = get_type_hints(cls, include_extras=True)
        found = [(field.name, _lists_of(hints[field.name])) for field in msgspec.structs.fields(cls)]
        self._lists = tuple((name, lists) for name, lists in found if lists is not None)
        fields = [
            (name, lists.skeleton | None, None) if isinstance(lists, _Fields) else (name, Raw, _NO_LIST)
            for name, lists in found
        ]
        self.skeleton: Any = msgspec.defstruct(cls.__name__, fields, array_like=True, frozen=True)

    def __bool__(self) -> bool:
        return bool(self._lists)

    def left_after(self, value: Any, left: int) -> int:
        """Subtract its items; negative: there are more, and the rest has not been looked at."""
        for name, lists in self._lists:
            found = getattr(value, name)
            if found is not None and left >= 0:
                left = lists.left_after(found, left)
        return left


class _Items:
    """A list or a map. It stays encoded until its own length has been counted."""

    skeleton: Any = Raw

    def __init__(self, item: Any, max_length: int) -> None:
        self._max_length = max_length
        self._lists = _lists_of(item)
        skeletons: Any = (
            tuple[Any, ...] if self._lists is None else types.GenericAlias(tuple, (self._lists.skeleton, ...))
        )
        self._decoder = Decoder(skeletons)

    def left_after(self, value: Any, left: int) -> int:
        length = _length(value)
        if length > self._max_length:
            raise ValueError(f"one of its lists has {length} items, {self._max_length} are the most")
        left -= length
        if self._lists is None or not length or left < 0:
            return left
        for item in self._decoder.decode(value):
            left = self._lists.left_after(item, left)
            if left < 0:
                break
        return left


@cache
def _lists_of(hint: Any) -> "_Fields | _Items | None":
    """None: a value of this type holds no lists."""
    for one, max_length in _alternatives(hint):
        if isinstance(one, type) and issubclass(one, Struct):
            return _Fields(one) or None
        if get_origin(one) is dict:
            assert _lists_of(get_args(one)[1]) is None, "maps of lists are not counted"
        if get_origin(one) in (tuple, dict):
            return _Items(get_args(one)[0], max_length)
    return None


def _alternatives(hint: Any, max_length: int = MAX_ARRAY_LENGTH) -> Iterator[tuple[Any, int]]:
    """The types that a declared one allows, and the limit that it gives their lengths."""
    if get_origin(hint) is Annotated:
        inner, *limits = get_args(hint)
        told = [limit.max_length for limit in limits if isinstance(limit, Meta) and limit.max_length is not None]
        yield from _alternatives(inner, min(max_length, *told) if told else max_length)
    elif get_origin(hint) in (Union, types.UnionType):
        for one in get_args(hint):
            yield from _alternatives(one, max_length)
    else:
        yield hint, max_length


def _length(encoded: Raw) -> int:
    """Of a list or map; 0 for anything else."""
    view = memoryview(encoded)
    first = view[0]
    if first in _SHORT_LISTS:
        return first & 0x0F
    size = _LENGTH_BYTES.get(first, 0)
    return int.from_bytes(view[1 : 1 + size], "big")
