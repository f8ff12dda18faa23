"""What the commands share that run until a signal arrives, and copy into topics under a name."""

import asyncio
import logging
import re
import signal
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ..frame.exit_codes import CommandError, ExitCode
from .produce import COMPRESSIONS

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_Result = TypeVar("_Result")


def compression_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--compression", choices=COMPRESSIONS, default="lz4", help="default: %(default)s")


def checked_name(name: str) -> str:
    """Raises CommandError for what is not good for keys of positions and transactional ids."""
    if not _NAME.fullmatch(name):
        raise CommandError(f"--name {name}: use up to 100 letters, digits, '.', '_' and '-'", ExitCode.USAGE)
    return name


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


async def until_signalled(run: Callable[[], Awaitable[_Result]], stop: Callable[[], None]) -> _Result:
    """The result of `run`, which `stop` ends at SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await run()
