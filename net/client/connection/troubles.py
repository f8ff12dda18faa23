"""`Troubles`: the failures that a client is retrying, since when, and why. Pure.

For some seconds a retriable error is internal to the client: leaders move, brokers restart. An error that persists is reported,
because the application would otherwise wait without a reason: in the log, and by `oldest`, which the command line prints.
"""

from .errors import BarnabasError

QUIET_MISSING_MS = (
    1_000  # A topic that does not exist is seldom made within the next second: more often its name is wrong.
)
QUIET_MS = 3_000  # Long enough for an election and a new connection: shorter failures are not reported.
AGAIN_MS = 60_000  # A persistent failure is logged once a minute: often enough to be found, too rarely to fill a disk.
MAX_TROUBLES = 1_000  # The first ones are enough to show the problem.


class _Trouble:
    __slots__ = ("error", "since_ms", "told_ms")

    def __init__(self, error: BarnabasError, since_ms: int) -> None:
        self.error = error
        self.since_ms = since_ms
        self.told_ms: int | None = None


class Troubles:
    def __init__(self) -> None:
        self._of: dict[str, _Trouble] = {}  # Oldest first.

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def oldest(self) -> BarnabasError | None:
        return next((trouble.error for trouble in self._of.values()), None)

    def failed(self, what: str, error: BarnabasError, now_ms: int, *, quiet_ms: int = QUIET_MS) -> bool:
        """Record a failure; return whether it is due to be logged now: once it has lasted for `quiet_ms`."""
        trouble = self._of.get(what)
        if trouble is None:
            if len(self._of) >= MAX_TROUBLES:
                return False
            trouble = self._of[what] = _Trouble(error, now_ms)
        trouble.error = error
        is_due = now_ms - trouble.since_ms >= quiet_ms and (
            trouble.told_ms is None or now_ms - trouble.told_ms >= AGAIN_MS
        )
        if is_due:
            trouble.told_ms = now_ms
        return is_due

    def works(self, what: str) -> None:
        """The operation succeeded, or does not matter any more."""
        self._of.pop(what, None)

    def keep(self, prefix: str, whats: set[str]) -> None:
        """Drop the failures with this prefix that are not in `whats`."""
        for what in [what for what in self._of if what.startswith(prefix) and what not in whats]:
            del self._of[what]
