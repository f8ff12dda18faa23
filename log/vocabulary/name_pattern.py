"""Patterns for subscriptions to topics: RE2, the dialect of KIP-848, for brokers and clients.

A pattern comes from a user or an untrusted client, and it runs on an event loop against names that others choose. Python's `re`
backtracks: `(a+)+b` on forty letters never ends, and holds the interpreter's lock meanwhile. RE2 takes time that is linear in the
length of the name, with the size of the compiled program as the factor; the limits here bound both, so that `worst_ns` is an
upper bound.

RE2 has no back-references and no look-around. Syntax: https://github.com/google/re2/wiki/Syntax
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from .errors import InvalidRegularExpressionError

if TYPE_CHECKING:
    import re2

MAX_PATTERN_LENGTH: Final = 1_000  # characters: four times the longest name of a topic
MAX_PROGRAM_SIZE: Final = 2_500  # instructions: "[\\pL\\pN._-]+" has 1,400, and 1,000 plain letters have as many
# For one compiled pattern, with the states that it keeps between two names. RE2 refuses programs that do not fit; usual patterns
# need a few kilobytes.
MAX_MEMORY_BYTES: Final = 256 * 1024
# A Unicode class has hundreds of ranges, each parsed before any size is known: 330 of them take 40 ms.
MAX_UNICODE_CLASSES: Final = 16
PATTERNS_CACHED: Final = 256  # compiled ones of a process: 64 MiB at the very most
# Measured: RE2 without its cache of states takes 3.4 ns an instruction and character, and a call takes 3 µs.
_NS_PER_STEP: Final = 4
_NS_PER_CALL: Final = 4_000
_SHOWN_CHARACTERS: Final = 100  # of a pattern, in an error


class NamePattern:
    """Raises InvalidRegularExpressionError. `matches` compares the whole name, as in Kafka."""

    __slots__ = ("_compiled", "_ns_per_character", "program_size", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = compile_pattern(text)
        self.program_size: int = self._compiled.programsize  # in instructions
        self._ns_per_character: int = _NS_PER_STEP * self.program_size

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None

    def worst_ns(self, name: str) -> int:
        """Maximum time of `matches` on a current machine."""
        return _NS_PER_CALL + self._ns_per_character * len(name)


@lru_cache(maxsize=PATTERNS_CACHED)
def name_pattern(text: str) -> NamePattern:
    """Raises InvalidRegularExpressionError."""
    return NamePattern(text)


def compile_pattern(text: str, *, is_for_bytes: bool = False) -> "re2._Regexp":
    """A pattern of a stranger, with limits; `is_for_bytes`: for what need not be UTF-8. Raises InvalidRegularExpressionError."""
    import re2  # only here: a broker without patterns needs 2.4 MB less

    if len(text) > MAX_PATTERN_LENGTH:
        raise _invalid(text, f"it has {len(text)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
    if text.count("\\p") + text.count("\\P") > MAX_UNICODE_CLASSES:
        raise _invalid(text, f"it has more than {MAX_UNICODE_CLASSES} Unicode classes")
    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False  # it would write to stderr
    if is_for_bytes:
        options.encoding = re2.Options.Encoding.LATIN1
    try:
        compiled = re2.compile(text.encode() if is_for_bytes else text, options)
    except UnicodeEncodeError as error:
        raise _invalid(text, "it is not valid Unicode") from error
    except re2.error as error:
        reason = error.args[0]
        raise _invalid(text, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from error
    if compiled.programsize > MAX_PROGRAM_SIZE:
        raise _invalid(
            text, f"it compiles to {compiled.programsize} instructions, at most {MAX_PROGRAM_SIZE} are allowed"
        )
    return compiled


def _invalid(text: str, reason: str) -> InvalidRegularExpressionError:
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
    return InvalidRegularExpressionError(
        f"{shown!r} is not a valid regular expression of RE2: {reason}; RE2 has no back-references and no look-around"
    )
