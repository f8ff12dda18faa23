"""Spark with its own source and sink for Kafka: a session of its own, because their jars are given when a session starts.

`python -m integration.spark_kafka_driver SETTINGS FOLDER JARS`: SETTINGS is a file of JSON with the options of Kafka. Writes
records as a batch, reads them as a batch and as a stream in two runs with one checkpoint, and prints what it has found as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from barnabas.spark_connector.session import local_session

RECORDS = 200
TOPIC = "spark"
STREAM_S = 120


def _written(spark: SparkSession, options: dict[str, str], start: int) -> None:
    frame = spark.range(start, start + RECORDS).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    frame.write.format("kafka").options(**options).option("topic", TOPIC).save()


def _streamed(spark: SparkSession, options: dict[str, str], folder: Path) -> list[int]:
    """What is new since the last run."""
    found: list[int] = []

    def take(frame: DataFrame, _: int) -> None:
        found.extend(int(bytes(row.value)) for row in frame.collect())

    source = spark.readStream.format("kafka").options(**options).option("startingOffsets", "earliest")
    frame = source.option("subscribe", TOPIC).load().select("value")
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(STREAM_S), "the query did not end"
    return sorted(found)


def main(settings: str, folder: str, jars: str) -> None:
    options = json.loads(Path(settings).read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    spark = local_session("barnabas-kafka", settings={"spark.jars": jars, "spark.driver.memory": "1g"})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        _written(spark, options, 0)
        batch = spark.read.format("kafka").options(**options).option("subscribe", TOPIC).load()
        found["batch"] = sorted(int(bytes(row.value)) for row in batch.collect())
        found["first"] = _streamed(spark, options, Path(folder))
        _written(spark, options, RECORDS)
        found["second"] = _streamed(spark, options, Path(folder))
        found["plan"] = batch._jdf.queryExecution().toString()
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
