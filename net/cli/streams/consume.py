"""`barnabas topic consume`: print records as lines. With a group, stdout is flushed before each commit, so no record is lost."""

import base64
import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from barnabas.consumer_groups.offsets.offsets_topic import decoded
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, TopicPartition
from barnabas.net.client.admin.group_seek import positions
from barnabas.net.protocol.responses import TopicMetadata

from ..frame.command import Context, number_from
from ..frame.exit_codes import CommandError, ExitCode, message_of
from ..frame.patience import Patience

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.connection.records import ConsumerRecord

    from ..frame.connector import PrintedConsumer

POLL_MS: Final = 500
COMMIT_INTERVAL_S: Final = 1.0


def arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument(
        "-o",
        "--offset",
        default="start",
        metavar="WHERE",
        help="where to start: start, end, an offset N, or @timestamp in ms",
    )
    parser.add_argument(
        "-p",
        "--partition",
        type=int,
        action="append",
        metavar="N",
        help="read only this partition (repeatable); not with -g",
    )
    parser.add_argument("-n", "--num", type=number_from(0), metavar="N", help="stop after N records")
    parser.add_argument("-g", "--group", metavar="GROUP", help="join the group, continue from its offsets and commit")
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed: leave out records of aborted transactions, and stop before open ones (default: %(default)s)",
    )
    parser.add_argument("--formatter", choices=("offsets",), help="offsets: show records of __consumer_offsets as JSON")
    parser.add_argument("--follow", action="store_true", help="wait for new records instead of stopping at the end")


async def run(context: Context) -> int:
    """Print the records of the range that the arguments select."""
    wanted = context.arguments
    if wanted.group and wanted.partition:
        raise CommandError("-p does not go with -g: the group assigns partitions", ExitCode.USAGE)
    if wanted.formatter == "offsets" and wanted.name != CONSUMER_OFFSETS_TOPIC:
        raise CommandError(f"--formatter offsets is for {CONSUMER_OFFSETS_TOPIC} only", ExitCode.USAGE)
    check_position(wanted.offset)
    patience = Patience(wanted.timeout, note=context.out.note, trouble=lambda: "")
    starts, ends = await patience.wait(
        _bounds(context), f"the brokers that lead {wanted.name} (asked at {context.bootstrap})"
    )
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(
            context.connector.consumer(
                context.bootstrap,
                topics=[wanted.name],
                group=wanted.group,
                start=wanted.offset,
                isolation_level=wanted.isolation,
            )
        )
        consumer = await patience.wait(opening, f"a broker at {context.bootstrap}")
        if not wanted.group:
            consumer.assign(starts)
        await _Reader(context, consumer, ends).read()
    return ExitCode.OK


async def _bounds(context: Context) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """The range to read: start and end of each partition."""
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        topic = await admin.describe_topic(wanted.name)
        partitions = chosen_partitions(topic, wanted.partition)
        level = wanted.isolation
        starts = {} if wanted.group else await positions(admin, partitions, wanted.offset, isolation_level=level)
        ends = {} if wanted.follow else await positions(admin, partitions, "end", isolation_level=level)
    return starts, ends


def check_position(text: str) -> None:
    """Refuse an invalid position before connecting."""
    if text not in ("start", "end") and not text.removeprefix("@").isdigit():
        raise CommandError(f"-o {text}: give start, end, an offset or @timestamp in ms", ExitCode.USAGE)


def chosen_partitions(topic: TopicMetadata, chosen: Sequence[int] | None) -> list[TopicPartition]:
    """The requested partitions (None: all). Refuses a partition that does not exist before reading anything."""
    count = len(topic.partitions)
    for partition in chosen or ():
        if not 0 <= partition < count:
            raise CommandError(f"{topic.name} has no partition {partition}; its partitions are 0 to {count - 1}")
    return [TopicPartition(topic.name, partition) for partition in chosen or range(count)]


class _Reader:
    """One run of the command: counts records, decides when to stop, flushes and commits."""

    def __init__(self, context: Context, consumer: "PrintedConsumer", ends: Mapping[TopicPartition, int]) -> None:
        self._consumer = consumer
        self._note = context.out.note
        self._follow: bool = context.arguments.follow
        self._left: int | None = context.arguments.num
        self._group: str | None = context.arguments.group
        self._show = _as_json if context.out.is_json else _as_line
        if context.arguments.formatter == "offsets":
            self._show = _as_offsets
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
        self._stdout.write(self._show(record))
        self._printed[place] = record.offset + 1
        if self._left is not None:
            self._left -= 1
        return self._left != 0

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


def _as_json(record: "ConsumerRecord") -> bytes:
    row: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        row |= _text_or_base64(name, data)
    if record.headers:
        row["headers"] = [{"key": key, **_text_or_base64("value", value)} for key, value in record.headers]
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _as_offsets(record: "ConsumerRecord") -> bytes:
    told = decoded(record.key, record.value)
    return json.dumps({"slot": record.partition, "at": record.offset, **told}, ensure_ascii=False).encode() + b"\n"


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """JSON has no bytes: a value that is not UTF-8 is printed as base64 under another name, so that the two are not confused."""
    try:
        return {name: None if data is None else bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
