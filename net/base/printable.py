"""Escapes untrusted text (client ids, group ids, topics, hosts) for logs and terminals. Pure.

A newline in a client id would forge a line of the log, an escape sequence would control the reader's terminal, and characters
that change the direction of writing would hide text. They are shown as Python escapes: `\\n`, `\\x1b`, `\\u202e`.
"""

import codecs
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

# Loaded now: Python would look for its module at the first use, which fails where no descriptor is left, as the log is to say.
_ENCODE: Final = codecs.lookup("unicode_escape").encode
_NEEDS_QUOTES: Final = frozenset(' "=\\')  # in a value, beside what is not printable
INDENT: Final = "    "  # before each line of a traceback, so that only log messages begin in column 1


def printable(text: str) -> str:
    """`text` in one line, without control characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _ENCODE(char)[0].decode() for char in text)


def key_values(fields: Mapping[str, str]) -> str:
    """`key=value` pairs on one line. A value that could look like something else is quoted: clients choose some of them."""
    return " ".join(f"{key}={_value(value)}" for key, value in fields.items())


def _value(value: str) -> str:
    if value and value.isprintable() and _NEEDS_QUOTES.isdisjoint(value):
        return value
    return printable(json.dumps(value, ensure_ascii=False))


class PrintableFormatter(logging.Formatter):
    """One line for each message, whatever its arguments contain; an indented traceback may follow."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    """One JSON object for each message, on one line, with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _time(record: logging.LogRecord) -> str:
    """With the zone of this machine: brokers of one cluster may run in several."""
    return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")


def _indented(text: str) -> str:
    return "\n".join(INDENT + printable(line) for line in text.split("\n"))
