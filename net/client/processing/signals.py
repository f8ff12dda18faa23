"""SIGTERM and Ctrl-C, for everything in this process that wants to end cleanly.

The first signal is for all of them. Then the former handlers are back, so that a second one ends a process whose handlers hang.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..connection.errors import InvalidConfigError

NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)

_wanting: Final[list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = []
_before: Final[dict[int, Any]] = {}  # empty unless our handlers are installed


@contextmanager
def set_on_signals(event: asyncio.Event) -> Iterator[None]:
    """Raises InvalidConfigError outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidConfigError("stop_on_signals works only in the main thread: set an event given as `stop` instead")
    mine = (asyncio.get_running_loop(), event)
    if not _wanting:
        _install()
    _wanting.append(mine)
    try:
        yield
    finally:
        _wanting.remove(mine)
        if not _wanting:
            _restore()


def _install() -> None:
    # Not the loop's `add_signal_handler`: what the application has registered there could not be put back.
    for number in NUMBERS:
        _before[number] = signal.signal(number, _received)


def _restore() -> None:
    for number, former in _before.items():
        signal.signal(number, signal.SIG_DFL if former is None else former)
    _before.clear()


def _received(number: int, frame: object) -> None:
    _restore()
    for loop, event in _wanting:
        loop.call_soon_threadsafe(event.set)
