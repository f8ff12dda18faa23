"""Timers of a coordinator: keys with a deadline, cheap to push back, which is what every heartbeat does."""

import heapq

SPARE_ENTRIES = 64  # stale entries of the heap are dropped once they are so many more than true ones

TimerKey = tuple[str, str]  # group id, member id ("" for a timer of the group itself)


class Deadlines:
    """The heap holds, for each key, an entry that is not later than its deadline; so pushing back touches no heap."""

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
        self._settle_head()
        return self._heap[0][0] if self._heap else None

    def deadline_of(self, key: TimerKey) -> int | None:
        return self._deadline_ms.get(key)

    def take_expired(self, now_ms: int) -> list[TimerKey]:
        """Remove and return, in order of their deadlines, the keys whose time has come."""
        return [key for key, _ in self.take_expired_at(now_ms)]

    def take_expired_at(self, now_ms: int) -> list[tuple[TimerKey, int]]:
        """The same, with the deadline of each: a tick may come late."""
        expired = []
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
        """Members that come and go leave entries behind, which else stay for as long as their session would have been."""
        self._earliest_ms = self._deadline_ms.copy()
        self._heap = [(at_ms, key) for key, at_ms in self._deadline_ms.items()]
        heapq.heapify(self._heap)

    def _settle_head(self) -> None:
        """Make the head of the heap a true deadline: drop what was cancelled, sink what was pushed back."""
        while self._heap:
            at_ms, key = self._heap[0]
            deadline_ms = self._deadline_ms.get(key)
            if deadline_ms == at_ms:
                return
            heapq.heappop(self._heap)
            if self._earliest_ms.get(key) != at_ms:
                continue  # an earlier entry of this key stands for it
            del self._earliest_ms[key]
            if deadline_ms is not None:
                self._push(key, deadline_ms)
