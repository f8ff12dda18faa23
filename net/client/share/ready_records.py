"""`ReadyRecords`: what was locked for this consumer and not returned yet, each until its lock may be over. Pure."""

from collections import deque
from collections.abc import Callable, Iterable

from .share_record import ShareRecord


class ReadyRecords:
    def __init__(self) -> None:
        self._records: deque[tuple[float, ShareRecord]] = deque()  # with the time at which the lock may be over, in ms

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def first(self) -> ShareRecord | None:
        return self._records[0][1] if self._records else None

    def extend(self, records: Iterable[ShareRecord], deadline_ms: float) -> None:
        self._records.extend((deadline_ms, record) for record in records)

    def take(self) -> ShareRecord:
        return self._records.popleft()[1]

    def drop_lapsed(self, now_ms: float, has_moved: Callable[[ShareRecord], bool]) -> list[ShareRecord]:
        """Those at the beginning that another member may have by now: returned here, they would be handled twice."""
        dropped = []
        while self._records and (self._records[0][0] <= now_ms or has_moved(self._records[0][1])):
            dropped.append(self.take())
        return dropped

    def drop(self, is_gone: Callable[[ShareRecord], bool]) -> list[ShareRecord]:
        dropped = [record for _, record in self._records if is_gone(record)]
        self._records = deque(item for item in self._records if not is_gone(item[1]))
        return dropped
