"""Why records cannot be encoded: one text for each reason, so that both implementations say the same. Pure."""

from ..vocabulary.errors import InvalidRecordError


def not_bytes(data: object) -> TypeError:
    return TypeError(f"keys, values and headers must be bytes or None, not {type(data).__name__}: encode them first")


def not_text(name: object) -> TypeError:
    return TypeError(f"the name of a header must be str, not {type(name).__name__}")


def timestamp(timestamp_ms: int) -> InvalidRecordError:
    return InvalidRecordError(f"a timestamp is {timestamp_ms}; it must be -1 or milliseconds since 1970 in 64 bits")


def too_far_apart(base_ms: int, timestamp_ms: int) -> InvalidRecordError:
    return InvalidRecordError(f"the timestamps {base_ms} and {timestamp_ms} are too far apart for one batch")


def too_large(size_bytes: int) -> InvalidRecordError:
    return InvalidRecordError(f"a record of {size_bytes} bytes does not fit into any batch: send smaller ones")


def negative_start(start: int) -> InvalidRecordError:
    return InvalidRecordError(f"the first row is {start}; it must be 0 or more")


def no_such_row(row: int, count: int) -> InvalidRecordError:
    return InvalidRecordError(f"row {row} does not exist: there are {count} rows")


def cell_out_of_range(row: int, start: int, end: int, size_bytes: int) -> InvalidRecordError:
    return InvalidRecordError(f"row {row} of a column is from {start} to {end} of {size_bytes} bytes")


def headers_out_of_range(row: int, start: int, end: int, count: int) -> InvalidRecordError:
    return InvalidRecordError(f"the headers of row {row} are from {start} to {end} of {count}")
