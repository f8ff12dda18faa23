"""SIGTERM and Ctrl-C, for everything in this process that wants to end cleanly.

The first signal is for all of them. Then the former handlers are back, so that a second one ends a process whose handlers hang.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..connection.errors import InvalidConfigError

NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)

_wanting: Final[list[Callable[[], object]]] = []
_before: Final[dict[int, Any]] = {}  # empty unless our handlers are installed


@contextmanager
def called_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """`stop` is called in the main thread, between any two of its steps: it may only do what is allowed there, such as
    `call_soon_threadsafe`. Raises InvalidConfigError outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidConfigError("stop_on_signals works only in the main thread: set an event given as `stop` instead")
    if not _wanting:
        _install()
    _wanting.append(stop)
    try:
        yield
    finally:
        _wanting.remove(stop)
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
    for stop in _wanting:
        stop()
