"""The memory that all clients of a broker together may make it hold: unfinished requests, unread answers, waiting batches.

Each limit of a connection is harmless by itself, and ten thousand connections are not. Whoever needs memory takes it here
first. Who gets none waits: its connection is not read, and the kernel makes the client wait. The smallest wish is granted
first, so that ordinary requests pass by huge ones. Belongs to the loop's thread.
"""

from collections.abc import Callable
from typing import Final

DEFAULT_LIMIT_BYTES: Final = 128 * 1024 * 1024  # the largest request, and some room for all others


class MemoryBudget:
    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # 0 <= used_bytes; beyond the limit only by what `hold` adds
        self._waiting: dict[
            object, tuple[int, Callable[[], None]]
        ] = {}  # oldest first; at most one for each connection

    @property
    def is_short(self) -> bool:
        """Somebody waits."""
        return bool(self._waiting)

    @property
    def is_tight(self) -> bool:
        """Nobody should keep what could be given back."""
        return bool(self._waiting) or self.used_bytes > self.limit_bytes // 2

    @property
    def least_wanted_bytes(self) -> int:
        """What the most modest of those who wait asks for."""
        return min((size_bytes for size_bytes, _ in self._waiting.values()), default=0)

    def take(self, size_bytes: int) -> bool:
        """False, and nothing is taken, where there is not so much left."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def hold(self, size_bytes: int) -> None:
        """Count what is there already. Its owner has a limit of its own, and keeps to a smaller one while `is_tight`."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more was given back than had been taken"
        self._grant()

    def wait(self, who: object, size_bytes: int, granted: Callable[[], None]) -> None:
        """Call `granted` once so much has been taken for `who`; it must only note that, and act later."""
        self._waiting[who] = (size_bytes, granted)
        self._grant()

    def forget(self, who: object) -> None:
        """`who` does not wait any more."""
        self._waiting.pop(who, None)

    def _grant(self) -> None:
        while self._waiting:
            who, (size_bytes, granted) = min(self._waiting.items(), key=lambda item: item[1][0])
            if not self.take(size_bytes):
                return
            del self._waiting[who]
            granted()
