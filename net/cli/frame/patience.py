"""`Patience`: how long a stream waits without getting on. It says meanwhile what it waits for, and why; then it gives up."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from .exit_codes import CommandError, ExitCode

FIRST_WORD_S: Final = 3.0  # Longer than any election: until then there is nothing to worry about.
NEXT_WORD_S: Final = 10.0
T = TypeVar("T")


class Patience:
    """A stream may last for ever; `timeout_s` bounds the time in which nothing of it moves."""

    def __init__(
        self,
        timeout_s: float,
        *,
        note: Callable[[str], None],
        trouble: Callable[[], str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`trouble`: what keeps the client from getting on, "" if it knows of nothing."""
        self._timeout_s = timeout_s
        self._note = note
        self._trouble = trouble
        self._now_s = now_s
        self.moved()

    def moved(self) -> None:
        """Something got on: begin to count again."""
        self._since_s = self._now_s()
        self._word_s = self._since_s + FIRST_WORD_S

    @property
    def left_s(self) -> float:
        """Until there is something to do for `look`."""
        return max(0.0, min(self._since_s + self._timeout_s, self._word_s) - self._now_s())

    def look(self, what: str) -> None:
        """Say a word if it is time for one. Raises CommandError when the time is over."""
        now_s = self._now_s()
        reason = self._trouble()
        because = f": {reason}" if reason else ""
        if now_s - self._since_s >= self._timeout_s:
            raise CommandError(
                f"waited {self._timeout_s:g} s for {what}{because}; give it longer with --timeout SECONDS",
                ExitCode.UNREACHABLE,
            )
        if now_s >= self._word_s:
            self._word_s = now_s + NEXT_WORD_S
            self._note(f"waiting for {what}{because}")

    async def wait(self, awaitable: Awaitable[T], what: str) -> T:
        """Wait for one step of the stream; it counts as progress when it is done."""
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
