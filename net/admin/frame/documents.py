"""JSON objects one after the other in one body, as their bytes arrive: Confluent's streaming form of records. Pure.

Where an object ends is found without parsing it, so that a large one is looked at once and parsed once.
"""

import re
from typing import Final

from .errors import SHOWN_CHARS, ApiError, bad_request

MAX_DEPTH: Final = 200  # of brackets; records in JSON have a few
_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'["\\]')  # a string
_SPACES: Final = re.compile(rb"[ \t\r\n]*")


class Documents:
    """The objects of one body. When it has ended, ask `is_complete`."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` of one object."""
        self._max_bytes = max_bytes
        self._kept = bytearray()  # the start of an object; empty, or begins with "{"
        self._seen = 0  # bytes of `_kept` that have been looked at
        self._depth = 0  # of brackets there
        self._is_in_string = False
        self._is_escaped = False  # the next byte, in a string

    @property
    def is_complete(self) -> bool:
        """No object has begun and not ended."""
        return not self._kept

    def feed(self, data: bytes) -> None:
        """Then take the objects: `next` until it is None."""
        self._kept += data

    def next(self) -> bytes | None:
        """The next object that is complete. Raises ApiError; then the end of an object is not known any more."""
        end = self._end()
        if end < 0:
            if len(self._kept) > self._max_bytes:
                raise ApiError(413, 413, f"a record is larger than {self._max_bytes} bytes")
            return None
        found = bytes(self._kept[:end])
        del self._kept[:end]
        self._seen = 0
        return found

    def _end(self) -> int:
        """Where the first object ends; -1: not here."""
        if not self._depth:
            spaces = _SPACES.match(self._kept)
            assert spaces is not None
            del self._kept[: spaces.end()]
            if self._kept and not self._kept.startswith(b"{"):
                near = bytes(self._kept[:SHOWN_CHARS]).decode(errors="replace")
                raise bad_request(f"the body must be JSON objects, one for each record; near {near!r}")
        while self._seen < len(self._kept):
            if self._step():
                return self._seen
        return -1

    def _step(self) -> bool:
        """Go behind the next byte with a meaning. True: the object ends there."""
        if self._is_escaped:
            self._is_escaped = False
            self._seen += 1
            return False
        found = (_INSIDE if self._is_in_string else _OUTSIDE).search(self._kept, self._seen)
        if found is None:
            self._seen = len(self._kept)
            return False
        what = found[0]
        self._seen = found.end()
        if what == b"\\":
            self._is_escaped = True
        elif what == b'"':
            self._is_in_string = not self._is_in_string
        elif what in b"{[":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise bad_request(f"a record is nested deeper than {MAX_DEPTH}")
        else:
            self._depth -= 1
        return not self._depth and not self._is_in_string
