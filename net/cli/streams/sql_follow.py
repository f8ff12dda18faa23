"""`barnabas sql --follow QUERY`: the query is run again over the newest records as they come, and what has changed is printed."""

import asyncio
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..frame.ages import age_ms
from ..frame.command import Context
from ..frame.exit_codes import CommandError

if TYPE_CHECKING:
    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.consumer.consumer import Consumer

    from ..sql.kept_records import KeptRecords
    from ..sql.results import Values

DEFAULT_KEEP_MS: Final = 3_600_000
DEFAULT_KEEP_MIB: Final = 256
MIN_EVERY_MS: Final = 100
GROWN_S: Final = 5.0  # how often topics are asked for new partitions
MAX_RESULT_ROWS: Final = 10_000  # a result is compared with the one before, row by row
CLEAR: Final = "\x1b[H\x1b[J"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--follow",
        action="store_true",
        help="run the query again as records come, over those of the time --keep, and print the rows that are new or changed",
    )
    parser.add_argument(
        "--keep", type=age_ms, default=DEFAULT_KEEP_MS, metavar="AGE", help="with --follow: 30s, 10m, 7d; default: 1h"
    )
    parser.add_argument(
        "--keep-mb",
        type=_megabytes,
        default=DEFAULT_KEEP_MIB << 20,
        metavar="N",
        help=f"with --follow: megabytes of records in memory for each topic; default: {DEFAULT_KEEP_MIB}",
    )
    parser.add_argument(
        "--every",
        type=_pause,
        default=1_000,
        metavar="AGE",
        help="with --follow: how often; 200ms, 1s, 1m; default: 1s",
    )


def _megabytes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise ArgumentTypeError(f"{text}: give a number of megabytes, at least 1")
    return int(text) << 20


def _pause(text: str) -> int:
    found = age_ms(text)
    if found < MIN_EVERY_MS:
        raise ArgumentTypeError(f"{text}: give at least {MIN_EVERY_MS}ms")
    return found


async def follow(context: Context, connection: Any, topics: Mapping[str, int]) -> None:
    """Until Ctrl-C. `topics`: the number of partitions of each. Raises CommandError."""
    if not topics:
        raise CommandError("--follow needs a query that reads a topic")
    given = context.arguments
    from ..sql.kept_records import KeptRecords

    kept = {topic: KeptRecords(keep_ms=given.keep, max_bytes=given.keep_mb) for topic in topics}
    connector, bootstrap = context.connector, context.bootstrap
    async with connector.reader(bootstrap) as consumer, connector.admin(bootstrap) as admin:
        places = [(topic, number) for topic, count in topics.items() for number in range(count)]
        consumer.assign(places)
        await consumer.seek_to_time(_now_ms() - given.keep)
        grown = _Grown(consumer, admin, topics)
        screen = _Screen(context, connection, kept)
        while True:
            await _poll(consumer, kept, given.every)
            await asyncio.to_thread(screen.refresh)
            await grown.look()


async def _poll(consumer: "Consumer", kept: "Mapping[str, KeptRecords]", every_ms: int) -> None:
    end_s = time.monotonic() + every_ms / 1_000
    while (left_s := end_s - time.monotonic()) > 0:
        found = await consumer.poll_arrow(timeout_ms=left_s * 1_000)
        for topic in found["topic"].unique().to_pylist():
            import pyarrow.compute

            kept[topic].add(found.filter(pyarrow.compute.equal(found["topic"], topic)) if len(kept) > 1 else found)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Grown:
    """Topics that get partitions: all of the new ones is read. The consumer itself would notice them after minutes."""

    def __init__(self, consumer: "Consumer", admin: "Admin", topics: Mapping[str, int]) -> None:
        self._consumer = consumer
        self._admin = admin
        self._topics = topics
        self._next_s = time.monotonic() + GROWN_S

    async def look(self) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + GROWN_S
        read = self._consumer.assignment
        try:
            counts = {topic: len((await self._admin.describe_topic(topic)).partitions) for topic in self._topics}
        except BarnabasError as error:
            if error.retriable:
                return  # reading goes on meanwhile
            raise
        places = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        if new := [place for place in places if place not in read]:
            self._consumer.assign([*read, *new])
            await self._consumer.seek_to_start(*new)


class _Screen:
    """Runs the query, and prints what has changed. On a terminal the whole result replaces the one before."""

    def __init__(self, context: Context, connection: Any, kept: "Mapping[str, KeptRecords]") -> None:
        from ..sql.changed_rows import ChangedRows

        self._out = context.out
        self._given = context.arguments
        self._connection = connection
        self._kept = kept
        self._changed = ChangedRows()
        self._is_table = self._out.stdout.isatty() and not self._out.is_json and not self._given.csv
        self._has_head = False
        self._told: set[str] = set()

    def refresh(self) -> None:
        """Raises CommandError."""
        from ..sql.results import distinct, show_head, show_rows, values_of

        found = self._result()
        if found is None:
            return
        names, rows = distinct(found.column_names), values_of(found)
        changed = self._changed.of(rows)
        if self._given.csv and not self._has_head:
            show_head(self._out, names)
            self._has_head = True
        if self._is_table and changed:
            self._out.stdout.write(CLEAR)
        self._show(names, rows if self._is_table and changed else changed, show_rows)
        self._tell_crowded_out()

    def _show(self, names: list[str], rows: "list[Values]", show_rows: Any) -> None:
        show_rows(self._out, names, rows, as_csv=self._given.csv)
        self._out.stdout.flush()

    def _result(self) -> Any:
        """A table of Arrow; None while columns of the query are unknown, because no record has come yet."""
        import duckdb

        from ..sql.views import add_view

        now_ms = _now_ms()
        tables = {topic: kept.table(now_ms) for topic, kept in self._kept.items()}
        for topic, table in tables.items():
            add_view(self._connection, topic, table, self._given.values)
        try:
            found = self._connection.sql(self._given.query).limit(MAX_RESULT_ROWS + 1).to_arrow_table()
        except duckdb.BinderException as error:
            empty = [topic for topic, table in tables.items() if not table.num_rows]
            if not empty:
                raise
            self._tell(f"waiting for records of {', '.join(empty)}: {str(error).splitlines()[0]}")
            return None
        if found.num_rows > MAX_RESULT_ROWS:
            raise CommandError(f"the result has more than {MAX_RESULT_ROWS} rows: group them, or add a limit")
        return found

    def _tell_crowded_out(self) -> None:
        for topic, kept in self._kept.items():
            if kept.crowded_out:
                self._tell(f"{topic} has more records than --keep-mb takes: the query sees only the newest")

    def _tell(self, text: str) -> None:
        """Once."""
        if text not in self._told:
            self._told.add(text)
            self._out.note(text)
