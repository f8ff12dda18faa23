"""`barnabas topic produce`: send each line of a file or stdin as a record. Memory does not grow with the input."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..frame.command import Context
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.lines import chunks_of_lines
from ..frame.patience import Patience
from ..frame.progress import Progress

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.producer.producer import Producer

# Chunks sent and not yet acknowledged. Enough to keep the pipeline full, few enough to bound the memory for handles.
MAX_CHUNKS_IN_FLIGHT: Final = 8


def arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the input; default: stdin")
    parser.add_argument("-k", "--key-separator", metavar="SEP", help="split key and value at the first SEP of a line")
    parser.add_argument(
        "--acks", choices=("0", "1", "all"), default="all", help="acknowledgements to wait for; default: all"
    )


async def run(context: Context) -> int:
    """Send all lines; report how many were acknowledged."""
    wanted = context.arguments
    descriptor, total = _open(wanted.file)
    separator = wanted.key_separator.encode() if wanted.key_separator else None
    progress = Progress(context.out.stderr, "records", total)
    stream = _Stream(context, wanted, progress)
    try:
        await stream.run(descriptor, separator)
    finally:
        progress.finish()
        if wanted.file:
            os.close(descriptor)
    sent = stream.sent
    said = "sent" if wanted.acks == "0" else "acknowledged"
    context.out.note(f"{said} {sent} records")
    return ExitCode.OK


class _Stream:
    """Sends chunks; the number of chunks in flight is bounded."""

    def __init__(self, context: Context, wanted: Namespace, progress: Progress) -> None:
        self._context = context
        self._wanted = wanted
        self._progress = progress
        self._producer: Producer | None = None
        self._waiting: deque[tuple[Awaitable[object], int]] = deque()
        self._patience = Patience(wanted.timeout, note=context.out.note, trouble=self._trouble)
        self.sent = 0
        self._acknowledged = 0

    async def run(self, descriptor: int, separator: bytes | None) -> None:
        context, wait = self._context, self._patience.wait
        async with AsyncExitStack() as stack:
            opening = stack.enter_async_context(context.connector.producer(context.bootstrap, acks=self._wanted.acks))
            producer = self._producer = await wait(opening, f"a broker at {context.bootstrap}")
            async for lines in chunks_of_lines(descriptor):
                sending = _send(producer, self._wanted.name, lines, separator)
                done = await wait(sending, f"room to send to {self._wanted.name}")
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


async def _send(producer: "Producer", topic: str, lines: list[bytes], separator: bytes | None) -> Awaitable[object]:
    if separator is None:
        return await producer.send_many(topic, lines, None)
    values: list[bytes] = []
    keys: list[bytes | None] = []
    for line in lines:
        key, found, value = line.partition(separator)
        # A line without the separator is a value without a key, as in Kafka's console producer.
        keys.append(key if found else None)
        values.append(value if found else line)
    return await producer.send_many(topic, values, keys)
