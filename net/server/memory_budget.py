"""Limits the memory that a broker holds for all its clients together: unfinished requests, unread responses, waiting batches.

The limits of a single connection do not bound the memory of ten thousand connections. A connection must take memory here before
it uses it. If none is left, the connection waits: the broker does not read it, and the kernel makes the client wait. The smallest
request for memory is granted first, so that ordinary requests overtake huge ones. Belongs to the loop's thread.
"""

from collections.abc import Callable
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys

DEFAULT_LIMIT_BYTES: Final = BrokerKeys().network_memory_max_bytes


class MemoryBudget:
    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # 0 <= used_bytes; only `hold` can exceed the limit
        self._waiting: dict[
            object, tuple[int, Callable[[], None]]
        ] = {}  # oldest first; at most one for each connection

    @property
    def is_short(self) -> bool:
        """A connection waits for memory."""
        return bool(self._waiting)

    @property
    def is_tight(self) -> bool:
        """Connections should release memory that they do not need."""
        return bool(self._waiting) or self.used_bytes > self.limit_bytes // 2

    @property
    def least_wanted_bytes(self) -> int:
        """The smallest amount that a connection waits for."""
        return min((size_bytes for size_bytes, _ in self._waiting.values()), default=0)

    def take(self, size_bytes: int) -> bool:
        """Return False, and take nothing, if less than this is left."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def hold(self, size_bytes: int) -> None:
        """Count memory that is in use already. Its owner has its own limit, and a smaller one while `is_tight`."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more memory was given back than taken"
        self._grant()

    def wait(self, who: object, size_bytes: int, granted: Callable[[], None]) -> None:
        """Call `granted` when this amount has been taken for `who`; `granted` must only record that, and act later."""
        self._waiting[who] = (size_bytes, granted)
        self._grant()

    def forget(self, who: object) -> None:
        """Remove `who` from those that wait."""
        self._waiting.pop(who, None)

    def _grant(self) -> None:
        while self._waiting:
            who, (size_bytes, granted) = min(self._waiting.items(), key=lambda item: item[1][0])
            if not self.take(size_bytes):
                return
            del self._waiting[who]
            granted()
