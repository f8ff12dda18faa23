"""Timers of a coordinator: keys with a deadline. Postponing one, as every heartbeat does, is cheap."""

import heapq
from collections.abc import Iterable

SPARE_ENTRIES = 64  # the heap is rebuilt once it has this many entries beyond twice the number of deadlines

TimerKey = tuple[str, str]  # group id, member id ("" for a timer of the group itself)


class Deadlines:
    """For each key the heap holds an entry not later than its deadline, so postponing does not change the heap."""

    def __init__(self) -> None:
        self._deadline_ms: dict[TimerKey, int] = {}
        self._earliest_ms: dict[TimerKey, int] = {}  # the earliest heap entry of a key, if it has one
        self._heap: list[tuple[int, TimerKey]] = []

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadline_ms

    def set(self, key: TimerKey, deadline_ms: int) -> None:
        self._deadline_ms[key] = deadline_ms
        entry_ms = self._earliest_ms.get(key)
        if entry_ms is None or deadline_ms < entry_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        self._deadline_ms.pop(key, None)
        if len(self._heap) > 2 * len(self._deadline_ms) + SPARE_ENTRIES:
            self._rebuild()

    def next_deadline_ms(self) -> int | None:
        heap = self._heap
        if heap and self._deadline_ms.get(heap[0][1]) != heap[0][0]:
            self._settle_head()
        return heap[0][0] if heap else None

    def deadline_of(self, key: TimerKey) -> int | None:
        return self._deadline_ms.get(key)

    def take_expired(self, now_ms: int) -> list[TimerKey]:
        """Remove and return the keys whose deadlines have passed, in order of their deadlines."""
        expired = self.take_expired_at(now_ms)
        return [key for key, _ in expired] if expired else []

    def take_expired_at(self, now_ms: int) -> list[tuple[TimerKey, int]]:
        """As `take_expired`, with the deadline of each key: a tick may be late."""
        expired: list[tuple[TimerKey, int]] = []
        if not self._heap or self._heap[0][0] > now_ms:
            return expired  # no deadline is earlier than the head of the heap
        self._settle_head()
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = self._heap[0]
            del self._deadline_ms[key]
            expired.append((key, at_ms))
            self._settle_head()
        return expired

    def _push(self, key: TimerKey, at_ms: int) -> None:
        self._earliest_ms[key] = at_ms
        heapq.heappush(self._heap, (at_ms, key))

    def _rebuild(self) -> None:
        """Drop the entries of members that left, which otherwise stay until their sessions would have ended."""
        self._earliest_ms = self._deadline_ms.copy()
        self._heap = [(at_ms, key) for key, at_ms in self._deadline_ms.items()]
        heapq.heapify(self._heap)

    def _settle_head(self) -> None:
        """Make the head of the heap a current deadline: drop cancelled entries, push postponed ones back."""
        while self._heap:
            at_ms, key = self._heap[0]
            deadline_ms = self._deadline_ms.get(key)
            if deadline_ms == at_ms:
                return
            heapq.heappop(self._heap)
            if self._earliest_ms.get(key) != at_ms:
                continue  # an earlier entry of this key replaces it
            del self._earliest_ms[key]
            if deadline_ms is not None:
                self._push(key, deadline_ms)


def earliest_ms(timers: Iterable[Deadlines]) -> int | None:
    """The next deadline of all of them. Most hold none at most times, and are not asked."""
    return min(
        [at_ms for timer in timers if timer._heap and (at_ms := timer.next_deadline_ms()) is not None], default=None
    )
