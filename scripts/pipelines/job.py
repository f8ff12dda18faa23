"""Shared by all pipelines: the command line, the source and the destination.

A pipeline is a function from DataFrame to DataFrame, and knows of neither streams nor batches. `--batch` makes the very same
function run once over history, `--available-now` as a stream that ends at the topic's present end, and nothing as a stream
that goes on until Ctrl-C. With `--checkpoint` a stream continues where it was.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from barnabas.spark_connector.session import local_session

FORMAT = "barnabas"


def command_line(description: str | None, *, topic: str, to: str = "console") -> argparse.ArgumentParser:
    """The options of all pipelines; `topic` is what is read by default, `to` where the result goes."""
    first_line = (description or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=first_line, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--bootstrap", default=os.environ.get("BARNABAS_BOOTSTRAP", "localhost:9092"), metavar="HOST:PORT[,...]"
    )
    parser.add_argument("--topic", default=topic, help="the topic to read, from its start")
    parser.add_argument("--to", default=to, metavar="topic:NAME | parquet:FOLDER | console", help="where results go")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--batch", action="store_true", help="process all existing records as a batch")
    how.add_argument("--available-now", action="store_true", help="as a stream that ends at the topic's present end")
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="where a stream keeps its position, to continue after a restart or kill -9",
    )
    parser.add_argument("--delivery", choices=("effectively_once", "at_least_once"), default="effectively_once")
    parser.add_argument("--max-records", type=int, metavar="N", help="maximum number of records of one micro-batch")
    parser.add_argument(
        "--trigger", metavar="INTERVAL", help='such as "5 seconds"; otherwise as soon as there are records'
    )
    parser.add_argument("--cores", type=int, default=2)
    return parser


def session(options: argparse.Namespace, name: str) -> SparkSession:
    return local_session(name, cores=options.cores, settings={"spark.log.level": "ERROR"})


def read(
    spark: SparkSession, options: argparse.Namespace, *, topic: str = "", columns: str = "value binary"
) -> DataFrame:
    """A topic, from its start. Only the columns that are named are decoded."""
    source = (spark.read if options.batch else spark.readStream).format(FORMAT).schema(columns)
    source = source.option("bootstrap.servers", options.bootstrap).option("subscribe", topic or options.topic)
    source = source.option("startingOffsets", "earliest")
    if options.max_records and not options.batch:
        source = source.option("maxOffsetsPerTrigger", str(options.max_records))
    return source.load()


def write(
    result: DataFrame,
    options: argparse.Namespace,
    *,
    key: str | None = None,
    mode: str = "append",
    is_records: bool = False,
) -> StreamingQuery | None:
    """Send the result where `--to` says; to a topic as JSON with the column `key` as the record's key, unless it is records.

    Returns the query of a stream, or None after a batch. `mode` is Spark's output mode of a stream.
    """
    kind, _, name = options.to.partition(":")
    if kind not in ("topic", "parquet", "console") or (kind == "console") == bool(name):
        raise SystemExit(f"--to {options.to}: write it as topic:NAME, parquet:FOLDER or console")
    checkpoint = {"checkpointLocation": options.checkpoint} if options.checkpoint and not options.batch else {}
    settings = dict(checkpoint)
    match kind:
        case "topic":
            result = result if is_records else as_records(result, key)
            settings |= {"bootstrap.servers": options.bootstrap, "topic": name, "delivery": options.delivery}
        case "parquet":
            settings |= {"path": name}
        case "console":
            settings |= {"truncate": "false"}
    sink = FORMAT if kind == "topic" else kind
    if options.batch:
        if kind == "console":
            result.show(truncate=False)
        else:
            result.write.format(sink).options(**settings).mode("append").save()
        return None
    stream = result.writeStream.outputMode(mode)
    if kind == "topic" and mode == "update":
        stream = stream.foreachBatch(updates_into(settings)).options(**checkpoint)
    else:
        stream = stream.format(sink).options(**settings)
    return triggered(stream, options).start()


def updates_into(settings: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """Spark refuses output mode update to sinks of Python. Batch by batch they take it, as exactly, by the query's id."""

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format(FORMAT).options(**settings).mode("append")
        if settings["delivery"] == "effectively_once":
            query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            assert query_id is not None, "foreachBatch runs in the query's thread"
            writer = writer.option("sinkId", query_id).option("batchId", str(batch_id))
        writer.save()

    return write_batch


def triggered(writer, options: argparse.Namespace):  # type: ignore[no-untyped-def]
    """With the trigger that the command line asks for."""
    if options.available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=options.trigger) if options.trigger else writer


def as_records(result: DataFrame, key: str | None) -> DataFrame:
    """A row as a record: its columns as JSON, one of them as the key."""
    value = F.to_json(F.struct("*")).alias("value")
    return result.select(value) if key is None else result.select(F.col(key).cast("string").alias("key"), value)


def finish(queries: Sequence[StreamingQuery | None]) -> int:
    """Wait for the end of all; Ctrl-C is one. What a query died of is raised here."""
    try:
        for query in queries:
            if query is not None:
                query.awaitTermination()
    except KeyboardInterrupt:
        for query in queries:
            if query is not None:
                query.stop()
    return 0
