"""Counts words, and sends each count that changed: a stream of lines becomes a table of words.

    scripts/pipelines/wordcount --topic lines --to topic:words --checkpoint /tmp/words

Records of the result have the word as their key, so a compacted topic (`barnabas topic create words -c cleanup.policy=compact`)
keeps the newest count of each: Kafka Streams' KTable.
"""

import sys

from job import command_line, finish, read, session, write
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def words(records: DataFrame) -> DataFrame:
    """Words in lower case with how often they were seen."""
    line = F.lower(F.col("value").cast("string"))
    word = F.explode(F.regexp_extract_all(line, F.lit(r"(\p{L}[\p{L}\p{N}']*)"))).alias("word")
    return records.select(word).groupBy("word").count()


def main() -> int:
    options = command_line(__doc__, topic="lines").parse_args()
    result = words(read(session(options, "wordcount"), options))
    return finish([write(result, options, key="word", mode="update")])


if __name__ == "__main__":
    sys.exit(main())
