"""`KeptRecords`: the newest records of a topic in memory, for a query that is run again and again. Pure.

Records come in pieces, as they were polled. A piece is forgotten when all of its records are too old, or when the pieces are too
large together: then the oldest goes first. Within a piece, records that are too old are left out of the table.
"""

from collections import deque
from dataclasses import dataclass

import pyarrow
import pyarrow.compute

from .pushdown import ROWS
from .topic_dataset import plain_batch


@dataclass(frozen=True, slots=True)
class _Piece:
    rows: pyarrow.Table
    newest_ms: int


class KeptRecords:
    def __init__(self, *, keep_ms: int, max_bytes: int) -> None:
        self._keep_ms = keep_ms
        self._max_bytes = max_bytes
        self._pieces: deque[_Piece] = deque()
        self._bytes = 0
        self.crowded_out = 0  # records that were forgotten for their size, not for their age

    def add(self, polled: pyarrow.Table) -> None:
        """`polled`: a table with the columns of `poll_arrow`."""
        if not polled.num_rows:
            return
        rows = pyarrow.Table.from_batches([plain_batch(batch) for batch in polled.to_batches()], schema=ROWS)
        newest = pyarrow.compute.max(rows["timestamp"]).cast(pyarrow.int64()).as_py()
        self._pieces.append(_Piece(rows, newest))
        self._bytes += rows.nbytes
        while self._bytes > self._max_bytes and len(self._pieces) > 1:
            self.crowded_out += self._drop(0)

    def table(self, now_ms: int) -> pyarrow.Table:
        """The records that are not older than the time to keep; with the schema ROWS."""
        from_ms = now_ms - self._keep_ms
        for place in reversed(range(len(self._pieces))):
            if self._pieces[place].newest_ms < from_ms:
                self._drop(place)
        kept = pyarrow.concat_tables([ROWS.empty_table(), *(piece.rows for piece in self._pieces)])
        first = pyarrow.scalar(from_ms, pyarrow.int64()).cast(ROWS.field("timestamp").type)
        return kept.filter(pyarrow.compute.greater_equal(kept["timestamp"], first))

    def _drop(self, place: int) -> int:
        piece = self._pieces[place]
        del self._pieces[place]
        self._bytes -= piece.rows.nbytes
        return int(piece.rows.num_rows)
