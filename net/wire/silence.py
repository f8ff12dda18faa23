"""Detects a peer that is frozen, or behind a broken link: its connections stay open, and no byte arrives."""

import asyncio
from collections.abc import Callable
from typing import Final

SILENCES_OF_THE_DEAD: Final = (
    2  # After the first probe; one missed check of a busy machine does not mean that it is dead.
)


class SilenceWatch:
    """Runs while responses are due. After one `silence_ms` without a byte, it sends a probe. After two more, the peer counts as
    dead, even if the socket is open."""

    __slots__ = ("_dead", "_is_due", "_probe", "_silence_ms", "_silences", "has_heard", "timer")

    def __init__(
        self,
        silence_ms: int,
        *,
        is_due: Callable[[], bool],
        probe: Callable[[], None],
        dead: Callable[[int], None],
    ) -> None:
        """`is_due`: whether a response is due. `probe` sends a request that the peer answers at once; any byte is enough.
        `dead` gets the time of the silence in ms."""
        self.has_heard = False  # Any byte, since the last check.
        self._silence_ms = silence_ms
        self._is_due = is_due
        self._probe = probe
        self._dead = dead
        self._silences = 0  # Consecutive checks without a byte.
        self.timer: asyncio.TimerHandle | None = None  # None: the watch does not run.

    def start(self) -> None:
        self._silences = 0
        self._schedule()

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._is_due = _never  # Reference cycles would keep the connection until the next full collection.
        self._probe = self._dead = _nothing

    def _schedule(self) -> None:
        self.has_heard = False
        self.timer = asyncio.get_running_loop().call_later(self._silence_ms / 1000, self._look)

    def _look(self) -> None:
        self.timer = None
        if not self._is_due():
            return  # The next request starts the watch again.
        self._silences = 0 if self.has_heard else self._silences + 1
        if self._silences > SILENCES_OF_THE_DEAD:
            self._dead(self._silences * self._silence_ms)
            return
        if self._silences:
            self._probe()
        self._schedule()


def _never() -> bool:
    return False


def _nothing(silent_ms: int = 0) -> None:
    pass
