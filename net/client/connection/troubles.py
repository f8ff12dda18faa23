"""`Troubles`: what a client cannot do now, since when, and why. Pure.

A retriable error is the client's own affair for some seconds: leaders move, brokers restart. One that lasts is told, as otherwise
an application waits without a word: in the log, and to whoever asks (`oldest`), as the command line does before it gives up.
"""

from .errors import BarnabasError

QUIET_MS = 3_000  # An election and a new connection fit in: what is over by then was nobody's concern.
AGAIN_MS = 60_000  # A trouble that stays is told once a minute: often enough to be found, too rarely to fill a disk.
MAX_TROUBLES = 1_000  # By then the first ones tell what is wrong.


class _Trouble:
    __slots__ = ("error", "since_ms", "told_ms")

    def __init__(self, error: BarnabasError, since_ms: int) -> None:
        self.error = error
        self.since_ms = since_ms
        self.told_ms: int | None = None


class Troubles:
    def __init__(self) -> None:
        self._of: dict[str, _Trouble] = {}  # The oldest first.

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def oldest(self) -> BarnabasError | None:
        return next((trouble.error for trouble in self._of.values()), None)

    def failed(self, what: str, error: BarnabasError, now_ms: int) -> bool:
        """Returns whether it has lasted for so long that it is to be told now."""
        trouble = self._of.get(what)
        if trouble is None:
            if len(self._of) >= MAX_TROUBLES:
                return False
            trouble = self._of[what] = _Trouble(error, now_ms)
        trouble.error = error
        is_due = now_ms - trouble.since_ms >= QUIET_MS and (
            trouble.told_ms is None or now_ms - trouble.told_ms >= AGAIN_MS
        )
        if is_due:
            trouble.told_ms = now_ms
        return is_due

    def works(self, what: str) -> None:
        """It goes again, or is of no concern any more."""
        self._of.pop(what, None)

    def keep(self, prefix: str, whats: set[str]) -> None:
        """Of those that begin so, only these are of concern."""
        for what in [what for what in self._of if what.startswith(prefix) and what not in whats]:
            del self._of[what]
