"""`barnabas topic produce`: send each line of a file or stdin as a record. Memory does not grow with the input."""

import os
import sys
import time
from argparse import ArgumentParser
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..frame.command import Context, key_value, number_from
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.lines import chunks_of_lines
from ..frame.patience import Patience
from ..frame.progress import Progress
from ..records.json_records import line_of
from ..records.places import time_ms
from ..records.templates import LineReader, ReadFields, check_format, is_template

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.producer.producer import Producer

# Chunks sent and not yet acknowledged. Enough to keep the pipeline full, few enough to bound the memory for handles.
MAX_CHUNKS_IN_FLIGHT: Final = 8
MAX_TOPICS: Final = 10_000  # named by the lines of one input; each is looked up once
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="the topic; without it, with -f json, each line names its topic"
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="the input; default: stdin")
    parser.add_argument("-k", "--key-separator", metavar="SEP", help="split key and value at the first SEP of a line")
    parser.add_argument("-K", "--key", metavar="KEY", help="the key of all records")
    parser.add_argument(
        "-H",
        "--header",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of all records (repeatable)",
    )
    parser.add_argument("-p", "--partition", type=number_from(0), metavar="N", help="the partition of all records")
    parser.add_argument("--timestamp", metavar="TIME", help="of all records: ms since 1970, 2026-11-24T10:00Z, or -90m")
    parser.add_argument("-Z", "--tombstones", action="store_true", help="an empty value is a tombstone (null)")
    parser.add_argument("--repartition", action="store_true", help="with -f json: choose partitions by the keys again")
    parser.add_argument("-z", "--compression", choices=COMPRESSIONS, default="none", help="codec; default: none")
    parser.add_argument("--create", action="store_true", help="let the broker create a topic that does not exist")
    parser.add_argument(
        "--acks", choices=("0", "1", "all"), default="all", help="acknowledgements to wait for; default: all"
    )


async def run(context: Context) -> int:
    """Send all lines; report how many were acknowledged."""
    wanted = context.arguments
    send = _sending(context)
    descriptor, total = _open(wanted.file)
    progress = Progress(context.out.stderr, "records", total)
    stream = _Stream(context, send, progress)
    try:
        await stream.run(descriptor)
    finally:
        progress.finish()
        if wanted.file:
            os.close(descriptor)
    sent = stream.sent
    said = "sent" if wanted.acks == "0" else "acknowledged"
    context.out.note(f"{said} {sent} records")
    return ExitCode.OK


class _Outgoing(NamedTuple):
    """A record with the topic that its line names, if it names one."""

    topic: str | None
    fields: ReadFields


Read = Callable[[bytes, int], _Outgoing]
# Hands lines over, of which the first has this number; returns what to await for their acknowledgements.
Send = Callable[["Producer", list[bytes], int, "_Topics"], Awaitable[Awaitable[object]]]


def _sending(context: Context) -> Send:
    """How lines become records. Raises CommandError for arguments that contradict each other."""
    wanted = context.arguments
    check_format(wanted.format)
    if wanted.key_separator and (wanted.format != "text" or wanted.key is not None):
        raise CommandError("-k is for lines of text without -K and without -f: give one of them", ExitCode.USAGE)
    if wanted.key_separator == "":
        raise CommandError("-k: the separator is empty; give one or more characters", ExitCode.USAGE)
    if wanted.name is None and wanted.format != "json":
        raise CommandError("name the topic: barnabas topic produce NAME", ExitCode.USAGE)
    if wanted.repartition and wanted.partition is not None:
        raise CommandError("--repartition and -p contradict each other: give one of them", ExitCode.USAGE)
    stamp_ms = time_ms(wanted.timestamp, "--timestamp", int(time.time() * 1000)) if wanted.timestamp else None
    fixed = ReadFields(
        key=None if wanted.key is None else wanted.key.encode(),
        headers=[(name, value.encode()) for name, value in wanted.header] or None,
        timestamp_ms=stamp_ms,
        partition=wanted.partition,
    )
    separator = wanted.key_separator.encode() if wanted.key_separator else None
    if wanted.format == "text" and stamp_ms is None:
        return _Columns(wanted.name, separator, fixed, is_deleting=wanted.tombstones).send
    read = (
        _json_reader(repartition=wanted.repartition)
        if wanted.format == "json"
        else _text_reader(wanted.format, separator)
    )
    return _Records(wanted.name, read, fixed, is_deleting=wanted.tombstones).send


def _json_reader(*, repartition: bool) -> Read:
    def read(text: bytes, number: int) -> _Outgoing:
        line = line_of(text, number)
        stamp_ms = line.timestamp if line.timestamp is not None and line.timestamp >= 0 else None
        return _Outgoing(
            line.topic,
            ReadFields(
                value=line.value_bytes(number),
                key=line.key_bytes(number),
                headers=line.header_pairs(number) or None,
                timestamp_ms=stamp_ms,
                partition=None if repartition else line.partition,
            ),
        )

    return read


def _text_reader(template: str, separator: bytes | None) -> Read:
    if is_template(template):
        reader = LineReader(template)
        return lambda text, number: _Outgoing(None, reader.read(text, number))

    def read(text: bytes, number: int) -> _Outgoing:
        key, value = _split(text, separator)
        return _Outgoing(None, ReadFields(value=value, key=key))

    return read


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Key and value. A line without the separator is a value without a key, as in Kafka's console producer."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


class _Columns:
    """Lines of text: whole chunks at once."""

    def __init__(self, topic: str, separator: bytes | None, fixed: ReadFields, *, is_deleting: bool) -> None:
        self._topic = topic
        self._separator = separator
        self._fixed = fixed
        self._is_deleting = is_deleting

    async def send(self, producer: "Producer", lines: list[bytes], first: int, topics: "_Topics") -> Awaitable[object]:
        await topics.check(self._topic)
        values: Sequence[bytes | None] = lines
        keys: Sequence[bytes | None] | None = None
        if self._separator is not None:
            pairs = [_split(line, self._separator) for line in lines]
            keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        elif self._fixed.key is not None:
            keys = [self._fixed.key] * len(lines)
        if self._is_deleting:
            values = [value or None for value in values]
        headers = None if self._fixed.headers is None else [self._fixed.headers] * len(lines)
        return await producer.send_many(self._topic, values, keys, headers=headers, partition=self._fixed.partition)


class _Records:
    """Records one by one: each may have a timestamp, headers, a partition and a topic of its own."""

    def __init__(self, topic: str | None, read: Read, fixed: ReadFields, *, is_deleting: bool) -> None:
        self._topic = topic
        self._read = read
        self._fixed = fixed
        self._is_deleting = is_deleting

    async def send(self, producer: "Producer", lines: list[bytes], first: int, topics: "_Topics") -> Awaitable[object]:
        handles = []
        fixed = self._fixed
        for number, text in enumerate(lines, first):
            named, record = self._read(text, number)
            topic = self._topic or named
            if topic is None:
                raise CommandError(f"line {number} names no topic: give NAME, or a field 'topic' in each line")
            count = await topics.check(topic)
            partition = record.partition if fixed.partition is None else fixed.partition
            if partition is not None and count and not 0 <= partition < count:
                raise CommandError(
                    f"line {number}: {topic} has no partition {partition}, its partitions are 0 to {count - 1}; "
                    "--repartition chooses by the keys"
                )
            handles.append(
                await producer.send(
                    topic,
                    (record.value or None) if self._is_deleting else record.value,
                    key=record.key if fixed.key is None else fixed.key,
                    headers=record.headers if fixed.headers is None else [*(record.headers or ()), *fixed.headers],
                    partition=partition,
                    timestamp_ms=record.timestamp_ms if fixed.timestamp_ms is None else fixed.timestamp_ms,
                )
            )
        return _Handles(handles)


class _Handles:
    """Await it for all of them; raises the first error. No coroutine, which would have to be awaited in any case."""

    def __init__(self, handles: Sequence[Awaitable[object]]) -> None:
        self._handles = handles

    def __await__(self) -> Generator[Any, None, None]:
        for handle in self._handles:
            yield from handle.__await__()


class _Topics:
    """Looks a topic up before its first record: the broker may create topics by itself, and a typo must not."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._counts: dict[str, int] = {}

    async def check(self, topic: str) -> int:
        """The number of partitions (0: not known, with --create). Raises UnknownTopicOrPartitionError."""
        if topic not in self._counts:
            if len(self._counts) >= MAX_TOPICS:
                raise CommandError(f"the input names more than {MAX_TOPICS} topics; split it")
            self._counts[topic] = 0 if self._context.arguments.create else await self._count(topic)
        return self._counts[topic]

    async def _count(self, topic: str) -> int:
        async with self._context.connector.admin(self._context.bootstrap) as admin:
            return len((await admin.describe_topic(topic)).partitions)


class _Stream:
    """Sends chunks; the number of chunks in flight is bounded."""

    def __init__(self, context: Context, send: Send, progress: Progress) -> None:
        self._context = context
        self._wanted = context.arguments
        self._send = send
        self._progress = progress
        self._producer: Producer | None = None
        self._waiting: deque[tuple[Awaitable[object], int]] = deque()
        self._patience = Patience(self._wanted.timeout, note=context.out.note, trouble=self._trouble)
        self.sent = 0
        self._acknowledged = 0

    async def run(self, descriptor: int) -> None:
        context, wanted, wait = self._context, self._wanted, self._patience.wait
        topics = _Topics(context)
        where = f"a broker at {context.bootstrap}"
        if wanted.name is not None:
            await wait(topics.check(wanted.name), where)
        async with AsyncExitStack() as stack:
            opening = stack.enter_async_context(
                context.connector.producer(context.bootstrap, acks=wanted.acks, compression=wanted.compression)
            )
            producer = self._producer = await wait(opening, where)
            async for lines in chunks_of_lines(descriptor):
                sending = self._send(producer, lines, self.sent + 1, topics)
                done = await wait(sending, f"room to send to {wanted.name or 'the topics'}")
                self._waiting.append((done, len(lines)))
                self.sent += len(lines)
                self._progress.advance(sum(map(len, lines)) + len(lines), len(lines))
                if len(self._waiting) > MAX_CHUNKS_IN_FLIGHT:
                    await self._acknowledge()
            await wait(producer.flush(), self._what())
            while self._waiting:
                await self._acknowledge()

    async def _acknowledge(self) -> None:
        done, count = self._waiting.popleft()
        await self._patience.wait(done, self._what())
        self._acknowledged += count

    def _what(self) -> str:
        return f"acknowledgements ({self._acknowledged} of {self.sent} records are acknowledged)"

    def _trouble(self) -> str:
        if self._producer is None:
            return ""
        client = self._producer.client
        return client.trouble() or client.unanswered()


def _open(path: str | None) -> tuple[int, int | None]:
    """The file descriptor to read, and the size if it is known."""
    if path is None or path == "-":
        return sys.stdin.fileno(), None
    try:
        return os.open(path, os.O_RDONLY), Path(path).stat().st_size or None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
