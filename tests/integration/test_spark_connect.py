"""Spark Connect: a client without a JVM, whose session is in a server, reads and writes topics as a batch and as a stream."""

import subprocess
import sys
from pathlib import Path

import pytest
from integration.cluster import Cluster, clean_environment
from integration.spark_daemons import connect_server
from integration.spark_world import create_topic, numbers, send
from integration.whole_topic import messages

pytest.importorskip("grpc", reason="a client of Spark Connect needs pip install 'pyspark[connect]'")
pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 240
RECORDS = 300
CLIENT = """
import sys
from pyspark.sql import SparkSession

address, brokers, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
common = {"bootstrap.servers": brokers}
rows = spark.read.format("barnabas").options(**common, subscribe="remote-in").load()
print("read", rows.count())
rows.where("offset < 10").select("value").write.format("barnabas").options(**common, topic="remote-batch").mode("append").save()
stream = spark.readStream.format("barnabas").options(**common, subscribe="remote-in", startingOffsets="earliest").load()
writer = stream.select("value").writeStream.format("barnabas").options(**common, topic="remote-out", delivery="effectively_once")
for _ in range(2):
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
try:
    spark.read.format("barnabas").options(**common, subscribe="remote-in", startingOfsets="earliest").load().count()
except Exception as error:
    print("refused", "did you mean startingOffsets" in str(error))
spark.stop()
"""


def test_a_client_without_a_jvm_reads_and_writes(spark_cluster: Cluster, tmp_path: Path) -> None:
    for topic in ("remote-in", "remote-batch", "remote-out"):
        create_topic(spark_cluster, topic, partitions=2)
    send(spark_cluster, "remote-in", numbers(0, RECORDS))
    with connect_server(tmp_path) as (address, _):
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, address, spark_cluster.bootstrap, str(tmp_path / "checkpoint")],
            capture_output=True, text=True, timeout=DEADLINE_S, env=clean_environment(), check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.splitlines()[-2:] == [f"read {RECORDS}", "refused True"], done.stdout + done.stderr[-3_000:]
    found = messages(spark_cluster.bootstrap, "remote-out", partitions=2)
    assert sorted(int(item.value() or b"") for item in found) == list(range(RECORDS)), "each record once, over two runs"
    copied = sorted(
        int(item.value() or b"") for item in messages(spark_cluster.bootstrap, "remote-batch", partitions=2)
    )
    assert 0 < len(copied) <= 20 and len(set(copied)) == len(copied)
