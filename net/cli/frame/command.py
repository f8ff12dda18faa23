"""The definition of a verb: a name, its arguments and a coroutine. Each noun's module has a table `VERBS`."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `broker start` and `up` are verbs too, and must not import the client's modules
    from .connector import Connector
    from .output import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The input of a command: its arguments, its output and its connection to a cluster."""

    arguments: Namespace
    out: "Output"
    connector: "Connector"
    bootstrap: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """`run` connects to a cluster; `serve` runs a process with its own event loop. A verb has exactly one of them.

    `timed`: --timeout bounds the whole command. For a stream, --timeout bounds the time without progress (`patience`).
    """

    name: str
    summary: str
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Context], Awaitable[int]] | None = None
    serve: Callable[[Namespace], int] | None = None
    timed: bool = True
    has_templates: bool = False  # --format also takes a format string (`records.templates`)
    hidden: bool = False  # exists only to report what is missing; not listed in the help


def key_value(text: str) -> tuple[str, str]:
    """The argparse type of `-c key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def number_from(least: int) -> Callable[[str], int]:
    """The argparse type of a count or an id."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise ArgumentTypeError(f"{text}: give an integer of at least {least}")
        return found

    return number


def no_arguments(parser: ArgumentParser) -> None:
    """For verbs without arguments."""


def name_argument(what: str) -> Callable[[ArgumentParser], None]:
    """For verbs that take exactly one name."""

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar=what, help=f"the {what.lower()}")

    return add
