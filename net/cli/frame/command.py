"""What a verb is: a name, its arguments and a coroutine. Each noun's module has a table `VERBS` of them."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `broker start` and `up` are verbs too, and must not pay for the client's modules
    from .connector import Connector
    from .output import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """All that a command is given: its arguments, where to print, and how to reach a cluster."""

    arguments: Namespace
    out: "Output"
    connector: "Connector"
    bootstrap: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """`run` speaks to a cluster; `serve` is a process of its own with a loop of its own. A verb has one of them.

    `timed`: the whole command is bounded by --timeout. Of streams, --timeout bounds the time in which nothing moves (`patience`).
    """

    name: str
    summary: str
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Context], Awaitable[int]] | None = None
    serve: Callable[[Namespace], int] | None = None
    timed: bool = True
    hidden: bool = False  # exists so that it can say what is missing; not shown as if it worked


def key_value(text: str) -> tuple[str, str]:
    """The argparse type of `-c key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(text)
    return key.strip(), value.strip()


key_value.__name__ = "key=value"  # argparse shows it: "invalid key=value value"


def number_from(least: int) -> Callable[[str], int]:
    """The argparse type of a count or an id."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise ArgumentTypeError(f"{text}: give a number from {least} on")
        return found

    return number


def no_arguments(parser: ArgumentParser) -> None:
    """For verbs that take none."""


def name_argument(what: str) -> Callable[[ArgumentParser], None]:
    """For verbs that take one name and nothing else."""

    def add(parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar=what, help=f"the {what.lower()}")

    return add
