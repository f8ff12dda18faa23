"""Text of strangers (client ids, group ids, topics, hosts) as a log or a terminal may show it. Pure.

A newline in a client id would forge a line of the log, an escape sequence would command the terminal of whoever reads it, and
characters that change the direction of writing would hide what stands there. They are shown as Python writes them: `\\n`,
`\\x1b`, `\\u202e`.
"""

import logging
from types import TracebackType
from typing import Final

INDENT: Final = (
    "    "  # before each line of a traceback: no line that begins in column 1 comes from anywhere but the log
)


def printable(text: str) -> str:
    """`text` in one line without anything that a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class PrintableFormatter(logging.Formatter):
    """One line for each message, whatever its arguments hold; tracebacks follow, indented."""

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
