"""Escapes untrusted text (client ids, group ids, topics, hosts) for logs and terminals. Pure.

A newline in a client id would forge a line of the log, an escape sequence would control the reader's terminal, and characters
that change the direction of writing would hide text. They are shown as Python escapes: `\\n`, `\\x1b`, `\\u202e`.
"""

import codecs
import logging
from types import TracebackType
from typing import Final

# Loaded now: Python would look for its module at the first use, which fails where no descriptor is left, as the log is to say.
_ENCODE: Final = codecs.lookup("unicode_escape").encode
INDENT: Final = "    "  # before each line of a traceback, so that only log messages begin in column 1


def printable(text: str) -> str:
    """`text` in one line, without control characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _ENCODE(char)[0].decode() for char in text)


class PrintableFormatter(logging.Formatter):
    """One line for each message, whatever its arguments contain; an indented traceback may follow."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(INDENT + printable(line) for line in text.split("\n"))
