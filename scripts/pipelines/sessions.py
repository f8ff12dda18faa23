"""Sessions of a web site's visitors: requests of one client with no more than `--gap-s` seconds between them.

    scripts/pipelines/sessions --topic access-log --gap-s 1800 --to topic:sessions --checkpoint /tmp/sessions

As a stream it keeps the open sessions of each client as state, with a timer at the end of each: what Kafka Streams calls a
processor with a state store and a punctuator. Over history (`--batch`) the built-in session window says the same.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from access_log import requests
from job import command_line, finish, read, session, write
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

SESSION = "client string, start_ms bigint, last_ms bigint, requests bigint, bytes bigint"
OPEN = "start_ms bigint, last_ms bigint, requests bigint, bytes bigint"
Open = tuple[int, int, int, int]  # start_ms, last_ms, requests, bytes


class Sessions(StatefulProcessor):
    """The open sessions of one client. Requests may come in any order, so there may be several until time has passed."""

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getListState("open", OPEN)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen = [(row.time_ms, row.time_ms, 1, row.size) for row in rows]
        sessions = merged([*self._stored(), *seen], self._gap_ms)
        self._open.put(sessions)
        for _, last_ms, _, _ in sessions:
            self._handle.registerTimer(last_ms + self._gap_ms)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """A timer of a session that went on finds nothing to close; the one behind it will."""
        now_ms = timerValues.getCurrentWatermarkInMs()
        sessions = self._stored()
        still_open = [item for item in sessions if item[1] + self._gap_ms > now_ms]
        if len(still_open) == len(sessions):
            return
        if still_open:
            self._open.put(still_open)
        else:
            self._open.clear()
        for start_ms, last_ms, count, size in sessions:
            if last_ms + self._gap_ms <= now_ms:
                yield Row(client=key[0], start_ms=start_ms, last_ms=last_ms, requests=count, bytes=size)

    def close(self) -> None:
        """Nothing is held outside of the state."""

    def _stored(self) -> list[Open]:
        return [(item[0], item[1], item[2], item[3]) for item in self._open.get()]


def merged(sessions: Iterable[Open], gap_ms: int) -> list[Open]:
    """Join those that less than a gap lies between."""
    found: list[Open] = []
    for start_ms, last_ms, count, size in sorted(sessions):
        if found and start_ms < found[-1][1] + gap_ms:
            before = found.pop()
            found.append((before[0], max(before[1], last_ms), before[2] + count, before[3] + size))
        else:
            found.append((start_ms, last_ms, count, size))
    return found


def sessions_of_stream(found: DataFrame, *, gap_s: int = 1800, late: str = "10 minutes") -> DataFrame:
    """Sessions that have ended, each once, as soon as no request that is still waited for could prolong it."""
    closed = (
        found.select("client", "time", "size", F.unix_millis("time").alias("time_ms"))
        .withWatermark("time", late)
        .groupBy("client")
        .transformWithState(
            statefulProcessor=Sessions(gap_s * 1000),
            outputStructType=SESSION,
            outputMode="Append",
            timeMode="EventTime",
        )
    )
    return closed.select(
        "client",
        F.timestamp_millis("start_ms").alias("start"),
        F.timestamp_millis("last_ms").alias("last"),
        "requests",
        "bytes",
    )


def sessions_of_history(found: DataFrame, *, gap_s: int = 1800) -> DataFrame:
    """All sessions of a batch."""
    return (
        found.groupBy("client", F.session_window("time", f"{gap_s} seconds"))
        .agg(
            F.min("time").alias("start"),
            F.max("time").alias("last"),
            F.count("*").alias("requests"),
            F.sum("size").alias("bytes"),
        )
        .drop("session_window")
    )


def keep_state_in_rocksdb(spark: SparkSession) -> None:
    """Lists and timers need it; it comes with PySpark. The default keeps state as tables in the heap."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )


def main() -> int:
    parser = command_line(__doc__, topic="access-log")
    parser.add_argument("--gap-s", type=int, default=1800, help="seconds without a request that end a session")
    parser.add_argument("--late", default="10 minutes", help="how late a request may come and still be counted")
    options = parser.parse_args()
    spark = session(options, "sessions")
    keep_state_in_rocksdb(spark)
    found = requests(read(spark, options))
    if options.batch:
        result = sessions_of_history(found, gap_s=options.gap_s)
    else:
        result = sessions_of_stream(found, gap_s=options.gap_s, late=options.late)
    return finish([write(result, options, key="client")])


if __name__ == "__main__":
    sys.exit(main())
