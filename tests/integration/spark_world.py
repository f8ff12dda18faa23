"""Real Spark for tests: one session for the whole run, started as quickly as it can be, and short words for what tests do.

A session takes some seconds, each worker process half a second; so all tests share the session and its cluster of three brokers,
each with topics of its own. Nothing here waits for a time: a stream is run with Trigger.AvailableNow, or until it has what it
should have.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyspark
from integration import programs
from integration.cluster import Cluster, until
from integration.decided import wait_for_markers
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.net.client.producer.producer import Producer
from barnabas.spark_connector.session import session_on
from barnabas.spark_connector.spark_home import link_home

FORMAT = "barnabas"
QUICK_JAVA = " ".join(programs.QUICK_JAVA)
STREAM_DEADLINE_S = 90
Options = dict[str, str | int]


def start_session(folder: Path, master: str = "local[2]", **settings: str) -> SparkSession:
    """`settings` have names with `_` instead of `.`."""
    spark = session_on(
        master,
        "barnabas-tests",
        settings={
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.streaming.noDataProgressEventInterval": "200",
            **{name.replace("_", "."): value for name, value in settings.items()},
        },
    )
    spark.sparkContext.setLogLevel("OFF")  # Tests that expect a failure would print thousands of lines.
    return spark


def home_without_python(folder: Path) -> Path:
    """For programs of Spark that `session_on` does not start."""
    home = folder / "spark_home"
    home.mkdir()
    link_home(Path(pyspark.__file__).parent, home)
    return home


# --- topics ---


def create_topic(cluster: Cluster, topic: str, *, partitions: int = 2, **configs: str) -> str:
    async def create() -> None:
        async with cluster.admin() as admin:
            named = {key.replace("_", "."): value for key, value in configs.items()}
            await admin.create_topic(topic, partitions=partitions, replication_factor=3, configs=named)

    asyncio.run(create())
    return topic


def send(
    cluster: Cluster, topic: str, values: Sequence[bytes | None], *, partition: int | None = None, **more: Any
) -> None:
    """Send and wait until all are acknowledged. `more` goes to the producer's `send` (key, headers, timestamp_ms)."""

    async def send_all() -> None:
        async with Producer(cluster.bootstrap) as producer:
            for value in values:
                await producer.send(topic, value, partition=partition, **more)
            await producer.flush()

    asyncio.run(send_all())


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def in_admin(cluster: Cluster, ask: Callable[[Any], Any]) -> Any:
    async def call() -> Any:
        async with cluster.admin() as admin:
            return await ask(admin)

    return asyncio.run(call())


# --- batches ---


def load(spark: SparkSession, cluster: Cluster, **options: str | int) -> DataFrame:
    """With what was committed before, also where its markers come late."""
    wait_for_markers(cluster.bootstrap)
    return spark.read.format(FORMAT).option("bootstrap.servers", cluster.bootstrap).options(**options).load()


def values_of(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


# --- streams ---


class Stream:
    """A topic as a stream, batch by batch in this process. Runs of the same one share the checkpoint."""

    def __init__(self, spark: SparkSession, cluster: Cluster, checkpoint: Path, **options: str | int) -> None:
        self.batches: dict[int, list[Row]] = defaultdict(list)
        self.checkpoint = checkpoint
        self._spark = spark
        self._cluster = cluster
        self._options = options
        self._has_news = threading.Event()

    def start(self, *, columns: Sequence[str] = ("value",), **trigger: Any) -> StreamingQuery:
        source = self._spark.readStream.format(FORMAT).option("bootstrap.servers", self._cluster.bootstrap)
        frame = source.options(**self._options).load().select(*columns)
        writer = (
            self.through(frame).writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        )
        return (writer.trigger(**trigger) if trigger else writer).start()

    def through(self, frame: DataFrame) -> DataFrame:
        """What happens to the records on their way."""
        return frame

    def run(self) -> StreamingQuery:
        """All that is there now."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(STREAM_DEADLINE_S), "the query did not end"
        return query

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = frame.collect()

    @property
    def values(self) -> list[int]:
        return sorted(int(row.value) for rows in list(self.batches.values()) for row in rows)

    def until_values(self, expected: Sequence[int], query: StreamingQuery) -> None:
        async def wait() -> None:
            def has_all() -> bool:
                assert query.isActive, query.exception()
                return len(self.values) >= len(expected)

            await until(has_all, f"{len(expected)} values", timeout_s=STREAM_DEADLINE_S)

        asyncio.run(wait())
        assert self.values == list(expected)

    def forget_commit(self, batch_id: int) -> None:
        """As a driver that was killed after the batch's work and before its commit."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
