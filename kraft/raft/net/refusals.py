"""Log messages about refused connections."""

import logging
from collections import OrderedDict
from collections.abc import Callable

_log = logging.getLogger("barnabas.quorum")

MAX_REMEMBERED_REFUSALS = 256  # addresses; the log must not be a way to use up memory or disk
REFUSAL_REPEAT_S = 60.0


class RefusalLog:
    """Logs refused connections once per address and minute, for a bounded number of addresses."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said_at: OrderedDict[str, float] = OrderedDict()

    def refused(self, address: object, reason: str) -> None:
        host = str(address[0]) if isinstance(address, tuple) and address else str(address)
        key = f"{host} {reason}" if reason.startswith("voter ") else host
        now = self._clock()
        if now - self._said_at.get(key, -REFUSAL_REPEAT_S) < REFUSAL_REPEAT_S:
            return
        self._said_at[key] = now
        self._said_at.move_to_end(key)
        while len(self._said_at) > MAX_REMEMBERED_REFUSALS:
            self._said_at.popitem(last=False)
        _log.warning("connection refused from=%s reason=%s", host, reason)
