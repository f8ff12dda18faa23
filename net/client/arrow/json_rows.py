"""Rows of Arrow columns as JSON objects, whole columns at a time: no value becomes a Python object.

Nulls are null, NaN and infinities too (JSON has none), times are ISO 8601. Bytes are refused: which text they are is not known.
"""

from collections.abc import Sequence

import pyarrow
import pyarrow.compute as pc

from ..connection.errors import InvalidRequestError

_CONTROL = 0x20  # JSON escapes the characters below.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNUSUAL = r"[\x00-\x1f]"
_TEXT = pyarrow.large_string()  # JSON of a large table may have more than 2 GiB.


def json_objects(names: Sequence[str], columns: Sequence[pyarrow.Array]) -> pyarrow.Array:
    """A JSON object for each row, as large_string. Raises InvalidRequestError for a column that JSON cannot express."""
    pieces = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        pieces += [_constant(("{" if number == 0 else ",") + _quoted_name(name) + ":"), _json(name, column)]
    return pc.binary_join_element_wise(*pieces, _constant("}"), _constant(""))


def decoded(column: pyarrow.Array) -> pyarrow.Array:
    """Without a dictionary, if it has one."""
    if not pyarrow.types.is_dictionary(column.type):
        return column
    if str(column.type.value_type).endswith("_view"):  # As of polars' categories; Arrow cannot take rows of such texts.
        plain = pyarrow.large_string() if str(column.type.value_type) == "string_view" else pyarrow.large_binary()
        column = pyarrow.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(plain))
    return column.dictionary_decode()


def _json(name: str, column: pyarrow.Array) -> pyarrow.Array:
    """JSON of each value, without nulls: they are the text null."""
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        return _json(name, decoded(column))
    if pyarrow.types.is_null(kind):
        return pyarrow.repeat(_constant("null"), len(column))
    if pyarrow.types.is_struct(kind):
        fields = [column.type.field(number).name for number in range(kind.num_fields)]
        text = json_objects(fields, column.flatten()) if fields else pyarrow.repeat(_constant("{}"), len(column))
        return pc.if_else(column.is_valid(), text, _constant("null"))
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return pc.fill_null(_list(name, column), _constant("null"))
    return pc.fill_null(_scalar(name, column), _constant("null"))


def _list(name: str, column: pyarrow.Array) -> pyarrow.Array:
    items = _json(name, column.flatten())
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pyarrow.int64())
    ends = pc.cumulative_sum(lengths)
    offsets = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int64()), ends])
    joined = pc.binary_join(pyarrow.LargeListArray.from_arrays(offsets, items), _constant(","))
    text = pc.binary_join_element_wise(_constant("["), joined, _constant("]"), _constant(""))
    return pc.if_else(column.is_valid(), text, None)


def _scalar(name: str, column: pyarrow.Array) -> pyarrow.Array:
    kind = column.type
    types = pyarrow.types
    if types.is_floating(kind):
        finite = pc.is_finite(column)
        return pc.if_else(finite, column.cast(_TEXT), None)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(_TEXT)
    if types.is_timestamp(kind) and kind.tz is not None:
        # In UTC with its letter, whatever zone the column is shown in.
        plain = column.cast(pyarrow.timestamp(kind.unit, "UTC")).cast(pyarrow.timestamp(kind.unit))
        return _wrapped(_iso(plain), '"', 'Z"')
    if types.is_timestamp(kind):
        return _wrapped(_iso(column), '"', '"')
    if types.is_temporal(kind) and not types.is_duration(kind):
        return _wrapped(column.cast(_TEXT), '"', '"')
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return _wrapped(_escaped(column.cast(_TEXT)), '"', '"')
    raise InvalidRequestError(
        f"column {name!r} has the type {kind}, which JSON cannot express: cast it to text, or leave it out"
    )


def _iso(column: pyarrow.Array) -> pyarrow.Array:
    return pc.replace_substring(column.cast(_TEXT), " ", "T")


def _escaped(text: pyarrow.Array) -> pyarrow.Array:
    for plain, escaped in _ESCAPES.items():
        text = pc.replace_substring(text, plain, escaped)
    if pc.any(pc.match_substring_regex(text, _UNUSUAL)).as_py():
        for code in range(_CONTROL):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return text


def _wrapped(text: pyarrow.Array, before: str, after: str) -> pyarrow.Array:
    return pc.binary_join_element_wise(_constant(before), text, _constant(after), _constant(""))


def _quoted_name(name: str) -> str:
    found: str = _escaped(pyarrow.array([name], _TEXT))[0].as_py()
    return f'"{found}"'


def _constant(text: str) -> pyarrow.Scalar:
    return pyarrow.scalar(text, _TEXT)
