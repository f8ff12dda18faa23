"""`Patience`: how long a stream waits without progress. Meanwhile it reports what it waits for, and why; then it fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from .exit_codes import CommandError, ExitCode

FIRST_WORD_S: Final = 3.0  # Longer than any election: a shorter wait is normal.
NEXT_WORD_S: Final = 10.0
T = TypeVar("T")


class Patience:
    """A stream has no total time limit; `timeout_s` bounds the time without progress."""

    def __init__(
        self,
        timeout_s: float,
        *,
        note: Callable[[str], None],
        trouble: Callable[[], str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`trouble` returns why the client makes no progress, "" if there is no known reason."""
        self._timeout_s = timeout_s
        self._note = note
        self._trouble = trouble
        self._now_s = now_s
        self.moved()

    def moved(self) -> None:
        """The stream made progress: restart the timeout."""
        self._since_s = self._now_s()
        self._word_s = self._since_s + FIRST_WORD_S

    @property
    def left_s(self) -> float:
        """Seconds until `look` must be called next."""
        return max(0.0, min(self._since_s + self._timeout_s, self._word_s) - self._now_s())

    def look(self, what: str) -> None:
        """Print a status line if one is due. Raises CommandError when the timeout has passed."""
        now_s = self._now_s()
        reason = self._trouble()
        because = f": {reason}" if reason else ""
        if now_s - self._since_s >= self._timeout_s:
            raise CommandError(
                f"waited {self._timeout_s:g} s for {what}{because}; raise the limit with --timeout SECONDS",
                ExitCode.UNREACHABLE,
            )
        if now_s >= self._word_s:
            self._word_s = now_s + NEXT_WORD_S
            self._note(f"waiting for {what}{because}")

    async def wait(self, awaitable: Awaitable[T], what: str) -> T:
        """Wait for one step of the stream; its completion counts as progress."""
        self.moved()
        step = asyncio.ensure_future(awaitable)
        try:
            while not (await asyncio.wait([step], timeout=self.left_s))[0]:
                self.look(what)
            return step.result()
        finally:
            if not step.done():
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
            self.moved()
