"""`barnabas topic consume`: print records as lines. With a group, stdout is flushed before each commit, so no record is lost."""

import json
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.consumer_groups.offsets.offsets_topic import decoded
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import NamePattern
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, TopicPartition
from barnabas.net.wire.protocol.responses import TopicMetadata

from ..frame.command import Context, number_from
from ..frame.exit_codes import CommandError, ExitCode, message_of
from ..frame.patience import Patience
from ..records.json_records import as_json
from ..records.places import WHERES, Span, offsets_of, span_of
from ..records.templates import check_format, is_template, writer_of

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.connection.records import ConsumerRecord

    from ..frame.connector import PrintedConsumer

POLL_MS: Final = 500
MAX_TOLD: Final = 3  # partitions in a note
COMMIT_INTERVAL_S: Final = 1.0
Show = Callable[["ConsumerRecord"], bytes]


class _Selection(NamedTuple):
    """What to read. `starts` is empty with a group, `ends` with --follow."""

    topics: Sequence[str]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", metavar="NAME", nargs="+", help="the topics")
    parser.add_argument(
        "-r",
        "--regex",
        action="store_true",
        help="NAMEs are patterns (RE2) of whole names; topics that exist now are read",
    )
    parser.add_argument("-o", "--offset", default="start", metavar="WHERE", help=f"where to start: {WHERES}")
    parser.add_argument(
        "-p",
        "--partition",
        type=number_from(0),
        action="append",
        metavar="N",
        help="read only this partition (repeatable); not with -g",
    )
    parser.add_argument("-n", "--num", type=number_from(0), metavar="N", help="stop after N records")
    parser.add_argument(
        "--grep", type=_pattern, metavar="RE", help="only records whose key or value matches; (?i) ignores case"
    )
    parser.add_argument("--grep-key", type=_pattern, metavar="RE", help="only records whose key matches")
    parser.add_argument("--grep-value", type=_pattern, metavar="RE", help="only records whose value matches")
    parser.add_argument("-g", "--group", metavar="GROUP", help="join the group, continue from its offsets and commit")
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed: leave out records of aborted transactions, and stop before open ones (default: %(default)s)",
    )
    parser.add_argument("--formatter", choices=("offsets",), help="offsets: show records of __consumer_offsets as JSON")
    parser.add_argument("--follow", action="store_true", help="wait for new records instead of stopping at the end")


def _pattern(text: str) -> re.Pattern[bytes]:
    """The argparse type of --grep."""
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise ArgumentTypeError(f"{text} is no regular expression: {error}") from None


async def run(context: Context) -> int:
    """Print the records of the range that the arguments select."""
    wanted = context.arguments
    span = span_of(wanted.offset, int(time.time() * 1000))
    show = _shown_by(context)
    _check(context, span)
    patience = Patience(wanted.timeout, note=context.out.note, trouble=lambda: "")
    selection = await patience.wait(
        _selection(context, span), f"the brokers that lead {', '.join(wanted.name)} (asked at {context.bootstrap})"
    )
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(
            context.connector.consumer(
                context.bootstrap,
                topics=selection.topics,
                group=wanted.group,
                start=span.first,
                isolation_level=wanted.isolation,
            )
        )
        consumer = await patience.wait(opening, f"a broker at {context.bootstrap}")
        if not wanted.group:
            consumer.assign(selection.starts)
        await _Reader(context, consumer, selection.ends, show).read()
    return ExitCode.OK


def _shown_by(context: Context) -> Show:
    """The function that writes a record. Raises CommandError for a format that does not exist."""
    text = context.arguments.format
    check_format(text)
    if context.arguments.formatter == "offsets":
        return _as_offsets
    return writer_of(text) if is_template(text) else as_json if text == "json" else _as_line


def _check(context: Context, span: Span) -> None:
    """Refuse arguments that contradict each other before connecting."""
    wanted = context.arguments
    if wanted.group and wanted.partition:
        raise CommandError("-p does not go with -g: the group assigns partitions", ExitCode.USAGE)
    if wanted.formatter == "offsets" and wanted.name != [CONSUMER_OFFSETS_TOPIC]:
        raise CommandError(f"--formatter offsets is for {CONSUMER_OFFSETS_TOPIC} only", ExitCode.USAGE)
    if wanted.follow and span.end:
        raise CommandError(
            f"-o {wanted.offset} has an end, and --follow has none: leave one of them out", ExitCode.USAGE
        )
    if wanted.group and (span.end or span.first.startswith("-")):
        raise CommandError(
            f"-o {wanted.offset} does not go with -g: a group continues from its offsets; leave -g out, or move the group with "
            "`barnabas group seek`",
            ExitCode.USAGE,
        )


async def _selection(context: Context, span: Span) -> _Selection:
    """The topics, and start and end of each partition."""
    wanted = context.arguments
    level = wanted.isolation
    async with context.connector.admin(context.bootstrap) as admin:
        topics = await _named(admin, wanted.name, is_regex=wanted.regex)
        partitions = [place for topic in topics for place in chosen_partitions(topic, wanted.partition)]
        starts, ends = dict[TopicPartition, int](), dict[TopicPartition, int]()
        if not wanted.group:
            starts |= await offsets_of(admin, partitions, span.first, isolation_level=level)
        if not wanted.follow:
            ends |= await offsets_of(admin, partitions, "end", isolation_level=level)
        if span.end:
            until = await offsets_of(admin, partitions, span.end, isolation_level=level)
            ends = {place: min(end, until[place]) for place, end in ends.items()}
    if starts and ends.keys() == starts.keys() and all(starts[place] >= end for place, end in ends.items()):
        _tell_empty(context, starts, ends)
    return _Selection([topic.name for topic in topics], starts, ends)


def _tell_empty(context: Context, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """That nothing is printed has a reason, and it may be a mistake in -o."""
    if context.arguments.offset in ("start", "end"):
        return
    shown = [f"{place} ends at {ends[place]}, asked from {starts[place]}" for place in sorted(ends)[:MAX_TOLD]]
    rest = f", and {len(ends) - len(shown)} more partitions" if len(ends) > len(shown) else ""
    context.out.note(f"-o {context.arguments.offset} has no records: {'; '.join(shown)}{rest}")


async def _named(admin: "Admin", names: Sequence[str], *, is_regex: bool) -> list[TopicMetadata]:
    """The topics that the arguments name. Raises CommandError: a pattern is invalid, or has no topic."""
    if not is_regex:
        return [await admin.describe_topic(name) for name in dict.fromkeys(names)]
    try:
        patterns = [NamePattern(name) for name in names]
    except InvalidRegularExpressionError as error:
        raise CommandError(error.message, ExitCode.USAGE) from None
    known = await admin.describe_topics()
    for pattern in patterns:
        if not any(pattern.matches(topic.name) for topic in known):
            raise CommandError(f"no topic matches {pattern.text}; see them all: barnabas topic list")
    return [topic for topic in known if not topic.internal and any(one.matches(topic.name) for one in patterns)]


def chosen_partitions(topic: TopicMetadata, chosen: Sequence[int] | None) -> list[TopicPartition]:
    """The requested partitions (None: all). Refuses a partition that does not exist before reading anything."""
    count = len(topic.partitions)
    for partition in chosen or ():
        if not 0 <= partition < count:
            raise CommandError(f"{topic.name} has no partition {partition}; its partitions are 0 to {count - 1}")
    return [TopicPartition(topic.name, partition) for partition in chosen or range(count)]


class _Reader:
    """One run of the command: counts records, decides when to stop, flushes and commits."""

    def __init__(
        self, context: Context, consumer: "PrintedConsumer", ends: Mapping[TopicPartition, int], show: Show
    ) -> None:
        self._consumer = consumer
        self._note = context.out.note
        self._follow: bool = context.arguments.follow
        self._left: int | None = context.arguments.num
        self._group: str | None = context.arguments.group
        self._show = show
        wanted = context.arguments
        self._greps = (wanted.grep, wanted.grep_key, wanted.grep_value)
        self._is_grepping = any(self._greps)
        self._ends = ends
        self._has_owned = False
        self._stdout = sys.stdout.buffer
        self._printed: dict[
            TopicPartition, int
        ] = {}  # next offset after the printed records that are not yet committed
        self._committed_s = time.monotonic()
        self._patience = Patience(context.arguments.timeout, note=context.out.note, trouble=consumer.trouble)
        # For single steps: their completion is no progress of the stream.
        self._step = Patience(context.arguments.timeout, note=context.out.note, trouble=consumer.trouble)

    async def read(self) -> None:
        try:
            while not await self._is_done():
                records = list(await self._consumer.poll(POLL_MS))
                self._look(has_moved=bool(records))
                for place in self._consumer.take_assigned():
                    self._printed.pop(place, None)  # Another member may have committed a later offset since.
                for record in records:
                    if not self._print(record):
                        return
                self._stdout.flush()
                if time.monotonic() - self._committed_s >= COMMIT_INTERVAL_S:
                    await self._commit_or_later()
        finally:
            await self._commit()

    def _look(self, *, has_moved: bool) -> None:
        """With --follow, wait for records without a limit while there is no problem."""
        if has_moved or (self._follow and not self._consumer.trouble()):
            self._patience.moved()
        else:
            self._patience.look(
                "partitions of the group" if self._group and not self._has_owned else "records before the end"
            )

    def _print(self, record: "ConsumerRecord") -> bool:
        """False: `-n` records were printed."""
        place = TopicPartition(record.topic, record.partition)
        if not self._follow and record.offset >= self._ends.get(place, record.offset + 1):
            return True  # the partition was added after the start, when the ends were fixed
        if self._left == 0:
            return False
        self._printed[place] = record.offset + 1
        if self._is_grepping and not self._is_match(record):
            return True
        self._stdout.write(self._show(record))
        if self._left is not None:
            self._left -= 1
        return self._left != 0

    def _is_match(self, record: "ConsumerRecord") -> bool:
        anywhere, in_key, in_value = self._greps
        key, value = record.key or b"", record.value or b""
        return (
            (anywhere is None or bool(anywhere.search(key) or anywhere.search(value)))
            and (in_key is None or bool(in_key.search(key)))
            and (in_value is None or bool(in_value.search(value)))
        )

    async def _is_done(self) -> bool:
        if self._left == 0:
            return True
        if self._follow:
            return False
        owned = await self._step.wait(self._consumer.positions(), "the positions to read from")
        self._has_owned = bool(owned)
        return bool(owned) and all(position >= self._ends.get(place, 0) for place, position in owned.items())

    async def _commit_or_later(self) -> None:
        """A moving coordinator may be unavailable for longer than one commit retries: the next commit covers this one."""
        printed = dict(self._printed)
        try:
            await self._commit()
        except BarnabasError as error:
            if not error.retriable:
                raise
            self._printed = printed
            self._note(f"could not commit, trying again: {message_of(error)}")

    async def _commit(self) -> None:
        self._stdout.flush()  # before the commit: what a group has committed, its reader has seen
        self._committed_s = time.monotonic()
        if self._group and self._printed:
            printed, self._printed = self._printed, {}
            await self._consumer.commit(printed)


def _as_line(record: "ConsumerRecord") -> bytes:
    return (record.value or b"") + b"\n"


def _as_offsets(record: "ConsumerRecord") -> bytes:
    told = decoded(record.key, record.value)
    return json.dumps({"slot": record.partition, "at": record.offset, **told}, ensure_ascii=False).encode() + b"\n"
