"""Runs a SELECT over a topic, for as long as you like: topic in, topic (or Parquet) out.

    scripts/pipelines/sql --topic orders --to topic:large-orders --checkpoint /tmp/large \\
        "SELECT key, value FROM records WHERE get_json_object(CAST(value AS STRING), '$.amount') > 1000"

The table is `records`, with the columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType. For a topic the result has the columns that a record is made of: value, and if you like key and partition.
"""

import sys

from job import command_line, finish, read, session, write
from pyspark.sql import DataFrame

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def selected(records: DataFrame, statement: str) -> DataFrame:
    """What the statement makes of the table `records`."""
    records.createOrReplaceTempView("records")
    return records.sparkSession.sql(statement)


def main() -> int:
    parser = command_line(__doc__, topic="records")
    parser.add_argument("statement", help="SELECT ... FROM records ...")
    parser.add_argument("--mode", choices=("append", "update"), default="append", help="update: of rows that change")
    options = parser.parse_args()
    result = selected(read(session(options, "sql"), options, columns=COLUMNS), options.statement)
    return finish([write(result, options, mode=options.mode, is_records=True)])


if __name__ == "__main__":
    sys.exit(main())
