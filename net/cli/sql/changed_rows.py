"""`ChangedRows`: the rows of a result that the result before did not have. Pure."""

import json
from collections import Counter
from collections.abc import Sequence


class ChangedRows:
    def __init__(self) -> None:
        self._before: Counter[str] = Counter()

    def of(self, rows: Sequence[Sequence[object]]) -> list[Sequence[object]]:
        """In the order of the result. A row that is there twice now and was there once is one changed row."""
        left = self._before.copy()
        self._before = Counter()
        changed = []
        for row in rows:
            name = json.dumps(row, default=str)
            self._before[name] += 1
            if left[name]:
                left[name] -= 1
            else:
                changed.append(row)
        return changed
