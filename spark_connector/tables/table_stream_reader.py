"""`TableStreamReader`: new rows of a table or a query, along a column whose values only grow.

The position is the last value; Spark keeps it in its checkpoint. A micro-batch is the rows between two positions. Its end is only
such a value that no transaction can bring a row at or before it any more, so a micro-batch that is repeated has the same rows.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from barnabas.net.programs.connect.relations.kept_connection import KeptConnection
from barnabas.net.programs.connect.relations.relation import (
    Between,
    Place,
    Reached,
    RelationError,
    from_json,
    just_before,
    ranges_of,
    to_json,
)

from ..common.query_process import stop_on_sigterm
from .table_reader import SqlRange, read_rows
from .table_source import TableOptions

FORMAT_VERSION = 1
LOOK_S = 0.5  # between two looks at a database; also the longest time that Spark is held up
ONCE_WAIT_S = 60.0  # of Trigger.AvailableNow, for writers that had begun before it
WARN_S = 60.0  # a writer that holds up the stream is told about as often

logger = logging.getLogger("barnabas.pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOffset:
    """Everything up to this value, as Spark keeps it in the checkpoint."""

    column: str
    after: Place | None
    # Of a start at the end: what was there, until the transactions that were open have ended. Nothing is read before that.
    start: Reached | None = None
    is_kept: bool = False  # the start, by a micro-batch without rows: Spark keeps no other one

    def to_json(self) -> dict[str, Any]:
        found = {"version": FORMAT_VERSION, "column": self.column, "after": to_json(self.after)}
        if self.start is not None:
            writers = sorted(self.start.writers)
            found["start"] = {"last": to_json(self.start.last), "writers": writers, "oldest": self.start.oldest}
            found["is_kept"] = self.is_kept
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any], column: str) -> "ColumnOffset":
        if found.get("version") != FORMAT_VERSION or found.get("column") != column:
            raise RelationError(
                "increasing",
                f"is {column!r}, and the checkpoint has the position {str(found)[:200]}: name that column again, or run"
                " `barnabas pipeline reset`, which reads all rows again",
            )
        start = found.get("start")
        return cls(
            column=column,
            after=from_json(found["after"]),
            start=start
            and Reached(last=from_json(start["last"]), writers=frozenset(start["writers"]), oldest=start["oldest"]),
            is_kept=found.get("is_kept", False),
        )


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._front = Front(options)

    # --- in the query's own process ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        stop_on_sigterm()
        start = self._front.at_start() if self._options.is_from_end else None
        return ColumnOffset(column=self._options.increasing, after=None, start=start).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._front.stop_here()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = ColumnOffset.from_json(start, self._options.increasing)
        if done.start is not None:
            return self._begun(done).to_json()
        most = 0 if isinstance(limit, ReadAllAvailable) else self._options.max_rows
        return ColumnOffset(column=done.column, after=self._front.next(done.after, most)).to_json()

    def _begun(self, start: ColumnOffset) -> ColumnOffset:
        """The first place; the start itself until it is known. A micro-batch without rows brings either into the checkpoint, so
        that a query that ends meanwhile does not begin at a later end."""
        assert start.start is not None
        return self._front.behind_start(start.start) or replace(start, is_kept=True)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        name = self._options.increasing
        begin, stop = (ColumnOffset.from_json(place, name) for place in (start, end))
        after, until = begin.after, stop.after
        if begin.start is not None or until is None or after == until:
            return []
        between, count = Between(column=name, after=after, until=until), self._options.partitions
        if count == 1:
            return [SqlRange(between)]
        relation = self._options.relation()
        with relation.connected() as connection:
            limits = relation.limits(connection, self._options.column(name), between)
        return [SqlRange(part) for part in ranges_of(name, limits, between, count)]

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint has it; the database keeps no position."""

    def stop(self) -> None:
        self._front.close()

    # --- in tasks ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """For a query with nothing to read, Spark passes a partition of its own type."""
        if isinstance(partition, SqlRange):
            yield from read_rows(self._options, self._schema, partition.between, is_ordered=True)


class Front:
    """The value up to which all rows are there."""

    def __init__(self, options: TableOptions, *, once_wait_s: float = ONCE_WAIT_S) -> None:
        self._options = options
        self._once_wait_s = once_wait_s
        self._relation = options.relation()
        self._column = options.column(options.increasing)
        self._kept = KeptConnection(self._relation)
        self._start: Reached | None = None
        self._reached: Reached | None = None  # its writers have not ended yet
        self._target: Reached | None = None  # where Trigger.AvailableNow ends
        self._looked_s = 0.0
        self._warned_s = time.monotonic()

    def close(self) -> None:
        self._kept.close()

    def at_start(self) -> Reached:
        """Spark asks twice, and the end must not change in between."""
        if self._start is None:
            self._start = self._look()
        return self._start

    def behind_start(self, start: Reached) -> ColumnOffset | None:
        """Before the first row that the open transactions have brought since; None if they have not ended yet."""
        self._pause()
        if self._is_waited_for(start, self._writers()):
            return None
        first = self._kept.ask(lambda connection: self._relation.first_since(connection, self._column, start))
        return ColumnOffset(column=self._column.name, after=start.last if first is None else just_before(first))

    def stop_here(self) -> None:
        """Raises RelationError if writers that have begun do not end."""
        target = self._look()
        deadline_s = time.monotonic() + self._once_wait_s
        while not target.is_complete(left := self._writers()):
            if time.monotonic() > deadline_s:
                raise RelationError(
                    self._relation.key,
                    f"{_told(target.writers & left)} could still bring earlier rows, and"
                    f" did not end within {self._once_wait_s:.0f} s: end them, and run again",
                )
            time.sleep(LOOK_S)
        self._target = Reached(last=target.last)

    def next(self, after: Place | None, most_rows: int) -> Place | None:
        """At least `after`."""
        last = self._target.last if self._target is not None else self._complete()
        if last is None or (after is not None and last <= after):  # type: ignore[operator]  # both are of one type
            return after
        if not most_rows:
            return last
        between = Between(column=self._options.increasing, after=after, until=last)
        found = self._kept.ask(
            lambda connection: self._relation.end_within(connection, self._column, between, most_rows)
        )
        return last if found is None else found

    def _complete(self) -> Place | None:
        """None: not known yet."""
        self._pause()
        if self._reached is None:
            self._reached, self._warned_s = self._look(), time.monotonic()
            now = self._reached.writers
        else:
            now = self._writers()
        if self._is_waited_for(self._reached, now):
            return None
        found, self._reached = self._reached.last, None
        return found

    def _pause(self) -> None:
        time.sleep(max(0.0, self._looked_s + LOOK_S - time.monotonic()))  # Spark asks again at once
        self._looked_s = time.monotonic()

    def _look(self) -> Reached:
        return self._kept.ask(lambda connection: self._relation.reached(connection, self._column))

    def _writers(self) -> frozenset[str]:
        return self._kept.ask(lambda connection: self._relation.writers(connection, self._column))

    def _is_waited_for(self, reached: Reached, now: frozenset[str]) -> bool:
        if reached.is_complete(now):
            return False
        if time.monotonic() - self._warned_s > WARN_S:
            self._warned_s = time.monotonic()
            logger.warning("source waits: %s could still bring earlier rows", _told(reached.writers & now))
        return True


def _told(writers: frozenset[str]) -> str:
    names = ", ".join(sorted(writers)[:5]) or "prepared ones"
    return f"transactions (virtualtransaction {names} in pg_locks)"
