"""Joins two streams: a visitor's request of a page with those of its parts (images, scripts, styles) soon after.

    scripts/pipelines/page_loads --pages access-log --parts access-log --to topic:page-loads --checkpoint /tmp/page-loads

Both sides are lines of a web server's log, of two topics or of one. A part belongs to a page when the same client asked for it
within `--within` seconds, and named the page as its referrer. Spark keeps either side only for as long as the other may come.
"""

import sys

from access_log import requests
from job import command_line, finish, read, session, write
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PART = r"\.(css|js|png|jpe?g|gif|ico|svg|woff|ttf|eot)$"


def page_loads(
    page_requests: DataFrame, part_requests: DataFrame, *, within_s: int = 30, late: str = "10 minutes"
) -> DataFrame:
    """One row for each part: client, page, page_time, part, part_time, size."""
    pages = (
        page_requests.where(~F.col("path").rlike(PART))
        .select("client", F.col("path").alias("page"), F.col("time").alias("page_time"))
        .withWatermark("page_time", late)
    )
    parts = (
        part_requests.where(F.col("path").rlike(PART))
        .select(
            F.col("client").alias("part_client"),
            F.regexp_extract("referrer", r"^https?://[^/]+(/[^?#]*)", 1).alias("referrer"),
            F.col("path").alias("part"),
            F.col("time").alias("part_time"),
            "size",
        )
        .withWatermark("part_time", late)
    )
    belongs = (
        (F.col("client") == F.col("part_client"))
        & (F.col("page") == F.col("referrer"))
        & (F.col("part_time") >= F.col("page_time"))
        & (F.col("part_time") <= F.col("page_time") + F.make_dt_interval(secs=F.lit(within_s)))
    )
    return pages.join(parts, belongs).select("client", "page", "page_time", "part", "part_time", "size")


def main() -> int:
    parser = command_line(__doc__, topic="access-log")
    parser.add_argument("--pages", metavar="TOPIC", help="where pages are; --topic otherwise")
    parser.add_argument("--parts", metavar="TOPIC", help="where parts are; --topic otherwise")
    parser.add_argument("--within", type=int, default=30, metavar="S", help="seconds between a page and its part")
    parser.add_argument("--late", default="10 minutes", help="how late a request may come and still be joined")
    options = parser.parse_args()
    spark = session(options, "page-loads")
    pages = requests(read(spark, options, topic=options.pages))
    parts = requests(read(spark, options, topic=options.parts))
    joined = page_loads(pages, parts, within_s=options.within, late=options.late)
    return finish([write(joined, options, key="client")])


if __name__ == "__main__":
    sys.exit(main())
