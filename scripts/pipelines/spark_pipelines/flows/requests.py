"""Lines of a web server's log in a topic: all requests go to Parquet files, and those that failed to another topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.getActiveSession()
assert spark is not None, "spark-pipelines gives a session"
BROKERS = {"bootstrap.servers": spark.conf.get("requests.bootstrap")}
TOPIC = spark.conf.get("requests.topic")
LINE = r'^(\S+) \S+ \S+ \[[^\]]+\] "(\S+) (\S+)[^"]*" (\d{3})'

dp.create_sink("all_requests", "parquet", {"path": spark.conf.get("requests.folder")})
dp.create_sink("failed_requests", "barnabas", {**BROKERS, "topic": "failed-requests", "delivery": "effectively_once"})


def requests() -> DataFrame:
    """No temporary view: flows that share one share its plan, too, and Spark's threads change it at the same time."""
    records = spark.readStream.format("barnabas").options(**BROKERS, subscribe=TOPIC, startingOffsets="earliest")
    line = F.col("value").cast("string")
    columns = [
        F.regexp_extract(line, LINE, at + 1).alias(name)
        for at, name in enumerate(("client", "method", "path", "status"))
    ]
    return records.load().select(*columns).where("status != ''")


@dp.append_flow(target="all_requests")
def every_request() -> DataFrame:
    return requests()


@dp.append_flow(target="failed_requests")
def failed_request() -> DataFrame:
    failed = requests().where("status >= '400'")
    return failed.selectExpr("path AS key", "to_json(struct(*)) AS value")
