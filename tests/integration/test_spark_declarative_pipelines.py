"""Spark Declarative Pipelines (`spark-pipelines run`): their flows read a topic and write into another one, once per record."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from integration.cluster import Cluster, clean_environment
from integration.spark_world import QUICK_JAVA, create_topic, home_without_python, send
from integration.whole_topic import messages

pytest.importorskip("grpc", reason="spark-pipelines needs pip install 'pyspark[pipelines]'")
pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "scripts" / "pipelines" / "spark_pipelines"
RUN_LIMIT_S = 400
STATUSES = ("200", "404", "500", "301")
TOPIC = "requests-of-flows"  # the cluster is shared with other tests
LINE = '10.0.0.{} - - [29/Nov/2026:10:00:00 +0000] "GET /page/{} HTTP/1.1" {} 12 "-" "-"'


class _Pipeline:
    """The example with folders and brokers of a test."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder / "project"
        copytree(EXAMPLE, self._folder)
        spec = self._folder / "spark-pipeline.yml"
        self._written = folder / "all"
        text = spec.read_text().replace("file:///var/lib/requests/state", (folder / "state").as_uri())
        text = text.replace("access-log", TOPIC)
        spec.write_text(text.replace("/var/lib/requests/all", str(self._written)).replace("localhost:9092", bootstrap))
        self._home = home_without_python(folder)

    def run(self) -> None:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        environment = {**clean_environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(self._home)}
        environment["JDK_JAVA_OPTIONS"] = QUICK_JAVA  # also for the JVM that Python starts, which has the session
        output = self._folder / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                [Path(sys.executable).with_name("spark-pipelines"), *words, "run", "--spec", "spark-pipeline.yml"],
                cwd=self._folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env=environment,
            )  # fmt: skip
        try:
            assert process.wait(RUN_LIMIT_S) == 0, output.read_text()[-6_000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the launcher starts a JVM, which starts Python
            process.wait()

    def paths(self) -> list[str]:
        """Of the requests in the files that Spark has committed."""
        logs = sorted((self._written / "_spark_metadata").glob("[0-9]*"))
        lines = [line for log in logs for line in log.read_text().splitlines()[1:]]
        files = {unquote(urlsplit(json.loads(line)["path"]).path) for line in lines}
        return sorted(row["path"] for file in files for row in pq.read_table(file).to_pylist())


def test_flows_read_a_topic_and_write_each_record_once_over_two_runs(spark_cluster: Cluster, tmp_path: Path) -> None:
    for topic in (TOPIC, "failed-requests"):
        create_topic(spark_cluster, topic, partitions=2)
    pipeline = _Pipeline(tmp_path, spark_cluster.bootstrap)
    sent: list[str] = []
    for start in (0, 40):
        lines = [LINE.format(number, number, STATUSES[number % 4]) for number in range(start, start + 40)]
        send(spark_cluster, TOPIC, [line.encode() for line in lines])
        sent += lines
        pipeline.run()
        assert pipeline.paths() == sorted(line.split()[6] for line in sent)
    failed = [
        json.loads(item.value() or b"")["path"]
        for item in messages(spark_cluster.bootstrap, "failed-requests", partitions=2)
    ]
    assert sorted(failed) == sorted(line.split()[6] for line in sent if line.split()[8] >= "400")
