"""Analyses a web server's log: requests, what they came to in each window of time, and the most wanted paths.

A topic holds lines in Apache's combined format, one in each record (`barnabas topic produce access-log access.log`).

    scripts/pipelines/access_log windows --to topic:requests-per-hour --checkpoint /tmp/windows
    scripts/pipelines/access_log paths --size "1 day" --batch

`requests` are the lines, parsed; `windows` counts them, errors and bytes; `paths` are the most requested ones of each window.
Windows are given out once they are complete: when a request has been seen that is later than their end by `--late`.
"""

import sys

from job import command_line, finish, read, session, write
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+)[^"]*" (\d{3}) (\d+|-) "([^"]*)"(?: "([^"]*))?'
TIME_FORMAT = "dd/MMM/yyyy:HH:mm:ss Z"


def requests(records: DataFrame) -> DataFrame:
    """Lines to columns client, time, method, path, status, size, referrer, agent; what is no line of a log is left out.

    A record's place (topic, partition, offset, topicId) stays beside it where it was read.
    """
    line = F.col("value").cast("string")

    def group(number: int) -> Column:
        return F.regexp_extract(line, LINE, number)

    place = [name for name in ("topic", "partition", "offset", "topicId") if name in records.columns]
    return records.where(line.rlike(LINE)).select(
        *place,
        group(1).alias("client"),
        F.to_timestamp(group(2), TIME_FORMAT).alias("time"),
        group(3).alias("method"),
        F.split_part(group(4), F.lit("?"), F.lit(1)).alias("path"),
        group(5).cast("int").alias("status"),
        F.when(group(6) == "-", 0).otherwise(group(6).cast("bigint")).alias("size"),
        group(7).alias("referrer"),
        group(8).alias("agent"),
    )


def windows(found: DataFrame, *, size: str = "1 hour", late: str = "10 minutes") -> DataFrame:
    """Requests, those that failed, and bytes sent of each window."""
    counted = (
        found.withWatermark("time", late)
        .groupBy(F.window("time", size))
        .agg(
            F.count("*").alias("requests"),
            F.count_if(F.col("status") >= 400).alias("errors"),
            F.sum("size").alias("bytes"),
        )
    )
    return counted.select("window.start", "window.end", "requests", "errors", "bytes")


def top_paths(found: DataFrame, *, size: str = "1 hour", late: str = "10 minutes", count: int = 5) -> DataFrame:
    """The most requested paths of each window, as an array of (requests, path); of equals the first in the alphabet.

    One aggregation stands on another: the second sees a window's paths when the first has closed it.
    """
    by_path = found.withWatermark("time", late).groupBy(F.window("time", size), "path").count()
    best_first = F.sort_array(F.collect_list(F.struct((-F.col("count")).alias("order"), "path")))
    return (
        by_path.groupBy("window")
        .agg(F.slice(best_first, 1, count).alias("best"))
        .select(
            "window.start",
            "window.end",
            F.transform("best", lambda item: F.struct((-item["order"]).alias("requests"), item["path"])).alias("paths"),
        )
    )


def main() -> int:
    parser = command_line(__doc__, topic="access-log")
    parser.add_argument("report", choices=("requests", "windows", "paths"))
    parser.add_argument("--size", default="1 hour", help="length of a window")
    parser.add_argument("--late", default="10 minutes", help="how late a request may come and still be counted")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of paths per window")
    options = parser.parse_args()
    found = requests(read(session(options, "access-log"), options))
    match options.report:
        case "requests":
            query = write(found, options, key="client")
        case "windows":
            query = write(windows(found, size=options.size, late=options.late), options, key="start")
        case _:
            paths = top_paths(found, size=options.size, late=options.late, count=options.top)
            query = write(paths, options, key="start")
    return finish([query])


if __name__ == "__main__":
    sys.exit(main())
