"""When each transaction began, as a stamp that tells the transactions of one transactional id apart (`TransactionStamps`).

In the first version of the protocol, the epoch of a producer stays the same from one transaction to the next, so a marker that
was delayed on its way may arrive in the next transaction. The stamp in the marker says which transaction it ends. A stamp is
needed only within one coordinator epoch: markers of older coordinators are refused as such.
"""

from collections.abc import Iterable

from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED


class TransactionStamps:
    """Of one slot, as long as its coordinator epoch is the same. `now_ms` must not fall."""

    def __init__(self, carried_over: Iterable[TransactionRecord]) -> None:
        # The clock of a former coordinator may have been ahead, so that this one reaches its stamps later.
        self._carried = {item.transactional_id: item.started_ms for item in carried_over}
        self._last: dict[str, int] = {}

    def next(self, transactional_id: str, now_ms: int) -> int:
        """Another one than those of all transactions of this id that this coordinator has known."""
        stamp = max(now_ms, self._last.get(transactional_id, NOT_STARTED) + 1)
        if stamp == self._carried.get(transactional_id):
            stamp += 1
        self._last[transactional_id] = stamp
        return stamp

    def forget(self, transactional_id: str) -> None:
        """The id is removed: if it returns, then with another producer id."""
        self._carried.pop(transactional_id, None)
        self._last.pop(transactional_id, None)
