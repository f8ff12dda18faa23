"""Keeps the records of topics in a table of a relational database, each exactly once: PostgreSQL or SQLite.

    scripts/pipelines/to_database --topic access-log --database postgresql:"host=localhost dbname=web" --checkpoint /tmp/db
    scripts/pipelines/to_database --topic access-log --database sqlite:web.db --available-now
    scripts/pipelines/to_database --topic orders --table orders --columns "CAST(value AS STRING) AS line" "timestamp AS time" ...

Without `--columns`, records are lines of a web server's log. Each row has its place beside its columns: topic, topic_id,
partition_id, record_offset. Several tasks write, each over a connection of its own; all records that a micro-batch has of one
partition are one transaction with the ledger's note of how far they reach. What a replayed micro-batch brings again lies before
that and is left out, also when the checkpoint was lost or the batches are cut in another way: the ledger knows offsets, not
batches. It knows topics by their id: one that is deleted and made again under its name begins at its start. SQLite lets one
connection write at a time, and its file is on one machine: for a cluster, use PostgreSQL.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, groupby, islice
from typing import Any

from access_log import requests
from job import command_line, finish, read, session, triggered
from pyspark.sql import DataFrame

from barnabas.spark_connector.pipeline.database import ROWS_AT_ONCE, Database, quoted
from barnabas.spark_connector.pipeline.sinks import type_in, value_in

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, topicId string"
PLACE = ("topic_id", "partition_id", "record_offset", "topic")  # the first columns of each row
LEDGER = "barnabas_offsets"
CREATE_LEDGER = f"""CREATE TABLE IF NOT EXISTS {LEDGER} (
    table_name VARCHAR(250), topic_id VARCHAR(50), partition_id INTEGER, next_offset BIGINT NOT NULL,
    PRIMARY KEY (table_name, topic_id, partition_id))"""
OF_PLACE = "WHERE table_name = ? AND topic_id = ? AND partition_id = ?"
CONNECTIONS = 4


class Table:
    """A table, the columns that its rows have, and its part of the ledger."""

    def __init__(self, database: Database, name: str, columns: Mapping[str, str]) -> None:
        """`columns`: their types in the database's SQL by name, PLACE first."""
        self._database, self._name, self._columns = database, name, columns
        self._quoted = ".".join(map(quoted, name.split(".")))  # may have its schema: web.requests

    def create(self) -> None:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self._columns.items())
        with closing(self._database.connect()) as connection:
            connection.execute(CREATE_LEDGER)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._quoted} ({columns})")

    def store(self, rows: Iterable[Any]) -> int:
        """Write what the ledger does not have yet; returns how many rows that were. Those of a partition are together."""
        rows = iter(rows)
        first = list(islice(rows, 1))
        if not first:
            return 0  # without a connection
        by_place = groupby(chain(first, rows), lambda row: tuple(row[:2]))
        with closing(self._database.connect()) as connection, closing(connection.cursor()) as cursor:
            return sum(self._store(cursor, place, of_it) for place, of_it in by_place)

    def _store(self, cursor: Any, place: tuple[str, int], rows: Iterator[Any]) -> int:
        """One transaction. A second attempt of the same task waits for the first one at the ledger's row."""
        database, of_it = self._database, (self._name, *place)
        database.begin(cursor, is_locking=False)
        cursor.execute(database.sql(f"INSERT INTO {LEDGER} VALUES (?, ?, ?, 0) ON CONFLICT DO NOTHING"), of_it)
        lock = "" if database.is_sqlite else "FOR UPDATE"
        cursor.execute(database.sql(f"SELECT next_offset FROM {LEDGER} {OF_PLACE} {lock}"), of_it)
        before = after = cursor.fetchone()[0]
        names, places = ", ".join(map(quoted, self._columns)), ", ".join("?" * len(self._columns))
        insert = database.sql(f"INSERT INTO {self._quoted} ({names}) VALUES ({places})")
        count = 0
        while some := list(islice(rows, ROWS_AT_ONCE)):
            new = [tuple(row) for row in some if row[2] >= before]
            cursor.executemany(insert, new)
            after = max([after, *(row[2] + 1 for row in new)])
            count += len(new)
        cursor.execute(database.sql(f"UPDATE {LEDGER} SET next_offset = ? {OF_PLACE}"), (after, *of_it))
        cursor.execute("COMMIT")
        return count


def writer(
    database: Database, found: DataFrame, *, table: str = "requests", connections: int = CONNECTIONS
) -> Callable[[DataFrame, int], None]:
    """What foreachBatch calls. All rows of a partition must be in one task: its part of the ledger is one number."""
    target = Table(database, table, {field.name: type_in(database, field.dataType) for field in found.schema})
    target.create()

    def store(rows: Iterable[Any]) -> None:
        target.store(rows)

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        values = batch.select(*(value_in(database, field) for field in batch.schema))
        gathered = values.repartition(connections, *PLACE[:2]).sortWithinPartitions(*PLACE[:3])
        gathered.foreachPartition(store)

    return write_batch


def rows(records: DataFrame, columns: list[str] | None = None) -> DataFrame:
    """The place of each record and its columns: SQL expressions, or a request of the web server's log."""
    place = ("topicId AS topic_id", "partition AS partition_id", "offset AS record_offset", "topic")
    if columns:
        return records.selectExpr(*place, *columns)
    return requests(records).selectExpr(*place, "client", "time", "method", "path", "status", "size")


def main() -> int:
    parser = command_line(__doc__, topic="access-log")
    parser.add_argument("--database", type=Database, required=True, metavar="sqlite:FILE | postgresql:CONNECTION")
    parser.add_argument("--table", default="requests", help="made if it does not exist")
    parser.add_argument(
        "--columns", nargs="+", metavar="SQL", help='of key, value, timestamp: "CAST(value AS STRING) AS line"'
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS, metavar="N", help="tasks that write")
    options: argparse.Namespace = parser.parse_args()
    found = rows(read(session(options, "to-database"), options, columns=COLUMNS), options.columns)
    write_batch = writer(options.database, found, table=options.table, connections=options.connections)
    if options.batch:
        write_batch(found, 0)
        return 0
    stream = found.writeStream.foreachBatch(write_batch)
    if options.checkpoint:
        stream = stream.option("checkpointLocation", options.checkpoint)
    return finish([triggered(stream, options).start()])


if __name__ == "__main__":
    sys.exit(main())
