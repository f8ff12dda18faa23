"""A Spark driver as a process: changes of PostgreSQL into a topic, until it is killed. Arguments: one JSON document."""

import json
import sys

from integration.spark_world import QUICK_JAVA

from barnabas.spark_connector.session import local_session


def main() -> None:
    given = json.loads(sys.argv[1])
    settings = {"spark.driver.extraJavaOptions": QUICK_JAVA, "spark.driver.memory": "512m"}
    spark = local_session("changes", cores=1, settings=settings)
    changes = spark.readStream.format("postgres-changes").options(**given["source"]).load()
    records = changes.selectExpr("table AS topic", "key", "value")
    writer = records.writeStream.format("barnabas").options(**given["sink"])
    writer.option("checkpointLocation", given["checkpoint"]).start().awaitTermination()


if __name__ == "__main__":
    main()
