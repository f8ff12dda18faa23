"""`barnabas cluster events`: what has happened in the cluster; with --follow, also what happens from now on."""

import asyncio
import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.wire.protocol.event_messages import MAX_PAGE, EventKind

from ...base.near_words import did_you_mean
from ..frame.ages import age_ms
from ..frame.command import Context, number_from
from ..frame.confirmation import exit_code_in

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.admin.events import EventPage

FOLLOW_MS: Final = 5_000  # of one question: brokers that were added are asked after this time at the latest
AGAIN_S: Final = 1.0  # after no broker has answered


def count(text: str) -> int:
    """The argparse type of `-n`: brokers answer with one page."""
    found = number_from(1)(text)
    if found > MAX_PAGE:
        raise ArgumentTypeError(
            f"{text}: give at most {MAX_PAGE}, and select with --since, --kind, --topic and --broker"
        )
    return found


def kinds(text: str) -> tuple[str, ...]:
    """The argparse type of `isr,election`: kinds, or names of events."""
    return tuple(word for word in text.split(",") if word)


def arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("--follow", action="store_true", help="wait for new events, until Ctrl-C")
    parser.add_argument("--since", type=age_ms, metavar="AGE", help="only events of this time: 30s, 10m, 2h, 7d")
    parser.add_argument(
        "--kind",
        type=kinds,
        default=(),
        metavar="KIND[,KIND]",
        help=f"{', '.join(EventKind)}; or names of events (fenced, elected)",
    )
    parser.add_argument("--topic", default="", metavar="TOPIC", help="only events about this topic")
    parser.add_argument("--broker", type=number_from(0), default=-1, metavar="N", help="only events about this broker")
    parser.add_argument(
        "-n",
        "--num",
        type=count,
        default=100,
        metavar="N",
        help=f"the newest N events, at most {MAX_PAGE} (default: %(default)s)",
    )


async def events(context: Context) -> int:
    """Exit code 3 if no quorum confirms the metadata."""
    given = context.arguments
    since_ms = -1 if given.since is None else int(time.time() * 1000) - given.since
    async with context.connector.admin(context.bootstrap) as admin:
        page = await admin.events(
            since_ms=since_ms, kinds=given.kind, topic=given.topic, broker=given.broker, limit=given.num
        )
        notes = _Notes(context)
        if context.out.is_json and not given.follow:
            context.out.record(
                {
                    "events": [item.row for item in page.events],
                    "unanswered": {str(node): why for node, why in page.unanswered.items()},
                    "unconfirmed": page.doubt,
                    "cursor": page.cursor,
                    "has_more": page.has_more,
                }
            )
        else:
            _print(context, page)
        notes.tell(page)
        notes.tell_unknown_kinds(page)
        if given.follow:
            await _follow(context, admin, page.cursor, notes)
    return exit_code_in(page.doubt)


async def _follow(context: Context, admin: "Admin", cursor: str, notes: "_Notes") -> None:
    """Until Ctrl-C; also while no broker answers."""
    given = context.arguments
    while True:
        try:
            page = await admin.events(
                after=cursor, kinds=given.kind, topic=given.topic, broker=given.broker, wait_ms=FOLLOW_MS
            )
        except BarnabasError as error:
            if not error.retriable:
                raise
            notes.tell_silence(str(error))
            await asyncio.sleep(AGAIN_S)
            continue
        cursor = page.cursor
        _print(context, page)
        notes.tell(page)


def _print(context: Context, page: "EventPage") -> None:
    for item in page.events:
        context.out.line(item.line, item.row)
    context.out.stdout.flush()


class _Notes:
    """On stderr: who does not answer, and how old the metadata is. Each is told when it changes."""

    def __init__(self, context: Context) -> None:
        self._out = context.out
        self._kinds: tuple[str, ...] = context.arguments.kind
        self._silent: tuple[int, ...] = ()
        self._has_doubt = False
        self._all_silent = False

    def tell(self, page: "EventPage") -> None:
        self._all_silent = False
        silent = tuple(sorted(page.unanswered))
        if silent != self._silent:
            for node in silent:
                self._out.note(f"broker {node} does not answer: {page.unanswered[node]}")
            if not silent:
                self._out.note("all brokers answer again")
        self._silent = silent
        if page.doubt is not None and not self._has_doubt:
            self._out.note(str(page.doubt["message"]))
        elif page.doubt is None and self._has_doubt:
            self._out.note("the quorum has a leader again")
        self._has_doubt = page.doubt is not None

    def tell_unknown_kinds(self, page: "EventPage") -> None:
        """A word that is no kind may be the name of an event, or a mistake: then an empty answer would look like peace."""
        names = {item.event.name for item in page.events}
        known = [kind.value for kind in EventKind]
        for word in self._kinds:
            if word in known or word in names:
                continue
            self._out.note(f"no event was found by the name {word}, and it is not a kind{did_you_mean(word, known)}")

    def tell_silence(self, why: str) -> None:
        if not self._all_silent:
            self._out.note(f"the cluster does not answer: {why}")
        self._all_silent = True
