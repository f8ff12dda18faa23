"""Lines of a file, a pipe or a terminal, read without blocking the event loop and without holding more than one chunk."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import Final

from .exit_codes import CommandError

CHUNK_BYTES: Final = 256 * 1024
# A line becomes one record; brokers refuse batches of more than message.max.bytes (1 MiB by default) anyway.
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


async def chunks_of_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield whole lines without their line endings, in chunks. A last line without a newline counts too."""
    rest = b""
    regular = stat.S_ISREG(
        os.fstat(descriptor).st_mode
    )  # the selector cannot watch these, and they never block for long
    while True:
        if not regular:
            await _readable(descriptor)
        read = os.read(descriptor, CHUNK_BYTES)
        if not read:
            break
        lines = (rest + read).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE_BYTES:
            raise CommandError(f"a line is longer than {MAX_LINE_BYTES} bytes; split the input into lines")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except PermissionError:  # epoll refuses /dev/null and similar files, which are always readable
        return
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
