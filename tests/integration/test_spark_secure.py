"""Spark reads from and writes to a cluster with TLS and logins; the password is in no plan."""

from collections.abc import Iterator

import pytest
from integration.cluster import SESSION, Cluster
from integration.spark_world import FORMAT
from pyspark.sql import SparkSession

from barnabas.net.local_cluster import CLIENT_PROPERTIES
from barnabas.net.settings.properties import parse_properties

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("spark-secure") / "c", 1, overrides=SESSION, secure=True) as started:
        yield started


def test_a_batch_is_written_and_read_through_tls_after_a_login(spark: SparkSession, secure: Cluster) -> None:
    file = parse_properties((secure.folder / CLIENT_PROPERTIES).read_text(encoding="utf-8"))
    options = {"kafka." + key: text for key, text in file.items()}
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format(FORMAT).options(**options).option("topic", "secure").mode("append").save()
    found = spark.read.format(FORMAT).options(**options).option("subscribe", "secure").load()
    assert sorted(int(bytes(row.value)) for row in found.collect()) == list(range(100))
    plan = found._jdf.queryExecution().toString()
    assert secure.login["sasl_plain_password"] not in plan
