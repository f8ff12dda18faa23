"""Patterns for the first line of a record, in RE2: linear in the length of a line, whatever the pattern."""

from collections.abc import Callable

from barnabas.log.vocabulary.name_pattern import compile_pattern


def first_lines(pattern: str) -> Callable[[bytes], bool]:
    """Whether the pattern is found in a line. Raises InvalidRegularExpressionError."""
    compiled = compile_pattern(pattern, is_for_bytes=True)

    def found(line: bytes) -> bool:
        return compiled.search(line) is not None

    return found
