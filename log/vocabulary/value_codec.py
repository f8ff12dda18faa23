"""Frozen dataclasses to and from the plain lists that msgpack carries: one codec for records, requests and responses.

A value becomes the list of its fields in order of declaration. Whoever reads an older message finds the missing trailing
fields at their defaults; whoever reads a newer one ignores the trailing fields that it does not know. So a version of a
message may only append fields, and must give them defaults.

Field types: int, bool, float, str, bytes, Buffer, IntEnum, `X | None`, `tuple[X, ...]`, `dict[str, X]`, another dataclass.
Wrong shapes raise InvalidRequestError, never anything else: the bytes come from strangers.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar

from .errors import InvalidRequestError

T = TypeVar("T")
_Encode = Callable[[Any], Any]
_Decode = Callable[[Any], Any]


def to_plain(value: object) -> Any:
    """Return the value as lists, ints, strings and bytes, ready for msgpack."""
    hint: Any = type(value)
    return _encoder(hint)(value)


def from_plain(cls: type[T], plain: object) -> T:
    """Return the value of class `cls` that `to_plain` made `plain` from. Raises InvalidRequestError for any other shape."""
    hint: Any = cls
    decoded: T = _decoder(hint)(plain)
    return decoded


@cache
def _encoder(hint: Any) -> _Encode:
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = tuple((field.name, _encoder(hints[field.name])) for field in dataclasses.fields(hint))
        return lambda value: [encode(getattr(value, name)) for name, encode in fields]
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = _encoder(typing.get_args(hint)[0])
        return lambda value: [item(element) for element in value]
    if origin is dict:
        item = _encoder(typing.get_args(hint)[1])
        return lambda value: {key: item(element) for key, element in value.items()}
    if origin in (typing.Union, types.UnionType) and not _is_buffer(hint):
        item = _encoder(_without_none(hint))
        return lambda value: None if value is None else item(value)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return int
    return _same


@cache
def _decoder(hint: Any) -> _Decode:
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _tuple_decoder(_decoder(typing.get_args(hint)[0]))
    if origin is dict:
        return _dict_decoder(_decoder(typing.get_args(hint)[1]))
    if origin in (typing.Union, types.UnionType):
        if _is_buffer(hint):
            return _checked((bytes, bytearray, memoryview))
        item = _decoder(_without_none(hint))
        return lambda plain: None if plain is None else item(plain)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _enum_decoder(hint)
    if hint is float:
        return _checked((float, int))
    return _checked((hint,))


def _dataclass_decoder(cls: Any) -> _Decode:
    hints = typing.get_type_hints(cls)
    fields = tuple((field.name, _decoder(hints[field.name])) for field in dataclasses.fields(cls))
    required = sum(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(cls)
    )

    def decode(plain: Any) -> Any:
        if type(plain) is not list or len(plain) < required:
            raise InvalidRequestError(f"{cls.__name__} is a list of at least {required} fields, not {_shown(plain)}")
        try:
            return cls(**{name: item(element) for (name, item), element in zip(fields, plain, strict=False)})
        except TypeError as error:
            raise InvalidRequestError(f"{cls.__name__}: {error}") from error

    return decode


def _tuple_decoder(item: _Decode) -> _Decode:
    def decode(plain: Any) -> Any:
        if type(plain) is not list:
            raise InvalidRequestError(f"expected a list, not {_shown(plain)}")
        return tuple([item(element) for element in plain])

    return decode


def _dict_decoder(item: _Decode) -> _Decode:
    def decode(plain: Any) -> Any:
        if type(plain) is not dict or not all(type(key) is str for key in plain):
            raise InvalidRequestError(f"expected a map with strings as keys, not {_shown(plain)}")
        return {key: item(element) for key, element in plain.items()}

    return decode


def _enum_decoder(cls: type[IntEnum]) -> _Decode:
    def decode(plain: Any) -> Any:
        try:
            return cls(plain)
        except ValueError as error:
            raise InvalidRequestError(f"{plain!r} is no {cls.__name__}") from error

    return decode


def _checked(allowed: tuple[type, ...]) -> _Decode:
    def decode(plain: Any) -> Any:
        # `type is`, not isinstance: True must not pass for an int.
        if type(plain) not in allowed:
            raise InvalidRequestError(f"expected {allowed[0].__name__}, not {_shown(plain)}")
        return plain

    return decode


def _is_buffer(hint: Any) -> bool:
    return memoryview in typing.get_args(hint)


def _without_none(hint: Any) -> Any:
    (rest,) = (argument for argument in typing.get_args(hint) if argument is not type(None))
    return rest


def _shown(plain: object) -> str:
    text = repr(plain)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _same(value: Any) -> Any:
    return value
