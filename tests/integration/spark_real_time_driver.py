"""Spark's real-time mode from topic to topic, by Spark's own source and sink for Kafka, until stdin ends.

`python -m integration.spark_real_time_driver BOOTSTRAP FROM TO FOLDER JARS` prints "started" and, at the end, the number of
micro-batches that had ended by then.
"""

import sys

from barnabas.spark_connector.session import local_session

BATCH = "5 minutes"  # longer than the test: what arrives in the other topic has not waited for its end


def main(bootstrap: str, source: str, target: str, folder: str, jars: str) -> None:
    spark = local_session("barnabas-real-time", settings={"spark.jars": jars, "spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = frame.selectExpr("key", "concat('seen ', CAST(value AS STRING)) AS value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer = writer.option("checkpointLocation", folder).outputMode("update")
    query = writer.trigger(realTime=BATCH).start()  # type: ignore[call-overload]  # PySpark's own types do not know it yet
    try:
        print("started", flush=True)
        sys.stdin.read()
        if (error := query.exception()) is not None:
            raise error
        print(len(query.recentProgress), flush=True)
    finally:
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
