"""Keeps requests of a web server's log in a relational database, each exactly once: PostgreSQL or SQLite.

    scripts/pipelines/to_database --topic access-log --database postgresql:"host=localhost dbname=web" --checkpoint /tmp/db
    scripts/pipelines/to_database --topic access-log --database sqlite:web.db --available-now

The rows of a micro-batch and how far they reach in each partition are one transaction. What a replayed micro-batch brings again
lies before that and is left out, also when the checkpoint was lost or the batches are cut in another way: the ledger knows
offsets, not batches. One connection writes, in the driver; for more than that, use `barnabas.process_once` in a group.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from access_log import requests
from job import command_line, finish, read, session, triggered
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from barnabas.spark_connector.pipeline import database as databases
from barnabas.spark_connector.pipeline.database import ROWS_AT_ONCE

COLUMNS = "value binary, topic string, partition int, offset bigint"
ROW = ("topic", "partition", "offset", "client", "time", "method", "path", "status", "size")
TABLES = (
    """CREATE TABLE IF NOT EXISTS requests (
        topic TEXT, partition_id INTEGER, record_offset BIGINT, client TEXT, time TEXT, method TEXT, path TEXT,
        status INTEGER, size BIGINT)""",
    """CREATE TABLE IF NOT EXISTS requests_ledger (
        topic TEXT, partition_id INTEGER, next_offset BIGINT NOT NULL, PRIMARY KEY (topic, partition_id))""",
)


class Database(databases.Database):
    """With this job's own ledger, of offsets."""

    def __init__(self, address: str) -> None:
        super().__init__(address, ledger="requests_ledger")


def store(database: Database, rows: Iterator[Any]) -> int:
    """Write what the ledger does not have yet, in one transaction; returns how many rows that were. They come in any order."""
    with closing(database.connect()) as connection, closing(connection.cursor()) as cursor:
        for table in TABLES:
            cursor.execute(table)
        database.begin(cursor)
        cursor.execute("SELECT topic, partition_id, next_offset FROM requests_ledger")
        before = {(topic, partition): reached for topic, partition, reached in cursor.fetchall()}
        after = dict(before)
        count = 0
        while some := list(islice(rows, ROWS_AT_ONCE)):
            new = [tuple(row) for row in some if row.offset >= before.get((row.topic, row.partition), 0)]
            cursor.executemany(database.sql("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"), new)
            for topic, partition, offset, *_ in new:
                after[topic, partition] = max(offset + 1, after.get((topic, partition), 0))
            count += len(new)
        upsert = "INSERT INTO requests_ledger VALUES (?, ?, ?) ON CONFLICT (topic, partition_id) DO UPDATE SET next_offset = ?"
        cursor.executemany(database.sql(upsert), [(*place, reached, reached) for place, reached in after.items()])
        cursor.execute("COMMIT")
        return count


def writer(database: Database) -> Callable[[DataFrame, int], None]:
    """What foreachBatch calls."""

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        store(database, batch.toLocalIterator())

    return write_batch


def rows(records: DataFrame) -> DataFrame:
    """Requests with the place in the topic that each stands at."""
    return requests(records).withColumn("time", F.date_format("time", "yyyy-MM-dd'T'HH:mm:ssXXX")).select(*ROW)


def main() -> int:
    parser = command_line(__doc__, topic="access-log")
    parser.add_argument("--database", type=Database, required=True, metavar="sqlite:FILE | postgresql:CONNECTION")
    options: argparse.Namespace = parser.parse_args()
    found = rows(read(session(options, "to-database"), options, columns=COLUMNS))
    write_batch = writer(options.database)
    if options.batch:
        write_batch(found, 0)
        return 0
    stream = found.writeStream.foreachBatch(write_batch)
    if options.checkpoint:
        stream = stream.option("checkpointLocation", options.checkpoint)
    return finish([triggered(stream, options).start()])


if __name__ == "__main__":
    sys.exit(main())
